"""What is said about what a step would take: on the terminal, as JSON, as a Chrome trace of both timelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl.model.units import format_percent, format_quantity, plural
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report import layout
from pytest_perfdl.report.advice import advice_lines, figures
from pytest_perfdl.report.layout import Column, Table
from pytest_perfdl.report.trace.tables import by_size
from pytest_perfdl.trace.writer import Event, write
from pytest_perfdl.whatif.model import TrackKind
from pytest_perfdl.whatif.simulation.quality import Quality
from pytest_perfdl.whatif.simulation.simulate import Simulation

if TYPE_CHECKING:
    from pytest_perfdl.whatif.advice import Advice, Note
    from pytest_perfdl.whatif.model import Job, TaskGraph
    from pytest_perfdl.whatif.predict import Base, Prediction
    from pytest_perfdl.whatif.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a mean step computes, by the operators that have a cost model."""

    flops: float
    least_ns: float | None = None
    """Time of it at the machine's peaks, by element type; `None` where they are not known."""

    def figures(self, step_ns: float) -> dict[str, float]:
        """Utilization of a step that does it in some time, by name of metric: FLOP/s, and a share from 0 to 1."""
        if step_ns <= 0:
            return {}
        found = {"achieved_flops": self.flops / step_ns * 1e9}
        return found if self.least_ns is None else {**found, "flops_utilization": self.least_ns / step_ns}


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that was found out by simulating one trace."""

    source: str
    graph: TaskGraph
    base: Base
    predictions: Sequence[Prediction] = ()
    """What was asked; nothing where only advice is wanted, as in `perfdl trace`."""
    advice: Sequence[Advice] = ()
    notes: Sequence[Note] = ()
    strategies: Sequence[Strategy] = ()
    devices: int = 0
    """Number of devices that the strategies are for; 0 if none were asked for."""
    arithmetic: Arithmetic | None = None
    """Of the step as it was traced; `None` of several ranks, and without operators that have a cost model."""


# Measured and predicted timeline as one Chrome trace: two processes each, aligned at their beginning.


_NAMES = {TrackKind.THREAD: "thread", TrackKind.STREAM: "stream", TrackKind.CHANNEL: "channel"}


def write_timelines(path: Path, measured: Simulation, predicted: Simulation, name: str) -> None:
    """Write both; tasks without duration are left out.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    events = [*_lanes(measured, 1, "measured"), *_lanes(predicted, 2, f"predicted: {name}")]
    write(path, events, {"whatif": name})


def _lanes(simulation: Simulation, pid: int, title: str) -> Iterator[Event]:
    graph = simulation.graph
    yield Event.process_name(pid, title)
    several = len({track.rank for track in graph.tracks}) > 1
    for number, track in enumerate(graph.tracks):
        rank = ("all ranks: " if track.rank < 0 else f"rank {track.rank}: ") if several else ""
        yield Event.thread_name(pid, number + 1, f"{rank}{_NAMES[track.kind]} {track.number}")
    begin = int(simulation.start.min()) if len(graph) else 0
    columns = (graph.tasks.track, simulation.start - begin, simulation.end - simulation.start, graph.tasks.name)
    for track_number, start, duration, label in zip(*(column.tolist() for column in columns), strict=True):
        if duration:
            yield Event("X", graph.names[label], pid, track_number + 1, start, duration)


# Predictions as plain data: times in nanoseconds of the mean step, shares and gains as ratios.


SCHEMA = 1
"""Version of the JSON form. Raised when an older reader would misread a newer file."""


def to_json(answers: Answers) -> dict[str, Any]:
    """All of them; what cannot be predicted has `null` for its figures and says why in "reason"."""
    simulation = answers.base.simulation
    path = simulation.path
    return {
        "schema": SCHEMA,
        "source": answers.source,
        "tasks": len(answers.graph),
        "steps": len(answers.base.steps),
        "replay": replay_json(answers),
        "critical_path": {
            "span_ns": simulation.span_ns,
            "length_ns": path.length_ns,
            "by_class": dict(sorted(path.by_class(answers.graph).items(), key=lambda item: -item[1])),
        },
        "utilization": _utilization(answers, answers.base.mean),
        "whatif": [
            {**prediction_json(each), "utilization": _utilization(answers, each.predicted_ns)}
            for each in answers.predictions
        ],
        "advice": [advice_json(each) for each in answers.advice],
        "notes": [asdict(note) for note in answers.notes],
        "strategies": [
            {
                **asdict(each.layout),
                "step_ns": round(each.step_ns),
                "peak_bytes": each.peak_bytes,
                "fits": each.fits,
            }
            for each in answers.strategies
        ],
    }


