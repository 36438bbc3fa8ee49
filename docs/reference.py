"""Makes docs/reference/ from the code: options, ini keys, metrics, hooks, commands and file formats.

python docs/reference.py            # rewrite the pages
python docs/reference.py --check    # say which are not what the code says; exit code 1 then
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from pathlib import Path

from pytest_perfdl import hookspecs
from pytest_perfdl.cli import _MODULES, _load
from pytest_perfdl.config.options import INI_ONLY, OPTIONS
from pytest_perfdl.model import record, record_json
from pytest_perfdl.model.metrics import METRICS, CountedMetric, TimedMetric
from pytest_perfdl.report import details
from pytest_perfdl.report.html import PLAIN_AT_MOST
from pytest_perfdl.report.json import SCHEMA as RUN_SCHEMA
from pytest_perfdl.results import curve
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.verdict import (
    EVERY_ROUND,
    FAILS_BY_DEFAULT,
    VERDICTS,
    WARNS_BY_DEFAULT,
    Judgement,
    MetricVerdict,
)
from pytest_perfdl.scaling.growth import Beside, Growth

FOLDER = Path(__file__).resolve().parent / "reference"
COUNTED_UNITS = {"1": "count", "B": "bytes", "flop": "FLOP"}
MADE = "<!-- Made by docs/reference.py from the code: change it there. -->\n\n"


def options() -> str:
    """Every option with its ini key."""
    rows = [
        (
            f"`{option.shown}`",
            f"`{option.ini}`" if option.ini else "",
            option.help + (f" ({', '.join(option.choices)})" if option.choices else ""),
            option.default,
        )
        for option in OPTIONS
    ]
    only = [(f"`{name}`", kind, text, default or "none") for name, kind, text, default in INI_ONLY]
    return (
        "# Options and ini keys\n\nThe command line wins over the ini file. The marker wins over both in limits, "
        "budgets, the resolution and the\ntimeout; the command line wins over the marker in warm-up, steps, repeats "
        "and threads.\n\n"
        "`--perf-steps` may be written `--perfdl-steps`, `perf_steps` in the ini file `perfdl_steps`, and so on: names "
        "that no other plugin has. Where a project or another plugin has registered the short name, only the long one "
        "is ours.\n\n"
        + _table(("option", "ini key", "what it does", "default"), rows)
        + "\n## Only in the ini file\n\n"
        + _table(("ini key", "type", "what it is", "default"), only)
    )


def metrics() -> str:
    """Every metric, and the verdicts."""
    times = [
        (f"`{name}`", each.unit, each.better if each.is_judged else "neither", each.what)
        for name, each in METRICS.items()
        if isinstance(each, TimedMetric)
    ]
    counts = [
        (f"`{name}`", COUNTED_UNITS[each.unit], each.what, ", ".join(each.scope))
        for name, each in METRICS.items()
        if isinstance(each, CountedMetric)
    ]
    verdicts = [
        (f"`{name}`", "fails" if name in FAILS_BY_DEFAULT else "warns" if name in WARNS_BY_DEFAULT else "passes")
        for name in VERDICTS
    ]
    verdicts.append((f"`{EVERY_ROUND}`", "fails"))
    return (
        '# Metrics and verdicts\n\nA metric of a named call, `perf(fn, name="forward")`, has the name in front: '
        "`forward.step_time`.\n\n## Timed\n\n"
        + _table(("metric", "unit inside", "better", "what it is"), times)
        + "\n## Counted\n\nLess is better. Exact, and compared exactly, where the context in the last column is "
        "equal.\n\n"
        + _table(("metric", "unit inside", "what it is", "exact under equal"), counts)
        + "\n## Verdicts, worst first\n\nA test's verdict is the worst of its metrics'; a count that is "
        "`changed` stands beside the verdict on times. `--perf-fail-on` takes these words, and\n"
        f"`{EVERY_ROUND}`: a suspect whose step_time was past its limit in every one of enough rounds.\n\n"
        + _table(("verdict", "by default"), verdicts)
    )


def hooks() -> str:
    """The hooks that a project may implement."""
    parts = ["# Hooks\n\nA project may implement these in its `conftest.py`.\n"]
    for name, function in sorted(vars(hookspecs).items()):
        if name.startswith("pytest_perfdl_"):
            signature = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(function)))
            text = (inspect.getdoc(function) or "").replace("\n    def ", "\n```python\ndef ", 1)
            if "```python" in text:
                text = re.sub(r"\n {4}( *)", r"\n\1", text) + "\n```"
            parts.append(f"\n## `{name}`\n\n```python\n{name}{signature}\n```\n\n{text}\n")
    for kind, names in GIVEN.items():
        summary = (inspect.getdoc(kind) or "").partition("\n")[0]
        rows = [(f"`{name}`", _described(kind, name)) for name in names]
        parts.append(f"\n### `{kind.__name__}`\n\n{summary}\n\n{_table(('attribute', 'what it is'), rows)}")
    return "".join(parts)


GIVEN: dict[type, tuple[str, ...]] = {
    Run: (
        "results",
        "machine_id",
        "context",
        "date",
        "commit",
        "root",
        "report_dir",
        "seconds",
        "judged",
        "notes",
        "counts()",
    ),
    Result: (
        "id",
        "safe_id",
        "file",
        "line",
        "verdict",
        "fails",
        "numbers",
        "metrics",
        "judgement",
        "against",
        "seconds",
    ),
    MetricVerdict: (
        "name",
        "kind",
        "unit",
        "better",
        "base",
        "new",
        "effect",
        "ci95",
        "limit",
        "verdict",
        "reason",
        "evidence",
        "rounds",
        "of_step",
    ),
    Judgement: ("reason", "blame", "source_diffs", "integrity"),
}
"""What `pytest_perfdl_report` is given, as far as others may rely on it."""


def _described(kind: type, name: str) -> str:
    """What the code says of an attribute: the line under a field, or the docstring of a property or method."""
    attribute = inspect.getattr_static(kind, name.removesuffix("()"))
    if isinstance(attribute, property) or callable(attribute):
        text = inspect.getdoc(attribute) or ""
    else:
        text = _under(kind, name)
    if not text:
        raise ValueError(f"nothing is written under {kind.__name__}.{name}")
    return " ".join(text.split())


def commands() -> str:
    """The help of every subcommand."""
    parts = ["# The perfdl command\n\nWhat pytest does with baselines and traces, without pytest.\n"]
    for name in sorted(_MODULES):
        module = _load(name)
        summary = " ".join((module.__doc__ or "").split("\n\n")[0].split())
        parser = argparse.ArgumentParser(prog=f"perfdl {name}", add_help=False)
        module.add_arguments(parser)
        parts.append(f"\n## `perfdl {name}`\n\n{summary}\n\n")
        arguments = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
        if arguments:
            parts.append(_arguments(parser, arguments))
        for below in parser._actions:
            if isinstance(below, argparse._SubParsersAction):
                told = {choice.dest: choice.help or "" for choice in below._choices_actions}
                for action, inner in below.choices.items():
                    rows = [each for each in inner._actions if not isinstance(each, argparse._HelpAction)]
                    said = told[action][:1].upper() + told[action][1:]
                    parts.append(f"### `perfdl {name} {action}`\n\n{said}.\n\n{_arguments(inner, rows)}\n")
    return "".join(parts).rstrip("\n") + "\n"


def _arguments(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> str:
    rows = []
    for action in actions:
        shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        metavar = f" {action.metavar}" if action.option_strings and action.metavar else ""
        text = (action.help or "") % {"default": action.default, "prog": parser.prog}
        rows.append((f"`{shown}{metavar}`", text))
    return _table(("argument", "what it is"), rows)


def files() -> str:
    """The formats of the files that others read."""
    rows = [(str(place), f"`{name}`") for place, name in enumerate(details.COLUMNS)]
    tables = {
        "record": _fields(record.Record),
        "call": _fields(record.Call),
        "series": _fields(record.Series),
        "row": _fields(record.Row),
        "occasion": _fields(record.Occasion),
        "curve": _fields(curve.JudgedCurve),
        "size": _fields(curve.Size),
        "fitted": _fields(curve.Fitted),
        "figure": _fields(curve.Figure),
        "growth": _fields(Growth),
        "beside": _fields(Beside),
        "columns": _table(("place", "what it is"), rows),
        "record_schema": str(record_json.SCHEMA),
        "run_schema": str(RUN_SCHEMA),
        "folded": str(PLAIN_AT_MOST),
    }
    return re.sub(r"\{(\w+)\}", lambda found: tables[found[1]], _FILES)


_FILES = """# File formats

