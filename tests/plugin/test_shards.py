"""A run that is one of several: which tests it measures, what it says and writes, and how all of them are joined."""

import json
import re
from dataclasses import replace

import pytest
from making import record
from plugin.project import NOT_JUDGED

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.judge.stopping_rule import ALPHA
from pytest_perfdl.model.shard import Shard
from pytest_perfdl.plugin import SETTINGS
from pytest_perfdl.run.session import PerfSession
from pytest_perfdl.stats.evidence import least_rounds

SUITE = """
    import pytest

    @pytest.mark.parametrize("kind", ["x", "y", "z"])
    def test_kind(perf, kind):
        perf(lambda: sum(range(100)))

    @pytest.mark.perf(scaling={"n": [10, 20, 40]})
    def test_curve(perf, n):
        perf(lambda: sum(range(n)))

    def test_plain():
        pass
"""


def listed(inner, *options):
    result = inner.runpytest_inprocess("--perf", "--collect-only", "-q", *options)
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_every_perf_test_is_in_one_shard_and_others_are_in_all(inner):
    inner.makepyfile(SUITE)
    shards = [listed(inner, f"--perf-shard={index}/3") for index in (1, 2, 3)]
    assert [sorted(names) for names in shards] == [
        ["test_curve[n=10]", "test_curve[n=20]", "test_curve[n=40]", "test_plain"],
        ["test_kind[x]", "test_kind[z]", "test_plain"],
        ["test_kind[y]", "test_plain"],
    ]
    # What is selected is split.
    assert listed(inner, "--perf-shard=2/2", "-k", "test_kind") == ["test_kind[y]"]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--perf", "--perf-shard=5/4"], "--perf-shard = '5/4': expected I/N with I from 1 to N, such as 2/4"),
        (["--perf", "--perfdl-shard", "two"], "--perf-shard = 'two': expected I/N with I from 1 to N, such as 2/4"),
        (["--perf-shard=1/2"], "--perf-shard needs --perf, because nothing is measured without --perf: add --perf"),
        (["--perf", "--perf-shard=1/2", "--pdb"], "--perf-shard cannot be combined with --perf-isolate=none or "),
        (["--perf", "--perf-device-lock=of"], "--perf-device-lock = 'of': expected auto, off or the absolute path of"),
        (["--perf", "--perf-device-lock=/none/such"], "--perf-device-lock = '/none/such': expected auto, off or "),
        (["--perf", "--perf-device-lock=~no-such/x"], "--perf-device-lock = '~no-such/x': expected auto, off or "),
    ],
)
def test_what_is_refused(inner, options, said):
    inner.makepyfile(SUITE)
    result = inner.runpytest_inprocess(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert line.startswith(f"ERROR: {said}")


def test_a_shard_has_the_level_of_all_tests(inner):
    """One of 400 tests needs as many rounds to fail in a shard of one test as in a run of all."""
    source = """
        import pytest

        @pytest.mark.parametrize("number", range(400))
        def test_it(perf, number): ...
        """
    said = []
    for shard in (None, Shard(1, 400)):
        items = inner.getitems(source)
        config = items[0].config
        settings = replace(config.stash[SETTINGS], enabled=True, budget=20.0, shard=shard)
        store = Store(config.rootpath, settings.folder)
        for item in items[:2]:
            made = record(test=item.nodeid)
            store.save(replace(made, occasions=(replace(made.occasions[0], seconds=30.0),)), {})
        session = PerfSession(config, settings)
        session.collect(items)
        assert len(items) == (1 if shard else 400)
        said.append(session.estimate())
        session.close()
    assert said[1].startswith("shard 1 of 400: 1 of 400 perf tests, about ")
    needed = least_rounds(400 / ALPHA)
    assert needed > least_rounds(1 / ALPHA)
    assert all(line.endswith(f"but a regression needs {needed} rounds") for line in said)


@pytest.mark.long
def test_shards_are_measured_apart_and_joined(project, tmp_path):
    project.ini(f"perf_device_lock = {tmp_path}")
    (tmp_path / "pytest-perfdl-host.queue.lock").mkdir()
    project.write(
        "test_speed.py",
        """
        import pytest

        @pytest.mark.perf
        def test_step(perf):
            perf(lambda: sum(range(100)))

        def test_plain():
            pass
        """,
    )
    options = ("--perf", *NOT_JUDGED, "--perf-require=1", "--perf-memory=off", "-m", "perf")
    whole, empty = (
        project.run(*options, f"--perf-shard={index}/2", f"--perf-report=shards/{index}", CUDA_VISIBLE_DEVICES="")
        for index in (1, 2)
    )
    # The other shard has no test, so the requirement cannot be met there.
    assert whole.code == 1
    assert whole.line("perf: on").endswith(", shard 1 of 2")
    assert whole.line("no time estimate") == "shard 1 of 2: 1 of 1 perf test (no time estimate without a baseline)"
    assert "0 tests were compared, but --perf-require requires 1 in shard 1 of 2 (1 missing)" in whole.output
    assert empty.code == 0
    assert empty.line("deselected /") == "collected 2 items / 2 deselected / 0 selected"
    assert empty.line("nothing was measured") == "perf: shard 2 of 2: 0 of 1 perf test, so nothing was measured"
    runs = [json.loads((project.root / f"shards/{index}/run.json").read_text()) for index in (1, 2)]
    assert [run["shard"] for run in runs] == [
        {"index": index, "count": 2, "tests": 1, "require": 1} for index in (1, 2)
    ]
    assert [[test["id"] for test in run["tests"]] for run in runs] == [["test_speed.py::test_step"], []]

    # What cannot be locked is said in a report, since the times may be those of two runs.
    joined = project.command("merge", "shards/1", "shards/2")
    said = " ".join(joined.output.split())
    assert joined.code == 1, joined.output
    assert "0 tests were compared, but --perf-require requires 1 (1 missing)" in said
    assert "shard 1 of 2: the device could not be locked, so other runs may disturb the measurements: " in said
    assert "pytest-perfdl-host.queue.lock: not a file (--perf-device-lock sets the folder of the lock files)" in said
    assert re.search(r"wrote perf-report/index.html, summary.md, run.json and \d traces?$", said)
    merged = json.loads((project.root / "perf-report/run.json").read_text())
    assert [test["id"] for test in merged["tests"]] == ["test_speed.py::test_step"]
