"""Whose the memory at a peak is, in words and as plain data."""

from dataclasses import replace

import pytest

from pytest_perfdl.model.limits import parse_requirement
from pytest_perfdl.model.memory import MemoryAccount, MemoryAdvice, MemoryCause, MemoryChange, MemoryRow, RowChange
from pytest_perfdl.model.record_json import converted
from pytest_perfdl.report import memory
from pytest_perfdl.results import memory_causes
from pytest_perfdl.results.verdict import Judgement, MetricVerdict
from unit.report import runs

KIB, MIB = 1024, 1024**2
LINE = "model.py(12): Net.forward"
PLACE = "model.py:12 in Net.forward"


def row(size, category="activations", **known):
    fields = {
        "module": "Net.fc",
        "line": LINE,
        "phase": "forward",
        "operator": "aten::linear",
        "dtype": "float32",
        "shape": "[8, 128]",
        "tensors": 1,
        "lives_from": 100,
        "lives_to": 750,
    }
    return MemoryRow(category=category, bytes=size, **(fields | known))


def parameter(size, category="parameters", *names, **known):
    return row(size, category, parameters=names or ("Net.fc.weight",), **({"lives_from": -1, "lives_to": None} | known))


def account(*rows, **known):
    peak = sum(each.bytes for each in rows)
    return MemoryAccount("cpu", rows, peak, 400, 1000, **({"curve": ((0, 1), (400, peak), (900, 2))} | known))


def cause(*pairs, movement="new"):
    """Of pairs of rows, or of new rows."""
    pairs = [each if isinstance(each, tuple) else (None, each) for each in pairs]
    return MemoryCause(tuple(RowChange(base, new, movement) for base, new in pairs))


def change(base=None, new=None, **known):
    return MemoryChange(**({"call": ""} | known), base=base, new=new or account(row(KIB)))


# How high the peak is


MOMENTS = [
    (None, "before the step allocates anything"),
    (row(8), "in the forward pass, in aten::linear of Net.fc"),
    (row(8, phase="backward", operator="ReluBackward0", module=""), "in the backward pass, in ReluBackward0"),
    (row(8, phase="optimizer", operator="", module=""), "in the optimizer"),
    (row(8, phase="input", operator="aten::ones", module=""), "while a batch is fetched, in aten::ones"),
    (row(8, phase="", operator="", module="Net"), "in the step of Net"),
    (row(8, phase="setup", operator="", module=""), "in the step"),
]


@pytest.mark.parametrize("moment, said", MOMENTS)
def test_when_the_peak_is_reached(moment, said):
    new = account(row(3 * MIB), moment=moment)
    assert memory.peak_sentence(change(None, new)) == f"the peak of 3.000 MiB is reached {said}"
    assert memory.peak_sentence(change(account(row(MIB), moment=moment), new)) == (
        f"the peak went from 1.000 MiB to 3.000 MiB, reached {said}"
    )


def test_the_peak_is_reached_at_another_moment():
    base, new = account(row(2 * MIB), moment=MOMENTS[1][0]), account(row(1536), moment=MOMENTS[2][0])
    assert memory.peak_sentence(change(base, new, call="train")) == (
        "train: the peak went from 2.000 MiB to 1.500 KiB, reached in the backward pass, in ReluBackward0"
        " (baseline: in the forward pass, in aten::linear of Net.fc)"
    )


@pytest.mark.parametrize("ends, said", [((1, 2, 3), "after 2 steps"), ((1, 2), "after 1 step")])
def test_where_memory_grows_the_peak_is_that_of_a_later_step(ends, said):
    new = account(row(MIB), step_ends=ends)
    assert memory.peak_sentence(change(None, new, growth=8, call="a")) == (
        f"a: {said} that each leave more memory allocated, the peak of 1.000 MiB is reached before the step allocates "
        "anything"
    )


def test_names_are_made_visible():
    moment = row(8, operator="aten::a\x1b[1m", module="Net\n")
    said = memory.peak_sentence(change(None, account(row(MIB), moment=moment), call="a\rb"))
    assert said.isprintable()
    assert said.startswith("a\\rb: ")


# What a cause is