Durations are integer nanoseconds, sizes bytes, shares and effects ratios (0.1 is 10 %). What cannot be stated is null,
never NaN.

## Baselines

`baselines/<key>/<test file>/<test>.json`, schema {record_schema}. One record:

{record}
### A call

{call}
### A series: one metric

{series}
### A row: an operator, a kernel or a class of idle time

{row}
### An occasion: when repeats were measured

{occasion}
## The run file

`perf-report/run.json`, schema {run_schema}. At the top the key, the context, the date, the commit and how many tests
have each verdict; in `tests` one object, on one line, for each test: its verdict and reason, `metrics` by name, `blame`
(the parts that changed; entries of kind `memory` say by how many bytes tensors change the peak, and from when to when
they are alive), `memory` (the [account](../memory.md) of each peak that changed), `growth` (what each step keeps),
`work` (whether a slower step does more work), `operators` (what they had to do and took, of a
mean step of either side, with FLOPs, bytes, the share of their roofline and what that is bound by), `source_diffs`,
`integrity`, `traces` (paths beside the file), and the records of both sides,
`record` and `base_record`.

### A curve: a test's time over the sizes of a parameter

`curves` of the size of a [scaling test](../scaling.md) that ran last; empty else. What has an interval is an
object of `value`, `low` and `high`, the ends being those of the 95 % interval.