def _utilization(answers: Answers, step_ns: float | None) -> dict[str, float]:
    """How well a step of some time uses the machine, with the arithmetic of the trace; empty where it is not known."""
    return {} if answers.arithmetic is None or step_ns is None else answers.arithmetic.figures(step_ns)


def replay_json(answers: Answers) -> dict[str, Any]:
    """How far simulating the trace as it is gives what was measured, and the trust that predictions deserve."""
    found = answers.base.quality
    first, last = answers.graph.span
    return {
        "measured_ns": last - first,
        "const_error": found.constant_error,
        "pinned_error": found.replay_error,
        "unexplained_share": found.unexplained_share,
        "inferred_share": found.inferred_share,
        "held_share": found.held_share,
        "trust": found.trust,
        "reason": found.reason,
    }


def prediction_json(each: Prediction) -> dict[str, Any]:
    """One prediction."""
    return {
        "name": each.name,
        "step_ns": round(each.step_ns),
        "predicted_step_ns": None if each.predicted_ns is None else round(each.predicted_ns),
        "interval_ns": None if each.interval_ns is None else [round(bound) for bound in each.interval_ns],
        "gain": each.gain,
        "trust": each.trust,
        "reason": each.reason,
        "notes": list(each.notes),
        "peak_bytes": each.peak_bytes,
        "predicted_peak_bytes": each.predicted_peak_bytes,
        "fits": each.fits,
    }


def advice_json(each: Advice) -> dict[str, Any]:
    """One piece of advice: what was found, what would change it, by how much, and an example that shows it."""
    return {
        "finding": each.finding,
        "text": each.text,
        "transform": each.transform,
        "how": each.how,
        "example": each.example,
        **prediction_json(each.prediction),
    }


# What is reported about the ranks of a job, in addition to the report on one trace.


def listing(job: Job) -> str:
    """The ranks' numbers: "0, 1 and 2"."""
    *most, last = map(str, job.numbers)
    return f"{', '.join(most)} and {last}"


def notes(job: Job, span_ns: int) -> list[Note]:
    """How the ranks hang together, what limits the figures, and what the advice leaves out."""
    from pytest_perfdl.whatif.advice import Note

    figures = job.figures
    times = plural(len(job.meetings), "time")
    text = f"step times are for ranks {listing(job)} together: they wait for each other {times}"
    if figures.most_often_last is not None:
        text += f"; rank {figures.most_often_last} most often starts last"
    waits = max(figures.ranks, key=lambda rank: rank.waiting_ns)
    if waits.waiting_ns:
        text += f"; rank {waits.rank} waits longest for others, {format_quantity(waits.waiting_ns, 'ns')} in the trace"
    told = "advice about operators needs the trace of a single rank"
    share = min(waits.waiting_ns / max(span_ns, 1), 1.0)
    return [Note("ranks", text, share), *(Note("ranks", finding, 0.0) for finding in (*figures.findings, told))]


def ranks_to_json(job: Job) -> dict[str, Any]:
    """The ranks, and how many times they wait for each other: in collectives, and where one receives."""
    figures = job.figures
    return {
        "ranks": [
            {name: getattr(rank, name) for name in ("rank", "source", "clock_offset_ns", "waiting_ns", "last")}
            for rank in figures.ranks
        ],
        "meetings": len(job.meetings),
        "straggler": None if figures.straggler is None else figures.straggler.rank,
    }


# Predictions as text: the step time, what it would become, and with which confidence.


def report(answers: Answers, width: int) -> str:
    """The report on one trace, wrapped to a width.

    Example::

    train.json.gz: 6 steps of 141.1 ms (mean), 73,918 tasks
    The simulation reproduces the trace within 0.1%.

    Predictions
                      step  range                   gain  confidence
      cuda_graph  112.3 ms  96.2 ms to 128.3 ms   +20.4%  ok
    """
    sections = (
        _head(answers, width),
        _answers(answers, width),
        _path(answers),
        advice_lines(answers, width),
        _notes(answers, width),
        _strategies(answers, width),
    )
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines)


