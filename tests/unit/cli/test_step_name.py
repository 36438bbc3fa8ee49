"""`--step-name`: steps by another name, the kinds that its groups tell apart, and how it refuses."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from making import record

from pytest_perfdl.cli import main
from pytest_perfdl.model.record_json import to_json
from unit.trace.chrome import kernel, launch, step, text, x

KINDS = r"execute_context_(?P<context>\d+)\(\d+\)_generation_(\d+)\(\d+\)"
DECODE = "execute_context_0(0)_generation_64(64)"
PREFILL = "execute_context_1(512)_generation_63(63)"


def serving(decode=1000, prefill=3000, *, count=12, rest=60, tid=100):
    """Ranges of 120 us and a kernel, a prompt in every fourth; then 200 us with work that no range is around."""
    found, start = [], 0
    for number in range(count):
        prompt = number % 4 == 1
        busy = (prefill if prompt else decode) + number
        found += [
            x(PREFILL if prompt else DECODE, start, busy + 120, "user_annotation", tid=tid),
            x("aten::mm", start + 10, 50, tid=tid),
            launch(start + 20, 10, 2 * number + 1, tid=tid),
            launch(start + 70, busy + 40, 0, name="cudaStreamSynchronize", tid=tid),
            kernel("gemm", start + 60, busy, 2 * number + 1),
            x("aten::argmax", start + busy + 140, 40, tid=tid),
            launch(start + busy + 150, 10, 2 * number + 2, tid=tid),
            kernel("sample", start + busy + 170, rest, 2 * number + 2),
        ]
        start += busy + 320
    return found


def pipelined(count=5):
    """Ranges of 100 us whose kernels take 400, launched ahead of what the device can do."""
    found = []
    for number in range(count):
        found += [
            x("batch", 100 * number, 100, "user_annotation"),
            x("aten::mm", 100 * number + 5, 20),
            launch(100 * number + 10, 5, number + 1),
            kernel("gemm", 50 + 400 * number, 400, number + 1),
        ]
    return found


@pytest.fixture
def file(tmp_path):
    def write(events, name="serving.json"):
        path = tmp_path / name
        path.write_bytes(text(events))
        return path

    return write


def figures(capsys, command, *arguments, code=0):
    assert main([command, *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    try:
        code = main([*map(str, arguments)])
    except SystemExit as ended:
        # As argparse ends.
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_runs_between_the_ranges_is_of_no_step(file, capsys):
    found = figures(capsys, "trace", file(serving(count=3, prefill=1000)), "--step-name", "execute_.*")
    assert [(each["name"], each["wall_ns"]) for each in found["steps"]] == [
        (DECODE, 1_120_000),
        (PREFILL, 1_121_000),
        (DECODE, 1_122_000),
    ]
    assert [row["name"] for row in found["kernels"]] == ["gemm"]


def test_work_between_the_ranges_that_reaches_into_one_is_not_the_steps(file, capsys):
    # What chooses a token runs until 230 us after the next range has begun.
    events = [
        x("batch", 0, 500, "user_annotation"),
        x("aten::mm", 5, 20),
        launch(10, 5, 1),
        kernel("gemm", 50, 400, 1),
        launch(550, 10, 2),
        kernel("sample", 570, 660, 2),
        x("batch", 1000, 700, "user_annotation"),
        x("aten::mm", 1005, 20),
        launch(1010, 5, 3),
        kernel("gemm", 1230, 400, 3),
    ]
    found = figures(capsys, "trace", file(events), "--step-name", "batch")
    assert [each["wall_ns"] for each in found["steps"]] == [500_000, 470_000]
    assert all(sum(each["account"].values()) == each["wall_ns"] for each in found["steps"])


def test_steps_that_run_ahead_of_the_device_follow_each_other(file, capsys):
    found = figures(capsys, "trace", file(pipelined()), "--step-name", "batch")
    assert [each["wall_ns"] for each in found["steps"]] == [450_000, 400_000, 400_000, 400_000, 400_000]


def test_kinds_of_steps_are_not_mixed(file, capsys):
    found = figures(capsys, "trace", file(serving()), "--step-name", KINDS)
    assert found["groups"] == [
        {"group": "context=0, 64", "steps": 9, "mean_ns": pytest.approx(1_125_667, abs=1), "min_ns": 1_120_000}
        | {"max_ns": 1_131_000},
        {"group": "context=1, 63", "steps": 3, "mean_ns": 3_125_000.0, "min_ns": 3_121_000, "max_ns": 3_129_000},
    ]
    assert {each["name"] for each in found["steps"]} == {DECODE}
    assert found["kernels"][0]["count"] == len(found["steps"]) == 9
    assert found["findings"][0] == (
        "steps of 2 kinds, by what --step-name captures: figures are of the 9 steps of the largest, 'context=0, 64', "
        "of 12"
    )


def test_a_mean_over_different_names_is_said(file, capsys):
    found = figures(capsys, "trace", file(serving()), "--step-name", "execute_.*")
    assert len(found["steps"]) == 12
    assert found["groups"] == []
    assert any(each.startswith("the steps have 2 different names, such as execute_") for each in found["findings"])


def test_numbers_that_count_the_steps_are_no_kinds(file, capsys):
    ranges = [x(f"batch {number}", 100 * number, 90, "user_annotation") for number in range(9, 13)]
    work = [x("aten::mm", 100 * number + 5, 70) for number in range(9, 13)]
    found = figures(capsys, "trace", file([*ranges, *work]), "--step-name", r"batch \d+")
    assert [each["name"] for each in found["steps"]] == ["batch 9", "batch 10", "batch 11", "batch 12"]
    assert not [each for each in found["findings"] if "different names" in each]


def test_steps_of_a_name_have_numbers(file, capsys):
    found = figures(capsys, "trace", file(serving()), "--step-name", "execute_.*", "--select", "step=4-5")
    assert [each["name"] for each in found["steps"]] == [DECODE, PREFILL]


def test_of_ranges_within_each_other_the_outermost_are_the_steps(file, capsys):
    inner = [x("execute_model", 1320 * number + 5 + number, 60, "user_annotation") for number in range(3)]
    found = figures(capsys, "trace", file([*serving(count=3, prefill=1000), *inner]), "--step-name", "execute_.*")
    assert len(found["steps"]) == 3
    assert any(
        each.startswith("3 annotations that --step-name matches are within another") for each in found["findings"]
    )


def test_a_diff_compares_kinds_with_their_own(file, capsys):
    base, new = file(serving()), file(serving(decode=1500), "new.json")
    found = figures(capsys, "diff", base, new, "--step-name", KINDS)
    assert {each["id"]: (each["verdict"], each["step"]["delta_ns"]) for each in found["tests"]} == {
        "steps context=0, 64": ("regressed", 500_000),
        "steps context=1, 63": ("unchanged", 0),
    }
    # As one kind, too, it is a comparison of equal mixtures, and says that it is one.
    mixed = figures(capsys, "diff", base, new, "--step-name", "execute_.*")
    assert any("different names" in each for each in mixed["notes"])


def test_kinds_of_one_side_are_named(file, capsys):
    base, new = file(serving()), file(serving(count=1), "new.json")
    assert main(["diff", str(base), str(new), "--step-name", KINDS]) == 0
    assert "steps context=1, 63 is only in" in capsys.readouterr().err
    events = [x("execute_context_7(7)_generation_7(7)", 0, 100, "user_annotation"), x("aten::mm", 5, 50)]
    assert main(["diff", str(base), str(file(events, "new.json")), "--step-name", KINDS]) == 3
    assert "no kind of steps in common" in capsys.readouterr().out


def test_whatif_is_of_the_largest_kind(file, capsys):
    path = file(serving())
    found = figures(capsys, "whatif", path, "--step-name", KINDS, "--scale", "name=gemm:0.5")
    assert found["steps"] == 9
    assert found["whatif"][0]["step_ns"] == pytest.approx(1_125_667, rel=0.001)
    assert any("figures are of the 9 steps of the largest" in str(note) for note in found["notes"])


def test_ranks_are_compared_by_steps_of_a_name(file, capsys, tmp_path):
    files = []
    for rank in (0, 1):
        path = tmp_path / f"rank{rank}.json"
        path.write_bytes(text(serving(count=8), distributedInfo={"rank": rank, "world_size": 2}))
        files.append(path)
    found = figures(capsys, "trace", *files, "--step-name", KINDS)
    assert [len(each["steps"]) for each in found["traces"]] == [6, 6]


@pytest.mark.parametrize("command", ["trace", "diff", "whatif"])
def test_names_that_are_not_there_are_refused_with_those_that_are(file, capsys, command):
    path = file(serving())
    files = [path, path] if command == "diff" else [path]
    line = refused(capsys, command, *files, "--step-name", "execute")
    assert "no annotation of" in line
    assert f"{DECODE!r} (12)" in line
    line = refused(capsys, command, *files, "--step-name", "(")
    assert "'(' is not a regular expression" in line


def test_what_has_no_annotations_has_no_steps_by_name(file, capsys, tmp_path):
    path = file(serving())
    assert "--step-name needs two inputs" in refused(capsys, "diff", path, "--step-name", "execute_.*")
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps(to_json(record())), encoding="utf-8")
    assert "--step-name is for traces only" in refused(capsys, "diff", path, baseline, "--step-name", "execute_.*")


def typed(found):
    """The options that a finding shows, as a shell reads them."""
    (line,) = [each for each in found["findings"] if "look like steps" in each]
    return line, shlex.split(re.search(r"--step-name .*", line)[0])


def test_annotations_that_look_like_steps_are_named(file, capsys):
    path = file(serving())
    line, options = typed(figures(capsys, "trace", path))
    assert line == "12 annotations look like steps: --step-name 'execute_.*'"
    assert len(figures(capsys, "trace", path, *options)["steps"]) == 12


@pytest.mark.parametrize("name", ["## it's a (step) {} ##", "step", "decode[{}]", "{}"])
def test_what_is_suggested_reads_just_these(file, capsys, name):
    events = []
    for number in range(4):
        events += [
            x(name.format(number), 100 * number, 80, "user_annotation"),
            x("aten::mm", 100 * number + 10, 50),
            x("step end", 100 * number + 85, 5, "user_annotation"),
        ]
    path = file(events)
    line, options = typed(figures(capsys, "trace", path))
    assert line.startswith("4 annotations")
    assert [each["name"] for each in figures(capsys, "trace", path, *options)["steps"]] == [
        name.format(number) for number in range(4)
    ]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([step(0, 0, 5000), *serving(count=4)], id="a trace with steps"),
        pytest.param(serving(count=2), id="two"),
        pytest.param(
            [x("part", 10 * at, 9, "user_annotation") for at in range(4)]
            + [x("aten::mm", 100 + 10 * at, 5) for at in range(4)],
            id="beside the work",
        ),
        pytest.param(
            [x("part", 100 * at, 150, "user_annotation") for at in range(4)]
            + [x("aten::mm", 100 * at + 10, 5) for at in range(4)],
            id="overlapping",
        ),
    ],
)
def test_what_does_not_look_like_steps(file, capsys, events):
    found = figures(capsys, "trace", file(events))
    assert not [each for each in found["findings"] if "look like steps" in each]
