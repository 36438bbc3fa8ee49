"""The sentences, orders and commands that every report shares, so that all of them say the same.

Each function takes a `Run` or a `Result` and returns text or sorted values; nothing here knows a format. `story`
says what comes first about a test, with its causes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.judge.budget import phrase
from pytest_perfdl.judge.kernels import is_expected
from pytest_perfdl.machine.utilization import TELLING
from pytest_perfdl.model.metrics import STEP_TIMES, general, label
from pytest_perfdl.model.record import (
    INJECTED,
    SHORT_STEP,
    Finding,
    metric_name,
)
from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible as visible
from pytest_perfdl.model.waivers import Waiver
from pytest_perfdl.report import figures, memory
from pytest_perfdl.report.compared import TEST_ERROR_WORD, by_verdict, compared, verdict_word
from pytest_perfdl.results.verdict import (
    ACCEPTED_BY_UPDATE,
    UNRECORDED,
    VERDICTS,
    WARNS_BY_DEFAULT,
    WORSE,
    Bound,
    Cause,
    Judgement,
    MetricVerdict,
    SourceDiff,
    Verdict,
    WorkChange,
    WorkSide,
    importance,
)

if TYPE_CHECKING:
    from pytest_perfdl.config.invocation import Invocation
    from pytest_perfdl.results.run import Result, Run

ALWAYS_COUNTED: tuple[Verdict, ...] = ("missing", "incomparable", "unmeasured")
"""Counted even when zero: a gate that compared nothing must not look green."""
SETTLED_BY_MEASURING: frozenset[Verdict] = frozenset({"invalid", "suspect", "inconclusive"})
MANY = 10
"""Above this number of tests a command names their files instead."""
LEAST_CHANGE = 0.0005
"""Least change that does not read +0.0%."""
VERDICT_WORDS: dict[Verdict, str] = {
    "waived": "over its limit, but within the limit of a waiver",
    "suspect": "probably over its limit, but more paired rounds are needed to be certain",
    "changed": "differs from the baseline, without exceeding a limit",
    "inconclusive": "neither a change above the limit nor its absence is certain",
    "incomparable": "no comparison with the baseline is possible",
}
"""What a metric's verdict means, for verdicts whose names do not say it."""


def fails_or_warns(result: Result) -> bool:
    """Whether somebody should look at the test: with its new baseline written, what it warned of is accepted."""
    return result.fails or (result.judgement.verdict in WARNS_BY_DEFAULT and not result.updated)


def notable(result: Result) -> bool:
    """Whether a summary names the test: it fails, warns, got better, counts otherwise, was written, or keeps memory."""
    judgement = result.judgement
    changed = judgement.verdict == "improved" or judgement.counts_changed or result.updated
    return fails_or_warns(result) or changed or bool(judgement.growth)


def severity(judgement: Judgement) -> float:
    """How bad a judgement is among those of its verdict: times over the limit, else the largest effect."""
    over = [metric.times_over for metric in judgement.metrics if metric.times_over is not None]
    if over:
        return max(over)
    effects = [abs(metric.effect) for metric in judgement.metrics if judged(metric) and metric.effect is not None]
    return max((effect for effect in effects if math.isfinite(effect)), default=0.0)


def judged(metric: MetricVerdict) -> bool:
    """Whether the metric says something other than that all is as before."""
    return metric.verdict not in (None, "unchanged", "new")


def is_news(metric: MetricVerdict) -> bool:
    """Whether a metric changed by more than what is shown as +0.0%, or its change cannot be shown."""
    return metric.effect is None or not math.isfinite(metric.effect) or abs(metric.effect) >= LEAST_CHANGE


def matters(metric: MetricVerdict, judgement: Judgement) -> bool:
    """Whether a metric with a verdict is to be read beside the test's: not a count that is no worse in a slower test.

    Nor is a single kernel or operator that is only suspect, where a metric of the step decided.
    """
    if metric.outcome == judgement.verdict or judgement.verdict not in WORSE:
        return True
    if metric.verdict == "changed":
        worse = metric.effect is None or (metric.effect > 0) == (metric.better == "lower")
        return worse and is_news(metric)
    decided = any(each.of_step and each.outcome == judgement.verdict for each in judgement.metrics)
    return metric.of_step or metric.outcome not in ("suspect", "waived") or not decided


