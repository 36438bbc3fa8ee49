"""Benchmarks of a file share processes: cases of one test, each of which passes or fails for itself."""

import json
import re

import pytest
from plugin.project import NOT_JUDGED, Project, commit, make_repository

pytestmark = pytest.mark.long

OPS = """
SLOWER = {slower}

def work(name, size=100):
    return sum(range(size * (3 if name in SLOWER else 1)))
"""
SPEED = """
import pytest
from package.ops import work

with open("log.txt", "a") as log:
    log.write("imported\\n")


@pytest.fixture(scope="module", params=["a", "b"])
def wide(request):
    with open("log.txt", "a") as log:
        log.write(f"wide {request.param}\\n")
    return request.param


@pytest.mark.parametrize("size", [1000, 2000])
def test_wide(benchmark, wide, size):
    assert benchmark(work, wide, size) >= 0


class TestClass:
    def test_pedantic(self, benchmark):
        calls = []
        benchmark.pedantic(lambda: calls.append(work("pedantic", 3000)), rounds=12, warmup_rounds=2)
        assert len(calls) == 14

    def test_statistics(self, benchmark):
        benchmark(work, "statistics", 1000)
        assert benchmark.stats["mean"] > 0


def test_plain():
    assert True
"""
CASES = {
    *(f"test_wide[{wide}-{size}]" for wide in "ab" for size in (1000, 2000)),
    *("TestClass::test_pedantic", "TestClass::test_statistics"),
}
WIDE = "--perf-limit=case_time:100%", "--perf-limit=group_time:off"
"""No slowdown of a busy machine is past it, as a rule; what is planted is."""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    made = Project(tmp_path_factory.mktemp("shared") / "project", "pythonpath = src", "perf_benchmarks = true")
    make_repository(made.root)
    made.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\nlog.txt\n")
    made.write("src/package/__init__.py", "")
    made.write("src/package/ops.py", OPS.format(slower="()"))
    made.write("tests/test_speed.py", SPEED)
    commit(made, "code")
    return made


@pytest.fixture
def project(template, tmp_path):
    copy = Project(tmp_path / "project", "pythonpath = src", "perf_benchmarks = true")
    copy.copy(template.root)
    return copy


def found(project, *options, **env):
    """The finished run, and the test of the whole file as the run file has it."""
    finished = project.run("--perf", "--perf-json=run.json", "-rA", *options, **env)
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    return finished, test


def outcomes(finished):
    """Outcome of each test by its name in the file, as pytest's short summary has it."""
    found = (re.match(r"([A-Z ]+) tests/test_speed.py::(\S+)", line) for line in finished.lines)
    return {each[2]: each[1] for each in found if each}


def test_one_process_runs_all_of_them_with_their_fixtures(project):
    finished, test = found(project, *NOT_JUDGED, "--perf-repeats=1")
    assert finished.code == 0, finished.output
    assert test["id"] == "tests/test_speed.py::benchmarks"
    assert outcomes(finished) == dict.fromkeys({*CASES, "benchmarks", "test_plain"}, "PASSED")
    log = (project.root / "log.txt").read_text().splitlines()
    # pytest's own process and the one that measures; a second time for what the calls run.
    assert log.count("imported") == 2
    assert log.count("wide a") == log.count("wide b") == 2


def test_a_slower_one_fails_and_no_other(project):
    project.write("src/package/ops.py", OPS.format(slower='("statistics",)'))
    finished, test = found(project, *WIDE, "--perf-against=HEAD")
    assert finished.code == 1, finished.output
    assert {case["id"]: case["verdict"] for case in test["cases"]}["TestClass::test_statistics"] == "regressed"
    said = outcomes(finished)
    assert said == {
        **dict.fromkeys({*CASES, "test_plain"}, "PASSED"),
        "benchmarks": "PERF REGRESSED",
        "TestClass::test_statistics": "FAILED",
    }
    assert finished.line("tests/test_speed.py::benchmarks has the report").startswith("regressed: +")


def test_a_baseline_holds_them_one_by_one(project):
    recorded, _ = found(project, "--perf-update")
    assert recorded.code == 0, recorded.output
    lines = project.baseline("benchmarks").read_text().splitlines()
    stored = [json.loads(line.strip().rstrip(",")) for line in lines if '"id"' in line]
    assert {case["id"] for case in stored} == CASES
    assert len({case["definition"] for case in stored}) == len(CASES)
    commit(project, "baseline")
    changed = SPEED.replace('benchmark(work, "statistics", 1000)', 'benchmark(work, "statistics", 9000)')
    project.write("tests/test_speed.py", changed + "\n\ndef test_new(benchmark):\n    benchmark(work, 'new', 1000)\n")
    finished, test = found(project, *WIDE)
    assert finished.code == 0, finished.output
    verdicts = {case["id"]: case["verdict"] for case in test["cases"]}
    assert verdicts["TestClass::test_statistics"] == verdicts["test_new"] == "new"
    assert set(verdicts.values()) <= {"new", "unchanged", "inconclusive"}
    said = json.dumps(test)
    assert "1 case defined otherwise in the baseline, not compared: TestClass::test_statistics" in said
    assert "1 case not in the baseline, not compared: test_new" in said


FEW = """
from package.ops import work

def test_a(benchmark):
    benchmark(work, "a", 1000)

def test_b(benchmark):
    benchmark(work, "b", 1000)
"""


