"""Paths of baselines: readable, safe on every file system, and never shared."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.baseline.files import baseline_path, exemplar_path, key_folder, may_be_exemplar

FOLDER = Path("baselines")
KEY = "cpu-amd-epyc-9v74-25.17.1-avx512-8c-1t"
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(10))}


def path(node_id, key=KEY):
    return baseline_path(FOLDER, key, node_id).relative_to(FOLDER).as_posix()


@pytest.mark.parametrize("node_id, expected", [
    ("tests/perf/test_gpt.py::test_train_step[bf16]", "tests/perf/test_gpt/test_train_step[bf16].json"),
    ("test_gpt.py::test_step", "test_gpt/test_step.json"),
    ("t/test_a.py::test_b[1e-3,x=2+y]", "t/test_a/test_b[1e-3,x=2+y].json"),
    ("t/test_a.py::test_b[v1.2-a::b]", "t/test_a/test_b[v1.2-a%3A%3Ab].json"),
    ("t/test_a.py::test_b[a/b\\c d%]", "t/test_a/test_b[a%2Fb%5Cc%20d%25].json"),
    ("t/test_a.py::test_b[ü]", "t/test_a/test_b[%C3%BC].json"),
    ("t/test_a.py::test_b[<>:\"|?*]", "t/test_a/test_b[%3C%3E%3A%22%7C%3F%2A].json"),
    ("t/v1.2/test_a.py::b", "t/v1%2E2/test_a/b.json"),
    ("../other/test_a.py::b", "%2E%2E/other/test_a/b.json"),
    ("/abs//test_a.py::b", "%/abs/%/test_a/b.json"),
    ("t/spec.yaml::case 1", "t/spec%2Eyaml%/case%201.json"),
    ("t/aux.py::con", "t/%61ux/%63on.json"),
    ("t/a.py::nul::test_b", "t/a/%6Eul.test_b.json"),
    ("t/a.py::nullable", "t/a/nullable.json"),
    ("t/a.py::com1[x.y]", "t/a/com1[x.y].json"),
])  # fmt: skip
def test_paths_are_readable_and_every_other_byte_is_escaped(node_id, expected):
    assert path(node_id) == f"{KEY}/{expected}"


def test_an_upper_case_letter_puts_a_digest_behind_the_name():
    # printf %s 't/a.py::TestStep::test_b' | sha256sum
    assert path("t/a.py::TestStep::test_b") == f"{KEY}/t/a/TestStep.test_b~99a95817c17508b9.json"


@pytest.mark.parametrize("first, second", [
    ("t/a.py::Test::b", "t/a.py::test::b"),
    ("t/a.py::Test::b", "t/a.py::TEST::b"),
    ("t/A.py::b", "t/a.py::b"),
    ("T/a.py::b", "t/a.py::b"),
    ("t/a.py::b[X]", "t/a.py::b[x]"),
    ("t/a.py::b[%2f]", "t/a.py::b[/]"),
    ("t/a.py::b::c", "t/a.py::b.c"),
    ("t/a.py::b[c::d]", "t/a.py::b[c.d]"),
    ("t/a.py::b", "t/a::b"),
    ("t/a.b.py::c", "t/a/b.py::c"),
    ("t/a.b.py::c", "t/a.b::c"),
    ("t/a%.py::c", "t/a::c"),
    ("t//a.py::c", "t/a.py::c"),
    ("t/./a.py::c", "t/a.py::c"),
    ("t/a.py::" + "x" * 300, "t/a.py::" + "x" * 301),
    ("t/a.py::" + "x" * 300 + "[A]", "t/a.py::" + "x" * 300 + "[a]"),
    ("t/a.py::b~99a95817c17508b9", "t/a.py::b"),
])  # fmt: skip
def test_different_tests_have_different_paths_even_without_case(first, second):
    assert path(first).casefold() != path(second).casefold()


def test_keys_that_differ_in_case_alone_are_two_folders():
    assert key_folder(FOLDER, "CPU").name.casefold() != key_folder(FOLDER, "cpu").name.casefold()
    assert key_folder(FOLDER, "..").name == "%2E%2E"
    assert key_folder(FOLDER, "a.").name == "a%2E"


@pytest.mark.parametrize("node_id", ["t/a.py", "::b", "t/a.py::", ""])
def test_what_is_no_test_has_no_path(node_id):
    with pytest.raises(ValueError, match="is not the node id of a test"):
        path(node_id)


TEXT = st.text(st.sampled_from("aAbB01._-~%/\\:[] ü😀\x00\n") | st.characters(), min_size=1, max_size=12)
NODE = st.builds(
    lambda folders, file, suffix, names, params: "/".join([*folders, file]) + suffix + "::" + "::".join(names) + params,
    st.lists(TEXT, max_size=2),
    TEXT,
    st.sampled_from([".py", ""]),
    st.lists(TEXT, min_size=1, max_size=3),
    st.just("") | TEXT.map(lambda text: f"[{text}]"),
)


@given(NODE, NODE)
def test_no_two_node_ids_share_a_path(first, second):
    if first != second:
        assert path(first).casefold() != path(second).casefold()


@given(
    NODE.flatmap(lambda node: st.tuples(st.just(node), st.sampled_from([node.upper(), node.lower(), node.swapcase()])))
)
def test_no_two_node_ids_that_differ_in_case_share_a_path(pair):
    first, second = pair
    if first != second and second.partition("::")[0]:
        assert path(first).casefold() != path(second).casefold()


@given(NODE, st.sampled_from([1, 30, 90]), TEXT)
def test_every_name_is_one_that_every_file_system_takes(node_id, times, call):
    file, _, rest = node_id.partition("::")
    node_id = file * times + "::" + rest * times
    record = baseline_path(FOLDER, KEY, node_id)
    for name in (*record.relative_to(FOLDER).parts, exemplar_path(record, call).name, exemplar_path(record, "").name):
        assert len(name.encode()) <= 255
        assert set(name) <= set(string.ascii_letters + string.digits + "_-.[]=,+%~")
        assert name.partition(".")[0].lower() not in RESERVED
        assert not name.endswith(".")
        assert name.strip(".")


def test_exemplars_lie_beside_their_record():
    record = baseline_path(FOLDER, "cpu", "t/a.py::b[x.y]")
    assert exemplar_path(record, "").as_posix() == "baselines/cpu/t/a/b[x.y].trace.json.gz"
    assert exemplar_path(record, "fwd").name == "b[x.y].fwd.trace.json.gz"
    assert exemplar_path(record, "fwd.1/é").name == "b[x.y].fwd%2E1%2F%C3%A9.trace.json.gz"
    names = {exemplar_path(record, call).name.casefold() for call in ("", "a", "A", "a" * 99, "a" * 100)}
    assert len(names) == 5


@pytest.mark.parametrize("name, its", [
    ("b[x.y].trace.json.gz", True),
    ("b[x.y].fwd.trace.json.gz", True),
    ("b[x.y].json", False),
    ("b[x.y]z.trace.json.gz", False),
    ("b[x.y].a.b.trace.json.gz", False),
    ("bx.trace.json.gz", False),
    ("b[x.y]", False),
])  # fmt: skip
def test_what_may_be_an_exemplar_of_a_record(name, its):
    assert may_be_exemplar(name, Path("b[x.y].json")) is its