def unimportant_sentence(judgement: Judgement) -> str:
    """Which metrics with a verdict are not worth reading beside the test's; empty where there is none."""
    found = [
        f"{visible(metric.name)} {figures.effect(metric)}"
        for metric in metrics_worst_first(judgement.metrics)
        if metric.of_step and judged(metric) and not matters(metric, judgement)
    ]
    return f"Not listed, because they hardly changed or became better: {', '.join(found)}" if found else ""


def metric_words(metric: MetricVerdict) -> str:
    """What a metric is, in a few words; empty for a metric of the test's author."""
    if metric.of_step:
        return label(metric.name)
    kind = "kernel" if general(metric.name.partition(" ")[0]) == "kernel" else "operator"
    return f"time of this {kind} per step"


def metrics_explained(metrics: Iterable[MetricVerdict]) -> str:
    """What the metrics of the step are: "step_time: lower quartile of step times; block_time: mean of all step times".

    Each is explained once, whatever the call.
    """
    names = dict.fromkeys(general(metric.name) for metric in metrics if metric.of_step and label(metric.name))
    return "; ".join(f"{name}: {label(name)}" for name in names)


def verdicts_explained(metrics: Iterable[MetricVerdict]) -> str:
    """What those verdicts of metrics mean whose names do not say it."""
    shown = {metric.outcome for metric in metrics}
    return "; ".join(f"{verdict}: {meaning}" for verdict, meaning in VERDICT_WORDS.items() if verdict in shown)


def environment_words(metric: MetricVerdict) -> str:
    """What a time of the baseline commit, measured again in this run, shows about the environment."""
    measured = "(the baseline commit was measured again now)"
    changed = judged(metric) and metric.verdict not in ("inconclusive", "incomparable")
    return f"the environment changed, not the code {measured}" if changed else f"the environment {measured}"


def worst_first(results: Iterable[Result]) -> list[Result]:
    """Failing tests first, then by verdict, then by severity, then by name."""
    return sorted(
        results,
        key=lambda result: (
            not result.fails,
            VERDICTS.index(result.judgement.verdict),
            -severity(result.judgement),
            result.id,
        ),
    )


def metrics_worst_first(metrics: Iterable[MetricVerdict], verdict: Verdict = "unchanged") -> list[MetricVerdict]:
    """By verdict; then times of the step before memory and counts, and its kernels' last; otherwise as measured.

    What decided the verdict of the test comes before all others, unless that is `unchanged`: a count that changed
    beside a time that improved is not the news.
    """
    decides = verdict not in ("unchanged", "new")
    return sorted(
        metrics,
        key=lambda metric: (
            decides and metric.outcome != verdict,
            len(VERDICTS) if metric.outcome is None else VERDICTS.index(metric.outcome),
            importance(metric),
            -(metric.times_over or 0.0) if not metric.of_step else 0.0,
        ),
    )


def word(result: Result) -> str:
    """What a report calls the outcome of a test: its verdict, that it was recorded, or that the test itself failed."""
    return "recorded" if result.updated else verdict_word(result)


def step_times(judgement: Judgement) -> list[MetricVerdict]:
    """The step time of each call, or its block time where steps were not timed one by one."""
    by_call: dict[str, MetricVerdict] = {}
    for name in STEP_TIMES:
        for metric in judgement.metrics:
            if general(metric.name) == name and not is_expected(metric):
                by_call.setdefault(metric.name.removesuffix(name), metric)
    return list(by_call.values())


def counts_sentence(run: Run) -> str:
    """How many tests were compared and what came of it, and how many were not.

    "40 compared: 1 regressed, 1 improved, 38 unchanged. 1 missing, 0 incomparable, 0 unmeasured."
    """
    counts = run.counts()
    if not run.judged:
        unmeasured = counts.get("unmeasured", 0)
        return f"{len(run.results) - unmeasured} measured without verdicts. {unmeasured} unmeasured."
    held = [result for result in run.results if compared(result)]
    others = [result for result in run.results if not compared(result) and not result.updated]
    rest = by_verdict(others, always=ALWAYS_COUNTED)
    first = f"{len(held)} compared" + (f": {by_verdict(held)}." if held else ".")
    recorded = sum(result.updated for result in run.results)
    if recorded:
        first = f"{plural(recorded, 'baseline')} recorded. {first}"
    return f"{first} {rest}."