@pytest.mark.parametrize(
    "found, said",
    [
        (cause(parameter(2 * MIB)), "1 parameter of 2.000 MiB (Net.fc.weight), new"),
        (
            cause(
                parameter(2 * MIB),
                parameter(4 * MIB, "optimizer state", tensors=2),
                parameter(2 * MIB, "gradients"),
            ),
            "1 parameter of 2.000 MiB, its gradient and 2 optimizer states (Net.fc.weight), new",
        ),
        (
            cause(parameter(2 * MIB), parameter(2 * MIB, "gradients")),
            "1 parameter of 2.000 MiB and its gradient (Net.fc.weight), new",
        ),
        (
            cause(parameter(2 * MIB, "parameters", "a", "b", tensors=2), parameter(MIB, "gradients", "a")),
            "2 parameters and their gradients (a, b), new",
        ),
        (
            cause(parameter(2 * MIB, "parameters", "a", "b", "c", "d", tensors=4)),
            "4 parameters (a, b and 2 more), new",
        ),
        (cause(parameter(MIB, "gradients", tensors=3)), "3 gradients of an earlier step (Net.fc.weight), still held"),
        (cause(parameter(MIB, "gradients")), "1 gradient of an earlier step (Net.fc.weight), still held"),
        (cause(parameter(MIB, "optimizer state", tensors=2)), "2 optimizer states (Net.fc.weight), new"),
        (
            # A count of steps is no state to speak of.
            cause(parameter(MIB, "optimizer state", tensors=2), parameter(4, "optimizer state")),
            "2 optimizer states (Net.fc.weight), new",
        ),
        (
            cause((parameter(MIB, tensors=3), None), movement="gone"),
            "3 parameters (Net.fc.weight), gone",
        ),
        (
            cause((parameter(MIB), parameter(3 * MIB, shape="[24, 128]")), movement="larger"),
            "1 parameter of 2.000 MiB (Net.fc.weight), [8, 128] -> [24, 128]",
        ),
        (cause(row(MIB)), "1 tensor [8, 128] float32 saved for the backward pass, new"),
        (cause(row(MIB, tensors=2)), "2 tensors [8, 128] float32 saved for the backward pass, new"),
        (
            cause(row(MIB), row(4 * MIB, shape="[2]", tensors=2)),
            "3 tensors (the largest: [2] float32, 2.000 MiB) saved for the backward pass, new",
        ),
        (
            cause(row(MIB, shape="", dtype=""), row(KIB)),
            "2 tensors (the largest: 1.000 MiB) saved for the backward pass, new",
        ),
        (cause(row(MIB, shape="", dtype="")), "1 tensor saved for the backward pass, new"),
        (cause(row(MIB, "temporaries")), "1 temporary [8, 128] float32, new"),
        (cause(row(MIB, "temporaries", tensors=2)), "2 temporaries [8, 128] float32, new"),
        (cause(row(MIB, "inputs", tensors=1200)), "1,200 inputs [8, 128] float32, new"),
        (cause(row(MIB, "parameters", tensors=2)), "2 parameters [8, 128] float32, new"),
        (cause(row(MIB, "other")), "memory allocated before the recording, new"),
        (cause(row(MIB, "allocator", shape="", dtype="", tensors=2)), "2 roundings, new"),
        (cause(row(MIB, kept=True)), "1 tensor [8, 128] float32 of an earlier step, still held"),
        (
            cause((row(MIB), row(3 * MIB, tensors=3)), movement="more"),
            "2 tensors [8, 128] float32 saved for the backward pass, 3 instead of 1",
        ),
        (
            cause((row(3 * MIB, tensors=3), row(MIB)), movement="fewer"),
            "2 tensors [8, 128] float32 saved for the backward pass, 1 instead of 3",
        ),
        (
            cause((row(MIB, dtype="float16"), row(2 * MIB)), movement="dtype"),
            "1 tensor [8, 128] float32 saved for the backward pass, float32 instead of float16",
        ),
        (
            cause((row(MIB, shape=""), row(2 * MIB)), movement="larger"),
            "1 tensor [8, 128] float32 saved for the backward pass, unknown shape -> [8, 128]",
        ),
        (
            cause((row(2 * MIB), row(MIB, shape="")), movement="smaller"),
            "1 tensor float32 saved for the backward pass, [8, 128] -> unknown shape",
        ),
        (
            cause((row(MIB), row(2 * MIB)), movement="larger"),
            "1 tensor [8, 128] float32 saved for the backward pass, larger",
        ),
        (
            cause((row(2 * MIB), row(MIB)), movement="smaller"),
            "1 tensor [8, 128] float32 saved for the backward pass, smaller",
        ),
        (
            cause(row(MIB), movement="longer"),
            (
                "1 tensor [8, 128] float32 saved for the backward pass, freed later than in the baseline, "
                "so still alive at the current peak"
            ),
        ),
        (
            cause((row(MIB, "temporaries"), None), movement="shorter"),
            "1 temporary [8, 128] float32, freed before the current peak, unlike in the baseline",
        ),
        (
            cause(row(MIB, "temporaries"), movement="moment"),
            "1 temporary [8, 128] float32, allocated in both steps, but alive at only one of the two peaks",
        ),
    ],
)
def test_what_a_cause_is(found, said):
    assert memory_causes.cause_name(found) == said


