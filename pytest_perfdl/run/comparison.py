"""A measured test held against its baseline, or against another revision.

In pairs of its code and the other's, wherever there is a commit with the other's code; else its repeats against those
that are stored. Where a change was found, the lines that it comes from are looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_perfdl.baseline.recorded_commit import BaselineCode
from pytest_perfdl.judge.counted import not_reproduced
from pytest_perfdl.judge.settle import held
from pytest_perfdl.judge.stored_repeats import MOST_REPEATS, confirm, settled
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.measure.commands import CallInfo
from pytest_perfdl.measure.optional import unmeasured
from pytest_perfdl.model.errors import BaselineError, CheckoutError, SideError, SideSkipped
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Finding, Record
from pytest_perfdl.model.units import some
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.confirmation import Confirmation
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.measurement import BaseSide, Measurement
from pytest_perfdl.run.memory_accounts import memory_differs
from pytest_perfdl.run.source_diff import Touched, source_diffs, touched, uncalled_diffs
from pytest_perfdl.workers.checkout import Checkout


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is stored of a test."""

    own: Record | None = None
    """Under this machine's key, or under a name that the key had formerly."""
    others: tuple[Record, ...] = ()
    """Under other keys."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """What became of holding a test against something."""

    judgement: Judgement
    base: Record | None = None
    """What it was held against."""
    traces: Mapping[str, str] = field(default_factory=dict)
    """Path of the trace of a step, by call, where that is another revision and not a baseline."""
    checkout: Checkout | None = None
    """The other side's code, where it was run."""
    commit: str = ""
    """Whose code that is."""
    now: Record | None = None
    """What was counted of that code."""


def load_baseline(context: RunContext, test: PerfTest, info: CallInfo | None) -> Baseline:
    """What is stored of a test.

    Parameters
    ----------
    info
        The first of its calls, which says under which key; `None` for a test without.

    Raises
    ------
    BaselineError
        When this key's cannot be read and is not to be written anew.
    """
    if info is None or context.settings.against is not None:
        return Baseline()
    nodeid, store, key = test.item.nodeid, context.store, info.key
    own = None
    try:
        found = (store.load(nodeid, slug) for slug in (key.slug, *info.former))
        own = next((base for base in found if base is not None), None)
        return Baseline(own, store.others(nodeid, key.slug))
    except BaselineError:
        # With one of this machine, what is wrong with another's is no reason not to judge.
        if own is not None or context.settings.update == "all":
            return Baseline(own)
        raise


def against_revision(context: RunContext, measurement: Measurement, confirmation: Confirmation) -> ComparisonResult:
    """Hold a test against `--perf-against`: counts by the first process of each side, times by rounds.

    Raises
    ------
    PerfError
        When the other side cannot be measured.
    """
    new, limits = measurement.record(), measurement.test.limits
    try:
        commit = context.revisions.against
        assert commit is not None
        checkout = context.revisions.checkout(commit)
        base = measurement.measure_base(checkout, commit)
        if base is None:
            reason = f"the test does not exist at {context.settings.against}"
            return ComparisonResult(Judgement(measurement.test.item.nodeid, "new", reason, integrity=new.integrity))
        found = standing(new, base.record, (), limits, stored=False)
        if found.verdict not in ("invalid", "outdated"):
            if held(found, limits):
                pair = _Pair(context, measurement, confirmation, checkout, commit, base)
                found = pair.judged(found, new, base.record)
            else:
                found = confirm(found, base.record, new, limits)
        return ComparisonResult(found, base.record, base.traces, checkout, commit, base.record)
    except SideSkipped as error:
        found = Judgement(measurement.test.item.nodeid, "incomparable", str(error), integrity=new.integrity)
        return ComparisonResult(found)
    except (CheckoutError, SideError) as error:
        raise PerfError(str(error)) from None


def against_baseline(
    context: RunContext, measurement: Measurement, confirmation: Confirmation, baseline: Baseline
) -> ComparisonResult:
    """Hold a test against its baseline: in pairs where a commit has the baseline's code, else by stored repeats."""
    code = BaselineCode(None)
    if _depends_on_rounds(context, measurement, baseline):
        code = _code(context, measurement, baseline)
    why = code.reason
    if code.commit:
        try:
            found = _in_pairs(context, measurement, confirmation, baseline, code)
            if isinstance(found, ComparisonResult):
                return found
            why = found
        except CheckoutError as error:
            why = str(error)
        except SideError as error:
            context.progress.clear()
            why, _, more = str(error).partition("\n")
            if error.invalid:
                raise PerfError(str(error)) from None
            if more:
                measurement.test.item.add_report_section("call", "the other side", more)
    judgement = _unpaired(measurement, baseline, why, tried=bool(code.commit))
    found = ComparisonResult(judgement, baseline.own)
    # Nothing was to be paired: memory alone may have changed, and the other side's code tells why.
    return _with_code(context, found, code.commit) if code.commit and not why else found


def _with_code(context: RunContext, found: ComparisonResult, commit: str) -> ComparisonResult:
    """The result with the other side's code, where its memory is to be explained."""
    if not memory_differs(found.judgement):
        return found
    try:
        return replace(found, checkout=context.revisions.checkout(commit), commit=commit, now=found.base)
    except CheckoutError:
        return found