def recording_sentence(run: Run) -> str:
    """What the recorded baselines will be able to detect, by the worst of them; empty if that is not known.

    "step_time of t.py::test_a varies by 15 % between processes (standard deviation): without paired rounds only
    slowdowns above 37 % can be detected."
    """
    updated = [result for result in run.results if result.updated]
    known = [(each.sensitivity, each) for each in updated if each.sensitivity is not None]
    if not known:
        return ""
    worst, result = max(known, key=lambda pair: math.inf if pair[0].detectable is None else pair[0].detectable)
    of_test = f" of {visible(result.id)}" if len(updated) > 1 else ""
    paired = "" if run.commit is None else " Paired rounds (the default in a git repository) detect smaller ones."
    if worst.detectable is None:
        return (
            f"Without paired rounds, {plural(worst.processes, 'process', 'processes')} cannot detect a slowdown of "
            f"{visible(worst.metric)}{of_test}: {worst.needed} are needed (--perf-repeats).{paired}"
        )
    found = f"{worst.detectable * 100:.0f} %"
    if worst.spread <= worst.limit:
        return f"Without paired rounds, slowdowns of {visible(worst.metric)} above {found} can be detected."
    return (
        f"{visible(worst.metric)}{of_test} varies by {worst.spread * 100:.0f} % between processes (standard "
        f"deviation): without paired rounds only slowdowns above {found} can be detected.{paired}"
    )


def headline(run: Run) -> str:
    """What came of the run, "1 of 3 perf tests regressed", "All 2 perf tests pass", "Recorded 2 new baselines"."""
    count = len(run.results)
    total = plural(count, "perf test")
    if not count:
        return "No perf test ran"
    if not run.judged:
        return f"{total} measured without isolation, so their times have no verdicts"
    if failing := [result for result in run.results if result.fails]:
        return _failure_words(failing, count)
    recorded = [result for result in run.results if result.updated]
    new = sum(result.base is None for result in recorded)
    what = plural(len(recorded), "new baseline" if new == len(recorded) else "baseline")
    if len(recorded) == count:
        return f"Recorded {what}"
    passed = "The perf test passes" if count == 1 else f"All {total} pass"
    if not any(map(compared, run.results)) and not recorded:
        return f"{passed}, but nothing was compared: {by_verdict(run.results)}"
    unsettled = [result for result in run.results if fails_or_warns(result)]
    noted = f", {by_verdict(unsettled)}" if unsettled else ""
    return passed + noted + (f", recorded {what}" if recorded else "")


def _failure_words(failing: Sequence[Result], count: int) -> str:
    """What failing tests did, in words of their own where all have one verdict."""
    total = plural(count, "perf test")
    shown = {verdict_word(result) for result in failing}
    if len(shown) == 1 and (alike := _FAILED.get(shown.pop())):
        one, several = alike
        if count == 1:
            return f"The perf test {one}"
        return f"{len(failing)} of {total} {one if len(failing) == 1 else several}"
    return f"{len(failing)} of {total} {'fails' if len(failing) == 1 else 'fail'}: {by_verdict(failing)}"


_FAILED = {
    TEST_ERROR_WORD: ("failed before it was measured", "failed before they were measured"),
    "regressed": ("regressed", "regressed"),
    "missing": ("has no baseline", "have no baseline"),
    "outdated": ("has an outdated baseline", "have an outdated baseline"),
    "invalid": ("has no valid measurement", "have no valid measurement"),
    "waived": ("is waived", "are waived"),
}
"""What failing tests that all have this verdict are said to do: one of them, and several."""


_FIRST_IN_CONTEXT = ("interpreter", "python", "torch", "triton", "cuda", "cudnn", "driver", "numpy")
_CONTEXT_SHOWN = 8
"""Changes of the context that a report lists: two releases of torch differ in thirty packages for devices."""


def context_changes(run: Run) -> list[tuple[str, str, str, int]]:
    """What differs from the baselines' context: (name, baseline's value, this run's, number of tests)."""
    found: dict[tuple[str, str, str], int] = {}
    for result in run.results:
        for change in result.judgement.context_changes:
            found[change] = found.get(change, 0) + 1
    return [(*change, number) for change, number in found.items()]