# Where it is


@pytest.mark.parametrize(
    "found, said",
    [
        (cause(row(MIB)), f"in Net.fc, allocated at {PLACE}, alive from 10% of the step to 75%"),
        (cause(parameter(MIB, line="")), "in Net.fc, alive from before the step to beyond its end"),
        (
            cause(row(MIB, module="", lives_from=0, lives_to=None)),
            f"allocated at {PLACE}, alive from 0% of the step to beyond its end",
        ),
        (
            cause(row(MIB, module="Net.h.0.a"), row(KIB, module="Net.h.1.a")),
            f"in Net.h.*.a, allocated at {PLACE}, alive from 10% of the step to 75%",
        ),
        (
            # Of what is gone, in the other side's step, which is twice as long.
            cause((row(MIB), None), movement="gone"),
            f"in Net.fc, allocated at {PLACE}, alive from 5% of the step to 38%",
        ),
    ],
)
def test_where_a_cause_is(found, said):
    whole = change(replace(account(row(MIB)), step_ns=2000), account(row(KIB)))
    assert memory.cause_place(found, whole) == said


def test_a_step_without_length():
    whole = change(None, replace(account(row(MIB)), step_ns=0))
    assert memory.lifetime(cause(row(MIB, lives_from=0, lives_to=0)), whole) == "alive from 0% of the step to 0%"


# All of it


def whole():
    base = account(parameter(MIB), row(MIB), row(KIB, "temporaries"), reserved_bytes=4 * MIB)
    new = account(
        parameter(3 * MIB, tensors=3),
        row(512 * KIB, line="model.py(9): f"),
        moment=row(8),
        notes=("8 bytes are still allocated between steps, although no Python object refers to them",),
        reserved_bytes=8 * MIB,
    )
    causes = (
        cause((parameter(MIB), parameter(3 * MIB, tensors=3)), movement="more"),
        cause((row(MIB), row(512 * KIB, line="model.py(9): f")), movement="smaller"),
        cause((row(KIB, "temporaries"), None), movement="gone"),
    )
    return change(base, new, call="train", causes=causes)


def test_the_terminal_s_text():
    assert memory.terminal(whole(), 2, 100).splitlines() == [
        "train: the peak went from 2.001 MiB to 3.500 MiB, reached in the forward pass, in aten::linear of",
        "Net.fc (baseline: before the step allocates anything)",
        "  +2.000 MiB  2 parameters (Net.fc.weight), 3 instead of 1",
        f"      in Net.fc, allocated at {PLACE}, alive from before the step to beyond its",
        "      end",
        "  -512.0 KiB  1 tensor [8, 128] float32 saved for the backward pass, smaller",
        "      in Net.fc, allocated at model.py:9 in f, alive from 10% of the step to 75%",
        "  and 1 more cause, -1.000 KiB in total (--top shows more)",
        "",
        "at the peak",
        "  parameters   1.000 MiB  ->  3.000 MiB  +2.000 MiB",
        "  activations  1.000 MiB  ->  512.0 KiB  -512.0 KiB",
        "  temporaries  1.000 KiB  ->        0 B  -1.000 KiB",
        "  reserved by the allocator: 4.000 MiB -> 8.000 MiB",
        "8 bytes are still allocated between steps, although no Python object refers to them",
    ]


def test_the_terminal_s_text_of_one_side():
    said = memory.terminal(change(None, account(row(MIB))), 3, 100)
    assert said.splitlines() == [
        "the peak of 1.000 MiB is reached before the step allocates anything",
        "",
        "at the peak",
        "  activations  0 B  ->  1.000 MiB  +1.000 MiB",
    ]


