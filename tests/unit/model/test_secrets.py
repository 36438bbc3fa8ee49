"""No token is printed or written: URLs with credentials, known formats, values of secret variables."""

from dataclasses import replace

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.visible import clean, harmless, is_secret_name, without_secrets
from unit.report import runs

# Made up, and put together here so that no scanner takes them for real ones.
VALUE = "s3cr3t" + "V4lue" + "0123456789"
TOKENS = [
    "ghp_" + "a1" * 18,
    "gho_" + "a1" * 18,
    "ghs_" + "a1" * 18,
    "github_pat_" + "a1_b2" * 10,
    "hf_" + "aB" * 17,
    "glpat-" + "a1-_" * 5,
    "AKIA" + "ABCD1234" * 2,
    "ASIA" + "ABCD1234" * 2,
    "xoxb-" + "12345-abcde",
    "sk-" + "a1" * 20,
    "pypi-" + "AgEI" * 8,
    "npm_" + "aB1" * 12,
    "glcbt-" + "64_" + "a1" * 10,
    "AIza" + "Sy-_1" * 7,
    "eyJ" + "hbGciOiJ" + "." + "eyJ" + "zdWIiOiIx" + "." + "c2lnbmF0dXJl",
]
URLS = [
    "https://user:t0ken@github.com/a/b.git",
    "https://t0ken@github.com/a/b",
    "http://x-access-token:t0ken@host:8080/a",
    "ssh://git:t0ken@host/a",
    "s3://key:t0ken@bucket/a",
    "git+https://t0ken@host/a@v1",
    "https://user:t0ken@t0ken@host/a",
]
# What stands around a secret: how HTTP and services write it.
FORMS = [
    "Authorization: Bearer {}",
    "authorization: basic {}",
    "http.https://github.com/.extraheader=AUTHORIZATION: basic {}",
    '{{"Authorization": "token {}"}}',
    "curl -H 'Bearer {}'",
    "https://host/a?access_token={}",
    "https://host/a?b=1&private_token={}&c=2",
    "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={}",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential={}&X-Amz-Date=1",
    "https://a.blob.core.windows.net/c/b?sv=2022&sig={}",
    "https://storage.googleapis.com/b/o?X-Goog-Signature={}",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n{}",
]
NAMES = [
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "ACTIONS_RUNTIME_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "WANDB_API_KEY",
    "DB_PASSWORD",
    "NPM_AUTH",
    "AZURE_CREDENTIALS",
    "CI_JOB_TOKEN",
    "SIGNING_KEY",
    "SSH_DEPLOY_KEY",
]
AROUND = ["{}", "error: {}", "a {} b", '{{"url": "{}"}}', "'{}',", "x\n{}\ny", "({})"]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:5])
def test_known_formats(token, around):
    assert token not in without_secrets(around.format(token), {})
    assert "***" in without_secrets(around.format(token), {})


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("url", URLS)
def test_credentials_in_urls(url, around):
    found = without_secrets(around.format(url), {})
    assert "t0ken" not in found
    credentials = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    assert found == around.format(url.replace(credentials, "***"))


@pytest.mark.parametrize("form", FORMS)
def test_headers_parameters_and_keys(form):
    found = without_secrets(form.format("t0kenT0kenT0ken+/="), {})
    assert "t0ken" not in found
    assert "***" in found


@pytest.mark.parametrize(
    "value", ["12345678", "123456789012345", "p4ss-w0rd", "aXdFsGhTq", "correct horse?", "a/b+c=d12"]
)
def test_any_value_but_words_is_a_secret(value):
    for around in AROUND:
        assert without_secrets(around.format(value), {"DB_PASSWORD": value}) == around.format("***")


def test_a_short_value_is_a_word_of_its_own():
    """A commit, a number or a name that contains it by chance is none."""
    text = "123456789 a12345678 cab12345678fe 12345678b"
    assert without_secrets(text, {"DB_PASSWORD": "12345678"}) == text


@pytest.mark.parametrize("name", NAMES)
def test_values_of_secret_variables(name):
    assert is_secret_name(name)
    for around in AROUND:
        assert VALUE not in without_secrets(around.format(VALUE), {name: VALUE})


@pytest.mark.parametrize(
    "text",
    [
        "tests/test_gpt.py::test_step[bf16-8]",
        "https://github.com/a/b/blob/main/x.py#L3",
        "docs@example.com waived https://example.com/a@b",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "sk-learn, task-based-a1, hf_model, ghp_short, AKIA",
        "cpu-amd-epyc-9v74-8c",
        "3f2c1ab" * 5,
        "tests/test_a.py::test_step[tokens=8192-sig=4]",
        "https://example.com/docs?page=2&tokens=8192#basic usage of authorization",
        "basic blocks and bearer bonds",
        "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, std::array<char*, 3ul> >",
        "triton_poi_fused_add_mul_0; sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3",
        "meta-llama/Llama-2-7b, 8192 tokens, postgres, production",
        "3f2c1abf9d0c77" + "0" * 26,
    ],
)
def test_other_text_stays(text):
    environ = {
        "GITHUB_TOKEN": "",
        "MY_SECRET": "tests",
        "A_TOKEN": "test_step_bf16",
        "DB_PASSWORD": "postgres",
        "SECRET_STAGE": "production",
        "MAX_TOKENS": "81928192",
        "TOKENIZER_NAME": "meta-llama/Llama-2-7b",
        "CACHE_KEY": "cpu-amd-epyc-9v74-8c",
        "GIT_AUTHOR_NAME": "test_gpt.py::test_step1",
        "SSH_AUTH_SOCK": "/tmp/ssh-a1b2c3/agent.12345",
    }
    assert without_secrets(text, environ) == text
    assert without_secrets("/tmp/ssh-a1b2c3/agent.12345", environ) == "/tmp/ssh-a1b2c3/agent.12345"


def test_one_secret_that_contains_another():
    environ = {"A_TOKEN": VALUE, "B_TOKEN": f"{VALUE}99"}
    assert without_secrets(f"{VALUE}99 {VALUE}", environ) == "*** ***"


def test_a_run_without_secrets_is_the_same_object_and_one_with_some_has_none():
    run = runs.run(*runs.each_verdict(), runs.hostile())
    assert clean(run, {}) is run
    leaking = replace(
        run,
        notes=(f"git said https://u:{VALUE}@host/a",),
        context={"flags": VALUE},
        results=(runs.result(reason=f"failed: {VALUE}", context_changes=((VALUE, "a", "b"),)), *run.results),
    )
    assert VALUE in repr(leaking)
    found = clean(leaking, {"HF_TOKEN": VALUE})
    assert VALUE not in repr(found)
    assert found.results[1:] == run.results
    assert found.notes == ("git said https://***@host/a",)


def test_what_is_printed_has_none():
    assert harmless(f"a https://u:{VALUE}@host/b") == "a https://***@host/b"


def test_no_baseline_has_one(tmp_path):
    """Neither in a note nor in a test's parameter, which its file would be named after."""
    store = Store(tmp_path, "baselines")
    record = runs.record(runs.GPT)
    (path,) = store.save(replace(record, note=f"with {TOKENS[0]}"), {})
    assert "with ***" in path.read_text()
    with pytest.raises(
        BaselineError, match=r"test_step\[\*\*\*\] was not written: the test's id contains a secret"
    ) as raised:
        store.save(replace(record, test=f"tests/test_a.py::test_step[{TOKENS[0]}]"), {})
    assert TOKENS[0] not in str(raised.value)
    assert [file.name for file in tmp_path.rglob("*.json")] == [path.name]
