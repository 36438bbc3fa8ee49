"""Predict step time under hypothetical changes to a trace.

`perfdl whatif TRACE --apply cuda_graph --scale 'name~gemm:0.5'` simulates each change, and all of them together;
without a change it prints advice only. `--list` names the optimizations. Several traces, or a folder of traces, are the
ranks of one job, which wait for each other in their collectives.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_perfdl.cli.common import print_json, say, width
from pytest_perfdl.cli.traces import add_step_name, recordings_in, trace_files
from pytest_perfdl.model.errors import CommandError, CycleError, SelectionError
from pytest_perfdl.model.selection import HELP, parse
from pytest_perfdl.report import layout, whatif

if TYPE_CHECKING:
    from pytest_perfdl.machine.rates import Machine
    from pytest_perfdl.report.whatif import Answers, Arithmetic
    from pytest_perfdl.trace import Trace
    from pytest_perfdl.whatif.advice import Note
    from pytest_perfdl.whatif.editing.select import Selected
    from pytest_perfdl.whatif.model import TaskGraph
    from pytest_perfdl.whatif.predict import WhatIf


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="TRACE",
        help="Chrome trace of the PyTorch profiler (.json or .json.gz); several traces, or a folder, must be the "
        "ranks of one distributed job",
    )
    parser.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="SELECT:FACTOR",
        help=f"multiply the duration of the selected operators, calls or kernels by FACTOR; SELECT is {HELP}",
    )
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="SELECT",
        help="remove the selected operators, calls or kernels",
    )
    parser.add_argument(
        "--apply",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="apply an optimization, such as amp:dtype=bfloat16; see --list",
    )
    parser.add_argument("--list", action="store_true", help="list the optimizations and their parameters")
    parser.add_argument(
        "--machine",
        action="append",
        default=[],
        metavar="NAME=VALUE|FILE",
        help="a machine property that the trace does not contain, such as network_bytes_per_s=25GB, "
        "pinned_bytes_per_s=12GB, cores=8 or float32=67Tflop; or a machine.json file of `perfdl constants`",
    )
    parser.add_argument(
        "--step-time",
        metavar="TIME",
        help="mean step time measured without the profiler, such as 41.2ms; used to subtract profiler overhead from "
        "every event",
    )
    add_step_name(parser)
    parser.add_argument("--devices", type=int, metavar="N", help="rank the ways to parallelize the step over N devices")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="write the measured and the predicted timeline as a Chrome trace"
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, simulate and report; 2 when a file or a question cannot be understood."""
    if arguments.list:
        say(_list_transforms())
        return 0
    if not arguments.files:
        raise CommandError("no trace given: pass a trace file, or add --list to list the optimizations")
    if arguments.devices is not None and arguments.devices < 1:
        raise CommandError("--devices must be at least 1")
    questions = _questions(arguments)
    machine = _machine(arguments.machine)
    if arguments.trace is not None and not questions:
        raise CommandError("--trace needs a change to predict: --scale, --remove or --apply")
    answers = _answer(arguments, questions, machine)
    if arguments.trace is not None:
        _write(arguments.trace, answers, aside=arguments.json)
    if arguments.json:
        from pytest_perfdl.report.whatif import to_json

        job = answers.graph.job
        print_json(to_json(answers) | ({} if job is None else whatif.ranks_to_json(job)))
    else:
        from pytest_perfdl.report.whatif import report

        say(report(answers, width()))
    return 0