@pytest.mark.parametrize(
    "cost, said",
    [
        (None, "checkpoint the blocks: predicted peak 3.000 MiB (-1.000 MiB)"),
        (0.25, "checkpoint the blocks: predicted peak 3.000 MiB (-1.000 MiB), step time +25.0%"),
        (-0.01, "checkpoint the blocks: predicted peak 3.000 MiB (-1.000 MiB), step time -1.0%"),
    ],
)
def test_advice(cost, said):
    advice = MemoryAdvice("checkpoint the blocks", 3 * MIB, MIB, cost, "")
    assert memory.advice_sentence(advice, change(), Judgement("t", "regressed", "")) == said


@pytest.mark.parametrize(
    "limit, said",
    [
        ("2%+1MiB", "checkpoint the blocks: predicted peak 3.000 MiB (-1.000 MiB)"),
        ("2%", "checkpoint the blocks: predicted peak 3.000 MiB (-1.000 MiB), still above the limit of 2.040 MiB"),
        ("<= 2MiB", "checkpoint the blocks: predicted peak 3.000 MiB (-1.000 MiB)"),
    ],
)
def test_advice_that_does_not_reach_the_limit_says_so(limit, said):
    advice = MemoryAdvice("checkpoint the blocks", 3 * MIB, MIB, None, "")
    peak = MetricVerdict(
        "peak_memory",
        "counted",
        "B",
        "lower",
        2 * MIB,
        4 * MIB,
        limit=parse_requirement("peak_memory", limit),
        verdict="regressed",
    )
    assert memory.advice_sentence(advice, change(), Judgement("t", "regressed", "", (peak,))) == said


@pytest.mark.parametrize(
    "rows, said",
    [
        ((), "memory grows: each step keeps 3.000 KiB, but no allocation could be identified"),
        (
            (row(2 * KIB, tensors=2), row(KIB)),
            (
                "memory grows: each step keeps 3.000 KiB; most of it, 2.000 KiB, is 2 tensors [8, 128] float32 "
                f"allocated in Net.fc, at {PLACE}"
            ),
        ),
        (
            (row(2 * KIB, module="", shape=""),),
            f"memory grows: each step keeps 3.000 KiB; most of it, 2.000 KiB, is 1 tensor allocated at {PLACE}",
        ),
        (
            (row(2 * KIB, line="", shape=""),),
            "memory grows: each step keeps 3.000 KiB; most of it, 2.000 KiB, is 1 tensor allocated in Net.fc",
        ),
        (
            (row(2 * KIB, module="", line="", shape="[2]", dtype=""),),
            (
                "memory grows: each step keeps 3.000 KiB; most of it, 2.000 KiB, is 1 tensor [2] allocated outside "
                "of the project"
            ),
        ),
    ],
)
def test_what_grows(rows, said):
    new = account(row(MIB), growing=rows)
    assert memory.growth_sentence(change(None, new, growth=3 * KIB)) == said
    assert memory.growth_sentence(change(None, new, growth=3 * KIB, call="a")) == f"a: {said}"
    assert memory.growth_sentence(change(None, new)) == ""


# Plain data


def test_json_round_trip():
    there = replace(whole(), growth=8, advice=(MemoryAdvice("checkpoint", 1, 2, None, "a.py"),))
    there = replace(there, new=replace(there.new, growing=(row(8),), passed=(row(4),), step_ends=(1, 2)))
    for each in (there, replace(there, base=None, causes=())):
        (data,) = memory_causes.to_json([each])
        found = converted(data, MemoryChange)
        sides = {
            side: replace(account, curve=tuple(account.curve))
            for side, account in (("base", found.base), ("new", found.new))
            if account is not None
        }
        assert replace(found, **sides) == each


def test_json_says_what_the_rows_add_up_to():
    (data,) = memory_causes.to_json([whole()])
    assert (data["base"]["residual"], data["new"]["residual"]) == (0, 0)
    assert data["new"]["by_category"] == {"parameters": 3 * MIB, "activations": 512 * KIB}
    assert memory_causes.to_json([replace(whole(), base=None)])[0]["base"] is None


