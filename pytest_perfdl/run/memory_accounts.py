"""Breakdowns of peak memory by tensor for both sides, made if the peak differs or memory grows.

The breakdown of a side comes from a separate, slower process that records every allocation with its source line. Its
total is compared with the peak that the ordinary processes measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from pytest_perfdl.analysis.events.origins import FRAME, is_function
from pytest_perfdl.diff.memory import peak_causes
from pytest_perfdl.measure.commands import CallInfo, attribution
from pytest_perfdl.measure.optional import unmeasured
from pytest_perfdl.model.errors import SideError
from pytest_perfdl.model.memory import MemoryAccount, MemoryChange, MemoryRow
from pytest_perfdl.model.metrics import GROWTH, OF_MEMORY, is_memory
from pytest_perfdl.model.record import Finding, Record, metric_name
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.results.verdict import Judgement
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.context import RunContext
from pytest_perfdl.run.definitions import Touched, source_diffs, touched
from pytest_perfdl.run.paired_rounds import RoundSide, run_pass
from pytest_perfdl.workers.channel import Origins
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.remote_test import Script


def with_accounts(
    context: RunContext,
    test: PerfTest,
    judgement: Judgement,
    new: Record,
    base: Record | None,
    *,
    checkout: Checkout | None,
    commit: str,
    origins: Origins | None,
) -> Judgement:
    """The judgement with the accounts of the calls whose memory changed or grows, and what explains the change.

    Parameters
    ----------
    new, base
        Counts of the working tree, and of the baseline commit's code.
    checkout, commit
        Checkout of the baseline commit, if it can be run.
    origins
        What the working tree's process loaded.
    """
    grown = {call.name: call.series[GROWTH].values[0] for call in new.calls if GROWTH in call.series}
    calls = {call.name for call in new.calls if memory_differs(judgement, call.name)} | grown.keys()
    if context.settings.memory == "all":
        calls = {call.name for call in new.calls}
    if not calls or context.settings.memory == "off" or judgement.verdict in ("invalid", "outdated"):
        return judgement
    context.progress.start("analyzing peak memory", test.item.nodeid)
    notes: list[Finding] = []
    try:
        side = RoundSide("head", against=checkout)
        head = {call: _account(context, test, side, call, growth=call in grown) for call in sorted(calls)}
        before: dict[str, MemoryAccount] = {}
        if checkout is not None:
            side = RoundSide("base", checkout)
            for call in filter(partial(memory_differs, judgement), head):
                before[call] = _account(context, test, side, call, growth=call in grown)
    except SideError as error:
        why = str(error).partition("\n")[0]
        return judgement.with_findings(unmeasured("no-account", "the breakdown of peak memory", why))
    finally:
        context.progress.clear()
    changed = touched(origins.files, checkout) if origins is not None and checkout is not None else ()
    placed = partial(_place_row, changed=changed)
    found: list[MemoryChange] = []
    for call in (each.name for each in new.calls if each.name in calls and each.name in head):
        if call not in grown:
            # What grows has another peak after every step.
            notes += _unequal(head[call], new, call, "current")
        if call in before and base is not None:
            notes += _unequal(before[call], base, call, "baseline")
        causes = peak_causes(before[call], head[call], placed) if call in before else ()
        found.append(MemoryChange(call, before.get(call), head[call], causes, round(grown.get(call, 0))))
    explained = replace(judgement, memory=tuple(found))
    if checkout is not None:
        diffs = source_diffs(_lines(found), checkout, commit)
        # What no cause of the time comes from may be where memory does.
        known = {(each.file, each.text) for each in diffs}
        others = tuple(each for each in judgement.source_diffs if (each.file, each.text) not in known)
        of_both = tuple(each for each in diffs if each in judgement.source_diffs)
        explained = replace(
            explained, source_diffs=(*(each for each in diffs if each not in of_both), *of_both, *others)
        )
    return explained.with_findings(*notes)


def memory_differs(judgement: Judgement, call: str | None = None) -> bool:
    """Whether a memory metric (of one call or of any) certainly differs from the baseline's.

    Where the repeats of a side disagree there is no effect, unless it is one on nothing.
    """
    names = {metric_name(call, name) for name in OF_MEMORY} if call is not None else None
    return any(
        (each.name in names if names is not None else is_memory(each.name))
        and each.new is not None
        and (bool(each.effect) or (each.base == 0 and each.new > 0))
        for each in judgement.metrics
    )


def _account(context: RunContext, test: PerfTest, side: RoundSide, call: str, *, growth: bool) -> MemoryAccount:
    """The breakdown of a call on one side, from a separate process: recording ends with the call.

    Raises
    ------
    SideError
        When the test does not pass there or has no such call, or its worker dies or hangs.
    """

    def script(info: CallInfo) -> Script:
        return attribution(info, call, growth=growth)

    remote = run_pass(context, test, side, script, "recording allocations", attribute=True)
    if mistake := context.revisions.mistaken(remote.origins, side.checkout, side.against):
        raise SideError(mistake, invalid=False)
    found: MemoryAccount | None = next((account for account in remote.results if account is not None), None)
    if found is None:
        raise SideError(f"the test makes no perf(...) call {call!r} on the {side.label} side", invalid=False)
    return found


def _unequal(account: MemoryAccount, record: Record, call: str, side: str) -> list[Finding]:
    """A note that an account is not of the peak that was counted."""
    series = record.metrics().get(metric_name(call, "peak_memory"))
    counted = None if series is None or not series.stable else series.values[0]
    if counted is None or counted == account.peak_bytes:
        return []
    there, here = (format_quantity(each, "B") for each in (account.peak_bytes, counted))
    named = f"{call}: " if call else ""
    why = f" ({'; '.join(account.notes)})" if account.notes else ""
    message = f"{named}the memory breakdown ({side}) adds up to {there}, but the measured peak is {here}{why}"
    return [Finding("note", "account", message)]


def _place_row(row: MemoryRow, changed: Sequence[Touched]) -> MemoryRow:
    """The row with the innermost line of its stack whose function changed, where there is one."""
    line = next((line for line in (row.line, *row.callers) if _is_changed(line, changed)), row.line)
    if line == row.line:
        return row
    return replace(row, line=line, callers=(row.line, *(each for each in row.callers if each != line)))


def _is_changed(line: str, changed: Sequence[Touched]) -> bool:
    match = FRAME.fullmatch(line)
    if match is None:
        return False
    # Before Python 3.11 a frame does not say whose method it is.
    owner = match["function"].rpartition(".")[0].rpartition(".")[2]
    return any(is_function(match, each.file, each.name) and owner in ("", each.owner) for each in changed)


def _lines(found: Iterable[MemoryChange]) -> list[str]:
    """The lines that causes come from, and those that led to them."""
    rows = [cause.row for change in found for cause in change.causes]
    lines = [row.line for row in rows] + [line for row in rows for line in row.callers]
    grown = [line for change in found for row in change.new.growing for line in (row.line, *row.callers)]
    return [line for line in dict.fromkeys((*lines, *grown)) if line]
