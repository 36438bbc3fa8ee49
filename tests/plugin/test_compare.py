"""`perf.compare`: an expectation on two alternatives, judged after the test's body in pairs of processes."""

from __future__ import annotations

import json

import pytest
from plugin.project import SHORT, Project

SUITE = """
import time

import pytest

def loop():
    time.sleep(0.03)

def built_in():
    time.sleep(0.003)

def test_faster(perf):
    perf.compare(loop, built_in).assert_faster(by="10%")

def test_not_slower(perf):
    perf.compare(built_in, loop, name="loop").assert_not_slower(within="5%")

def test_with_setup(perf):
    seen = []
    perf.compare(seen.append, seen.extend, [1], setup=seen.clear, reset=seen.clear).assert_not_slower(within="900%")
    assert seen in ([1], [[1]])
"""


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project", "perf_budget = 1")
    made.write("test_compare.py", SUITE)
    return made


def test_without_perf_both_run_once(project):
    project.write(
        "test_more.py",
        """
        def test_order(perf):
            calls = []
            perf.compare(calls.append, lambda item: calls.append(-item), 3).assert_faster(by="1%")
            assert calls == [3, -3]
        """,
    )
    done = project.run()
    assert done.code == 0, done.output
    assert "4 perf tests ran once" in done.output


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("perf.compare(int, str)", "perf.compare(...) without an assertion: add .assert_faster(by=...)"),
        (
            "perf.compare(int, str).assert_faster(by='fast')",
            "by='fast': limit of step_time: 'fast' is not a valid limit",
        ),
        ("perf.compare(int, str).assert_faster(by='100%')", "by='100%': expected a percentage such as '10%'"),
        ("perf.compare(int, str).assert_faster(by='5us')", "by='5us': expected a percentage such as '10%'"),
        ("perf.compare(int, str).assert_not_slower(within='off')", "within='off': expected a percentage such as '10%'"),
        (
            "[perf.compare(int, str).assert_not_slower(within='3%') for _ in 'ab']",
            "give them different names with name=",
        ),
    ],
    ids=["nothing", "words", "all", "time", "off", "twice"],
)
def test_wrong_usage_is_one_line(project, body, message):
    project.write("test_compare.py", f"def test_wrong(perf):\n    {body}\n")
    done = project.run()
    assert done.code == 1
    assert message in done.output


@pytest.mark.long
def test_rounds_measure_one_alternative_in_each_process(project):
    done = project.run("--perf", *SHORT, "--perf-json=run.json", "--deselect=test_compare.py::test_with_setup")
    tests = {test["id"].split("::")[1]: test for test in json.loads((project.root / "run.json").read_text())["tests"]}
    assert done.code == 0, done.output
    for name, metric, sign in (("test_faster", "step_time", -1), ("test_not_slower", "loop.step_time", 1)):
        figures = tests[name]["metrics"][metric]
        assert (figures["new"] - figures["base"]) * sign > 0, "the loop takes several times as long"
        assert tests[name]["verdict"] == "inconclusive", "one round in a budget of a second proves nothing"
    assert "built_in compared with loop: " in tests["test_faster"]["reason"]
    assert "expected at least 10% faster" in tests["test_faster"]["reason"]
    assert "loop compared with built_in: " in tests["test_not_slower"]["reason"]


@pytest.mark.long
def test_a_test_may_expect_several_things(project):
    project.write(
        "test_compare.py",
        """
        def test_both(perf):
            perf.compare(int, str, name="one").assert_not_slower(within="900%")
            perf.compare(int, str, name="two").assert_not_slower(within="900%")
        """,
    )
    done = project.run("--perf", *SHORT, "--perf-json=run.json")
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert done.code == 0, done.output
    assert test["metrics"].keys() == {"one.step_time", "two.step_time"}
    # A budget of a second is some rounds, on a machine that is quick enough to exclude so much.
    assert {metric["verdict"] for metric in test["metrics"].values()} <= {"unchanged", "inconclusive"}
    assert all("at most 900% slower" in metric["reason"] for metric in test["metrics"].values())


def test_an_assertion_in_the_body_wins(project):
    project.write(
        "test_compare.py",
        """
        def test_wrong(perf):
            perf.compare(int, str).assert_faster(by="1%")
            assert 1 == 2
        """,
    )
    done = project.run("--perf", *SHORT)
    assert done.code == 1
    assert "assert 1 == 2" in done.output
    assert "paired round" not in done.output