def context_list(said: Mapping[str, str]) -> list[str]:
    """What to say of changes of the context, given by name: what usually matters first, and how many more there are."""
    place = {name: number for number, name in enumerate(_FIRST_IN_CONTEXT)}
    names = sorted(said, key=lambda name: (place.get(name, len(place)), name))
    more = len(names) - _CONTEXT_SHOWN
    if more <= 1:
        return [said[name] for name in names]
    return [*(said[name] for name in names[:_CONTEXT_SHOWN]), f"{more} more (see run.json)"]


def baseline_note(result: Result) -> str:
    """Why the baseline of a test was recorded (`--perf-note`); empty if nobody said it."""
    record = result.new if result.updated else None if result.other_side else result.base
    return visible(record.note) if record is not None and record.note else ""


def baseline_commits(results: Iterable[Result]) -> list[str]:
    """Commits that the baselines were measured at, most frequent first, shortened to nine characters."""
    commits = [
        occasion.commit[:9]
        for result in results
        if result.base is not None and not result.other_side
        for occasion in result.base.occasions
        if occasion.commit
    ]
    return sorted(set(commits), key=lambda commit: (-commits.count(commit), commit))


def shown_path(run: Run, path: Path) -> str:
    """A path for people: relative to the root directory where it lies under it."""
    try:
        return path.relative_to(run.root).as_posix()
    except ValueError:
        return path.as_posix()


def _names(results: Sequence[Result]) -> list[str]:
    """What a command names: tests, with all sizes of their curves, or the files of many."""
    ids = (each for result in results for each in (result.id, *(test for c in result.curves for test in c.tests)))
    names = list(dict.fromkeys(map(visible, ids)))
    if len(names) > MANY:
        names = sorted({name.split("::", 1)[0] for name in names})
    return names


def acceptable(result: Result) -> bool:
    """Whether a new baseline would change the verdict: budgets and expectations do not depend on it.

    Nor does what was slowed down on purpose, which is no part of a baseline.
    """
    if result.other_side or (result.base is None and result.judgement.verdict == "regressed"):
        return False
    if result.judgement.verdict == "waived" or any(each.code == INJECTED for each in result.judgement.integrity):
        return False
    if result.judgement.verdict != "regressed":
        return result.judgement.verdict in ACCEPTED_BY_UPDATE or result.judgement.counts_changed
    return not result.judgement.is_budgets_alone


def _is_of_curve(result: Result) -> bool:
    """Whether a curve got worse, of which every size may be unchanged by itself: only rewriting all accepts that."""
    curves = {curve.name for curve in result.curves}
    return any(each.verdict in ACCEPTED_BY_UPDATE and each.name in curves for each in result.judgement.metrics)


def budget_notes(result: Result) -> list[str]:
    """Where to change each budget that was exceeded."""
    return [
        f"a new baseline does not change the budget {visible(str(metric.limit))} on {visible(metric.name)}: "
        f"change the budget at {visible(result.file)}:{result.line}"
        for metric in result.judgement.over_budget
    ]


def own_reason(metric: MetricVerdict, judgement: Judgement) -> str:
    """What a metric says beyond its figures and the test's reason; empty when that is nothing."""
    if metric.reason in judgement.reason:
        return ""
    said = metric.reason if metric.remark is None else metric.remark
    return "; ".join(part for part in said.split("; ") if part not in judgement.reason)


def definition_sentence(judgement: Judgement) -> str:
    """That the two sides had different benchmarks, and which one ran, or that work vanished; empty where neither is so.

    Every report says it before all else: what is below it is of that benchmark.
    """
    return visible("; ".join(each.message for each in judgement.integrity if each.meaning.shown == "first"))


def told_findings(judgement: Judgement) -> list[Finding]:
    """What the measurement noticed about itself, less what the reason already says."""
    left_out = (finding for finding in judgement.integrity if finding.meaning.shown != "first")
    return [finding for finding in left_out if finding.message not in judgement.reason]


