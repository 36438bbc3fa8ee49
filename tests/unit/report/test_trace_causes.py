"""Which slices of a regression's trace are whose: they say what the page says, and nothing else is a verdict."""

import gzip
import json
from dataclasses import replace

import pytest

from pytest_perfdl.report.story import cause_groups
from pytest_perfdl.report.traces import collect
from pytest_perfdl.results.run import Exemplars
from pytest_perfdl.results.run_file import to_json
from unit.report import runs, steps
from unit.report.importer import problems

MS = 1_000_000


def drawn(result, base, new):
    """The trace as a viewer reads it: what it says of itself, and its slices."""
    data = json.loads(gzip.decompress(steps.drawn(result, "", base, new).data))
    assert problems(data["traceEvents"]) == []
    return data["perfdl"], [event for event in data["traceEvents"] if event["ph"] == "X"]


def caused(*causes):
    return runs.result(blame=causes)


def idle(name, base_ns, new_ns, share, **rest):
    return runs.cause(name, (0, base_ns), (0, new_ns), share, kind="idle", **rest)


def of_cause(slices, name, pid=2):
    """Names of a cause's slices, without what is appended to them."""
    own = [event for event in slices if event.get("args", {}).get("cause") == name and event["pid"] == pid]
    return [event["name"].partition(" (")[0] for event in own]


INPUT = idle("input", 80_000, 12 * MS, 0.95)


def test_a_wait_for_input_is_marked_where_it_is():
    base, new = steps.training(), steps.training(wait=12_000)
    about, slices = drawn(caused(INPUT), base, new)
    for pid in (1, 2):
        assert sorted(of_cause(slices, "input", pid)) == [steps.LOADER, "input", "perfdl.data_wait"]
    marked = [event for event in slices if event["pid"] == 2 and event.get("args", {}).get("cause")]
    assert {event["args"]["verdict"] for event in marked} == {"slower"}
    assert {event["cname"] for event in marked} == {"terrible"}
    assert {event["cat"] for event in marked} == {"user_annotation", "idle"}
    assert about["selected"] == {
        "name": "perfdl.data_wait (+11.92 ms/step)",
        "pid": 2,
        "start_ns": 20_000,
        "duration_ns": 12_000_000,
    }


def test_nothing_but_a_cause_has_a_verdict_or_a_color():
    base, new = steps.training(), steps.training(wait=12_000, softmax=900, host=700)
    _, slices = drawn(caused(INPUT), base, new)
    others = [event for event in slices if "cause" not in event.get("args", {})]
    assert len(others) > 20
    assert not [event for event in others if "verdict" in event.get("args", {}) or "cname" in event]
    optimizer = next(event for event in others if event["name"] == steps.ADAMW and event["pid"] == 2)
    assert optimizer["args"] == {"observed_baseline_ns": 220_000, "observed_delta_ns": 600_000}


def test_the_numbers_are_the_pages_own():
    causes = [
        runs.cause("aten::softmax", (0, 0), (1, 900_000), 0.5, module="GPT.h.1"),
        idle("input", 80_000, 500_000, 0.3),
        runs.cause(steps.MM, (5, 1_100_000), (5, 1_250_000), 0.1),
        idle(steps.ADAMW, 90_000, 200_000, 0.08, certain=False),
        idle("Python and host", 60_000, 90_000, float("nan")),
        runs.cause("aten::flash", (1, 100_000), (0, 0), -0.07),
    ]
    result = caused(*causes)
    base, new = steps.training(fused=True), steps.training(wait=500, softmax=900, host=200)
    _, slices = drawn(result, base, new)
    page = {cause["name"]: cause for cause in to_json(runs.run(result))["tests"][0]["blame"]}
    seen = set()
    for event in slices:
        said = event.get("args", {})
        if "cause" not in said:
            continue
        cause = page[said["cause"]]
        seen.add(said["cause"])
        for number in ("base_ns", "new_ns", "delta_ns", "share"):
            assert said[number] == cause[number], number
        slower = "slower" if cause["delta_ns"] > 0 else "faster"
        status = cause["status"] if cause["base_count"] != cause["new_count"] else "changed"
        assert said["verdict"] == (slower if status == "changed" else status)
        assert said.get("certain", True) is cause["certain"]
    assert seen == set(page)


def test_color_is_the_size_of_the_change():
    causes = [
        runs.cause("aten::_softmax", (1, 100_000), (1, 1_000_000), 0.9),
        runs.cause("aten::softmax", (1, 5_000), (1, 75_000), 0.07),
        runs.cause(steps.MM, (5, 1_100_000), (5, 1_110_000), 0.01),
        idle(steps.ADAMW, 200_000, 170_000, -0.03),
        idle("input", 80_000, 70_000, -0.01),
    ]
    _, slices = drawn(caused(*causes), steps.training(), steps.training(softmax=1_000))
    colors = {
        event["args"]["cause"]: event.get("cname")
        for event in slices
        if event["pid"] == 2 and "cause" in event.get("args", {})
    }
    assert colors == {
        "aten::_softmax": "terrible",
        "aten::softmax": "bad",
        steps.MM: None,
        steps.ADAMW: "good",
        "input": None,
    }
    # A change without a color is not in its name either.
    assert all(event["name"] == steps.MM for event in slices if event.get("args", {}).get("cause") == steps.MM)


