"""No token is printed or written: URLs with credentials, known formats, values of secret variables."""

from dataclasses import replace

import pytest

from pytest_perfdl.model.secrets import clean, is_secret_name, without_secrets
from pytest_perfdl.model.visible import harmless
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
    "eyJ" + "hbGciOiJ" + "." + "eyJ" + "zdWIiOiIx" + "." + "c2lnbmF0dXJl",
]
URLS = [
    "https://user:t0ken@github.com/a/b.git",
    "https://t0ken@github.com/a/b",
    "http://x-access-token:t0ken@host:8080/a",
    "ssh://git:t0ken@host/a",
    "s3://key:t0ken@bucket/a",
    "git+https://t0ken@host/a@v1",
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
    assert found == around.format(url.replace(url.partition("://")[2].partition("@")[0], "***"))


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
    ],
)
def test_other_text_stays(text):
    environ = {
        "GITHUB_TOKEN": "",
        "MY_SECRET": "tests",
        "A_TOKEN": "test_step_bf16",
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
