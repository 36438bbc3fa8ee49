"""Compares a measured test with its baseline, or with another revision.

In paired rounds if a commit has the baseline's code; otherwise with the recorded repeats. If a change was detected, its
source lines are located.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_perfdl.baseline.recorded_commit import BaselineCode
from pytest_perfdl.judge.reasons import not_reproduced
from pytest_perfdl.judge.settle import select_held
from pytest_perfdl.judge.stored_repeats import MOST_REPEATS, confirm, is_settled
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.measure.commands import CallInfo
from pytest_perfdl.measure.optional import unmeasured
from pytest_perfdl.model.errors import BaselineError, CheckoutError, SideError, SideSkipped
from pytest_perfdl.model.record import DOUBTED_SIDES, RECOMPILED, Finding, Record
from pytest_perfdl.model.units import some
from pytest_perfdl.results.verdict import Judgement, SourceDiff
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.confirmation import Confirmation
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.definitions import Touched, said_first, source_diffs, touched, uncalled_diffs
from pytest_perfdl.run.measurement import BaseSide, Measurement
from pytest_perfdl.run.memory_accounts import memory_differs
from pytest_perfdl.run.paired_rounds import last_error, unseen
from pytest_perfdl.workers.checkout import Checkout

_REPRODUCING = 2
"""Further processes of the baseline's code that may count what was recorded, where the first one counts otherwise."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Recorded baselines of a test."""

    own: Record | None = None
    """For this machine ID."""
    others: tuple[Record, ...] = ()
    """For other machine IDs."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The result of a comparison."""

    judgement: Judgement
    base: Record | None = None
    """The record that the test was compared with."""
    traces: Mapping[str, str] = field(default_factory=dict)
    """Path of the trace of a step, by call, if the test was compared with another revision."""
    checkout: Checkout | None = None
    """Checkout of the baseline commit, if it was run."""
    commit: str = ""
    """Commit of the checkout."""
    now: Record | None = None
    """Counts measured on that checkout."""
    rank_traces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths of the traces of all ranks of a step on that checkout, by call; empty without ranks."""


def load_baseline(context: RunContext, test: PerfTest, info: CallInfo | None) -> Baseline:
    """Load the baselines of a test.

    Parameters
    ----------
    info
        The first of its calls, which has the machine ID; `None` for a test without calls.

    Raises
    ------
    BaselineError
        The baseline of this machine ID cannot be read, and is not to be recorded again.
    """
    if info is None or context.settings.compares_sides:
        return Baseline()
    nodeid, store, key = test.item.nodeid, context.store, info.key
    own = None
    try:
        own = store.load(nodeid, key.slug)
        return Baseline(own, store.others(nodeid, key.slug))
    except BaselineError:
        # If there is a baseline of this machine, a damaged one of another machine does not matter.
        if own is not None or context.settings.update == "all":
            return Baseline(own)
        raise


def against_side(measurement: Measurement) -> ComparisonResult:
    """Compare a test with another revision or interpreter (`--perf-against`, `--perf-against-python`).

    Counts are of the first process of each side, times of paired rounds.

    Raises
    ------
    CheckoutError, SideError
        The other side cannot be measured.
    """
    test, context = measurement.test, measurement.context
    whose = context.settings.against_tests
    try:
        commit = context.revisions.against
        changed = context.revisions.redefined(test, commit)
        if changed is None:
            return _compare_sides(measurement, commit)
        if changed.is_new and whose != "head":
            return ComparisonResult(_judge_new(measurement))
        if whose == "base":
            why = (
                f"{changed.what}, and the working tree has no copy of it to run: git checkout {commit[:12]} -- "
                f"{' '.join(dict.fromkeys(diff.file for diff in changed.diffs))} runs the commit's on both sides, "
                "perf_against_tests = head the working tree's"
            )
            return ComparisonResult(_judge_changed(measurement, why, changed.diffs))
        try:
            found = _compare_sides(measurement, commit, whose)
        except SideError as error:
            if error.invalid or whose == "own":
                raise
            # What both sides can run is what both sides are judged by.
            context.progress.clear()
            why, _, more = str(error).partition("\n")
            if more:
                test.item.add_report_section("call", "baseline commit", more)
            if (last := last_error(more)) and last not in why:
                why = f"{why} ({last})"
            if changed.is_new:
                return ComparisonResult(_judge_new(measurement, f" and cannot run there: {why}"))
            said = f"{changed.what}, which cannot run the current one: {why}"
            return ComparisonResult(_judge_changed(measurement, said, changed.diffs))
        if found.base is None:
            return found
        return replace(found, judgement=said_first(found.judgement, changed, whose))
    except SideSkipped as error:
        integrity = measurement.record().integrity
        return ComparisonResult(Judgement(test.item.nodeid, "incomparable", str(error), integrity=integrity))


def _compare_sides(measurement: Measurement, commit: str, tests_of: str = "") -> ComparisonResult:
    """The comparison with the other side; `tests_of` says whose definition it runs where that differs.

    Raises
    ------
    SideError, CheckoutError
    """
    new, limits, context = measurement.record(), measurement.test.limits, measurement.context
    checkout = context.revisions.other_side(commit, tests_of_head=tests_of == "head")
    base = measurement.measure_base(checkout, commit)
    if base is None:
        return ComparisonResult(_judge_new(measurement))
    if tests_of != "own" and commit and base.record.test_hash != new.test_hash:
        raise SideError("the parameters of the test differ between the two sides", invalid=False)
    new, record = context.revisions.with_environments(new, replace(base.record, test_hash=new.test_hash))
    base = replace(base, record=record)
    found = standing(new, base.record, (), limits, stored=False)
    if found.verdict not in ("invalid", "outdated"):
        if new.table is not None or select_held(found, limits):
            pair = _Pair(measurement, checkout, commit, base)
            found = pair.judged(found, new, base.record)
        else:
            found = confirm(found, base.record, new, limits)
    found = found.with_findings(*_doubts(measurement, base, checkout))
    return ComparisonResult(found, base.record, base.traces, checkout, commit, base.record, base.rank_traces)


def _judge_new(measurement: Measurement, why: str = "") -> Judgement:
    """The judgement of a test that the other revision does not have."""
    reason = f"the test does not exist in git revision {measurement.context.settings.against}{why}"
    return Judgement(measurement.test.item.nodeid, "new", reason, integrity=measurement.record().integrity)


def _judge_changed(measurement: Measurement, why: str, definition: tuple[SourceDiff, ...] = ()) -> Judgement:
    """The judgement of a test that measures something else on either side: no times are compared."""
    nodeid, integrity = measurement.test.item.nodeid, measurement.record().integrity
    return Judgement(nodeid, "changed", why, integrity=integrity, definition=definition)


def against_baseline(measurement: Measurement, baseline: Baseline) -> ComparisonResult:
    """Compare a test with its baseline: in paired rounds if a commit has its code, else with the recorded repeats."""
    code = BaselineCode(None)
    if _depends_on_rounds(measurement, baseline):
        code = _find_code(measurement, baseline)
    why = code.reason
    if code.commit:
        try:
            found = _compare_in_pairs(measurement, baseline, code)
            if isinstance(found, ComparisonResult):
                return found
            why = found
        except CheckoutError as error:
            why = str(error)
        except SideError as error:
            measurement.context.progress.clear()
            why, _, more = str(error).partition("\n")
            if error.invalid:
                raise
            if more:
                measurement.test.item.add_report_section("call", "baseline commit", more)
    judgement = _compare_repeats(measurement, baseline, why, tried=bool(code.commit))
    found = ComparisonResult(judgement, baseline.own)
    # No metric needed rounds; if memory changed, the code of the baseline commit explains it.
    return _add_code(measurement.context, found, code.commit) if code.commit and not why else found


def _add_code(context: RunContext, found: ComparisonResult, commit: str) -> ComparisonResult:
    """The result with the code of the baseline commit, if a change of memory is to be explained."""
    if not memory_differs(found.judgement):
        return found
    try:
        return replace(found, checkout=context.revisions.checkout(commit), commit=commit, now=found.base)
    except CheckoutError:
        return found


def _depends_on_rounds(measurement: Measurement, baseline: Baseline) -> bool:
    """Whether paired rounds are needed: a test that is recorded in any case is compared by its repeats."""
    mode = measurement.context.settings.update
    if mode == "changed" and baseline.own is not None:
        return not standing(measurement.record(), baseline.own, (), measurement.test.limits).counts_changed
    return mode not in ("all", "append")


def _find_code(measurement: Measurement, baseline: Baseline) -> BaselineCode:
    """The commit with the baseline's code."""
    context = measurement.context
    if baseline.own is None and (context.recording or not baseline.others):
        return BaselineCode(None)
    if mistake := context.revisions.mistaken(measurement.remote.origins, None):
        return BaselineCode(None, mistake)
    return context.revisions.code_of(baseline.own, baseline.others)