@pytest.mark.parametrize(
    "deltas, colors",
    [
        ((90, 5), ["terrible", "bad"]),
        ((30, 29, 24, 22, 10), ["terrible", "terrible", "bad", "bad", "bad"]),
        ((40, 40), ["terrible", "terrible"]),
        ((96, 1), ["terrible", None]),
    ],
    ids=["one", "several", "equal", "small"],
)
@pytest.mark.parametrize("known", [True, False], ids=["share", "no-share"])
def test_the_largest_that_make_most_of_a_change_stand_out_most(deltas, colors, known):
    names = [f"aten::{letter}" for letter in "abcde"[: len(deltas)]]
    whole = sum(deltas)
    causes = [
        runs.cause(name, (1, 1_000), (1, 1_000 + delta * 1_000), delta / whole if known else None)
        for name, delta in zip(names, deltas, strict=True)
    ]
    slices = [steps.operator(name, 10 * place + 1, 10 * place + 9) for place, name in enumerate(names)]
    data = steps.exemplar(steps.annotation(steps.STEP, 0, 100), *slices)
    _, found = drawn(caused(*causes), data, data)
    assert [event.get("cname") for event in found if event["pid"] == 2 and event["cat"] == "cpu_op"] == colors
    assert not any("cname" in event for event in found if event["pid"] == 1)


def test_what_is_gone_stands_out_in_the_baseline_and_can_be_selected():
    gone = runs.cause("aten::flash", (1, 100_000), (0, 0), 0.9)
    about, slices = drawn(caused(gone), steps.training(fused=True), steps.training(softmax=10))
    (marked,) = [event for event in slices if "cause" in event.get("args", {})]
    assert (marked["pid"], marked["name"], marked["cname"]) == (1, "aten::flash (gone, -100.0 µs/step)", "good")
    assert about["selected"]["pid"] == 1


def test_a_cause_in_a_module_is_marked_there_and_in_the_backward_pass():
    cause = runs.cause(steps.MM, (5, 1_100_000), (5, 1_500_000), 0.9, module="GPT.h.1")
    _, slices = drawn(caused(cause), steps.training(), steps.training())
    placed = {
        (event["ts"], "cause" in event["args"]) for event in slices if event["pid"] == 2 and event["cat"] == "cpu_op"
    }
    multiplied = sorted(event["ts"] for event in slices if event["pid"] == 2 and event["name"].startswith(steps.MM))
    # Block 0, block 1, twice backward, of which an exemplar does not say the module, and the optimizer.
    assert [(ts, True) in placed for ts in multiplied] == [False, True, True, True, False]


def test_modules_say_the_sum_of_the_causes_in_them():
    causes = [
        runs.cause("aten::_softmax", (1, 100_000), (1, 900_000), 0.8, module="GPT.h.1"),
        runs.cause("aten::softmax", (1, 5_000), (1, 105_000), 0.1, module="GPT.h.1"),
        idle("Python and host", 5_000, 55_000, 0.05, module="GPT.h"),
    ]
    _, slices = drawn(caused(*causes), steps.training(), steps.training(softmax=900))
    said = {
        event["name"].removeprefix("perfdl.module: "): event.get("args", {})
        for event in slices
        if event["name"].startswith("perfdl.module: ") and event["pid"] == 2
    }
    assert said["GPT.h.1"]["causes_delta_ns"] == 900_000
    assert said["GPT.h.1"]["causes_share"] == pytest.approx(0.9)
    assert said["GPT.h.1"]["causes"] == "aten::_softmax, aten::softmax"
    assert said["GPT"]["causes_delta_ns"] == 950_000
    assert "causes" not in said["GPT.h.0"]
    assert not any("verdict" in args for args in said.values())


def test_a_cause_of_all_blocks_is_in_each_of_them():
    cause = runs.cause(steps.MM, (5, 1_100_000), (5, 1_500_000), 0.9, module="GPT.h.*.mlp")
    slices = [
        steps.annotation(steps.STEP, 0, 500),
        steps.module("GPT", 10, 400),
        steps.module("GPT.h.0", 20, 110),
        steps.module("GPT.h.0.mlp", 30, 60),
        steps.operator(steps.MM, 40, 50),
        steps.module("GPT.h.0.attn", 70, 100),
        steps.operator(steps.MM, 80, 90),
        steps.module("GPT.h.1", 120, 200),
        steps.module("GPT.h.1.mlp", 130, 160),
        steps.operator(steps.MM, 140, 150),
    ]
    _, found = drawn(caused(cause), steps.exemplar(*slices), steps.exemplar(*slices))
    current = [event for event in found if event["pid"] == 2]
    modules = {
        event["name"].removeprefix("perfdl.module: "): event["args"]
        for event in current
        if event["name"].startswith("perfdl.module: ")
    }
    assert {name: args.get("causes_in") for name, args in modules.items() if "causes" in args} == {
        "GPT": None,
        "GPT.h.0": "GPT.h.*",
        "GPT.h.0.mlp": "GPT.h.*.mlp",
        "GPT.h.1": "GPT.h.*",
        "GPT.h.1.mlp": "GPT.h.*.mlp",
    }
    assert [event["ts"] for event in current if event["args"].get("cause")] == [40, 140]