def test_causes_as_entries_of_blame():
    first, second, third = memory_causes.causes_to_json([whole()])
    expected = {
        "kind": "memory",
        "call": "train",
        "name": "2 parameters (Net.fc.weight), 3 instead of 1",
        "module": "Net.fc",
        "line": LINE,
        "callers": [],
        "category": "parameters",
        "tensors": 2,
        "movement": "more",
        "phase": "forward",
        "operator": "aten::linear",
        "dtype": "float32",
        "shape": "[8, 128]",
        "bytes": 2 * MIB,
        "base_tensors": 1,
        "new_tensors": 3,
        "lives_from": -1,
        "lives_to": None,
        "parameters": ["Net.fc.weight"],
    }
    assert {key: first[key] for key in expected} == expected
    assert (second["bytes"], second["line"], second["tensors"]) == (-512 * KIB, "model.py(9): f", 1)
    assert (third["movement"], third["base_tensors"], third["new_tensors"]) == ("gone", 1, 0)


def test_the_nodes_of_the_page_add_up():
    rows = (
        parameter(8),
        row(16),
        row(32, module="Net"),
        row(64, "temporaries", module=""),
        row(128, module="Net.fc.inner"),
        row(256, "gradients", module="Other"),
        row(512, module=""),
        row(1024, "temporaries"),
    )
    page = memory.page_data(change(account(*rows[:3]), account(*rows)))
    for side, taken in (("base", rows[:3]), ("new", rows)):
        nodes = page["sides"][side]["nodes"]
        sizes = {each: size for each, _, _, size in nodes}
        assert len(sizes) == len(nodes), "each id is one node's"
        inside = {}
        for _, around, _, size in nodes:
            if around:
                assert around in sizes
                inside.setdefault(around, []).append(size)
        assert {each: sum(children) for each, children in inside.items()} == {each: sizes[each] for each in inside}
        assert sizes[nodes[0][0]] == sum(each.bytes for each in taken) == page["sides"][side]["peak_bytes"]
        # What holds nothing else is the category of a module.
        leaves = {label for each, _, label, _ in nodes if each not in inside}
        assert leaves == {each.category for each in taken}


def test_the_page_s_rows_and_curves():
    page = memory.page_data(whole())
    assert (page["call"], page["device"], page["more"]) == ("train", "cpu", 0)
    # The most changed first; each with tensors and bytes of both sides.
    assert [each[0] for each in page["rows"]] == ["parameters", "activations", "temporaries"]
    assert page["rows"][0] == ["parameters", "Net.fc", LINE, "aten::linear", "[8, 128] float32", 1, 3, MIB, 3 * MIB]
    assert page["rows"][2][5:] == [1, 0, KIB, 0]
    assert page["sides"]["new"]["curve"] == [[0, 400, 900], [1, 3 * MIB + 512 * KIB, 2]]
    assert page["sides"]["new"]["categories"] == {"parameters": 3 * MIB, "activations": 512 * KIB}


def test_the_page_of_one_side():
    page = memory.page_data(change(None, account(row(8), curve=())))
    assert page["sides"].keys() == {"new"}
    assert page["sides"]["new"]["curve"] == [[], []]
    assert [each[5:] for each in page["rows"]] == [[0, 1, 0, 8]]


def test_the_page_has_so_many_rows():
    rows = [row(size, line=f"model.py({size}): f{size}", module=f"Net.{size}") for size in range(1, 321)]
    page = memory.page_data(change(None, account(*rows)))
    assert (len(page["rows"]), page["more"]) == (memory.MOST_ROWS, 20)
    assert page["rows"][0][-1] == 320


@pytest.mark.parametrize(
    "metric, said",
    [
        (runs.counted("peak_memory", 2, KIB, unit="B", verdict="regressed", limit="2%+1MiB"), "is above its limit"),
        (runs.counted("peak_memory", 2, KIB, unit="B", verdict="unchanged", limit="2%"), "is within its limit"),
        (runs.counted("peak_memory", 2, KIB, unit="B", verdict="regressed", limit="<= 1kB"), "is above its budget"),
        (runs.counted("peak_memory", 2, KIB, unit="B"), "has no limit"),
    ],
)
def test_advice_says_whether_the_peak_is_within_its_limit(metric, said):
    lead = memory.advice_lead(change(), runs.result(metrics=[metric]).judgement)
    assert said in lead
    assert lead.endswith("To lower it all the same" if "within" in said else "To lower it")
