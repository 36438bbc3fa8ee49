"""Commands to a measuring process, and its replies.

The process executes one command at a time; a different kind of measurement is a different sequence of the same
commands. `one_repeat` is the usual sequence, `one_side` the one of a process in a paired round.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pytest_perfdl.machine.state import Load, Surroundings
from pytest_perfdl.machine.utilization import OperatorWork
from pytest_perfdl.measure.loops import LEAST_STEP_NS, MOST_LOOPS, Loops
from pytest_perfdl.measure.sizes import Pace, Sizes, TimeLimit, cannot_finish, full, longest_ns
from pytest_perfdl.model.errors import StepsTooLong
from pytest_perfdl.model.memory import MemoryAccount
from pytest_perfdl.model.record import CaseWork, Finding, Key, MeasurementPlan, ProfiledRow, Scalar
from pytest_perfdl.system import clocks

if TYPE_CHECKING:
    from pytest_perfdl.analysis.account.parts import StepParts
    from pytest_perfdl.analysis.ranks import RankActivity, RankFigures, Traffic

BLOCKS = 4
"""Timed blocks in a repeat; the device is synchronized only between them."""
TURNS = 8
"""Blocks in which each of two live processes times its steps, alternating with the other."""
EXPLAINED_STEPS = 2
"""Steps of the stack pass, at least."""
_COUNTING = 4
"""Periods of a repeat that are neither timed nor kept: the profiler's warm-up, and those that are counted."""

CallKind = Literal["function", "iterable", "callback", "table"]
"""How the steps come: a function called again and again, an iterable's elements, calls back, or many cases of a
function, each of which is opened, timed and freed by commands of its own."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often the step of a call runs, exactly and in every process: as `benchmark.pedantic` says."""

    timed: int
    warmup: int = 0
    calls: int = 1
    """Calls in a round, which is one step."""


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A `perf(...)` call as the worker announces it."""

    name: str
    kind: CallKind
    period: int
    items: float | None
    key: Key
    context: Mapping[str, Scalar]
    model_flops: float | None = None
    """That the author says the model needs for a step."""
    not_looped: str = ""
    """Why several calls cannot be one step, as "with SOMETHING"; empty where they can."""
    cases: tuple[str, ...] = ()
    """Ids of the cases of a table, each once; empty for all other calls."""
    repeated: tuple[str, ...] = ()
    """Ids that the test listed again: only the first of them is measured."""
    rounds: Rounds | None = None
    """How often the step runs, where the test says it; it is then neither profiled nor counted."""


@dataclass(frozen=True, slots=True)
class Calibrate:
    """Find out how many calls a step must be of to take at least so long."""

    least_ns: int
    most: int
    """Calls that are tried at most."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Warm up in blocks until their medians settle and nothing compiled in the last one."""

    least: int
    most: int
    block: int
    seconds: float = math.inf
    """Longest that the steps after the first may take; those in which something compiles do not count."""
    period: int = 1
    core: int | None = None
    """CPU that the process is bound to from here on to the end of the timed steps."""
    loops: int = 1
    """Calls of the function in each step from here on to the end of the timed steps."""
    longest_ns: float = math.inf
    """A longer step ends the warm-up at once: all that is planned would not end in time."""


@dataclass(frozen=True, slots=True)
class Time:
    """Run steps in blocks, without the profiler."""

    blocks: int
    block: int
    last: bool = False
    """Whether the call ends with these steps, so that its result is the last one's."""
    opens: bool = False
    """Whether the timed pass begins with them: the reference load is then timed before."""
    closes: bool = False
    """Whether it ends with them: the reference load is then timed after."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Run steps under the profiler with shapes; the first `period` of them are its warm-up and not kept."""

    steps: int
    warmup: int
    scratch: str
    exemplar: bool
    last: bool = False
    """As for `Time`; a result that stays alive would be part of what a counted pass after it takes for static."""
    parts: bool = False
    """Whether the answer holds the steps' parts too."""
    stacks: bool = False
    """Whether Python's frames are recorded, which says lines and functions and distorts times."""
    ranks: bool = False
    """Whether the process is one of several ranks, which are compared."""


