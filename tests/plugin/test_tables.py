"""Tables: many cases of a test, recorded in one file, compared in the same rounds, and judged together."""

import json
import re
import statistics

import pytest
from plugin.project import Project, commit, make_repository

from pytest_perfdl.machine.rates import FILE, Machine

pytestmark = pytest.mark.long

OPS = """
SLOWER = {slower}

def work(op, size):
    repeats = 300 * (3 if (op, size) in SLOWER or op in SLOWER else 1)
    return sum(range(repeats))
"""
TABLE = """
import pytest
from package.ops import work
from package.cases import CASES

@pytest.mark.perf
def test_ops(perf):
    perf.table(work, CASES, items=300, flops=0, bytes=lambda op, size: 100 * (1 + size))
"""
CASES = 'CASES = [{"op": op, "size": size} for op in ("add", "mul", "neg") for size in range(5)]\n'
WIDE = "--perf-limit=case_time:100%", "--perf-limit=group_time:50%"
"""No slowdown of a busy machine is past them, as a rule; what is planted is."""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A repository with a recorded and committed table."""
    made = Project(tmp_path_factory.mktemp("tables") / "project", "pythonpath = src", "perf_budget = 60")
    make_repository(made.root)
    made.write(".gitignore", "perf-report/\n.pytest_cache/\n__pycache__/\noutput-*\nrun.json\n")
    made.write("src/package/__init__.py", "")
    made.write("src/package/ops.py", OPS.format(slower="()"))
    made.write("src/package/cases.py", CASES)
    made.write("tests/test_table.py", TABLE)
    commit(made, "code")
    recorded = made.run("--perf-update")
    assert recorded.code == 0, recorded.output
    rates = Machine(flops_per_s={"float32": 1e12}, bandwidths=((1, 1e9),), date="2026-11-27")
    (folder,) = (made.root / "baselines").iterdir()
    rates.save(folder / FILE)
    commit(made, "baseline")
    return made


@pytest.fixture
def project(template, tmp_path):
    """A copy of it."""
    copy = Project(tmp_path / "project", "pythonpath = src", "perf_budget = 60")
    copy.copy(template.root)
    return copy


def found(project, *options):
    """The finished run, and the table as the run file has it."""
    finished = project.run("--perf", "--perf-json=run.json", *WIDE, *options)
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    return finished, test


def verdicts(test):
    """Verdict of every case."""
    return {case["id"]: case["verdict"] for case in test["cases"]}


def test_a_baseline_has_one_line_for_each_case_sorted(template):
    lines = template.baseline("test_ops").read_text().splitlines()
    ids = [json.loads(line.strip().rstrip(","))["id"] for line in lines if '"id"' in line]
    assert ids == sorted(ids)
    assert len(ids) == 15
    assert ids[0] == "op=add,size=0"


def test_unchanged_cases_pass_and_say_so_one_by_one(project):
    project.write("src/package/ops.py", OPS.format(slower="()") + "# no change\n")
    finished, test = found(project)
    assert finished.code == 0, finished.output
    assert test["groups"] == []
    assert len(test["cases"]) == 15
    assert set(verdicts(test).values()) <= {"unchanged", "inconclusive"}
    case = test["cases"][0]
    assert {"id", "verdict", "effect", "interval", "time_ns", "noise", "counts"} <= case.keys()
    assert case["rounds"] >= 3
    assert case["interval"][0] <= case["effect"] <= case["interval"][1]
    assert case["effect"] == max(each["effect"] for each in test["cases"]), "worst first"
    stored, measured = (
        {each["id"]: each["ns"] for each in side["calls"][0]["cases"]} for side in (test["base_record"], test["record"])
    )
    assert stored.keys() == measured.keys()
    assert stored != measured, "the run file has what was measured in this run"
    for each in test["cases"]:
        # A memory of 1 GB/s needs 1 ns for each byte.
        size = int(each["id"].rpartition("=")[2])
        for ns, rates in ((each["time_ns"], each["rates"]), (each["base_ns"], each["base_rates"])):
            assert rates["items_per_s"] == pytest.approx(300e9 / ns, rel=1e-4)
            assert rates["roofline"] == pytest.approx(100 * (1 + size) / ns, rel=1e-4)


def test_one_slower_case_is_named_alone_and_changes_three_lines_of_the_baseline(project):
    project.write("src/package/ops.py", OPS.format(slower="{('mul', 3)}"))
    before = project.baseline("test_ops").read_text().splitlines()
    finished, test = found(project)
    assert finished.code == 1, finished.output
    assert [case for case, verdict in verdicts(test).items() if verdict == "regressed"] == ["op=mul,size=3"]
    assert test["groups"] == []
    assert test["verdict"] == "regressed"
    assert "case op=mul,size=3 +" in finished.output
    assert "Timeline and traces" not in (project.root / "perf-report" / "index.html").read_text(), "there is no step"
    assert test["cases"][0]["effect"] > 1
    updated = project.run("--perf-update=changed", *WIDE)
    assert "1 baseline recorded" in updated.output, updated.output
    after = project.baseline("test_ops").read_text().splitlines()
    assert len(after) == len(before)
    assert sum(old != new for old, new in zip(before, after, strict=True)) <= 3


def test_what_is_appended_to_a_baseline_was_measured_again(project):
    def times():
        (call,) = json.loads(project.baseline("test_ops").read_text())["calls"]
        return {case["id"]: case["ns"] for case in call["cases"]}

    before = times()
    appended = project.run("--perf-update=append", *WIDE)
    assert appended.code == 0, appended.output
    after = times()
    assert {case: ns[:1] for case, ns in after.items()} == before
    assert {len(ns) for ns in after.values()} == {2}
    assert any(first != second for first, second in after.values())


def test_a_slower_group_is_named_as_a_group(project):
    project.write("src/package/ops.py", OPS.format(slower="{'neg'}"))
    finished, test = found(project)
    assert finished.code == 1, finished.output
    (group,) = test["groups"]
    assert group["where"] == {"op": "neg"}
    assert group["cases"] == group["agreeing"] == 5
    assert "group op=neg +" in finished.output
    assert {case for case, verdict in verdicts(test).items() if verdict == "regressed"} <= {
        f"op=neg,size={size}" for size in range(5)
    }


LEAKS = """
import time