def _answer(arguments: argparse.Namespace, questions: Sequence[WhatIf], machine: Machine) -> Answers:
    from pytest_perfdl.report import whatif
    from pytest_perfdl.report.whatif import Answers
    from pytest_perfdl.whatif.advice import advise, notes
    from pytest_perfdl.whatif.predict import Base, predict, together
    from pytest_perfdl.whatif.strategy import search
    from pytest_perfdl.whatif.transform import Context

    graph, source, arithmetic, doubts = _graph(arguments, machine)
    job = graph.job
    context = Context(graph, machine)
    try:
        base = Base.of(graph)
        if job is not None:
            for edit in (edit for question in questions if question.plan for edit in question.plan.edits):
                edit.parameters["tasks"].check(job.parts)
        predictions = [predict(context, question, base) for question in questions]
        if len(questions) > 1:
            predictions.append(together(context, questions, base))
        strategies = search(context, arguments.devices) if arguments.devices else []
    except CycleError as error:
        raise CommandError(f"the trace cannot be simulated: {error}") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    return Answers(
        source,
        graph,
        base,
        predictions,
        advise(context, base),
        (*doubts, *notes(context, base), *(() if job is None else whatif.notes(job, base.simulation.span_ns))),
        strategies,
        arguments.devices or 0,
        arithmetic,
    )


def _graph(arguments: argparse.Namespace, machine: Machine) -> tuple[TaskGraph, str, Arithmetic | None, Sequence[Note]]:
    """The graph of a trace, or of all ranks, what it is called, what its step computes, and what is wrong with it."""
    from pytest_perfdl.report.whatif import listing
    from pytest_perfdl.trace import read
    from pytest_perfdl.whatif.from_trace.graph import task_graph
    from pytest_perfdl.whatif.from_trace.job import job_graph

    traces = [
        trace
        for path in trace_files(arguments.files, "whatif")
        for trace in recordings_in(read(path), step_name=arguments.step_name)
    ]

    def graph_of(trace: Trace) -> TaskGraph:
        graph = task_graph(trace)
        if not len(graph):
            raise CommandError(f"{trace.source} has no operators, runtime calls or kernels to simulate")
        return graph

    if len(traces) == 1:
        (trace,) = traces
        graph = _without_profiler(graph_of(trace), arguments.step_time)
        return graph, trace.source or arguments.files[0], _arithmetic(trace, machine), _doubts(traces)
    if arguments.devices:
        raise CommandError("--devices needs the trace of a single rank: pass one trace file")
    graph = _without_profiler(job_graph(traces, graph_of), arguments.step_time)
    return graph, "ranks" if graph.job is None else f"ranks {listing(graph.job)}", None, _doubts(traces)


def _doubts(traces: Sequence[Trace]) -> list[Note]:
    """What is wrong with the traces: what the reader found, and what is known of their steps to change figures."""
    from pytest_perfdl.analysis.events.step_list import MIXED
    from pytest_perfdl.analysis.events.steps import steps_of
    from pytest_perfdl.analysis.overview.selection import largest_group
    from pytest_perfdl.whatif.advice import Note

    found: list[tuple[str, str, str]] = []
    for trace in traces:
        found += [(trace.source, "trace", finding) for finding in trace.findings]
        steps = steps_of(trace)
        if kinds := largest_group(steps):
            found.append((trace.source, MIXED, kinds))
        found += [
            (trace.source, each.code, each.message)
            for each in steps.findings
            if each.level == "invalid" or each.code == MIXED
        ]
    several = len(traces) > 1
    return [Note(code, f"{source}: {text}" if several else text, 0.0) for source, code, text in found]


def _arithmetic(trace: Trace, machine: Machine) -> Arithmetic | None:
    from pytest_perfdl.analysis.account.accounts import profile_tables
    from pytest_perfdl.analysis.overview.summary import trace_utilization
    from pytest_perfdl.machine.rates import Peaks
    from pytest_perfdl.report.whatif import Arithmetic

    given = Peaks(machine.flops_per_s, machine.memory_bytes_per_s or math.inf) if machine.flops_per_s else None
    found = trace_utilization(trace, machine.peaks or given).values
    tables = profile_tables(trace)
    if "achieved_flops" not in found or not tables.steps:
        return None
    step_ns = sum(tables.step_ns) / tables.steps
    share = found.get("flops_utilization")
    return Arithmetic(found["achieved_flops"] * step_ns / 1e9, None if share is None else share * step_ns)