def _compare_in_pairs(measurement: Measurement, baseline: Baseline, code: BaselineCode) -> ComparisonResult | str:
    """The comparison in paired rounds with a baseline's code, or the reason why there is none.

    Raises
    ------
    SideError, CheckoutError
    """
    stored, commit, limits, revisions = code.base, code.commit, measurement.test.limits, measurement.context.revisions
    assert stored is not None
    assert commit is not None
    new = measurement.record()
    found = standing(new, stored, (), limits)
    if found.verdict in ("invalid", "outdated"):
        # A baseline of another machine ID cannot be outdated here: report the reason only.
        return found.reason if baseline.own is None else ComparisonResult(found, baseline.own)
    if new.table is None and not select_held(found, limits):
        # Budgets do not depend on the baseline.
        return ""
    checkout = revisions.checkout(commit)
    if mistake := revisions.mistaken(measurement.remote.origins, None, checkout):
        return mistake
    side = measurement.measure_base(checkout, commit)
    if side is None:
        return f"the test does not exist at the baseline commit {commit[:12]}"
    for _ in range(_REPRODUCING):
        if not not_reproduced(stored, side.record):
            break
        # An autotuner, say, may pick one of two implementations in each process.
        side = measurement.measure_base(checkout, commit) or side
    now = side.record
    if other := not_reproduced(stored, now):
        origins = measurement.remote.origins
        ignored = revisions.ignored(() if origins is None else origins.files)
        named = f" (the test uses {some(ignored)}, ignored by git)" if ignored else ""
        compiled = any(each.code == RECOMPILED for each in (*stored.integrity, *now.integrity))
        uneven = any(len(set(call.op_counts)) > 1 for record in (stored, now) for call in record.calls)
        if compiled:
            why = "because torch.compile compiled inside measured steps: see the note on it, then record"
        elif uneven:
            why = "because the steps are not all alike: set period= to the steps after which they repeat, record"
        else:
            why = f"probably because untracked files{named}, the environment or a choice at random changed: record"
        raise SideError(
            f"counts measured at the baseline commit {commit[:12]} differ from the recorded counts ({other}), {why} "
            "the baseline again with pytest --perf-update=all",
            invalid=False,
        )
    base = baseline.own
    if base is None:
        # Counts and times of another machine are not comparable with this machine's.
        base, found = now, standing(new, now, (), limits, stored=False)
    judgement = _Pair(measurement, checkout, commit, side).judged(found, new, base)
    said = code.note or revisions.not_as_recorded(stored, side.origins, checkout)
    odd = [Finding("note", "pair", said)] if said else []
    if stored.key.slug != new.key.slug and base is now:
        said = (
            f"there is no baseline for machine ID {new.key.slug}, so the test is compared with the commit of the "
            f"baseline for machine ID {stored.key.slug}"
        )
        odd.append(Finding("note", "pair", said))
    judgement = judgement.with_findings(*odd, *_doubts(measurement, side, checkout))
    return ComparisonResult(judgement, base, checkout=checkout, commit=commit, now=now, rank_traces=side.rank_traces)