LEFT = []

def work(op, size):
    if (op, size) == ("mul", 3):
        {leak}
    return sum(range(300 * (1 + 2 * len(LEFT))))
"""


def test_cases_after_one_that_leaks_are_not_blamed(project):
    """In the head, the cases that run after one of them take three times as long, in half of the rounds."""
    project.write("src/package/ops.py", LEAKS.format(leak="LEFT[:] = [1]"))
    _, test = found(project)
    blamed = [case for case, verdict in verdicts(test).items() if verdict == "regressed"]
    assert blamed in ([], ["op=mul,size=3"])
    assert all(group["verdict"] != "regressed" for group in test["groups"])


def test_a_state_that_a_case_changes_is_put_back(project):
    """Nothing that is restored makes the next cases slower, not even in the table."""
    project.write(
        "src/package/ops.py",
        "import gc, os, sys\n" + LEAKS.format(leak="gc.disable(); os.environ['A'] = 'b'; os.chdir('/')"),
    )
    _, test = found(project)
    assert {verdict for case, verdict in verdicts(test).items() if case != "op=mul,size=3"} <= {
        "unchanged",
        "inconclusive",
    }


def test_cases_that_cannot_be_measured_are_named_and_the_others_are_compared(project):
    project.write(
        "src/package/ops.py",
        "def work(op, size):\n"
        "    if (op, size) == ('add', 2):\n"
        "        raise RuntimeError('no kernel')\n"
        "    return sum(range(300))\n",
    )
    finished, test = found(project)
    assert finished.code == 1
    assert test["verdict"] == "invalid"
    assert "the case op=add,size=2 was not measured: RuntimeError: no kernel" in finished.output.replace("\n    ", " ")
    assert len(test["cases"]) == 14
    assert set(verdicts(test).values()) <= {"unchanged", "inconclusive"}


def test_a_case_that_ends_its_process_is_named_and_the_others_are_compared(project):
    project.write(
        "src/package/ops.py",
        "import os\n"
        "def work(op, size):\n"
        "    if (op, size) == ('add', 2):\n"
        "        os.kill(os.getpid(), 11)\n"
        "    return sum(range(300))\n",
    )
    finished, test = found(project)
    assert finished.code == 1
    assert test["verdict"] == "invalid"
    (said,) = [finding["message"] for finding in test["integrity"] if finding["code"] == "case-error"]
    assert said.startswith("the case op=add,size=2 was not measured: ")
    assert "SIGSEGV" in said
    assert len(test["cases"]) == 14


def test_cases_that_one_side_lacks_and_those_listed_twice_are_told(project):
    project.write("src/package/cases.py", CASES + 'CASES = CASES[1:] + CASES[5:6] + [{"op": "new", "size": 0.5}]\n')
    finished, test = found(project)
    said = [finding["message"] for finding in test["integrity"]]
    assert "1 case not in the baseline, not compared: op=new,size=0.5" in said
    assert "1 case only in the baseline, not compared: op=add,size=0" in said
    assert "the case op=mul,size=0 is listed twice: only the first one is measured" in said
    assert verdicts(test)["op=new,size=0.5"] == "new"
    assert finished.code == 0, finished.output


def test_perf_case_chooses_cases(project):
    project.write("src/package/ops.py", OPS.format(slower="()") + "# no change\n")
    finished, test = found(project, "--perf-case=op=add,size>=3")
    assert sorted(verdicts(test)) == ["op=add,size=3", "op=add,size=4"]
    assert finished.code == 0, finished.output
    for wrong, said in (("op=sub", "no case of the table meets --perf-case"), ("op", "'op' is no condition")):
        refused = project.run("--perf", f"--perf-case={wrong}")
        assert refused.code != 0
        assert said in refused.output
    assert "remove --perf-update" in project.run("--perf-update", "--perf-case=op=add").output


def test_an_injected_slowdown_is_found_in_the_group_of_all_cases_and_told(project):
    finished, test = found(project, "--perf-inject=300")
    assert finished.code == 1, finished.output
    assert "every step is slowed down by 300 % on purpose" in finished.line("perf: on")
    (group,) = test["groups"]
    assert (group["where"], group["cases"], group["verdict"]) == ({}, 15, "regressed")
    assert "group all cases +" in finished.output
    said = [finding["message"] for finding in test["integrity"] if finding["code"] == "injected"]
    assert said == ["every step was slowed down by 300 % on purpose (--perf-inject)"]


def test_without_a_commit_times_are_not_compared(project):
    """Stored times alone decide nothing."""
    (project.root / ".git").rename(project.root / "no-git")
    finished, test = found(project)
    assert test["verdict"] == "inconclusive"
    assert "compared in paired rounds only" in test["reason"]
    assert test["cases"] == []
    assert finished.code == 0, finished.output


def test_in_this_process_every_case_is_measured_once(project):
    finished = project.run("--perf", "--perf-isolate=none")
    assert finished.code == 0, finished.output
    assert "cases" in finished.output


def test_another_revision_is_compared_in_the_same_way(project):
    project.write("src/package/ops.py", OPS.format(slower="{('mul', 3)}"))
    finished = project.run("--perf-against=HEAD", "--perf-json=run.json", *WIDE)
    assert finished.code == 1, finished.output
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert [case for case, verdict in verdicts(test).items() if verdict == "regressed"] == ["op=mul,size=3"]


def test_commands_on_baselines_know_tables(project):
    shown = project.command("show", "test_ops").output
    assert "Slowest of 15 cases" in shown
    (call,) = json.loads(project.baseline("test_ops").read_text())["calls"]
    slowest = sorted(call["cases"], key=lambda case: -statistics.median(case["ns"]))
    assert re.findall(r"^ +(op=\S+)", shown, re.MULTILINE) == [case["id"] for case in slowest[:10]]
    assert "items/s" in shown
    assert "no measured or profiled step" in project.command("diff", "baselines", "baselines").output