def is_uncertain(judgement: Judgement) -> bool:
    """Whether a verdict on a time of the step is not certain, or not from paired rounds."""
    return any(
        metric.kind == "timed"
        and metric.of_step
        and (
            metric.verdict in ("suspect", "inconclusive")
            or (metric.evidence == "unpaired" and metric.verdict not in (None, "unchanged"))
        )
        for metric in judgement.metrics
    )


def is_telling(finding: Finding, judgement: Judgement) -> bool:
    """Whether what the measurement noticed affects the verdict, or what is said of its causes."""
    if finding.level == "invalid" or finding.meaning.shown == "always":
        return True
    return finding.meaning.disturbs and is_uncertain(judgement)


def telling_findings(judgement: Judgement) -> list[Finding]:
    """What the measurement noticed that affects the verdict."""
    return [finding for finding in told_findings(judgement) if is_telling(finding, judgement)]


def telling_notes(judgement: Judgement) -> list[str]:
    """The telling findings in the words of every report: each disturbance once."""
    found = []
    disturbances: set[str] = set()
    for finding in telling_findings(judgement):
        if finding.code not in disturbances:
            disturbances |= {finding.code} if finding.meaning.disturbs else set()
            invalid = "the measurement is invalid: " if finding.level == "invalid" else ""
            noise = "the verdict is less certain: " if finding.meaning.disturbs else ""
            found.append(f"{invalid or noise}{visible(finding.message)}")
    return found


def notes_on_others(run: Run) -> list[str]:
    """What bears on the verdicts of tests that a summary does not name: each kind of note once, of its first test."""
    found: dict[str, dict[str, str]] = {}
    for result in run.results:
        for finding in () if notable(result) else telling_findings(result.judgement):
            found.setdefault(finding.code, {}).setdefault(result.id, finding.message)
    said = []
    for tests in found.values():
        (name, message), *more = tests.items()
        others = f" and {plural(len(more), 'more test')}" if more else ""
        said.append(visible(f"note on {name}{others}: {message}"))
    return said


def growth_notes(judgement: Judgement) -> list[str]:
    """For each call whose memory grows: what each step keeps, and who allocates it where that is known."""
    told = {change.call: memory.growth_sentence(change) for change in judgement.memory}
    found = []
    for call, size in judgement.growth.items():
        kept = f"{visible(call)}: " if call else ""
        found.append(told.get(call) or f"{kept}memory grows: each step keeps {format_quantity(size, 'B')}")
    return found


def waiver_notes(judgement: Judgement) -> list[str]:
    """What is waived of a test, by whom, why and until when: each waiver once, with its metrics."""
    names: dict[str, list[str]] = {}
    for metric in metrics_worst_first((*judgement.metrics, *judgement.environment)):
        if metric.waiver is not None:
            found = names.setdefault(phrase(metric.waiver), [])
            if metric.of_step and metric.name not in found:
                found.append(metric.name)
    return [visible(f"{', '.join(found)} {said}".strip()) for said, found in names.items()]


WAIVERS_LISTED = 20
"""Most waivers of a kind that the head of a summary lists."""


def waiver_lines(run: Run) -> list[str]:
    """What to know about the project's waivers, in the head of every summary: those that the change adds come first."""
    file = run.waivers
    name = visible(file.name)
    lines = [
        *_list_waivers([each for each in file.waivers if each.added], "added by the current change", _waiver_added),
        *([visible(file.doubt)] if file.doubt else []),
        *_list_waivers(
            [each for each in file.waivers if each.expired and not each.added],
            "expired",
            lambda each: (
                f"waiver expired on {each.until}: {each.test} (by {each.who}: {each.why}); remove it from {name}, or "
                "renew it"
            ),
        ),
        *_list_waivers(
            file.unmatched, "without a perf test", lambda each: f"waiver without a perf test in {name}: {each.test}"
        ),
    ]
    return [visible(line) for line in lines]


def _waiver_added(waiver: Waiver) -> str:
    metric = waiver.metric or "every metric"
    expired = " (expired)" if waiver.expired else ""
    return f"waiver added by the current change: {waiver.test}, {metric} {phrase(waiver)}{expired}"


def _list_waivers(found: Sequence[Waiver], kind: str, line: Callable[[Waiver], str]) -> list[str]:
    lines = [line(each) for each in found[:WAIVERS_LISTED]]
    left = len(found) - len(lines)
    return [*lines, f"and {plural(left, 'more waiver')} {kind}"] if left > 0 else lines