def _doubts(measurement: Measurement, side: BaseSide, checkout: Checkout) -> list[Finding]:
    """Notes on sides that may not have run what they should: each in its own code."""
    revisions, head = measurement.context.revisions, measurement.remote.origins
    lines = (
        revisions.only_tests(side.origins, checkout),
        revisions.only_tests(head, None),
        revisions.maybe_one_sided(head, side.origins, checkout),
        revisions.shared(head, side.origins, checkout),
    )
    return [Finding("note", DOUBTED_SIDES, text) for text in lines if text]


def _compare_repeats(measurement: Measurement, baseline: Baseline, why: str, *, tried: bool) -> Judgement:
    """Compare fresh repeats with the recorded ones; `why` is the reason for not using paired rounds.

    If paired rounds were `tried`, the reason is also reported for a test without a baseline.
    """
    base, limits = baseline.own, measurement.test.limits.unpaired()
    fresh = measurement.record()
    found = standing(fresh, base, baseline.others, limits)
    while (left := MOST_REPEATS - len(measurement.repeats)) > 0 and not is_settled(found, base, fresh, left, limits):
        measurement.draw(len(measurement.repeats) + 1, of=MOST_REPEATS)
        fresh = measurement.record()
    judgement = confirm(found, base, fresh, limits, others=baseline.others, remaining=max(left, 0))
    if fresh.table is not None and base is not None and judgement.verdict == "unchanged":
        said = (
            f"the times of a table are compared in paired rounds only, and there were none: {why or 'no reason known'}"
        )
        judgement = replace(judgement, verdict="inconclusive", reason=said)
    judgement = replace(judgement, rounds=unseen([call for repeat in measurement.repeats for call in repeat.calls]))
    if not why or (base is None and not tried):
        return judgement
    what = "no paired rounds" if base is None else "compared without paired rounds"
    return judgement.with_findings(Finding("note", "unpaired", f"{what}: {why}"))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The working tree and another revision, both measured by their first process."""

    measurement: Measurement
    checkout: Checkout
    commit: str
    side: BaseSide

    @property
    def confirmation(self) -> Confirmation:
        """What measures their rounds."""
        return Confirmation.of(self.measurement)

    def judged(self, found: Judgement, new: Record, base: Record) -> Judgement:
        """Measure paired rounds until every time has a verdict, then locate the source lines of a change."""
        shown = (self.side.shown, self.measurement.remote.shown)
        if new.table is not None:
            if base.table is None or self.side.record.table is None:
                raise SideError(f"no case can be measured {self.checkout.in_words(self.commit)}", invalid=False)
            known = (shown[0], shown[1]) if shown[0] and shown[1] else None
            return self.confirmation.of_table(found, new, base, self.side.record, self.checkout, shown=known)
        origins = self.measurement.remote.origins
        functions = touched(origins.files, self.checkout) if origins is not None else ()
        judgement = self.confirmation.of_code(
            found,
            new,
            base,
            self.side.record,
            self.checkout,
            shown=(shown[0], shown[1]) if shown[0] and shown[1] else None,
            touched=self._below(functions),
        )
        judgement = self._locate(judgement)
        diffs = source_diffs((cause.line for cause in judgement.blame), self.checkout, self.commit)
        if not diffs and judgement.blame:
            diffs = uncalled_diffs(functions, self.checkout, self.commit)
        return replace(judgement, source_diffs=diffs)

    def _below(self, functions: Sequence[Touched]) -> frozenset[str]:
        """Full names of kernels and operators called by functions that differ between the two sides."""
        if not functions:
            return frozenset()
        try:
            return self.confirmation.below(functions, self.checkout)
        except SideError:
            self.measurement.context.progress.clear()
            return frozenset()

    def _locate(self, judgement: Judgement) -> Judgement:
        """The judgement with source lines of its causes; without them if locating fails (`SideError`)."""
        if not judgement.blame:
            return judgement
        try:
            return self.confirmation.located(judgement, self.checkout)
        except SideError as error:
            self.measurement.context.progress.clear()
            why = str(error).partition("\n")[0]
            return judgement.with_findings(unmeasured("no-places", "the source lines of the causes", why))
