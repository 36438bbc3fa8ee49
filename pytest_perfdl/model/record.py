"""The measurement of one test in one environment.

A baseline file holds a `Record`, a run holds `Record`s, a comparison takes two. This module defines their parts,
`record_json` their JSON form; both import nothing heavy, so the orchestrating process needs neither numpy nor torch.

Units: every duration is an integer number of nanoseconds, every size a number of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

Kind = Literal["timed", "counted"]
Better = Literal["lower", "higher"]
RowKind = Literal["operator", "kernel", "idle"]
Scalar = str | int | float | bool | None
LoopCount = int | Literal["auto"]
"""Calls of the function in one measured step, or `auto` for as many as make it long enough."""


@dataclass(frozen=True, slots=True)
class Key:
    """The machine ID: timed metrics are comparable only if it is equal.

    `slug` is the ID and the name of the baseline directory; `parts` are the facts that it is made from.
    """

    slug: str
    parts: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Measurement settings of a test; a change makes its baseline outdated."""

    warmup: int
    """Minimum number of warm-up steps."""
    steps: int
    """Timed steps per process."""
    period: int = 1
    """Steps per cycle (gradient accumulation)."""
    profiled: int = 4
    """Profiled steps; a multiple of `period`."""
    threads: int = 1
    """Intra-op threads of the worker."""
    seed: int = 0
    loops: Mapping[str, int] = field(default_factory=dict)
    """Calls of the function in one timed step, by name of the `perf(...)` call; 1 for those that are not named.

    Also 1 where `loops="auto"` found that one call is long enough: later runs then need not decide again.
    """
    ranks: int = 0
    """Processes that run the step together, as ranks of a process group; 0 without a process group."""
    backend: str = ""
    """Backend of the process group, such as "gloo"; empty for the usual one of the device."""

    @property
    def shape(self) -> dict[str, str | int]:
        """Every part as text or a number: two plans measure alike where these are equal.

        >>> MeasurementPlan(15, 40, loops={"": 64, "backward": 1}).shape["loops"]
        '64'
        """
        looped = {name: number for name, number in sorted(self.loops.items()) if number != 1}
        loops = ", ".join(f"{name} {number}".strip() for name, number in looped.items())
        parts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "loops"}
        return {**parts, "loops": loops or "1"}


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one call: one value per process, in the order of measurement.

    Timed values are in nanoseconds (unit "ns"); the process, not the step, is the statistical unit. Counted values are
    means per step, exact because the profiled steps are whole periods.
    """

    kind: Kind
    unit: str
    better: Better
    values: tuple[float, ...]

    @property
    def stable(self) -> bool:
        """Whether all values are equal; only then can a counted metric be compared exactly."""
        return all(value == self.values[0] for value in self.values)


@dataclass(frozen=True, slots=True)
class ProfiledRow:
    """An operator (self time), a kernel, copy or memset (duration) or a class of idle time, over all profiled steps."""

    kind: RowKind
    name: str
    count: int
    """Occurrences in all steps together; 0 for idle time."""
    ns: int


@dataclass(frozen=True, slots=True)
class Row:
    """An operator (self time), a kernel (duration) or a class of idle time, as part of a step's time.

    `count` is occurrences per step; `ns` the mean time per profiled step, one value per process. The rows of a call add
    up to its profiled step (CPU only), so their differences add up to the change of the step.
    """

    kind: RowKind
    name: str
    count: float
    ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CaseWork:
    """What a call of a case has to do, as the test states it; `None` for what it does not state."""

    items: float | None = None
    flops: float | None = None
    bytes: float | None = None
    dtype: str = ""
    """Element type of the tensors that the call gets (`float32`), which the arithmetic is taken to be done on; several
    are joined by `+`. Empty without tensors."""
    cold: bool = False
    """Whether caches are emptied before every call, so that its bytes come from memory."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a table."""

    id: str
    ns: tuple[float, ...]
    """Time of a call in nanoseconds (lower quartile of steps), one value per process."""
    loops: int
    """Calls in a timed step."""
    ops: int
    """Operators that a call runs, counted with their repetitions."""
    kernels: int
    """Kernels that a call launches; 0 without a device."""
    operators: tuple[str, ...] = ()
    """Names of the operators, sorted."""
    work: CaseWork | None = None
    """What a call has to do; `None` where the test does not state it."""
    definition: str = ""
    """Identifies what the case is made of, as `Record.test_hash` does; empty where that is the test of all cases."""
    allocations: int = 0
    """Blocks of memory that torch's allocators hand out in a call, on the host and on devices."""