def recording_notes(result: Result) -> list[str]:
    """What whoever has recorded a baseline can still improve before it is committed."""
    findings = result.judgement.integrity if result.updated else ()
    return [visible(finding.message) for finding in findings if finding.code == SHORT_STEP]


def coverage_notes(judgement: Judgement) -> list[str]:
    """For each call of which much time is in operators without a cost model: how much its figures rest on."""
    found = []
    for call in dict.fromkeys(each.call for each in judgement.operators):
        times = [(each.new.time_ns, each.dtype) for each in judgement.operators if each.new and each.call == call]
        whole = sum(time for time, _ in times)
        known = sum(time for time, dtype in times if dtype)
        if whole and known < TELLING * whole:
            share = format_percent(known / whole, signed=False)
            said = (
                f"Only {share} of the operators' time is in operators with a cost model: FLOP/s, bytes and roofline "
                "include only these operators"
            )
            found.append(f"{visible(call)}: {said}" if call else said)
    return found


def work_sentence(change: WorkChange, judgement: Judgement | None = None) -> str:
    """Whether a slower step does more work, or does the same work worse, with the figures that say so.

    "same FLOPs in operators, but slower: aten::addmm 61.0% -> 38.0% of its roofline"
    """
    base, new = change.base_step, change.new_step
    call = f"{visible(change.call)}: " if change.call else ""
    operator = visible(change.operator)
    part = _part(change.share)
    grew = "FLOPs" if change.kind == "more work" else "operator time"
    most = f", with {part} of the additional {grew} in {operator}" if operator else ""
    same = "same FLOPs in operators" if new.flops else "same bytes (arithmetic not counted)"
    if change.kind == "more work":
        grown = f" ({format_percent(new.flops / base.flops - 1)})" if base.flops else ""
        flops = f"{format_quantity(base.flops, 'flop')} -> {format_quantity(new.flops, 'flop')}/step{grown}"
        return f"{call}more work: {flops}{most}"
    if change.kind == "dearer type":
        return f"{call}{same}, slower data type: {_types(new)} instead of {_types(base)}{most}"
    if change.kind == "more traffic or calls":
        moved = f"{format_quantity(base.bytes, 'B')} -> {format_quantity(new.bytes, 'B')}"
        # The metric counts calls inside other operators, too, and is what tables show.
        counted = [
            each for each in (judgement.metrics if judgement else ()) if each.name == metric_name(change.call, "ops")
        ]
        sides = next(((each.base, each.new) for each in counted), (base.calls, new.calls))
        before_calls, after_calls = (format_quantity(each or 0, "1") for each in sides)
        calls = f"{before_calls} -> {after_calls} operator calls"
        told = f"{same}, but " if new.flops else ""
        grown_bytes = f"{moved} read and written"
        return f"{call}{told}more memory traffic or operator calls per step: {grown_bytes}, {calls}{most}"
    if not operator:
        return f"{call}{same}, but slower: the additional time is outside of operators (Python, waiting)"
    before, after = change.base, change.new
    if before.roofline is not None and after.roofline is not None:
        shares = (format_percent(each, signed=False) for each in (before.roofline, after.roofline))
        now = f": {after.bound}-bound now" if after.bound not in ("", before.bound) else ""
        return f"{call}{same}, but slower: {operator} {' -> '.join(shares)} of its roofline{now}"
    times = (format_quantity(each.time_ns, "ns") for each in (before, after))
    return f"{call}{same}, but slower: {operator} {' -> '.join(times)} per step"


def _part(share: float | None) -> str:
    """How much of what grew an operator holds; most where that was not noted."""
    if share is None:
        return "most"
    return "all" if share > _ALL else "most" if share > _MOST else "half" if share > _HALF else "the largest part"


_ALL, _MOST, _HALF = 0.98, 0.55, 0.45


def _types(side: WorkSide) -> str:
    """The element types of a step's arithmetic, the one with most of it first."""
    return " and ".join(sorted(side.types, key=lambda name: (-side.types[name], name))) or "none"


def doubt(cause: Cause) -> str:
    """What is said of a cause that did not change for certain; empty of one that did."""
    return "" if cause.certain else "not certain: the most likely cause"