@dataclass(frozen=True, slots=True)
class Count:
    """Count allocations and bytes over one window of steps after another that is not kept, then FLOPs if wanted."""

    steps: int
    scratch: str
    flops: bool
    exemplar: str | None = None
    """Path of the exemplar step's trace, which memory is added to."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """Account for the peak of a period of steps: see `memory_pass`."""

    steps: int
    """Of a period."""
    growth: bool
    """Whether what accumulates is looked for, too."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Leave the call; the test goes on."""


@dataclass(frozen=True, slots=True)
class OpenCase:
    """Free the last case of a table, restore what it may have left behind, and make the next one ready."""

    case: str
    warmup: int
    """Steps that are not timed."""
    loops: int = 0
    """Calls in a step; 0 to find out how many a step needs."""
    core: int | None = None
    """CPU that the process is bound to from here on to the end of the table."""


@dataclass(frozen=True, slots=True)
class TimeCase:
    """Time some steps of the case that is open."""

    steps: int
    case: str = ""
    """Its id, which an error names if the process dies."""


@dataclass(frozen=True, slots=True)
class DescribeCases:
    """Find out what a call of each of these cases runs, with one profiler for all of them."""

    cases: tuple[str, ...]


TIMING = Time | TimeCase
"""Commands whose steps are timed without the profiler."""
Command = Calibrate | Settle | Time | Profile | Count | Attribute | Finish | OpenCase | TimeCase | DescribeCases


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Answer to `Calibrate`."""

    loops: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Answer to `Settle`."""

    steps: int
    settled: bool
    spread: float
    """Ratio between the last two blocks' medians, minus one."""
    step_ns: int = field(default=0, compare=False)
    """What a step took in the end."""


@dataclass(frozen=True, slots=True)
class Block:
    """Totals of one timed block."""

    steps: int
    """Calls of the function: several for each step that is looped."""
    wall_ns: int
    cpu_ns: int
    system_ns: int
    run_delay_ns: int
    """How long the step's thread waited for a CPU that other processes used."""
    minor_faults: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Answer to `Time`: what every step and every block took; a step is of `loops` calls."""

    step_ns: tuple[int, ...]
    wait_ns: tuple[int, ...]
    """Of each step, how long it waited for data; empty unless the call iterates."""
    delay_ns: tuple[int, ...]
    """Of each step, how long its thread waited for a CPU that other processes used; empty for steps on a device."""
    blocks: tuple[Block, ...]
    compiles: tuple[str, ...]
    """Compilations by torch.compile during the timed steps."""
    load: Load | None
    """Use of the CPUs during the timed steps; `None` if unknown."""
    tracer: str
    reference_before: tuple[int, ...] = ()
    """Nanoseconds of each run of the reference load directly before the steps; empty where it was not asked for."""
    reference_after: tuple[int, ...] = ()
    """The same directly after them."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    findings: tuple[Finding, ...] = ()
    loops: int = 1
    object_walks: int = 0
    """How often the steps walked over all objects of the process (`state.object_walks`)."""
    ranks: tuple[Timed, ...] = ()
    """Every rank's own; empty without ranks, where this is the only one."""

    def per_step(self, field: str) -> float:
        """Mean over the calls of a total that each block has; 0 where no step was timed."""
        total: int = sum(getattr(block, field) for block in self.blocks)
        return total / max(sum(block.steps for block in self.blocks), 1)