@dataclass(frozen=True, slots=True)
class Call:
    """The measurement of one `perf(...)` call of a test; `name` is empty unless given."""

    name: str
    series: Mapping[str, Series]
    rows: tuple[Row, ...]
    profiled_ns: tuple[int, ...]
    """Mean duration of a profiled step in nanoseconds, one value per process."""
    op_counts: tuple[int, ...] = ()
    """Number of operators in every profiled step; steps differ if the values do."""
    uncounted: tuple[str, ...] = ()
    """Operators whose FLOPs the counter does not know."""
    cases: tuple[Case, ...] = ()
    """Of a table, sorted by id; it has neither rows nor times of steps."""


SHORT_STEP, RECOMPILED, INJECTED, KERNELS_LOST = "short-step", "recompiled", "injected", "kernels-lost"
DOUBTED_SIDES, UNTIED, TEST_ERROR = "doubted-sides", "untied", "test-error"
CASE_ERROR, CASE_REPEATED, CASES_DIFFER, CASES_LATE = "case-error", "case-repeated", "cases-differ", "cases-late"
"""Codes of findings that are asked for. `untied`: the record is tied to no commit, since it is not of the code that the
tree had; `test-error`: the test failed itself, so there is nothing to judge and its verdict is `invalid`."""


@dataclass(frozen=True, slots=True)
class FindingCode:
    """What the findings with a code have in common."""

    what: str = ""
    disturbs: bool = False
    """Times vary more. Paired rounds and their intervals take that into account, so that it matters only where a
    verdict is not certain, or not from paired rounds."""
    contends: bool = False
    """Other processes used the CPU, or may have."""
    shown: Literal["first", "always", ""] = ""
    """`first`: before all figures, which it puts into doubt; `always`: it is about the result itself."""
    unconfirmed: bool = False
    """Rounds did not compare both sides' own code."""


FINDING_CODES: Mapping[str, FindingCode] = {
    "redefined": FindingCode("the test's definition is another one on the other side", shown="first"),
    "vanished": FindingCode("the step got faster because its later steps do not do its work", shown="first"),
    "pair": FindingCode("the processes of a pair differ in what they should share", unconfirmed=True),
    "unpaired": FindingCode("why there are no paired rounds, which can be fixed", shown="always", unconfirmed=True),
    DOUBTED_SIDES: FindingCode("sides may not have run their own code", shown="always", unconfirmed=True),
    CASE_ERROR: FindingCode("a case of a table cannot be measured", shown="always"),
    CASE_REPEATED: FindingCode("a case of a table is listed twice", shown="always"),
    CASES_LATE: FindingCode("cases of a table do not fit into the time budget", shown="always"),
    CASES_DIFFER: FindingCode("the two sides of a table have different cases", shown="always"),
    INJECTED: FindingCode("steps were slowed down on purpose", shown="always"),
    RECOMPILED: FindingCode("torch.compile compiled something in measured steps", shown="always"),
    "stalled": FindingCode("a step took many times as long as the others", shown="always"),
    "varying": FindingCode("processes of the same code ran different operators", shown="always"),
    "profiled": FindingCode("profiled steps changed otherwise than timed ones", shown="always"),
    "passes-differ": FindingCode("steps take other times in another pass", shown="always"),
    "contended": FindingCode("other processes used the CPU", disturbs=True, contends=True),
    "waiting": FindingCode("the step waited for a CPU", disturbs=True, contends=True),
    "stolen-time": FindingCode("other virtual machines used the CPU", disturbs=True, contends=True),
    "machine-changed": FindingCode("the reference load took another time", disturbs=True),
    "clock-changed": FindingCode("the CPU clock varied", disturbs=True),
    "throttled": FindingCode("a CPU was throttled", disturbs=True),
    KERNELS_LOST: FindingCode("the profile of a device is incomplete, so only times are judged", shown="always"),
    "implausible": FindingCode("a step is faster than the machine can do its work", shown="always"),
    "withheld": FindingCode("a GPU was disturbed in paired rounds that were not used", shown="always"),
    "throttled-side": FindingCode("the clock of a GPU was reduced on one side", shown="always"),
    "memory-errors": FindingCode("ECC found errors in the memory of a GPU", shown="always"),
    "swapping": FindingCode("memory was swapped", disturbs=True),
    "major-faults": FindingCode("the step waited for the disk", disturbs=True),
    "system-time": FindingCode("much CPU time was spent in the OS kernel", disturbs=True),
    "unsettled": FindingCode("step time still changed after the warm-up", disturbs=True),
}
"""Codes of which reports and decisions make a difference; others are plain notes, or `invalid`."""
_OTHER = FindingCode()


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a measurement; one of level `invalid` makes the measurement invalid, a `note` does not."""

    level: Literal["invalid", "note"]
    code: str
    message: str

    @property
    def meaning(self) -> FindingCode:
        """What its code says."""
        return FINDING_CODES.get(self.code, _OTHER)


@dataclass(frozen=True, slots=True)
class Occasion:
    """One recording: when and with which code a group of repeats was measured."""

    repeats: int
    date: str
    commit: str | None
    """Commit checked out during the measurement (full hash); `None` without git."""
    tree: str | None
    """Hash of the working tree, in baselines from before `code` was stored; not used."""
    reference_ns: tuple[int, ...] = ()
    """Time of the reference load per process, as a measure of machine speed; empty if it was not timed."""
    seconds: float | None = None
    """Mean duration of a process in seconds, with its start; `None` if unknown."""


SHORT_HASH = 12
"""Number of digits of a content hash in a record, as git abbreviates it in a large repository."""


@dataclass(frozen=True, slots=True)
class Code:
    """The measured code: files that the test loaded and read, by content."""

    files: Mapping[str, str]
    """Files of the repository: path from its top -> first 12 digits of the content's git hash, of a submodule its
    commit's."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed distributions that the test loaded: name -> version."""
    ignored: tuple[str, ...] = ()
    """Files in the repository that it loaded or read and that git ignores; no commit has them."""
    left_out: int = 0
    """Number of further files: too many, too large, with a name that is not valid text, or opened by somebody while the
    test ran; one more if it is unknown whether there are others."""

    @property
    def is_complete(self) -> bool:
        """Whether `files` has all files of the repository that the test used."""
        return bool(self.files) and not self.ignored and not self.left_out