def source_title(diff: SourceDiff) -> str:
    """A function by its file: "train.py: step"."""
    return f"{visible(diff.file)}: {visible(diff.function)}"


def code_lines(text: str) -> list[str]:
    r"""The lines of a diff with tabs spelled out in spaces.

    >>> code_lines("@@ -1 +1 @@\n-\tx = 1\n+\tx = 2")
    ['@@ -1 +1 @@', '-    x = 1', '+    x = 2']
    """
    return [visible(line[:1] + line[1:].expandtabs(4)).rstrip() for line in text.split("\n")]


def diff_lines(diff: SourceDiff) -> list[str]:
    """The lines of a source diff without the indentation that all lines of code have."""
    lines = code_lines(diff.text)
    code = [line[1:] for line in lines if not line.startswith("@") and line[1:].strip()]
    depth = min((len(line) - len(line.lstrip(" ")) for line in code), default=0)
    return [line if line.startswith("@") else line[:1] + line[1 + depth :] for line in lines]


def recorded(result: Result) -> str:
    """What a new baseline holds, "step_time 41.20 ms in 10 processes"."""
    record = result.new
    if record is None:
        return visible(result.judgement.reason)
    times = [
        f"{visible(metric.name)} {figures.value(metric.new, metric)}"
        for metric in step_times(result.judgement)
        if metric.new is not None
    ]
    processes = f"in {plural(record.repeats, 'process', 'processes')}"
    return f"{', '.join(times)} {processes}" if times else f"measured {processes}"


def bound(of: Bound) -> str:
    """The word for what bounds a region; empty where that is not known."""
    return f"{of}-bound" if of else ""


def interpreters_of(result: Result) -> tuple[str, str] | None:
    """Paths of the baseline's and the current interpreter, where only the environments were compared; else `None`."""
    if not result.against_python or result.against:
        return None
    changes = result.judgement.context_changes
    return next(((base, new) for name, base, new in changes if name == "interpreter"), None)


def commands(result: Result, invocation: Invocation) -> list[tuple[str, str]]:
    """What can be done about one test: (purpose, command) pairs, accepting the change last."""
    verdict = result.judgement.verdict
    names = _names([result])
    measure = ("measure again", invocation.measuring(names))
    if verdict == "unmeasured" or result.judgement.is_test_error:
        return []
    if result.other_side:
        interpreters = interpreters_of(result)
        if verdict not in WORSE or interpreters is None:
            return [measure]
        return [measure, ("find the package", invocation.between_environments(*interpreters, result.id))]
    if result.updated or (verdict in ("unchanged", "new") and not result.judgement.counts_changed):
        return [measure]
    if verdict in UNRECORDED:
        return [("record a baseline", invocation.updating(names, "new")), measure]
    if not acceptable(result) and verdict == "regressed":
        return [measure]
    accept = ("accept the change", invocation.updating(names, "all" if _is_of_curve(result) else ""))
    if verdict in ("outdated", "improved"):
        return [accept, measure]
    # An inconclusive or invalid measurement is no change that anybody could mean to accept.
    return [measure, accept] if acceptable(result) or verdict == "suspect" else [measure]


def run_commands(run: Run) -> list[tuple[str, str]]:
    """What can be done about the whole run: (label, command) pairs."""
    if not run.judged:
        return []
    listed = [result for result in worst_first(run.results) if notable(result) and not result.updated]
    lines = []
    accepted = [result for result in listed if acceptable(result)]
    unrecorded = [result for result in listed if result.judgement.verdict == "missing"]
    unsettled = [
        result
        for result in listed
        if result.judgement.verdict in {*SETTLED_BY_MEASURING, "regressed"} and not result.judgement.is_test_error
    ]
    for mode in ("", "all"):
        if named := [result for result in accepted if _is_of_curve(result) is bool(mode)]:
            lines.append(("accept", run.invocation.updating(_names(named), mode)))
    if unrecorded:
        lines.append(("record", run.invocation.updating(_names(unrecorded), "new")))
    if unsettled:
        lines.append(("again", run.invocation.measuring(_names(unsettled))))
    return sorted(lines, key=lambda line: line[0] == "accept")