@pytest.mark.long
def test_a_budget_of_a_test_that_only_compares_is_refused(tmp_path):
    made = Project(tmp_path / "budget")
    made.write(
        "test_compare.py",
        """
        import pytest

        @pytest.mark.perf(budget={"step_time": "1ms"}, limits={"ops": "off"})
        def test_pair(perf):
            perf.compare(int, str).assert_not_slower(within="90%")
        """,
    )
    done = made.run("--perf", *SHORT)
    assert done.code == 1, done.output
    assert "limits and budgets for step_time have no effect" in done.output
    assert "Traceback" not in done.output


CASES = """
CASES = [{"op": op, "size": size} for op in "ab" for size in range(4)]
SLOW = {"op": "a", "size": 2}


def work(op, size, times):
    return sum(range(600 * (times if {"op": op, "size": size} == SLOW else 1)))


def first(op, size):
    return work(op, size, 1)


def second(op, size):
    return work(op, size, 5)

"""


@pytest.mark.long
def test_alternatives_of_many_cases_are_compared_on_the_average_and_in_every_case(tmp_path):
    made = Project(tmp_path / "project", "perf_budget = 60")
    made.write(
        "test_compare.py",
        CASES
        + """
def test_average(perf):
    perf.compare(first, second, cases=CASES).assert_not_slower(within="80%")

def test_everywhere(perf):
    perf.compare(first, second, cases=CASES).assert_not_slower(within="80%", nowhere="150%")

def test_slower(perf):
    perf.compare(second, first, cases=iter(CASES), setup=lambda op, size: (op, size)).assert_faster(by="90%")
""",
    )
    done = made.run("--perf", "--perf-json=run.json")
    tests = {test["id"].split("::")[1]: test for test in json.loads((made.root / "run.json").read_text())["tests"]}
    assert done.code == 1, done.output
    average, everywhere, slower = (tests[f"test_{name}"] for name in ("average", "everywhere", "slower"))
    # By hand: one of eight cases takes five times as long, so that the mean is 5 ** (1 / 8) = 1.22 times the first.
    assert average["verdict"] == "unchanged", average["reason"]
    assert average["metrics"]["case_time"]["effect"] == pytest.approx(0.22, abs=0.2)
    assert average["cases"] == []
    assert everywhere["verdict"] == "regressed"
    assert [case["id"] for case in everywhere["cases"] if case["verdict"] == "regressed"] == ["op=a,size=2"]
    assert everywhere["metrics"]["case_time"]["verdict"] == "unchanged"
    assert "case op=a,size=2" in everywhere["reason"]
    assert slower["verdict"] == "regressed"
    assert "expected at least 90% faster" in slower["reason"]


@pytest.mark.long
def test_a_case_that_fails_is_said_to_be_of_its_alternative(tmp_path):
    made = Project(tmp_path / "project", "perf_budget = 20")
    made.write(
        "test_compare.py",
        CASES
        + """
CALLS = []

def third(op, size):
    # The first process calls every case once.
    CALLS.extend([op] * ((op, size) == ("b", 1)))
    if len(CALLS) > 1:
        CALLS.clear()
        raise RuntimeError("no kernel")
    return work(op, size, 1)

def test_third(perf):
    perf.compare(first, third, cases=CASES).assert_not_slower(within="80%")
""",
    )
    done = made.run("--perf")
    assert done.code == 1, done.output
    assert "third: the case op=b,size=1 was not measured: RuntimeError: no kernel" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("perf.compare(int, str, 5, cases=[{'x': 1}])", "takes no other arguments of a step than name= and setup="),
        ("perf.compare(int, str, cases=[])", "got no cases"),
        ("perf.compare(int, str).assert_not_slower(within='3%', nowhere='5%')", "nowhere= is about the cases of"),
        (
            "perf.compare(int, str, cases={'x': (1,)}).assert_not_slower(within='3%', nowhere='5us')",
            "nowhere='5us': expected a percentage such as '5%'",
        ),
        ("perf.compare(int, str, cases={'x': (1,)})", "perf.compare(...) without an assertion"),
        ("perf.compare(len, str, cases={'x': (1,)}).assert_faster(by='5%')", "1 of 1 case failed: x (TypeError"),
        ("perf(int); perf.compare(int, str, cases={'x': (1,)})", "must be the only measurement of its test"),
    ],
    ids=["arguments", "no cases", "single", "time", "nothing", "raises", "second"],
)
def test_wrong_usage_of_cases_is_one_line(tmp_path, body, message):
    made = Project(tmp_path / "project")
    made.write("test_compare.py", f"def test_wrong(perf):\n    {body}\n")
    done = made.run()
    assert done.code == 1
    assert message in done.output