LONGEST_NOTE = 500
"""Characters that a note of a record may have."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What `perfdl refresh` keeps of the recordings that it replaced, so that small slowdowns add up.

    Its limits apply to the best values since somebody last recorded the baseline or accepted a change.
    """

    date: str
    """Of that recording."""
    commit: str | None
    """Commit checked out during that recording (full hash)."""
    best: Mapping[str, float]
    """Best value since then of each timed metric and each number of bytes, by full name."""


@dataclass(frozen=True, slots=True)
class Record:
    """The complete measurement of one test in one environment."""

    test: str
    """Node id."""
    key: Key
    context: Mapping[str, Scalar]
    """Software versions, driver, clocks: differences are shown, but do not prevent a comparison."""
    test_hash: str
    plan: MeasurementPlan
    calls: tuple[Call, ...]
    occasions: tuple[Occasion, ...]
    modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Observed modes, such as the page-fault rate."""
    integrity: tuple[Finding, ...] = ()
    exemplars: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the stored traces, by call; empty if unknown."""
    code: Code | None = None
    """The code of the last recording; `None` if it is unknown."""
    note: str | None = None
    """Why the baseline was recorded (`--perf-note`): one line of at most `LONGEST_NOTE` characters."""
    refreshed: Refreshed | None = None
    """What was recorded before; `None` if `perfdl refresh` did not write the baseline."""

    @property
    def repeats(self) -> int:
        """Number of measured processes."""
        return sum(occasion.repeats for occasion in self.occasions)

    @property
    def reference_ns(self) -> tuple[int | None, ...]:
        """Time of the reference load per process; `None` where it was not timed."""
        return tuple(ns for occasion in self.occasions for ns in occasion.reference_ns or (None,) * occasion.repeats)

    @property
    def table(self) -> Call | None:
        """The table of a test that measures one; it is then its only call."""
        return next((call for call in self.calls if call.cases), None)

    def metrics(self) -> dict[str, Series]:
        """All metrics by full name: `step_time`, or `forward.step_time` for a named call."""
        return {metric_name(call.name, name): series for call in self.calls for name, series in call.series.items()}


def checked_note(text: str) -> str:
    """A note as it is kept: without spaces around it.

    Raises
    ------
    ValueError
        It is empty, too long, or has several lines or control characters.
    """
    note = text.strip()
    if not note:
        raise ValueError("the note is empty: write why the baseline changes")
    if len(note) > LONGEST_NOTE:
        raise ValueError(f"the note has {len(note)} characters, more than {LONGEST_NOTE}")
    if not note.isprintable():
        raise ValueError("the note has line breaks or control characters: write one line")
    return note


def metric_name(call: str, name: str) -> str:
    """The full name of a metric, which starts with the name of a named call."""
    return f"{call}.{name}" if call else name


def row_name(call: str, kind: RowKind, name: str) -> str:
    """The full name of a row, unique within a test.

    >>> row_name("forward", "operator", "aten::mm"), row_name("", "kernel", "gemm")
    ('forward.operator aten::mm', 'kernel gemm')
    """
    return metric_name(call, f"{kind} {name}")


def call_of_row(name: str) -> str:
    """The call of a row, by the row's full name.

    >>> call_of_row("forward.operator aten::mm.out"), call_of_row("kernel gemm")
    ('forward', '')
    """
    return name.partition(" ")[0].rpartition(".")[0]