@dataclass(frozen=True, slots=True)
class Profiled:
    """Answer to `Profile`: figures per step."""

    step_ns: tuple[int, ...]
    """Empty where the profile is incomplete, of which there are no figures then."""
    rows: tuple[ProfiledRow, ...]
    counts: Mapping[str, tuple[int, ...]]
    """Of each step, by metric; without those of a device where none is used."""
    device_busy_ns: tuple[int, ...] | None
    """`None` without a device."""
    signatures: tuple[str, ...]
    findings: tuple[Finding, ...]
    exemplar: str | None
    """Path of the exemplar step's trace in the scratch folder."""
    parts: StepParts | None = None
    """What the steps are made of, by place and shape."""
    work: tuple[OperatorWork, ...] = ()
    """What the operators of all steps together had to do, and how long they took."""
    device: Mapping[str, float] = field(default_factory=dict)
    """How well the steps use the device, shares by name of metric; empty without one."""
    activity: RankActivity | None = None
    """What this rank contributes to the comparison of the ranks; `None` without ranks, and once they are compared."""
    traffic: tuple[Traffic, ...] | None = None
    """Calls and bytes of its communication; `None` without ranks."""
    classes: Mapping[str, float] = field(default_factory=dict)
    """What a step of a rank spends on "compute", "input", "host" and "communication" that nothing hides, mean
    nanoseconds; empty without ranks."""
    delay_ns: tuple[int, ...] = ()
    """Of each step, how long its thread waited for a CPU that other processes used."""
    ranks: tuple[Profiled, ...] = ()
    """Every rank's own; empty without ranks."""
    figures: RankFigures | None = None
    """The comparison of the ranks; `None` without ranks."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Answer to `Count`."""

    counts: Mapping[str, float]
    """By metric: means per step over whole periods, and bytes of memory; without what could not be counted, and without
    growth where steps leave nothing allocated."""
    uncounted: tuple[str, ...]
    """Operators whose arithmetic the FLOPs do not contain."""
    step_ns: tuple[int, ...] = ()
    """What the host took for every counted step, without waiting for a CPU that other processes used."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Attributed:
    """Answer to `Attribute`."""

    account: MemoryAccount


@dataclass(frozen=True, slots=True)
class Compiled:
    """Answer to `Finish`: what torch.compile did in the steps of this call; zeros when it did nothing."""

    used: bool
    compile_ns: int
    """Before the first timed step."""
    recompiles: int
    """Compilations in the timed steps."""
    graph_breaks: int
    findings: tuple[Finding, ...] = ()
    cold_ns: int | None = None
    """`compile_ns` of a process that found the compiler's caches empty: its own, or the first one's of its side;
    `None` if unknown."""
    pending: str = ""
    """Why the result of the last step is not computed yet, in a few words; empty if it is."""


@dataclass(frozen=True, slots=True)
class CaseOpened:
    """Answer to `OpenCase`."""

    problem: str = ""
    """Why the case cannot be measured, in one line; empty if it can."""
    loops: int = 1
    work: CaseWork | None = None
    """What a call has to do; only where the number of calls was asked for, and where the test states it."""
    rounds: Rounds | None = None
    """How often the steps are to be run, where the test says it."""
    definition: str = ""
    """Identifies what the case is made of, if that is not the test of all cases; of the first process of a side."""


@dataclass(frozen=True, slots=True)
class CaseTimed:
    """Answer to `TimeCase`: what every step took, of all its calls together."""

    step_ns: tuple[int, ...]
    problem: str = ""
    """What the case raised, in one line; there are no times then."""


@dataclass(frozen=True, slots=True)
class CasesDescribed:
    """Answer to `DescribeCases`, by id; without cases that raised something."""

    operators: Mapping[str, Mapping[str, int]]
    """Operators of one call with their occurrences; empty without torch."""
    kernels: Mapping[str, int]
    allocations: Mapping[str, int] = field(default_factory=dict)
    """Blocks that torch's allocators handed out."""


