"""What the commands make of damaged traces: a figure is right, or they say why it is not there."""

import json
from pathlib import Path

import pytest

from pytest_perfdl.cli import main
from unit.analysis.jobs import pipelined, steady, without
from unit.trace.chrome import kernel, step, text, x


def longer(events, us):
    """The same job with kernels that take so much longer, on the same stream; they still end inside their step."""
    return [{**one, "dur": one["dur"] + us} if one["cat"] == "kernel" else one for one in events]


def twice(events):
    """Every step annotated twice."""
    return [*events, *(one for one in events if one["name"].startswith("ProfilerStep"))]


DAMAGED = {
    "no kernels": [one for one in steady() if one["cat"] != "kernel"],
    "no kernels and no steps": [one for one in steady() if one["cat"] not in ("kernel", "user_annotation")],
    "steps of no duration": [{**one, "dur": 0} if "ProfilerStep" in one["name"] else one for one in steady()],
    "another clock": [{**one, "ts": one["ts"] + (0 if one["cat"] == "kernel" else 20_000)} for one in steady()],
    "few kernels": without(steady(), *(100 * number + each for number in (1, 2, 3, 4) for each in (2, 3))),
}
"""Traces of which less than two steps remain."""


@pytest.fixture
def write(tmp_path):
    def written(name, events, **top):
        path = tmp_path / f"{name}.json"
        path.write_bytes(text(events, **top))
        return str(path)

    return written