{curve}
Each of `sizes`, what was measured:

{size}
Each of `fitted`, the curves that the page draws through them (a line, or a parabola where no line fits):

{fitted}
Each of `figures`:

{figure}
`growth`:

{growth}
Its `beside`:

{beside}
## The page

`#perfdl-run` holds the run file without records and repeats, `#perfdl-details-N` what the N-th test (worst first) is
drawn from, `#perfdl-names` the names that its rows have numbers for. A row is:

{columns}
Of a run of more than {folded} tests, those that are folded are compressed with gzip, in base64.

## Traces

`*.base.json.gz` and `*.new.json.gz` are one representative step each, `*.diff.json.gz` both; Chrome traces as
[Perfetto](https://perfetto.dev) reads them. `*.speedscope.json` has both steps for
[speedscope](https://www.speedscope.app). See [Read the trace of a regression](../how-to/reading-the-trace.md).
"""

PAGES = {
    "options.md": options,
    "metrics.md": metrics,
    "hooks.md": hooks,
    "commands.md": commands,
    "files.md": files,
}


def made(name: str) -> str:
    """A page's text as the code says it today."""
    return MADE + PAGES[name]()


def _fields(kind: type) -> str:
    """The fields of a dataclass with what the line under each says."""
    rows = [(f"`{field.name}`", _under(kind, field.name), f"`{field.type}`") for field in dataclasses.fields(kind)]
    return _table(("field", "what it is", "type"), rows)


def _under(kind: type, field: str) -> str:
    """What the line under a field of a dataclass says; empty where there is none."""
    told = re.search(rf'^    {field}: [^\n]*\n    """(.*?)"""', inspect.getsource(kind), re.DOTALL | re.MULTILINE)
    return " ".join(told[1].split()) if told else ""


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    listed = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in listed)


def main() -> int:
    """Write or check every page."""
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name in PAGES:
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != made(name):
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(made(name), encoding="utf-8")
    told = "not what the code says" if "--check" in sys.argv else "rewrote"
    print(f"{told}: {', '.join(stale)}" if stale else "all pages are what the code says")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