def test_an_update_of_some_of_them_keeps_the_others(project):
    def update(mode, *options):
        commit(project, "code, and the baseline of another update")
        finished = project.run(f"--perf-update={mode}", "--perf-calibrate=off", *NOT_JUDGED, *options)
        assert finished.code == 0, finished.output
        (call,) = json.loads(project.baseline("benchmarks").read_text())["calls"]
        assert call["metrics"]["cases"]["values"] == [len(call["cases"])] * len(call["profiled_ns"])
        return {case["id"]: case["ns"] for case in call["cases"]}

    project.write("tests/test_speed.py", FEW)
    first = update("all")
    appended = update("append")
    assert {name: len(ns) for name, ns in appended.items()} == {"test_a": 2, "test_b": 2}
    assert {name: ns[:1] for name, ns in appended.items()} == first
    project.write("tests/test_speed.py", FEW + FEW.replace("test_a", "test_c").replace("test_b", "test_d"))
    added = update("changed", "-k", "test_c")
    assert {name: len(ns) for name, ns in added.items()} == {"test_a": 2, "test_b": 2, "test_c": 2}
    assert added.items() >= appended.items()
    again = update("all", "-k", "test_a")
    assert again.keys() == added.keys()
    assert all(again[name] == added[name] for name in ("test_b", "test_c"))
    # What the file has no more is gone with a run of all of it.
    project.write("tests/test_speed.py", FEW)
    assert {name: len(ns) for name, ns in update("all").items()} == {"test_a": 1, "test_b": 1}


FAILING = """
import pytest
from package.ops import work


def test_good(benchmark):
    benchmark(work, "good", 1000)


def test_body(benchmark):
    print("printed by the body")
    assert benchmark(work, "body", 1000) == -1


def test_call(benchmark):
    benchmark(lambda: 1 / 0)


def test_raises(benchmark):
    with pytest.raises(ZeroDivisionError):
        benchmark(lambda: 1 / 0)


@pytest.fixture
def broken():
    raise RuntimeError("the fixture is broken")


def test_setup(benchmark, broken):
    benchmark(work, "setup", 1000)


@pytest.fixture
def leaves():
    yield
    raise RuntimeError("the teardown is broken")


def test_teardown(benchmark, leaves):
    benchmark(work, "teardown", 1000)


def test_skipped(benchmark):
    pytest.skip("not here")


@pytest.mark.xfail(strict=True)
def test_expected(benchmark):
    assert benchmark(work, "expected", 1000) == -1


def test_nothing(benchmark):
    pass


def test_short(benchmark):
    benchmark(len, "")


def test_generator(benchmark):
    benchmark(lambda: (each for each in range(3)))


def test_dies(benchmark):
    import os

    benchmark(lambda: os._exit(3))
"""


def test_each_fails_for_itself_as_it_would_alone(project):
    project.write("tests/test_speed.py", FAILING)
    finished, test = found(project, *NOT_JUDGED, "--perf-repeats=1")
    assert finished.code == 1
    assert outcomes(finished) == {
        **dict.fromkeys(("benchmarks", "test_good", "test_raises", "test_nothing", "test_short"), "PASSED"),
        **dict.fromkeys(("test_body", "test_call", "test_generator", "test_dies"), "FAILED"),
        "test_setup": "ERROR",
        # Its call passed.
        "test_teardown": "ERROR",
        "test_expected": "XFAIL",
    }
    said = {name: f"the case {name} was not measured" in json.dumps(test) for name in outcomes(finished)}
    assert {name for name, failed in said.items() if not failed} == {"benchmarks", "test_good"}
    assert "the case test_short was not measured: a call takes" in json.dumps(test)
    assert "the case test_skipped was not measured: the test skipped: not here" in json.dumps(test)
    assert "printed by the body" in finished.output
    assert "the fixture is broken" in finished.output
    assert "1 skipped" in finished.summary()
    assert "exited with code 3" in finished.output


@pytest.mark.parametrize(
    ("marker", "ini"),
    [("@pytest.mark.perf(shared=False)\n", ""), ("@pytest.mark.perf(steps=4)\n", ""), ("", "perf_shared = false")],
)
def test_some_are_measured_by_themselves(project, marker, ini):
    project.ini("pythonpath = src", "perf_benchmarks = true", ini)
    body = "def test_alone(benchmark):\n    benchmark(work, 'x', 1000)\n"
    project.write("tests/test_speed.py", f"import pytest\nfrom package.ops import work\n\n{marker}{body}")
    _, test = found(project, *NOT_JUDGED, "--perf-repeats=1")
    assert test["id"] == "tests/test_speed.py::test_alone"
    assert "step_time" in test["metrics"]


def test_a_file_whose_tests_measure_nothing_is_not_measured(project):
    project.write("tests/test_speed.py", "def test_nothing(benchmark):\n    pass\n")
    finished, test = found(project)
    assert finished.code == 0, finished.output
    assert outcomes(finished) == {"benchmarks": "PASSED", "test_nothing": "PASSED"}
    assert (test["verdict"], test["reason"]) == ("unmeasured", "none of the tests measured anything")


def test_the_tests_of_a_file_are_measured_in_one_shard(project):
    for name in ("test_speed", "test_other", "test_third"):
        project.write(f"tests/{name}.py", SPEED)
    shards = []
    for number in (1, 2):
        listed = project.run("--perf", f"--perf-shard={number}/2", "--collect-only", "-q", "--no-summary").lines
        shards.append({line for line in listed if "::" in line and "test_plain" not in line})
    assert not shards[0] & shards[1]
    files = [{line.partition("::")[0] for line in shard} for shard in shards]
    assert not files[0] & files[1]
    assert sorted(map(len, files)) == [1, 2]
    assert {line.partition("::")[2] for line in shards[0] | shards[1]} == {*CASES, "benchmarks"}