@pytest.fixture
def output(capsys, monkeypatch):
    """What a command prints, and its exit code."""
    monkeypatch.setenv("COLUMNS", "400")

    def of(*arguments):
        code = main([*arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return of


@pytest.fixture
def figures(output):
    def of(*arguments):
        code, out, _ = output(*arguments, "--json")
        return code, json.loads(out)

    return of


def test_trace_names_the_steps_that_are_left_out(write, output, figures):
    file = write("lost", without(steady(), 303, 304))
    code, out, _ = output("trace", file)
    assert code == 0
    assert "1.000 ms (mean of 4 of 5 steps, 1.000 ms to 1.000 ms)" in out
    assert "over 5% of the work of step 3: left out of all figures" in out
    _, found = figures("trace", file)
    assert [each["name"] for each in found["steps"]] == [f"ProfilerStep#{number}" for number in (1, 2, 4, 5)]
    assert [each["wall_ns"] for each in found["steps"]] == [1_000_000] * 4
    assert [each["step"] for each in found["left_out"]] == [3]
    assert found["left_out"][0]["reason"].endswith("over 5% of the work of step 3")
    assert any("left out of all figures" in line for line in found["findings"])
    (gemm,) = found["kernels"]
    assert (gemm["count"], gemm["per_step"]) == (40, {"count": 10, "total_ns": 500_000}) or gemm["count"] == 40


def test_trace_of_a_pipelined_job(write, figures):
    _, found = figures("trace", write("ahead", pipelined()))
    assert [each["wall_ns"] for each in found["steps"]] == [1_000_000] * 3
    assert found["left_out"] == []
    assert sum(row["total_ns"] for row in found["kernels"]) == 3_000_000


@pytest.mark.parametrize("name", DAMAGED)
def test_no_command_has_figures_of_a_trace_that_cannot_be_used(name, write, output, figures, tmp_path):
    file, good = write("damaged", DAMAGED[name]), write("good", steady())
    code, found = figures("trace", file)
    assert code == 0
    steps = len(found["steps"])
    assert steps < 2
    assert found["left_out"]
    assert any(each["reason"] in line for each in found["left_out"] for line in found["findings"])
    page = tmp_path / "page.html"
    assert output("trace", file, "--html", str(page))[0] == 0
    assert "left out of all figures" in page.read_text()
    for pair in ((file, good), (good, file), (file, file)):
        code, out, _ = output("diff", *pair)
        assert code == 3
        assert "not comparable: damage leaves fewer than 2 steps of " in out
        assert "%" not in out.partition("\n")[0]
    code, out, err = output("whatif", file, "--scale", "name~gemm:0.5")
    if steps:
        assert (code, "left out of all figures" in out) == (0, True)
    else:
        assert code == 2
        assert out == ""
        assert "has no step to simulate" in err
    code, _, err = output("trace", file, "--advise")
    assert code == 0
    assert ("perfdl trace: no advice:" in err) == (not steps)


def test_every_command_says_what_the_reader_says(write, output, figures, tmp_path):
    whole = write("whole", steady())
    cut = tmp_path / "cut.json"
    cut.write_bytes(Path(whole).read_bytes()[:-300])
    for command in (["trace"], ["whatif", "--scale", "name~gemm:0.5"], ["diff", whole]):
        code, out, err = output(*command, str(cut))
        assert code == 0, command
        assert "the trace is truncated at byte" in out + err, command
    _, found = figures("whatif", str(cut), "--scale", "name~gemm:0.5")
    assert any("the trace is truncated at byte" in note["text"] for note in found["notes"])


def test_diff_of_a_damaged_side_as_json_and_page(write, figures, output, tmp_path):
    file, good = write("damaged", DAMAGED["no kernels"]), write("good", steady())
    code, found = figures("diff", good, file)
    assert code == 3
    assert found["verdict"] == "incomparable"
    assert found["incomparable"] == "not comparable: damage leaves fewer than 2 steps of the current side"
    assert found["step"] is None
    assert found["blame"] == []
    assert any("what the device did is not recorded" in note for note in found["notes"])
    page = tmp_path / "page.html"
    assert output("diff", good, file, "--html", str(page))[0] == 3
    assert "not comparable: damage leaves fewer than 2 steps" in page.read_text()
    assert output("diff", good, file, "--fail-on=incomparable")[0] == 1
    assert output("diff", good, file, "--fail-on=regressed")[0] == 3


def test_diff_leaves_out_what_is_damaged_and_compares_the_rest(write, figures):
    # Step 3 of the new trace lacks a fifth of its kernels: that is said, and the other four are compared.
    lost = write("lost", without(steady(), 303, 304))
    code, found = figures("diff", write("good", steady()), lost)
    assert (code, found["verdict"], found["step"]["delta_ns"]) == (0, "unchanged", 0)
    assert found["incomparable"] is None
    assert any("step 3: left out of all figures" in note for note in found["notes"])


def test_steps_that_are_annotated_twice_are_not_faster(write, figures):
    code, found = figures("diff", write("once", steady()), write("twice", twice(steady())))
    assert (code, found["verdict"]) == (0, "unchanged")
    assert (found["step"]["base_ns"], found["step"]["new_ns"]) == (1_000_000, 1_000_000)
    assert any("annotated twice" in note for note in found["notes"])


def test_the_carried_over_work_of_a_pipelined_job_is_no_change(write, figures):
    # The same job behind 10 and behind 50 kernels of work from before.
    pair = [write(f"after {carried}", pipelined(4, carried=carried)) for carried in (10, 50)]
    code, found = figures("diff", *pair)
    assert (code, found["verdict"], found["step"]["delta_ns"]) == (0, "unchanged", 0)


def test_a_single_sound_step_is_inconclusive_as_before(write, figures):
    code, found = figures("diff", write("one", steady(1)), write("other", steady(1)))
    assert (code, found["verdict"], found["incomparable"]) == (0, "inconclusive", None)
    assert found["step"]["delta_ns"] == 0


def test_steps_against_none(write, figures):
    bare = write("bare", [one for one in steady() if one["cat"] != "user_annotation"])
    steps = write("steps", steady())
    sides = ("baseline", "current side")
    for pair, (has, lacks) in (((steps, bare), sides), ((bare, steps), sides[::-1])):
        code, found = figures("diff", *pair)
        assert (code, found["verdict"], found["step"]) == (3, "incomparable", None)
        assert found["incomparable"] == (
            f"not comparable: the {has} has step annotations and the {lacks} has none, so their step times "
            "mean different things"
        )


def test_a_device_against_none(write, figures):
    host = write("host", [step(number, 1000 * number, 1000) for number in range(3)] + [x("aten::mm", 10, 5)])
    device = write("device", steady())
    code, found = figures("diff", device, host)
    assert code == 3
    assert found["incomparable"] == (
        "not comparable: the baseline has device events and the current side has none, so their step times "
        "mean different things"
    )


def test_other_devices_are_named_first(write, figures, output):
    sides = [write(name, steady(), deviceProperties=[{"id": 0, "name": f"NVIDIA {name}"}]) for name in ("A100", "H100")]
    lost = write("lost", without(steady(), 303, 304), deviceProperties=[{"id": 0, "name": "NVIDIA H100"}])
    code, found = figures("diff", *sides)
    assert (code, found["verdict"]) == (0, "unchanged")
    line = "different devices: the baseline ran on 1 x NVIDIA A100, the current side on 1 x NVIDIA H100"
    assert found["notes"] == [line]
    assert line in output("diff", *sides)[1]
    _, found = figures("diff", sides[0], lost)
    assert found["notes"][0].startswith("different devices: ")
    assert "left out" in found["notes"][1]


def test_other_counts_of_devices_are_named(write, figures):
    second = [{**one, "pid": 1} if one["cat"] == "kernel" and one["ts"] % 200 > 100 else one for one in steady()]
    named = [{"id": number, "name": "NVIDIA H100"} for number in (0, 1)]
    one, two = write("one", steady(), deviceProperties=named), write("two", second, deviceProperties=named)
    _, found = figures("diff", one, two)
    assert found["notes"] == [
        "different devices: the baseline ran on 1 x NVIDIA H100, the current side on 2 x NVIDIA H100"
    ]


def test_of_several_traces_the_damaged_one_is_left_out(tmp_path, figures):
    folders = []
    for name in ("before", "after"):
        folder = tmp_path / name
        folder.mkdir()
        folders.append(str(folder))
        for number in range(3):
            (folder / f"{number}.json").write_bytes(text(longer(steady(), number)))
    (tmp_path / "after" / "3.json").write_bytes(text(DAMAGED["no kernels"]))
    code, found = figures("diff", *folders)
    assert code == 0
    assert found["incomparable"] is None
    left = str(tmp_path / "after" / "3.json")
    assert any(f"{left} is left out: damage leaves fewer than 2 of its steps" in note for note in found["notes"])


def test_whatif_says_what_it_works_on(write, output, figures):
    file = write("lost", without(steady(), 303, 304))
    code, out, _ = output("whatif", file, "--scale", "name~gemm:0.5")
    assert code == 0
    assert "over 5% of the work of step 3: left out of all figures" in out
    _, found = figures("whatif", file, "--scale", "name~gemm:0.5")
    assert found["whatif"][0]["step_ns"] == 1_000_000


def test_refused_links_are_said_by_every_command(write, output):
    # A correlation of step 1 is that of three more kernels, which run in step 4 on a stream of their own.
    events = [*steady(), *(kernel("other", 3100 + 100 * each, 20, 101, stream=9) for each in range(3))]
    file, good = write("links", events), write("good", steady())
    line = "with a correlation that names a call that cannot have launched"
    for arguments in (("trace", file), ("diff", good, file), ("whatif", file)):
        code, out, _ = output(*arguments)
        assert code == 0
        assert line in out


def test_of_several_damaged_traces_none_is_compared(tmp_path, figures):
    # Of each run one step is left: two runs of one step are not two steps.
    for name in ("a", "b"):
        (tmp_path / "runs").mkdir(exist_ok=True)
        (tmp_path / "runs" / f"{name}.json").write_bytes(text(DAMAGED["few kernels"]))
    (tmp_path / "good.json").write_bytes(text(steady()))
    code, found = figures("diff", str(tmp_path / "good.json"), str(tmp_path / "runs"))
    assert (code, found["verdict"]) == (3, "incomparable")


def test_a_rank_without_a_usable_step_is_no_rank_that_does_nothing(write, figures, output):
    ranks = [write(f"rank{number}", steady(), distributedInfo={"rank": number, "world_size": 3}) for number in (0, 2)]
    lost = write("rank1", DAMAGED["no kernels"], distributedInfo={"rank": 1, "world_size": 3})
    _, found = figures("trace", ranks[0], lost, ranks[1])
    assert [each["rank"] for each in found["ranks"]["ranks"]] == [0, 2]
    line = f"rank 1 is left out of the comparison: no step of {lost} can be used"
    assert line in found["ranks"]["findings"]
    assert line in output("trace", ranks[0], lost, ranks[1])[2]