@pytest.mark.parametrize("name", [steps.ADAMW, "torch/optim/adamw.py(12): step"], ids=["annotation", "function"])
def test_slower_python_is_marked_in_its_annotation_and_its_gaps(name):
    cause = idle(name, 130_000, 730_000, 0.9, line="train.py(9): step")
    about, slices = drawn(caused(cause), steps.training(), steps.training(host=700))
    marked = [event for event in slices if "cause" in event.get("args", {}) and event["pid"] == 2]
    assert {event["cat"] for event in marked} == {"user_annotation", "idle"}
    assert [each for each in of_cause(slices, name) if each != "Python and host"] == [steps.ADAMW]
    optimizer = next(event for event in marked if event["cat"] == "user_annotation")
    gaps = [event for event in marked if event["cat"] == "idle"]
    # The last gap is that after the optimizer's multiplication, which most of the cause is.
    assert max(event["dur"] for event in gaps) > 700
    assert about["selected"]["start_ns"] == round(optimizer["ts"] * 1000)


def test_a_function_that_no_annotation_is_named_after_is_in_pythons_time_outside_of_modules():
    cause = idle("torch/_tensor.py(566): backward", 60_000, 95_000, 0.9)
    _, slices = drawn(caused(cause), steps.training(), steps.training())
    inside = [event for event in slices if event["name"].startswith(("perfdl.module", "perfdl.data_wait", "Optimizer"))]
    marked = [event for event in slices if "cause" in event.get("args", {})]
    assert {event["cat"] for event in marked} == {"idle"}
    for event in marked:
        middle = event["ts"] + event["dur"] / 2
        assert not any(
            each["pid"] == event["pid"] and each["ts"] < middle < each["ts"] + each["dur"] for each in inside
        )


def test_members_of_an_exchange_are_marked_but_for_those_that_are_causes_themselves():
    exchange = runs.cause(
        "aten::flash -> aten::softmax, aten::_softmax",
        (1, 100_000),
        (2, 900_000),
        0.7,
        members=("aten::flash", "aten::softmax", "aten::_softmax"),
    )
    alone = runs.cause("aten::softmax", (0, 0), (1, 15_000), 0.1)
    _, slices = drawn(caused(exchange, alone), steps.training(fused=True), steps.training(softmax=900))
    assert of_cause(slices, exchange.name, 1) == ["aten::flash"]
    assert of_cause(slices, exchange.name, 2) == ["aten::_softmax"]
    assert of_cause(slices, "aten::softmax", 2) == ["aten::softmax"]


def test_the_slice_with_the_largest_part_in_the_first_cause_is_selected():
    slow = [steps.operator("aten::copy_", 10, 60), steps.operator("aten::copy_", 100, 400)]
    fast = [steps.operator("aten::copy_", 10, 15), steps.operator("aten::copy_", 100, 390)]
    sides = [steps.exemplar(steps.annotation(steps.STEP, 0, 500), *side) for side in (fast, slow)]
    about, _ = drawn(caused(runs.cause("aten::copy_", (2, 295_000), (2, 350_000), 1.0)), *sides)
    # The second is longer, the first lost more.
    assert about["selected"]["start_ns"] == 10_000


def test_the_first_cause_is_the_pages(tmp_path):
    away = runs.cause("aten::flash", (1, 400_000), (0, 0), -0.4, line="m.py(3): a")
    causes = [
        away,
        runs.cause("aten::_softmax", (1, 100_000), (1, 350_000), 0.25, line="m.py(9): b"),
        runs.cause("aten::softmax", (1, 5_000), (1, 305_000), 0.3, line="m.py(9): b"),
    ]
    for name, data in (("base", steps.training(fused=True)), ("new", steps.training(softmax=900))):
        (tmp_path / f"{name}.json.gz").write_bytes(data)
    exemplars = Exemplars("", tmp_path / "base.json.gz", tmp_path / "new.json.gz")
    result = replace(caused(*causes), exemplars=(exemplars,))
    run = runs.run(result)
    (call,) = collect(run)[result.id]
    trace = next(file for file in call.files if file.role == "diff")
    selected = json.loads(gzip.decompress(trace.data))["perfdl"]["selected"]
    # Of the group that goes the step's way, the largest one.
    assert cause_groups(result, run)[0].causes[0].name == "aten::softmax"
    assert selected["name"].startswith("aten::softmax (")
    assert trace.selected == f"pid=2&ts={selected['start_ns']}&dur={selected['duration_ns']}"


def test_a_cause_without_slices_is_passed_over():
    causes = [runs.cause("aten::nowhere"), runs.cause("aten::_softmax", (1, 100_000), (1, 900_000), 0.2)]
    about, _ = drawn(caused(*causes), steps.training(), steps.training(softmax=900))
    assert about["selected"]["name"].startswith("aten::_softmax")