def _head(answers: Answers, width: int) -> Iterator[str]:
    mean = format_quantity(answers.base.mean, "ns")
    steps = f"{plural(len(answers.base.steps), 'step')} of {mean}" + (" (mean)" if len(answers.base.steps) > 1 else "")
    text = f"{visible(answers.source)}: {steps}, {plural(len(answers.graph), 'task')}"
    if used := _used(answers, answers.base.mean):
        text += f", {used}"
    yield from layout.paragraph(text, 0, width)
    yield from layout.paragraph(quality_words(answers.base.quality), 0, width)


def quality_words(found: Quality) -> str:
    """How well the simulation reproduces the trace, and what that means for predictions."""
    if found.trust == "refuse":
        return f"Predictions from this trace are unreliable: {found.reason}."
    error = f"The simulation reproduces the trace within {max(abs(found.constant_error), 0.001):.1%}."
    return error if found.trust == "ok" else f"{error} Confidence in predictions is low: {found.reason}."


def _path(answers: Answers) -> Iterator[str]:
    path, steps = answers.base.simulation.path, max(len(answers.base.steps), 1)
    if path.length_ns:
        yield f"Critical path {format_quantity(path.length_ns / steps, 'ns')}/step (simulated)"
        yield from layout.bars(by_size(path.by_class(answers.graph), steps), path.length_ns / steps)


def _answers(answers: Answers, width: int) -> Iterator[str]:
    if not answers.predictions:
        return
    known = [each for each in answers.predictions if each.predicted_ns is not None]
    columns = (
        Column("Change", lambda each: each.name, "name"),
        Column("Step", lambda each: figures(each)[0], "figure"),
        Column("Range", lambda each: figures(each)[1]),
        Column("Gain", lambda each: figures(each)[2], "figure"),
        Column("Peak memory", lambda each: figures(each)[3]),
        Column("Of peak FLOP/s", lambda each: _share_of_peak(answers, each.predicted_ns), "figure"),
        Column("Confidence", lambda each: each.trust),
    )
    yield "Predictions"
    if known:
        yield from layout.table(Table("Predictions", columns, known), width)
    for each in answers.predictions:
        if each.predicted_ns is None:
            text = f"{visible(each.name)}: no prediction: {visible(each.reason)}"
            yield from layout.item(text, 2, width)
        else:
            for note in each.notes:
                yield from layout.item(f"{visible(each.name)}: {note}", 2, width)
    if known:
        text = (
            "gain: share of the step time that is saved; range: from the most to the least favorable assumptions, "
            "widened by the error of the simulation (at least 0.5%) and the variation of the steps"
        )
        if any(_share_of_peak(answers, each.predicted_ns) for each in known):
            text += "; of peak FLOP/s: relative to the peak rate for the element types in the trace"
        yield from layout.paragraph(text, 2, width)


def _share_of_peak(answers: Answers, step_ns: float | None) -> str:
    if answers.arithmetic is None or step_ns is None:
        return ""
    share = answers.arithmetic.figures(step_ns).get("flops_utilization")
    return "" if share is None else format_percent(share, signed=False)


def _used(answers: Answers, step_ns: float) -> str:
    """How well a step uses the machine: "12.1% of the peak FLOP/s"; empty where it is not known."""
    if share := _share_of_peak(answers, step_ns):
        return f"{share} of the peak FLOP/s"
    found = {} if answers.arithmetic is None else answers.arithmetic.figures(step_ns)
    return format_quantity(found["achieved_flops"], "flop/s") if found else ""


def _notes(answers: Answers, width: int) -> Iterator[str]:
    for note in answers.notes:
        yield from layout.paragraph(f"note: {visible(note.text)}", 0, width)


def _strategies(answers: Answers, width: int) -> Iterator[str]:
    if not answers.devices:
        return
    yield from layout.paragraph(
        f"Parallelization over {plural(answers.devices, 'device')} with the batch size of the trace, fastest that fits "
        "in memory first",
        0,
        width,
    )
    names = "data x pipeline x tensor"
    columns = (
        Column("Layout", lambda each: "{data} x {pipeline} x {tensor}".format(**asdict(each.layout)), short=names),
        Column("Micro-batches", lambda each: each.layout.micro_batches, "1"),
        Column("Step", lambda each: each.step_ns, "ns"),
        Column("Memory/device", lambda each: each.peak_bytes, "B"),
        Column("", lambda each: {None: "", True: "fits", False: "does not fit"}[each.fits]),
    )
    yield from layout.table(Table("Parallelization", columns, answers.strategies[:12]), width)