def _without_profiler(graph: TaskGraph, step_time: str | None) -> TaskGraph:
    from pytest_perfdl.model.units import parse_quantity
    from pytest_perfdl.whatif.unprofiled import unprofiled

    if step_time is None:
        return graph
    try:
        return unprofiled(graph, parse_quantity(step_time, "ns"))
    except ValueError as error:
        raise CommandError(f"--step-time {error}") from error


def _questions(arguments: argparse.Namespace) -> list[WhatIf]:
    from pytest_perfdl.whatif.editing.edit import Plan
    from pytest_perfdl.whatif.predict import WhatIf
    from pytest_perfdl.whatif.transforms import parameters

    found = []
    for text in arguments.scale:
        told, colon, number = text.rpartition(":")
        try:
            factor = float(number)
        except ValueError:
            factor = -1.0
        if not colon or not 0 <= factor < float("inf"):
            raise CommandError(
                f"--scale {text!r}: expected SELECT:FACTOR with a factor of 0 or more, such as name~gemm:0.5"
            )
        found.append(WhatIf(f"scale {text}", Plan().scale(_parse_selection(told, "--scale"), factor)))
    for text in arguments.remove:
        found.append(WhatIf(f"remove {text}", Plan().remove(_parse_selection(text, "--remove"))))
    for text in arguments.apply:
        name, _, rest = text.partition(":")
        given = {}
        for part in filter(None, rest.split(",")):
            key, sign, value = part.partition("=")
            if not sign:
                raise CommandError(f"--apply {text!r}: expected NAME:KEY=VALUE, such as amp:dtype=float16")
            given[key] = value
        try:
            found.append(WhatIf(text, transform=name, parameters=parameters(name, given)))
        except ValueError as error:
            raise CommandError(f"--apply {text!r}: {error}") from error
    return found


def _parse_selection(text: str, option: str) -> Selected:
    from pytest_perfdl.whatif.editing.select import Selected

    try:
        return Selected(parse([text]), text)
    except SelectionError as error:
        raise CommandError(f"{option} {error}") from error


def _machine(texts: Sequence[str]) -> Machine:
    from pytest_perfdl.machine.rates import ELEMENT_TYPES, Machine
    from pytest_perfdl.model.units import parse_quantity
    from pytest_perfdl.whatif.transform import quantity

    names = {each.name for each in fields(Machine)} - {"flops_per_s", "ratios", "source", "key"}
    found = Machine()
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            if not sign:
                found = found.or_else(Machine.load(Path(text)))
            elif name in names:
                amount = quantity(value)
                if amount <= 0:
                    raise ValueError("expected a number above 0")
                found = found.with_(**{name: int(amount) if name in ("cores", "memory_bytes") else amount})
            elif name in ELEMENT_TYPES:
                found = found.with_(flops_per_s={**found.flops_per_s, name: parse_quantity(value, "flop")})
            else:
                raise ValueError(
                    f"unknown machine property {name!r}; known properties: {', '.join(sorted(names))}, and element "
                    "types such as float32"
                )
        except ValueError as error:
            raise CommandError(f"--machine {text}: {error}") from error
    return found


def _list_transforms() -> str:
    import inspect

    from pytest_perfdl.whatif.transforms import TRANSFORMS

    lines: list[str] = []
    for name, function in sorted(TRANSFORMS.items()):
        parameters = [
            each.name + ("" if each.default is each.empty else f"={each.default}")
            for each in list(inspect.signature(function).parameters.values())[1:]
        ]
        lines.append(f"{name}:{','.join(parameters)}" if parameters else name)
        lines += layout.paragraph((inspect.getdoc(function) or "").splitlines()[0], 4, width())
    return "\n".join(lines)


def _write(path: Path, answers: Answers, *, aside: bool) -> None:
    from pytest_perfdl.report.whatif import write_timelines

    last = answers.predictions[-1]
    if last.simulation is None:
        raise CommandError(f"--trace: no timeline to write, because {last.name} has no prediction: {last.reason}")
    try:
        write_timelines(path, answers.base.simulation, last.simulation, last.name)
    except OSError as error:
        raise CommandError(f"--trace {path} cannot be written: {error.strerror}") from error
    say(f"wrote {path}", error=aside)