def _depends_on_rounds(context: RunContext, measurement: Measurement, baseline: Baseline) -> bool:
    """Whether rounds decide anything: what is recorded in any case is compared by its repeats, which are there."""
    mode = context.settings.update
    if mode == "changed" and baseline.own is not None:
        return not standing(measurement.record(), baseline.own, (), measurement.test.limits).counts_changed
    return mode not in ("all", "append")


def _code(context: RunContext, measurement: Measurement, baseline: Baseline) -> BaselineCode:
    """The commit with the baseline's code."""
    if baseline.own is None and (context.recording or not baseline.others):
        return BaselineCode(None)
    if mistake := context.revisions.mistaken(measurement.remote.origins, None):
        return BaselineCode(None, f"the test {mistake}")
    return context.revisions.code_of(baseline.own, baseline.others)


def _in_pairs(
    context: RunContext, measurement: Measurement, confirmation: Confirmation, baseline: Baseline, code: BaselineCode
) -> ComparisonResult | str:
    """The comparison by rounds of a baseline's code and the working tree's; without one, why there is none.

    Raises
    ------
    SideError, CheckoutError
    """
    stored, commit, limits = code.base, code.commit, measurement.test.limits
    assert stored is not None
    assert commit is not None
    new = measurement.record()
    found = standing(new, stored, (), limits)
    if found.verdict in ("invalid", "outdated"):
        # Of another key there is no baseline that could be outdated: it is left at that, and says so.
        return found.reason if baseline.own is None else ComparisonResult(found, baseline.own)
    if not held(found, limits):
        # Budgets ask nothing of the other side.
        return ""
    checkout = context.revisions.checkout(commit)
    side = measurement.measure_base(checkout, commit)
    if side is None:
        return f"the test does not exist at {commit[:12]}, the baseline's commit"
    now = side.record
    if other := not_reproduced(stored, now):
        ignored = context.revisions.ignored(measurement.remote.origins)
        named = f" (git ignores {some(ignored)}, which the test uses)" if ignored else ""
        raise SideError(
            f"the baseline's commit {commit[:12]} does not give its counts again ({other}): it was recorded with other "
            f"ignored build products or data{named}, or in another environment",
            invalid=False,
        )
    base = baseline.own
    if base is None:
        # What another machine counted and timed is nothing to hold this one's figures against.
        base, found = now, standing(new, now, (), limits, stored=False)
    judgement = _Pair(context, measurement, confirmation, checkout, commit, side).judged(found, new, base)
    said = code.note or context.revisions.not_as_recorded(stored, side.origins, checkout)
    odd = [said] if said else []
    if stored.key.slug != new.key.slug and base is now:
        odd.append(f"no baseline of {new.key.slug}: held against the code of that of {stored.key.slug}")
    notes = tuple(Finding("note", "pair", text) for text in odd)
    judgement = replace(judgement, integrity=(*judgement.integrity, *notes))
    return ComparisonResult(judgement, base, checkout=checkout, commit=commit, now=now)


def _unpaired(measurement: Measurement, baseline: Baseline, why: str, *, tried: bool) -> Judgement:
    """Judge by fresh repeats against the stored ones, as many as can change the verdict; `why` not in pairs.

    Where pairs were `tried`, that is said of a test without anything stored to be judged against, too.
    """
    base, limits = baseline.own, measurement.test.limits.unpaired()
    fresh = measurement.record()
    found = standing(fresh, base, baseline.others, limits)
    while (left := MOST_REPEATS - len(measurement.repeats)) > 0 and not settled(found, base, fresh, left, limits):
        measurement.draw(len(measurement.repeats) + 1, of=MOST_REPEATS)
        fresh = measurement.record()
    judgement = confirm(found, base, fresh, limits, others=baseline.others, remaining=max(left, 0))
    if not why or (base is None and not tried):
        return judgement
    note = Finding("note", "unpaired", f"{'judged unpaired' if base is not None else 'not paired'}: {why}")
    return replace(judgement, integrity=(*judgement.integrity, note))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The working tree and another revision, each measured by its first process."""

    context: RunContext
    measurement: Measurement
    confirmation: Confirmation
    checkout: Checkout
    commit: str
    side: BaseSide

    def judged(self, found: Judgement, new: Record, base: Record) -> Judgement:
        """Measure both codes in turns until every time has its verdict, then say where a change comes from."""
        shown = (self.side.shown, self.measurement.remote.shown)
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
        judgement = self._located(judgement)
        diffs = source_diffs((cause.line for cause in judgement.blame), self.checkout, self.commit)
        if not diffs and judgement.blame:
            diffs = uncalled_diffs(functions, self.checkout, self.commit)
        return replace(judgement, source_diffs=diffs)

    def _below(self, functions: Sequence[Touched]) -> frozenset[str]:
        """Full names of the kernels and operators below functions that differ between the sides; at best a few."""
        if not functions:
            return frozenset()
        try:
            return self.confirmation.below(functions, self.checkout)
        except SideError:
            self.context.progress.clear()
            return frozenset()

    def _located(self, judgement: Judgement) -> Judgement:
        """The judgement with the places of its causes; without them where a test does not bear to be looked into."""
        if not judgement.blame:
            return judgement
        try:
            return self.confirmation.located(judgement, self.checkout)
        except SideError as error:
            self.context.progress.clear()
            note = unmeasured("no-places", "the lines that causes come from", str(error).partition("\n")[0])
            return replace(judgement, integrity=(*judgement.integrity, note))
