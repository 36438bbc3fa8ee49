"""What pytest reports of a test is the same whether it is measured in a worker, measured here or only run.

The suite in `parity/` is run in each way, with its conftest noting what pytest's own hooks are told.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from plugin.project import NOT_JUDGED, Project

pytestmark = pytest.mark.long

SUITE = Path(__file__).parent / "parity"
GROUPS = (
    ("steps.py", "test_scopes.py", "test_module_scope.py", "package", "test_mixed.py"),
    ("test_outcomes.py", "test_fixtures.py"),
    ("test_xfail.py", "test_output.py", "test_subtests.py"),
)
"""Run side by side, since nobody looks at the times."""
WAYS = {
    "plain": (),
    "process": ("--perf", *NOT_JUDGED),
    "none": ("--perf", "--perf-isolate=none", *NOT_JUDGED),
}


def neutral(text, root):
    """Text without what is another in every run."""
    return re.sub(r" at 0x[0-9a-f]+", " at 0x", text.replace(str(root), "ROOT"))


class Way:
    """One way of running the suite: what was noted, written and printed, over all its groups."""

    def __init__(self, project, running):
        self.finished = [one.finish(900) for one in running]
        files = [project.root / f"notes-{number}.json" for number in range(len(GROUPS))]
        notes = [json.loads(neutral(file.read_text(), project.root)) for file in files]
        self.reports = [report for part in notes for report in part["reports"]]
        self.warnings = [warning for part in notes for warning in part["warnings"]]
        self.torch = any(part["torch"] for part in notes)
        self.cases = [
            case
            for number in range(len(GROUPS))
            for case in ElementTree.fromstring(
                neutral((project.root / f"junit-{number}.xml").read_text(), project.root)
            ).iter("testcase")
        ]

    def by_phase(self):
        found = {}
        for report in self.reports:
            name = (report["nodeid"], report["when"], report["type"], str(report["subtest"]))
            found.setdefault(name, []).append(report)
        return found

    def summary(self):
        """The lines of pytest's short test summary."""
        lines = []
        for finished in self.finished:
            start = next(number for number, line in enumerate(finished.lines) if "short test summary info" in line)
            lines += finished.lines[start + 1 : -1]
        return Counter(lines)


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    started = {}
    for way, options in WAYS.items():
        project = Project(
            tmp_path_factory.mktemp(way) / "project", "junit_logging = all", "junit_duration_report = call"
        )
        project.copy(SUITE)
        started[way] = (
            project,
            [
                project.start(
                    *options,
                    *files,
                    "--doctest-modules",
                    "-rA",
                    f"--junitxml=junit-{number}.xml",
                    NOTES=str(project.root / f"notes-{number}.json"),
                    COLUMNS="400",
                )
                for number, files in enumerate(GROUPS)
            ],
        )
    return {way: Way(*both) for way, both in started.items()}


measured = pytest.mark.parametrize("way", ["process", "none"])


def test_the_suite_is_worth_comparing(ways):
    tests = {report["nodeid"] for report in ways["plain"].reports}
    outcomes = {report["outcome"] for report in ways["plain"].reports}

    assert len(tests) >= 60
    assert outcomes == {"passed", "failed", "skipped"}


@measured
def test_reports_are_the_same(ways, way):
    plain, other = ways["plain"].by_phase(), ways[way].by_phase()

    assert other.keys() == plain.keys()
    for name, reports in plain.items():
        assert other[name] == reports


@measured
def test_warnings_are_the_same(ways, way):
    def each(warnings):
        return Counter(json.dumps(warning) for warning in warnings)

    assert each(ways[way].warnings) == each(ways["plain"].warnings)


@measured
def test_exit_codes_are_the_same(ways, way):
    assert [one.code for one in ways[way].finished] == [one.code for one in ways["plain"].finished] == [1, 1, 1]


@measured
def test_the_short_summary_is_the_same(ways, way):
    def lines(way):
        # A report that travels loses which line of a missing fixture's message is the important one, as under xdist.
        return Counter(re.sub(r"(test_unknown_fixture).*", r"\1", line) for line in ways[way].summary().elements())

    assert lines(way) == lines("plain")


@measured
def test_junit_is_the_same(ways, way):
    def cases(way):
        found = []
        for case in ways[way].cases:
            parts = []
            for part in case.iter():
                attributes = {name: value for name, value in part.attrib.items() if name != "time"}
                if part.tag == "property" and part.get("name").startswith("perf."):
                    continue
                # Only a measured test has properties, so only there an empty list of them can stay.
                if part.tag != "properties":
                    parts.append((part.tag, sorted(attributes.items()), (part.text or "").strip()))
            found.append(parts)
        return sorted(found)

    assert cases(way) == cases("plain")


def test_the_orchestrating_process_never_imports_torch(ways):
    assert not ways["process"].torch
    assert not ways["plain"].torch


@pytest.mark.parametrize("capture", ["sys", "tee-sys", "no"])
def test_other_ways_of_capturing(tmp_path, capture):
    def start(folder, *options):
        project = Project(tmp_path / folder / "project")
        project.copy(SUITE)
        chosen = ("test_output.py", "-k", "descriptors or streams_of_failure or no_capturing")
        notes = project.root / "notes.json"
        return project, notes, project.start(*options, *chosen, f"--capture={capture}", NOTES=str(notes))

    def finish(project, notes, running):
        finished = running.finish()
        return json.loads(neutral(notes.read_text(), project.root))["reports"], finished.output

    ways = [start("plain"), start("process", "--perf", *NOT_JUDGED)]
    (reports, output), (measured_reports, measured_output) = [finish(*way) for way in ways]

    assert measured_reports == reports
    for text in ("out before", "written to descriptor 1", "written to descriptor 2", "straight to the terminal"):
        assert measured_output.count(text) == output.count(text)


@pytest.mark.parametrize("option, failed", [("-x", 1), ("--maxfail=2", 2)])
def test_stopping_early(project, option, failed):
    project.copy(SUITE)
    finished = project.run("--perf", *NOT_JUDGED, "test_outcomes.py", "-k", "chained or fail_without or step", option)

    assert finished.code == 1
    assert f"stopping after {failed} failures" in finished.output
    assert f"{failed} failed" in finished.summary()