Reply = (
    Calibrated | Settled | Timed | Profiled | Counted | Attributed | Compiled | CaseOpened | CaseTimed | CasesDescribed
)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one process found out about one case of a table."""

    id: str
    loops: int
    """Calls in a step."""
    step_ns: tuple[int, ...] = ()
    """Of every timed step, all its calls together; empty for a case with a problem."""
    problem: str = ""
    """Why it was not measured, in one line; empty if it was."""
    operators: Mapping[str, int] = field(default_factory=dict)
    """Operators of one call with their occurrences; only of the first process of a side."""
    kernels: int = 0
    allocations: int = 0
    work: CaseWork | None = None
    """What a call has to do, likewise."""
    definition: str = ""
    """Identifies what the case is made of, likewise."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Everything one repeat found out about one call."""

    info: CallInfo
    settled: Settled
    timed: Timed
    profiled: Profiled
    counted: Counted
    compiled: Compiled
    cases: tuple[CaseResult, ...] = ()
    """Those of a table, in the order in which they ran; the other results are then those of no step."""


@dataclass(frozen=True, slots=True)
class SideResult:
    """What one of two processes that took turns found out about one call."""

    info: CallInfo
    settled: Settled
    timed: Timed
    """All its blocks together."""
    compiled: Compiled
    profiled: Profiled | None = None
    cases: tuple[CaseResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedResult:
    """Where the parts of one call's steps come from; their times are distorted."""

    call: str
    parts: StepParts | None
    ranks: tuple[StepParts | None, ...] = ()
    """Every rank's own; empty without ranks."""


@dataclass(frozen=True, slots=True)
class FirstAndLater:
    """What the first step of a process runs, and what later ones do."""

    call: str
    first: Profiled
    later: Profiled
    pending: str
    """Why the result is not computed yet; empty if it is."""


def one_repeat(
    plan: MeasurementPlan,
    info: CallInfo,
    scratch: str,
    *,
    flops: bool,
    seconds: float = math.inf,
    loops: Loops | None = None,
    limit: TimeLimit | None = None,
) -> Generator[Command | None, Reply, CallResult]:
    """The commands of one whole repeat, in order; send each reply to get the next command.

    One repeat of a test is enough to count `flops`: they follow from the operators and shapes, which every repeat
    records, and the counter costs the import of torch._dynamo. Steps are reduced to what `seconds` hold of them.

    Raises
    ------
    StepsTooLong
        What is left cannot end within the limit, as the first steps of the warm-up show.
    """
    if info.rounds is not None:
        side = yield from exactly(info, info.rounds)
        said = (
            "benchmark.pedantic says how often its target runs, so that no call is left to be profiled or counted: "
            "only times are compared, and no cause is named"
        )
        only_times = replace(side.timed, findings=(*side.timed.findings, Finding("note", "not-profiled", said)))
        return CallResult(info, side.settled, only_times, NOT_PROFILED, Counted({}, ()), side.compiled)
    pace, period = Pace(seconds), info.period
    wanted = full(plan, period, BLOCKS)
    number = yield from _loops(info, loops)
    settle, besides = _settle(wanted, info, pace, number), _COUNTING * period
    if limit is not None:
        settle = replace(settle, longest_ns=longest_ns(wanted, period, seconds, limit.left, besides=besides))
    settled = yield settle
    assert isinstance(settled, Settled)
    if limit is not None and (
        why := cannot_finish(plan, period, BLOCKS, settled.step_ns, seconds, limit, besides=besides)
    ):
        raise StepsTooLong(_named(info, why))
    pace.warmed_up(info.name, settled.steps, settled.step_ns)
    sizes = pace.agreed(wanted, period, info.name, besides=besides)
    timed = yield Time(sizes.turns, sizes.steps, opens=True, closes=True)
    assert isinstance(timed, Timed)
    if pace.note:
        timed = replace(timed, findings=(*timed.findings, Finding("note", "reduced", _named(info, pace.note))))
    profiled = yield Profile(sizes.profiled, period, scratch, exemplar=True, ranks=bool(plan.ranks))
    assert isinstance(profiled, Profiled)
    counted = yield Count(period, scratch, flops=flops, exemplar=profiled.exemplar)
    compiled = yield Finish()
    assert isinstance(counted, Counted)
    assert isinstance(compiled, Compiled)
    return CallResult(info, settled, timed, profiled, counted, compiled)


def one_side(
    plan: MeasurementPlan,
    info: CallInfo,
    scratch: str,
    *,
    profiled: bool,
    pace: Pace | None = None,
    core: int | None = None,
    loops: Loops | None = None,
    whole: bool = False,
) -> Generator[Command | None, Reply, SideResult]:
    """The commands for one of two processes that alternate in blocks; `None` is where the other has its turn.

    The first wait is for both to have come as far as this: while one warms up the other sleeps. Where steps are
    `profiled` too, that is a turn of its own. The last wait lets the other finish before this one goes on with its
    test.

    Parameters
    ----------
    pace
        The sizes, which both share; by default what the test asks for.
    core
        CPU that both are bound to while they warm up and are timed.
    loops
        How many calls make a step, of both; by default one.
    whole
        Whether the timed steps are one turn, after as many steps that are not timed: what worked for the step while the
        other process ran, such as a thread that reads ahead, is then used up.
    """
    if info.rounds is not None:
        return (yield from exactly(info, info.rounds, turns=TURNS, core=core))
    pace, period = pace or Pace(), info.period
    wanted = full(plan, period, TURNS)
    if not profiled:
        wanted = replace(wanted, profiled=0)
    yield None
    number = yield from _loops(info, loops)
    settled = yield replace(_settle(wanted, info, pace, number), core=core)
    assert isinstance(settled, Settled)
    pace.warmed_up(info.name, settled.steps, settled.step_ns)
    yield None
    sizes = pace.agreed(wanted, period, info.name, besides=period)
    blocks = []
    turns, at_once = (1, sizes.turns) if whole else (sizes.turns, 1)
    if whole:
        yield Time(at_once, sizes.steps)
    for turn in range(1, turns + 1):
        if turn > 1:
            yield None
        ends = turn == turns
        blocks.append((yield Time(at_once, sizes.steps, last=ends and not profiled, opens=turn == 1, closes=ends)))
    profile: Profiled | None = None
    if profiled:
        yield None
        seen = yield Profile(
            sizes.profiled, period, scratch, exemplar=False, last=True, parts=True, ranks=bool(plan.ranks)
        )
        assert isinstance(seen, Profiled)
        profile = seen if seen.step_ns else None
    yield None
    compiled = yield Finish()
    assert isinstance(compiled, Compiled)
    timed = _joined([block for block in blocks if isinstance(block, Timed)])
    return SideResult(info, settled, timed, compiled, profile)


def exactly(
    info: CallInfo, rounds: Rounds, *, turns: int = 0, core: int | None = None
) -> Generator[Command | None, Reply, SideResult]:
    """The commands for a process in which the step runs as often as the test says, alone or in `turns` at most.

    Nothing is left to be profiled or counted: a step that may run that often only (it uses something up, or is fast
    once it has run) would be another one then.
    """
    warmup, wait = rounds.warmup, (None,) * bool(turns)
    turns = min(max(turns, 1), rounds.timed)
    yield from wait
    settled = yield Settle(warmup, warmup, warmup, core=core, loops=rounds.calls)
    assert isinstance(settled, Settled)
    blocks = []
    for turn in range(turns):
        yield from wait
        steps, last = _share(rounds.timed, turn, turns), turn == turns - 1
        blocks.append((yield Time(1, steps, last=last, opens=turn == 0, closes=last)))
    yield from wait
    compiled = yield Finish()
    assert isinstance(compiled, Compiled)
    timed = _joined([block for block in blocks if isinstance(block, Timed)])
    return SideResult(info, replace(settled, settled=True), timed, compiled)


def _share(steps: int, turn: int, turns: int) -> int:
    """How many of the steps belong to a turn, counted from 0."""
    return steps * (turn + 1) // turns - steps * turn // turns


NOT_REACHED = "it was not reached in the time budget"
"""The problem of a case that the first process of a side did not come to."""
NOT_TIMED = Timed(step_ns=(), wait_ns=(), delay_ns=(), blocks=(), compiles=(), load=None, tracer="")
"""A table times its cases, and no step."""
NOT_PROFILED = Profiled((), (), {}, None, (), (), None)


def table_pilot(
    plan: MeasurementPlan,
    info: CallInfo,
    cases: Sequence[str],
    *,
    seconds: float = math.inf,
    failed: Mapping[str, str] | None = None,
) -> Generator[Command | None, Reply, CallResult]:
    """The commands for the first process of a side, which says of every case how long a call takes and what it runs.

    Parameters
    ----------
    seconds
        After which no further case is begun.
    failed
        Cases that ended an earlier process, by id, with how: they are not opened again.
    """
    found = []
    ends = clocks.monotonic() + seconds
    for case in cases:
        if problem := NOT_REACHED if clocks.monotonic() > ends else (failed or {}).get(case, ""):
            found.append(CaseResult(case, 1, problem=problem))
            continue
        opened = yield OpenCase(case, plan.warmup)
        assert isinstance(opened, CaseOpened)
        timed = CaseTimed(())
        if not opened.problem:
            answer = yield TimeCase(opened.rounds.timed if opened.rounds else plan.steps, case)
            assert isinstance(answer, CaseTimed)
            timed = answer
        problem = opened.problem or timed.problem
        found.append(
            CaseResult(case, opened.loops, timed.step_ns, problem, work=opened.work, definition=opened.definition)
        )
    described = yield DescribeCases(tuple(case.id for case in found if not case.problem))
    assert isinstance(described, CasesDescribed)
    found = [
        replace(
            each,
            operators=described.operators.get(each.id, {}),
            kernels=described.kernels.get(each.id, 0),
            allocations=described.allocations.get(each.id, 0),
        )
        for each in found
    ]
    compiled = yield Finish()
    assert isinstance(compiled, Compiled)
    settled = Settled(0, settled=True, spread=0.0)
    return CallResult(info, settled, NOT_TIMED, NOT_PROFILED, Counted({}, ()), compiled, tuple(found))


def table_side(
    plan: MeasurementPlan,
    info: CallInfo,
    cases: Sequence[str],
    loops: Mapping[str, int],
    *,
    core: int | None = None,
) -> Generator[Command | None, Reply, SideResult]:
    """The commands for one of two processes that alternate after every block of a case; `None` is the other's turn.

    Both run the same cases in the same order with the same number of calls in a step, so that what differs between
    them is their code, and which of them comes first. Of a case that cannot be measured the turns pass unused: the
    other process measures the same case at all times.
    """
    yield None
    found = []
    steps = math.ceil(plan.steps / TURNS)
    for case in cases:
        opened = yield OpenCase(case, plan.warmup, loops[case], core)
        assert isinstance(opened, CaseOpened)
        problem, step_ns = opened.problem, tuple[int, ...]()
        for turn in range(TURNS):
            yield None
            wanted = _share(opened.rounds.timed, turn, TURNS) if opened.rounds else steps
            if problem or not wanted:
                continue
            timed = yield TimeCase(wanted, case)
            assert isinstance(timed, CaseTimed)
            problem, step_ns = timed.problem, (*step_ns, *timed.step_ns)
        yield None
        found.append(CaseResult(case, opened.loops, () if problem else step_ns, problem))
    compiled = yield Finish()
    assert isinstance(compiled, Compiled)
    return SideResult(info, Settled(0, settled=True, spread=0.0), NOT_TIMED, compiled, None, tuple(found))


def attribution(info: CallInfo, call: str, *, growth: bool) -> Generator[Command | None, Reply, MemoryAccount | None]:
    """The commands for a process that only says whose the memory at the peak of one call is; others run once."""
    if info.name != call or info.rounds is not None:
        yield from _passed(info)
        return None
    attributed = yield Attribute(info.period, growth)
    yield Finish()
    assert isinstance(attributed, Attributed)
    return attributed.account


def explanation(
    plan: MeasurementPlan, info: CallInfo, scratch: str, *, seconds: float = math.inf, loops: Loops | None = None
) -> Generator[Command | None, Reply, ExplainedResult]:
    """The commands for a process that only says where its steps' parts come from: the stack pass."""
    if info.rounds is not None:
        yield from _passed(info)
        return ExplainedResult(info.name, None)
    pace, period = Pace(seconds), info.period
    number = yield from _loops(info, loops)
    yield _settle(full(plan, period, TURNS), info, pace, number)
    kept = math.ceil(EXPLAINED_STEPS / period) * period
    profiled = yield Profile(
        kept, period, scratch, exemplar=False, last=True, parts=True, stacks=True, ranks=bool(plan.ranks)
    )
    yield Finish()
    assert isinstance(profiled, Profiled)
    return ExplainedResult(info.name, profiled.parts, tuple(rank.parts for rank in profiled.ranks))


def first_and_later(
    plan: MeasurementPlan, info: CallInfo, scratch: str, *, seconds: float = math.inf, loops: Loops | None = None
) -> Generator[Command | None, Reply, FirstAndLater]:
    """The commands for a process that only says what its first step runs that later ones do not."""
    if info.rounds is not None:
        yield from _passed(info)
        return FirstAndLater(info.name, NOT_PROFILED, NOT_PROFILED, "")
    pace, period = Pace(seconds), info.period
    first = yield Profile(period, 0, scratch, exemplar=False)
    number = yield from _loops(info, loops)
    yield _settle(full(plan, period, TURNS), info, pace, number)
    later = yield Profile(period, period, scratch, exemplar=False, last=True)
    done = yield Finish()
    assert isinstance(first, Profiled)
    assert isinstance(later, Profiled)
    assert isinstance(done, Compiled)
    return FirstAndLater(info.name, first, later, done.pending)


def _passed(info: CallInfo) -> Generator[Command | None, Reply, None]:
    """The commands for a call that is not asked about."""
    if info.rounds is not None:
        yield from exactly(info, info.rounds)
        return
    yield Time(1, 1, last=True)
    yield Finish()


def _loops(info: CallInfo, loops: Loops | None) -> Generator[Command, Reply, int]:
    """How many calls make a step: what the test asks for, or what its first process calibrates."""
    loops = loops or Loops()
    number = loops.number(info.name, info.not_looped)
    if number is not None:
        return number
    answer = yield Calibrate(LEAST_STEP_NS, MOST_LOOPS)
    assert isinstance(answer, Calibrated)
    loops.calibrated(info.name, answer.loops)
    return answer.loops


def _settle(wanted: Sizes, info: CallInfo, pace: Pace, loops: int) -> Settle:
    sizes = pace.before(wanted, info.period, info.name)
    return Settle(
        sizes.warmup, sizes.most, sizes.block, pace.warmup_seconds(info.name), info.period, core=None, loops=loops
    )


def _named(info: CallInfo, text: str) -> str:
    return f"{info.name}: {text}" if info.name else text


def _joined(parts: Sequence[Timed]) -> Timed:
    return Timed(
        step_ns=tuple(ns for part in parts for ns in part.step_ns),
        wait_ns=tuple(ns for part in parts for ns in part.wait_ns),
        delay_ns=tuple(ns for part in parts for ns in part.delay_ns),
        blocks=tuple(block for part in parts for block in part.blocks),
        compiles=tuple(name for part in parts for name in part.compiles),
        load=Load.joined([part.load for part in parts]),
        tracer=next((part.tracer for part in parts if part.tracer), ""),
        reference_before=tuple(ns for part in parts for ns in part.reference_before),
        reference_after=tuple(ns for part in parts for ns in part.reference_after),
        surroundings=Surroundings.joined([part.surroundings for part in parts]),
        findings=tuple(finding for part in parts for finding in part.findings),
        loops=parts[0].loops,
        object_walks=sum(part.object_walks for part in parts),
    )
