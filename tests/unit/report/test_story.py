"""What a report says first: causes by the place that they come from, in words, with shares that add up."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_perfdl.model.memory import MemoryAccount, MemoryCause, MemoryChange, MemoryRow, RowChange
from pytest_perfdl.report.story import cause_line, story
from pytest_perfdl.results.memory_causes import comes_first
from pytest_perfdl.results.verdict import (
    BreakdownRow,
    OperatorSides,
    SourceDiff,
    StepBreakdown,
    WorkChange,
    WorkSide,
)
from unit.report import runs

LINE = "models/gpt.py(43): causal_attention"
DIFF = SourceDiff("src/models/gpt.py", "causal_attention", "@@ -1 +1 @@\n-a\n+b", line=47)


def cause(name, base, new, *, module="GPT.blocks.0.attention", line=LINE, **rest):
    """(count, ns) on both sides; the step gained 10 ms."""
    share = (new[1] - base[1]) / 10_000_000
    return runs.cause(name, base, new, share, module=module, line=line, **rest)


FUSED = cause(
    "aten::_scaled_dot_product_flash_attention_for_cpu", (2, 2_000_000), (0, 0), module="GPT.blocks.1.attention"
)
WRAPPER = cause("aten::scaled_dot_product_attention", (2, 10_000), (0, 0))
BMM = cause("aten::bmm", (0, 0), (12, 6_000_000))
SOFTMAX = cause("aten::_softmax", (0, 0), (2, 4_000_000), module="GPT.blocks.1.attention")
BACKWARD = cause("aten::_softmax_backward_data", (0, 0), (2, 500_000))
COPY = cause("aten::copy_", (44, 100_000), (74, 1_100_000))
CAT = cause("aten::cat", (2, 100_000), (2, 900_000), line="models/gpt.py(35): forward")


def told(*causes, diffs=(DIFF,), operators=(), **rest):
    one = runs.result(blame=causes, source_diffs=diffs, **{"metrics": (), **rest})
    row = BreakdownRow("operator", "aten::bmm", None, 12, None, 6_000_000)
    step = StepBreakdown("", 30_000_000, 40_000_000, (row,))
    one = replace(one, judgement=replace(one.judgement, breakdowns=(step,), operators=operators))
    run = replace(runs.run(one), repository="https://github.com/owner/name", commit="abc123")
    return story(one, run)


def test_what_came_replaces_what_went_in_one_function():
    (only, *_) = told(BMM, SOFTMAX, BACKWARD, COPY, FUSED, WRAPPER).causes
    assert only.sentence == (
        "scaled_dot_product_flash_attention replaced by bmm, softmax; more calls of copy_ (44 -> 74/step)"
    )
    assert only.delta_ns == 6_000_000 + 4_000_000 + 500_000 + 1_000_000 - 2_000_000 - 10_000
    assert only.module == "GPT.blocks.*.attention"
    assert only.place.text == "src/models/gpt.py:47"
    assert only.place.url == "https://github.com/owner/name/blob/abc123/src/models/gpt.py#L47"
    assert only.diff == DIFF
    assert only.amount == "+9.490 of +10.00 ms in the profiled step, 94.9%"
    assert cause_line(only).endswith("in GPT.blocks.*.attention at src/models/gpt.py:47: " + only.amount)


@pytest.mark.parametrize(
    "gained, amount",
    [
        (7_600_000, "94.9% of the change in the profiled step"),
        (8_100_000, "+9.490 of +10.00 ms in the profiled step, 94.9%"),
        (13_200_000, "+9.490 of +10.00 ms in the profiled step, 94.9%"),
        (13_400_000, "94.9% of the change in the profiled step"),
    ],
)
def test_a_profiled_step_that_gained_otherwise_than_the_timed_one_says_shares_only(gained, amount):
    timed = runs.timed("block_time", 20_000_000, 20_000_000 + gained)
    assert told(BMM, SOFTMAX, BACKWARD, COPY, FUSED, WRAPPER, metrics=(timed,)).causes[0].amount == amount


def test_a_cause_with_a_time_that_goes_the_other_way_has_no_amount():
    fewer = replace(cause("aten::bmm", (12, 6_000_000), (14, 1_000_000)), share=None)
    step = runs.timed("block_time", 20_000_000, 21_000_000)
    assert told(fewer, metrics=(step,)).causes[0].amount == "the times of the profiled step do not show it"
    step = runs.timed("block_time", 20_000_000, 19_000_000)
    assert told(fewer, metrics=(step,)).causes[0].amount == "-5.000 ms in the profiled step"


def test_a_cause_of_more_than_the_change_is_all_of_it():
    faster = cause("aten::mul", (9, 4_000_000), (9, 1_000_000), line="models/gpt.py(99): other", module="")
    assert told(BMM, SOFTMAX, BACKWARD, faster).causes[0].amount.endswith("in the profiled step, all")


def test_the_line_is_that_of_the_added_operator():
    lines = ["@@ -42,3 +42,6 @@", " def causal_attention(q):", "-    return fused(q)"]
    text = "\n".join([*lines, "+    s = q @ q", "+    w = s.softmax(-1)", "+    return w"])
    about = told(BMM, SOFTMAX, FUSED, diffs=(replace(DIFF, text=text, line=43),))
    assert about.causes[0].place.line == 44
    assert told(BMM, FUSED, diffs=(replace(DIFF, text=text, line=43),)).causes[0].place.line == 43


def test_shares_add_up_with_the_rest():
    about = told(BMM, FUSED, CAT)
    first, second = about.causes
    (rest,) = about.rest
    assert (second.sentence, second.place.text) == ("cat slower per call", "src/models/gpt.py:35")
    assert first.delta_ns + second.delta_ns + rest.delta_ns == 10_000_000
    assert first.share + second.share + rest.share == pytest.approx(1)


def test_an_element_type_that_the_baseline_does_not_know_is_said():
    def sides(operator, dtype, *, before):
        work = WorkSide(1e6, 1e6, 1, 1000, {dtype: 1.0}, None)
        return OperatorSides("", operator, "[[8]]", dtype, work if before else None, work)

    operators = (sides("aten::mm", "float32", before=True), sides("aten::_softmax", "float64", before=False))
    (only,) = told(SOFTMAX, FUSED, operators=operators).causes
    assert only.sentence == "scaled_dot_product_flash_attention replaced by softmax in float64"
    (only,) = told(BMM, FUSED, operators=operators).causes
    assert "float64" not in only.sentence


@pytest.mark.parametrize(
    "one, sentence",
    [
        (cause("aten::mm", (2, 10_000), (4, 20_000)), "more calls of mm (2 -> 4/step)"),
        (cause("aten::mm", (4, 20_000), (2, 10_000)), "fewer calls of mm (4 -> 2/step)"),
        (cause("aten::mm", (2, 10_000), (2, 20_000)), "mm slower per call"),
        (cause("aten::mm", (0, 0), (2, 20_000)), "mm added"),
        (cause("aten::mm", (2, 20_000), (0, 0)), "mm removed"),
        (cause("input", (0, 1000), (0, 9000), kind="idle"), "longer wait for the next batch"),
        (cause("Python and host", (0, 1), (0, 9000), kind="idle"), "longer time in Python between operators"),
        (
            cause("torch/optim/adamw.py(12): step", (0, 1), (0, 9000), kind="idle"),
            "longer time in Python: step (torch/optim/adamw.py:12)",
        ),
        (cause("sgemm_128x64_tn", (2, 10_000), (2, 20_000), kind="kernel"), "sgemm_128x64_tn slower per call"),
    ],
)
def test_each_kind_of_change_has_words(one, sentence):
    assert told(one).causes[0].sentence == sentence


def test_a_change_that_no_cause_is_called_from_is_shown_all_the_same():
    uncalled = SourceDiff("src/net.py", "Net.__init__", "@@", line=12, called=False)
    about = told(CAT, diffs=(uncalled,))
    assert about.causes[0].place.text == "src/net.py:12", "the only function that changed"
    assert about.diffs == (uncalled,)
    others = [replace(uncalled, file=file) for file in ("src/a.py", "models/gpt.py")]
    assert told(CAT, diffs=[*others[:1], uncalled]).causes[0].place.text == "models/gpt.py:35", "either may be it"
    assert told(CAT, diffs=others).causes[0].place.text == "models/gpt.py:12", "the one in the same file"


def test_a_file_is_named_from_the_root_where_it_is_there(tmp_path):
    (tmp_path / "examples/models").mkdir(parents=True)
    (tmp_path / "examples/models/gpt.py").touch()
    one = replace(runs.result(blame=(CAT,)), file="examples/test_gpt.py")
    run = replace(runs.run(one), root=tmp_path)
    assert story(one, run).causes[0].place.text == "examples/models/gpt.py:35"
    assert story(one, run).causes[0].place.url == ""


def test_time_comes_before_memory_and_memory_before_counts():
    metrics = [
        runs.counted(verdict="regressed"),
        runs.timed("peak_memory", kind="counted", unit="B", times_over=30.0),
        runs.timed("block_time", times_over=2.0),
        runs.timed(times_over=1.1),
        runs.timed("operator aten::mm", of_step=False, times_over=99.0),
    ]
    about = told(BMM, metrics=metrics)
    assert about.headline.name == "step_time"
    assert [each.name for each in about.also] == ["block_time", "peak_memory", "ops"]


def test_commands_measure_first_and_accept_last():
    purposes = [purpose for purpose, _ in told(BMM).commands]
    assert purposes == ["measure again", "accept the change"]


def test_an_operator_on_larger_inputs_is_no_slower_one():
    side = WorkSide(1e6, 1e6, 1, 1000, {"float32": 1.0}, None)
    work = WorkChange("more work", "", "aten::linear", side, side, side, side)
    one = runs.result(blame=(CAT,))
    one = replace(one, judgement=replace(one.judgement, work=(work,)))
    assert story(one, runs.run(one)).causes[0].sentence == "cat slower per call on larger inputs"


def test_memory_comes_before_a_single_operator_and_after_the_step():
    peak = runs.timed("peak_memory", kind="counted", unit="B", base=1e6, new=2e6)
    operator, step = runs.timed("operator aten::mm", of_step=False), runs.timed()
    change = SimpleNamespace(causes=(), growth=0, call="")

    def first(*metrics):
        one = runs.result(metrics=metrics)
        return comes_first(replace(one.judgement, memory=(change,)))

    assert first(peak)
    assert first(peak, operator)
    assert not first(peak, step)
    assert not first(runs.counted()), "a count of operators is not explained by tensors"
    assert not first(operator)


def test_what_to_do_is_said_of_what_got_worse():
    assert told(BMM).advice == (
        "Revert or rework the changed lines at src/models/gpt.py:47 and measure again, or accept the change if it is "
        "intended."
    )
    budget = runs.timed(limit="<= 44ms", times_over=1.1)
    unchanged = runs.counted(new=1699, verdict="unchanged")
    assert told(CAT, diffs=(), metrics=[budget, unchanged]).advice == (
        "Revert or rework the code at models/gpt.py:35 and measure again."
    ), "no baseline lifts a budget"
    better = runs.result("improved", blame=(BMM,))
    assert story(better, runs.run(better)).advice == ""


def test_the_line_is_that_of_the_largest_new_operator():
    lines = ["@@ -42,3 +42,6 @@", " def causal_attention(q):", "+    m = ones(4).triu(1)", "+    w = q.softmax(-1)"]
    diff = replace(DIFF, text="\n".join(lines), line=43)
    triu = cause("aten::triu", (0, 0), (2, 150_000))
    assert told(triu, SOFTMAX, diffs=(diff,)).causes[0].place.line == 44


def test_time_in_python_is_named_beside_operators_where_it_holds_much_of_the_change():
    norms = cause("aten::linalg_vector_norm", (0, 0), (76, 1_300_000), line=LINE)
    python = cause("torch/nn/modules/module.py(9): named_parameters", (0, 1), (0, 3_000_000), kind="idle", line=LINE)
    said = "linalg_vector_norm added; longer time in Python: named_parameters (torch/nn/modules/module.py:9)"
    assert told(norms, python).causes[0].sentence == said
    little = replace(python, new_ns=300_000)
    assert told(norms, little).causes[0].sentence == "linalg_vector_norm added"
    longer = cause("aten::mm", (2, 10_000), (2, 1_000_000), line=LINE)
    assert told(longer, python).causes[0].sentence.startswith("longer time in Python: named_parameters")
    assert told(longer, python).causes[0].sentence.endswith("; mm slower per call")


def test_a_slower_data_loader_names_the_function_that_changed():
    waiting = cause("input", (0, 1000), (0, 9_000_000), kind="idle", line="", module="")
    init = SourceDiff("src/data.py", "Images.__init__", "@@", line=3, called=False)
    item = SourceDiff("src/data.py", "Images.__getitem__", "@@", line=12, called=False)
    (first, *_) = told(waiting, diffs=(init, item)).causes
    assert first.sentence == "longer wait for the next batch; changed: Images.__getitem__"
    assert first.place.text == "src/data.py:12"
    assert told(waiting, diffs=()).causes[0].sentence == "longer wait for the next batch"


@pytest.mark.parametrize(
    "line, changed",
    [
        (43, "changed: src/models/gpt.py:43-45, 47 (removed: loss.backward())"),
        (50, "changed: src/models/gpt.py:43-45, 47 (removed: loss.backward())"),
    ],
)
def test_the_changed_lines_are_named_beside_the_line_that_allocates(line, changed):
    lines = ["@@ -43,4 +43,5 @@", "-    loss = f()", "-    loss.backward()", "+    a = f()", "+    b = a"]
    text = "\n".join([*lines, "+    b.backward()", "     c", "+    d"])
    about = of_memory(line, replace(DIFF, text=text))
    assert about.memory_changed == changed
    assert about.memory_place.text == f"src/models/gpt.py:{line}"
    assert "the changed lines at src/models/gpt.py:43-45, 47 and" in about.advice


def test_a_changed_line_that_allocates_needs_no_other():
    diff = replace(DIFF, text="@@ -43 +43 @@\n-    a\n+    b")
    assert of_memory(43, diff).memory_changed == ""
    assert of_memory(44, diff).memory_changed == "changed: src/models/gpt.py:43"
    assert "at src/models/gpt.py:43 and" in of_memory(43, diff).advice


def of_memory(line, diff):
    row = MemoryRow(
        "activations",
        "GPT",
        f"models/gpt.py({line}): causal_attention",
        "forward",
        "",
        "float32",
        "[8]",
        tensors=1,
        bytes=64,
        lives_from=1,
        lives_to=None,
    )
    side = MemoryAccount("cpu", (row,), 64, 1, 9)
    change = MemoryChange("", None, side, (MemoryCause((RowChange(None, row, "new"),)),))
    one = runs.result(metrics=[runs.counted("peak_memory", 1, 64, unit="B", verdict="regressed")], source_diffs=(diff,))
    one = replace(one, judgement=replace(one.judgement, memory=(change,)))
    return story(one, runs.run(one))
