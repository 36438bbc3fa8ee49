"""Makes docs/reference/ from the code: fixture, marker, options, metrics, hooks, commands, what-if and file formats.

python docs/reference.py            # rewrite the pages
python docs/reference.py --check    # name the pages that differ from the code; exit code 1 if there are any
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import schemas

from pytest_perfdl import hookspecs
from pytest_perfdl.cli import _MODULES, _load
from pytest_perfdl.config import waivers
from pytest_perfdl.config.marker import KEYWORDS
from pytest_perfdl.config.options import INI_ONLY, OPTIONS
from pytest_perfdl.fixture.perf import Perf
from pytest_perfdl.fixture.requests import Comparison
from pytest_perfdl.machine.known_problems import KNOWN_PROBLEMS, USES
from pytest_perfdl.model import record, record_json
from pytest_perfdl.model.metrics import METRICS, CountedMetric, TimedMetric
from pytest_perfdl.model.untrusted_files import size
from pytest_perfdl.report import details
from pytest_perfdl.report.html import PLAIN_AT_MOST
from pytest_perfdl.results import curve, verdict
from pytest_perfdl.results.run import Result, Run
from pytest_perfdl.results.run_file import SCHEMA as RUN_SCHEMA
from pytest_perfdl.results.verdict import (
    EVERY_ROUND,
    FAILS_BY_DEFAULT,
    VERDICTS,
    WARNS_BY_DEFAULT,
    Judgement,
    MetricVerdict,
)
from pytest_perfdl.scaling.growth import Beside, Growth
from pytest_perfdl.whatif.transforms import TRANSFORMS

FOLDER = Path(__file__).resolve().parent / "reference"
COUNTED_UNITS = {"1": "count", "B": "bytes", "flop": "FLOP"}
MADE = "<!-- Made by docs/reference.py from the code: change it there. -->\n\n"


MARKER: dict[str, tuple[str, str]] = {
    "limits": ("`{metric: limit}`", "How much each metric may get worse: see [Limits](#limits-and-budgets)."),
    "budget": ("`{metric: bound}`", "Absolute bounds of metrics, independent of the baseline: `45ms`, `2GiB`."),
    "warmup": ("int", "Minimum number of warm-up steps (15). More warm-up steps run until step times settle."),
    "steps": ("int", "Timed steps per process (40)."),
    "period": (
        "int",
        "Steps after which costs recur, such as 100 for a log in every 100th (1). `period=` of a call comes first.",
    ),
    "repeats": ("int", "Number of processes that measure a test: 10 for a recording, 1 before paired rounds."),
    "threads": ("int", "Intra-op threads of a measured process (1)."),
    "ranks": (
        "int or list of int",
        "Processes that run the step together: see [Distributed steps](../how-to/distributed.md). A list as `scaling`.",
    ),
    "backend": ("str", 'Backend of the process group (`"nccl"` with CUDA, else `"gloo"`).'),
    "seed": ("int", "Seed of Python, numpy and torch before each call of `perf` (0)."),
    "timeout": ("float", "Seconds that one process may take (600)."),
    "resolution": (
        "str",
        'Largest slowdown that need not be excluded for `unchanged` when the budget ends: `"6%"` (twice the limit).',
    ),
    "tags": ("tuple of str", "Free words, shown in reports."),
    "scaling": (
        "`{argument: sizes}`",
        "Makes one test per size, and gives the curve of their times a verdict: see [Scaling](../how-to/scaling.md).",
    ),
    "loops": (
        'int or `"auto"`',
        'Runs of the step per timed step, for steps below about 100 us; `"auto"` chooses. Ini key: `perf_loops`.',
    ),
    "shared": (
        "bool",
        (
            "False measures a test of pytest-benchmark alone, and not as a case ([from "
            "pytest-benchmark](../how-to/from-other-tools.md#tests-of-a-file-share-processes)). Ini key: `perf_shared`."
        ),
    ),
}
"""Argument of the marker -> its type and what it does, with the default in parentheses."""

MEANINGS: dict[str, tuple[str, str]] = {
    "invalid": ("The measurement failed its own checks, or the test measured nothing.", "Read the reason; fix it."),
    "regressed": (
        "A time is slower by more than its limit, a budget is exceeded, or a count exceeds its own limit.",
        "Fix the code, or accept the change with `pytest --perf-update`.",
    ),
    "missing": ("There is no baseline.", "Record one: `pytest --perf-update=new`."),
    "outdated": (
        (
            "The test changed since its baseline: its code (but not a step that `perf` is given by name), fixtures, "
            "constants, parameters or measurement settings."
        ),
        "Record it again: `pytest --perf-update`.",
    ),
    "waived": (
        "Slower by more than its limit, but within the limit of a [waiver](../how-to/waivers.md) that applies.",
        "Fix the code before the waiver ends.",
    ),
    "suspect": (
        "Probably slower, but the rounds that fit into twice `--perf-budget` are too few to be certain.",
        "Measure again with a larger `--perf-budget`.",
    ),
    "changed": (
        (
            "A count differs from the baseline, and no time has a verdict. Or the times are of different work: a side "
            "cannot run the [definition](../how-to/shared-runner.md#a-benchmark-that-changed) of the test, or [work "
            "vanished](../explanation/paired-rounds.md#work-that-vanished) from a step that got faster."
        ),
        "If the change is intended, accept it. If work vanished, give each step a new input.",
    ),
    "inconclusive": (
        "Neither a slowdown nor its absence is certain. The reason names the largest slowdown that is not excluded.",
        "Measure on a quieter machine, or with a larger `--perf-budget`.",
    ),
    "incomparable": (
        "Baselines exist for other hardware only, and the baseline commit cannot be measured here.",
        "Fetch the whole history (`fetch-depth: 0`, on GitLab `GIT_DEPTH: 0`), or record a baseline here.",
    ),
    "improved": ("Faster by more than the limit.", "Nothing. `pytest --perf-update` keeps the gain."),
    "unchanged": ("A slowdown of more than the limit is excluded.", "Nothing."),
    "new": ("The test does not exist at the commit of `--perf-against`.", "Nothing."),
    "unmeasured": ("The test was skipped, or failed as expected.", "Nothing."),
    EVERY_ROUND: (
        "A `suspect` test whose `step_time` exceeded its limit in every round, after enough rounds.",
        "Treat it as `regressed`.",
    ),
}
"""Verdict -> what it means and what to do."""


def fixture_and_marker() -> str:
    """The `perf` fixture and the marker, with every argument."""
    rows = [(f"`{name}=`", *MARKER[name]) for name in [*KEYWORDS, *(name for name in MARKER if name not in KEYWORDS)]]
    parts = [_FIXTURE.replace("{marker}", _table(("argument", "type", "what it does"), rows))]
    for owner, kind in (("perf", Perf), ("perf.compare(...)", Comparison)):
        for name, function in vars(kind).items():
            if name == "__call__" or not name.startswith("_"):
                parts.append(_method(owner, name, function))
    return "".join(parts)


_FIXTURE = """# The perf fixture and marker

## The marker

```python
@pytest.mark.perf(limits={"step_time": "5%", "ops": 0}, budget={"peak_memory": "2GiB"})
def test_train_step(perf, model, batch):
    perf(train_step, model, batch, items=len(batch))
```

All arguments of the marker are optional keywords. `warmup`, `steps`, `period`, `threads`, `seed` and `loops` are
measurement settings. If you change a measurement setting, the baseline is `outdated`. With `loops`, times and counts
are still per run of the step.

pytest-perfdl merges marks on a module, a class and a function. Mappings (`limits=`, `budget=`) are joined. For all
other arguments, the innermost mark applies.

Every measured process runs the test under pytest. So fixtures of every scope, parametrization, skip, xfail and capture
behave as in any pytest test. Hooks in `conftest.py` also run in the measured processes.

{marker}
If your project already has a marker, fixture, option or ini key with the same name, pytest uses the one from your
project. In this case, use the second names of pytest-perfdl, such as `@pytest.mark.perfdl`, the fixture `perfdl`,
`--perfdl` and `perfdl_steps`.

### Tests that cannot be measured

These tests fail in their setup, and the error says what to change. All other tests run, and nothing is recorded for a
test that fails.

- A generator function.
- A method of a `unittest.TestCase` with sizes (`scaling=`, or several numbers in `ranks=`): it has no arguments.
- A marked test without the fixture `perf` that uses the fixture `benchmark` of pytest-benchmark, unless
  [`--perf-benchmarks`](../how-to/from-other-tools.md) is given.
- A test with invalid arguments of the marker, or with sizes (`scaling=`) of an argument that the test does not have.
- A test whose id contains the address of an object, because the address differs in every process: use `ids=`.

### Methods of unittest.TestCase

pytest-perfdl measures methods of a `unittest.TestCase` as they are. The marker selects them, on a method, a class or a
module; `perf` as a fixture of the class does not.

```python
class TestAttention(unittest.TestCase):
    def setUp(self):
        self.query = torch.ones(1, 8, 128, 64)

    @pytest.mark.perf
    def test_attention(self):
        torch.nn.functional.scaled_dot_product_attention(self.query, self.query, self.query)
```

- The step is the method alone. It runs many times, between one `setUp` and one `tearDown`, so it must be possible to
  repeat it.
- Cleanups that the method registers (`addCleanup`, `enterContext`) run after each step, and are not part of it.
- Subtests are reported for the first step. If one of them fails there, nothing is measured. In later steps a failing
  subtest ends the test.
- Coroutine functions of an `IsolatedAsyncioTestCase` run in its loop. Python runs this loop in debug mode, which costs
  time in every await: `asyncio.get_running_loop().set_debug(False)` in `asyncSetUp` turns it off.
- To measure a part of a method, get the fixture `perf` in an autouse fixture of the class
  (`def _perf(self, perf): self.perf = perf`), and call `self.perf(step)` in marked methods.
- Subclasses such as `torch.testing._internal.common_utils.TestCase`, and classes with generated methods
  (`instantiate_parametrized_tests`, parameterized), work in the same way. A test that no function of its file defines
  by name is `outdated` after every change of that file.

### Coroutine functions

An `async def` test is measured in the loop in which a plugin such as pytest-asyncio or anyio runs it. Without such a
plugin it fails, as in any pytest run.

```python
@pytest.mark.asyncio
async def test_generate(perf, engine):
    await perf(engine.generate, "Hello", setup=engine.reset)
```

- If the step is a coroutine function, `await` the call, one after the other. The fixture `perf`, and a marked test
  without it, work as in other tests.
- A loop over `perf.steps(...)` may await in its body. Use `async for` if the iterable is asynchronous.
- Between passes over the steps, the process waits for the other process of its round, and its loop stands still. Timers
  that expire meanwhile, data that arrives, and what both lead to within ten turns of the loop, run before the next step
  and are not part of it. What takes longer is. A timeout around the call, such as `asyncio.timeout`, expires: put
  timeouts into the step.
- A note names tasks that are alive when a step ends. What they do is part of the steps in which they do it. If the
  baseline's step waits for its tasks and the current one does not, a faster time is `changed`.
- `perf.compare` compares functions that are not coroutine functions: `lambda: asyncio.run(step())`, in a plain test.

### What tests and fixtures may change

- Clocks: freezegun and patches of `time` have no effect, because pytest-perfdl binds its clocks before `conftest.py`
  files are loaded. A clock that is changed in C or by a preloaded library does not agree with `/proc/uptime`: the
  test is `invalid`.
- A torch profiler that a fixture or the step starts makes the test fail, because only one can run in a process.
- A function that traces Python in the timed steps (`sys.settrace`, `cProfile`, coverage) makes the test `invalid`.
- Another number of threads of torch makes the test `invalid`: use `threads=`.
- Modes (`TorchDispatchMode`, `TorchFunctionMode`), signal handlers, timers and start methods of `multiprocessing` stay
  as they are, and belong to the step.
- Functions that the test registered with `atexit` run at the end of its process, for 2 s at most.

### Limits and budgets

| limit | the metric fails if it gets worse by |
|---|---|
| `3%` | more than 3 % |
| `5%+20us` | more than 5 % and more than 20 us |
| `2%+1MiB` | more than 2 % and more than 1 MiB |
| `0` | anything: one more is too many |
| `2pp` | more than 2 percentage points (utilization) |
| `off` | any amount: it never fails, and is only shown |

The default limits are `step_time:3%`, `block_time:3%` and `peak_memory:2%+1MiB`. Without paired rounds, the limit of a
time is at least 10 %. `per_kernel` (5 %) is the limit of every single kernel and operator, and applies only in paired
rounds. The report shows metrics without a limit, but such metrics never fail a test. The report mentions a count
without a limit if the count changes.

A budget is an absolute bound, such as `{"step_time": "45ms"}`. For metrics where more is better, a budget is a lower
bound, such as `{"flops_utilization": ">=40%"}`.

## The fixture

If a test with the marker does not use the `perf` fixture, the whole body of the test is the step. Without `--perf`,
every step runs once, and pytest measures nothing.
"""


def _method(owner: str, name: str, function: Callable[..., object] | property) -> str:
    """A section on a method or property, from its signature and docstring."""
    shown = owner if name == "__call__" else f"{owner}.{name}"
    whole = (inspect.getdoc(function) or "").partition("\nRaises\n------\n")[0]
    text, _, rest = _with_returns(whole).partition("\nParameters\n----------\n")
    signature = "" if isinstance(function, property) else _signature(function)
    found = [f"\n### `{shown}`\n\n"]
    if signature:
        found.append(f"```python\n{shown}{signature}\n```\n\n")
    found.append(_fenced(text.strip()).replace("`__call__`", "`perf(...)`") + "\n")
    described = re.findall(r"(?m)^(\S[^\n]*)\n((?: {4}[^\n]*\n?|\n)+)", rest + "\n")
    if described:
        found.append(
            "\n" + _table(("argument", "what it is"), [(f"`{key}`", " ".join(it.split())) for key, it in described])
        )
    return "".join(found)


def _with_returns(text: str) -> str:
    """A docstring with what it returns as a sentence, before its parameters."""
    found = re.search(r"(?m)^Returns\n-+\n(?P<kind>\S+)\n(?P<what>(?: {4}.*\n?)+)", text)
    if found is None:
        return text
    sentence = f"Returns `{found['kind']}`: {' '.join(found['what'].split())}\n"
    before, heading, rest = (text[: found.start()] + text[found.end() :]).partition("\nParameters\n----------\n")
    return f"{before.rstrip()}\n\n{sentence}{heading}{rest}"


def _signature(function: Callable[..., object]) -> str:
    """The arguments with their defaults, without `self` and types."""
    signature = inspect.signature(function)
    shown = [each.replace(annotation=inspect.Parameter.empty) for each in list(signature.parameters.values())[1:]]
    return str(inspect.Signature(shown)).replace("'", '"')


def _fenced(text: str) -> str:
    """A docstring with its indented examples in fences of Python."""
    parts = re.split(r"(?m)^::\n\n((?: {4}.*\n?|\n)+)", text)
    return "".join(
        part if place % 2 == 0 else "```python\n" + inspect.cleandoc(part).rstrip() + "\n```\n\n"
        for place, part in enumerate(parts)
    ).rstrip()


def whatif_optimizations() -> str:
    """Every optimization of `perfdl whatif`, with its formula."""
    own = {
        name: function
        for name, function in sorted(TRANSFORMS.items())
        if function.__module__.startswith("pytest_perfdl.")
    }
    rows, sections = [], []
    for name, function in own.items():
        given = [
            each.name + ("" if each.default is each.empty else f"={each.default}")
            for each in list(inspect.signature(function).parameters.values())[1:]
        ]
        text = re.split(r"(?:^|\s)Raises\n-+\n", inspect.getdoc(function) or "")[0].strip()
        first, _, more = text.partition("\n")
        rows.append((f"[`{name}`](#{name})", f"`{', '.join(given)}`" if given else "", first))
        if more.strip():
            sections.append(f"\n### {name}\n\n{first}\n\n{_escaped(more.strip())}\n")
        else:
            sections.append(f"\n### {name}\n\n{first}\n")
    return _WHATIF.replace("{table}", _table(("name", "parameters", "what it does"), rows)) + "".join(sections)


def _escaped(text: str) -> str:
    """Prose of a docstring in which asterisks and underscores are none of Markdown's."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if place % 2 else part.replace("*", "\\*").replace("<", "&lt;") for place, part in enumerate(parts)
    )


_WHATIF = """# What-if: optimizations, selections, constants

This page is the reference for `perfdl whatif` and `perf.assert_whatif`. [Predict a change](../how-to/what-if.md) shows
how to use both.

## Selecting tasks

`--scale`, `--remove` and `perfdl trace --select` take conditions separated by commas. A task is selected if all
conditions hold. You can repeat `step`, `stream`, `rank`, `kind` and `phase`, and one of the repeated values must match.

| condition | selects |
|---|---|
| `step=3`, `step=3-5` | `ProfilerStep#3`; steps 3 to 5 |
| `stream=7`, `rank=1` | work on one device stream; work of one rank |
| `kind=kernel`, `copy`, `memset`, `communication` | device work of this kind |
| `kind=operator`, `call`, `input`, `gap` | host work of this kind |
| `phase=forward`, `backward`, `optimizer` | operators of this phase, and what they launch |
| `name~gemm`, `name=aten::mm` | by name: `~` a regular expression (any case), `=` the whole name (`*` and `?`) |
| `operator~norm`, `operator=aten::drop*` | work inside an operator of this name, and what it launches |
| `module~mlp`, `module=Net.blocks.2` | work of this module, and of modules inside it |
| `shapes~64`, `line~train.py` | work of operators with these shapes; work called on this line |

In `perfdl trace`, conditions on steps, ranks, streams, kinds and phases restrict all numbers. Conditions on names,
operators, modules, shapes and lines only choose the rows of tables.

## Constants of the machine

Pass a constant with `--machine NAME=VALUE`, or a JSON file of constants with `--machine FILE`. `perfdl constants`
measures these constants.

| constant | meaning |
|---|---|
| `memory_bytes_per_s` | memory bandwidth |
| `pinned_bytes_per_s`, `pageable_bytes_per_s` | bandwidth of copies between host and device |
| `network_bytes_per_s`, `network_latency_ns` | bandwidth and latency between ranks |
| `memory_bytes` | capacity of the device's memory |
| `cores` | CPU cores |
| `contention` | factor by which a computing process slows down if another process computes on the same CPU |
| `hand_over_ns` | time to receive a batch from a DataLoader worker |
| `float32=67Tflop`, ... | peak rate of an element type |

Without `--machine`, constants come from the trace, or from the data sheet of the device. `perfdl whatif` never guesses
a constant. If a constant is missing, there is no prediction, and the answer names the missing constant.

## Optimizations

Some formulas come from Daydream (USENIX ATC 2020), which simulates optimizations on a trace. The formulas use these
symbols:

| symbol | meaning |
|---|---|
| t, t' | duration of a task in the trace, and its predicted duration |
| r | measured ratio of both forms of an operator, such as bfloat16 and float32 |
| B | bandwidth in bytes/s, of the memory unless stated otherwise |
| n, S, alpha | number of ranks, bytes of a bucket, latency of the network |

The *range* of a prediction extends from the least to the most favorable constants. The *slow end* of the range has the
longest step time, and the *fast end* has the shortest. [How what-if predictions work](../explanation/simulation.md)
explains the *confidence* of a prediction. The parameter `layer` is the path of the layers, with `*` and `?` as in file
names. By default, the layers are the modules that repeat.

{table}"""


def options() -> str:
    """Every option with its ini key."""
    rows: dict[str, list[tuple[str, ...]]] = {"basic": [], "advanced": []}
    for option in OPTIONS:
        choices = f" ({', '.join(option.choices)})" if option.choices else ""
        ini = f"`{option.ini}`" if option.ini else ""
        rows[option.level].append((f"`{option.shown}`", ini, option.help + choices, option.default))
    head = ("option", "ini key", "what it does", "default")
    only = [(f"`{key.ini}`", key.ini_type, key.help, key.default or "none") for key in INI_ONLY]
    return (
        "# Options and ini keys\n\nThe command line overrides the ini file. For limits, budgets, the resolution and "
        "the timeout, the\n[marker](fixture-and-marker.md) overrides the command line and the ini file. For warm-up, "
        "steps, processes and threads, the\ncommand line overrides the marker.\n\n"
        "Every option and ini key has a second name that no other plugin has, such as `--perfdl-steps` for\n"
        "`--perf-steps`, and `perfdl_steps` for `perf_steps`. If your project or another plugin already has "
        "the\nshort name, use the long one.\n\nThe exit codes are those of pytest. Exit code 0 means that no test "
        "failed, 1 that a test failed, 2 that the run was\ninterrupted, 4 a wrong option or ini key, and 5 that no "
        "perf test was selected. A mistake in one test, such as a\nwrong argument of the marker, fails this test in "
        "its setup.\n\n"
        + _table(head, rows["basic"])
        + "\n## Advanced\n\nFew projects need these options, and `pytest --help` does not list them.\n\n"
        + _table(head, rows["advanced"])
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
        (
            f"`{name}`",
            *MEANINGS[name],
            "fails" if name in FAILS_BY_DEFAULT else "warns" if name in WARNS_BY_DEFAULT else "passes",
        )
        for name in (*VERDICTS, EVERY_ROUND)
    ]
    return (
        '# Metrics and verdicts\n\nIf a call has a name, as in `perf(fn, name="forward")`, its metrics have the name '
        "in front, such as\n`forward.step_time`.\n\n## Timed\n\nEvery process gives one number per metric. Times are "
        "measured without the profiler, unless the description mentions\nprofiled steps.\n\n"
        + _table(("metric", "unit inside", "better", "what it is"), times)
        + "\n## Counted\n\nFor every count, less is better. The last column names the context of a count, such as the "
        "torch version. If baseline\nand current code have the same context, counts are exact, and pytest-perfdl "
        "compares the counts exactly. If the context\ndiffers, the report shows how count and context differ, but no "
        "verdict.\n\n"
        + _table(("metric", "unit inside", "what it is", "exact under equal"), counts)
        + "\n## Verdicts, worst first\n\nThe verdict of a test is the worst verdict of its metrics. The report "
        "shows a changed count next to the verdict on times.\n`--perf-fail-on` accepts the verdicts in this table, or "
        "`all` for every verdict that fails or warns.\n\n"
        + _table(("verdict", "what it means", "what to do", "by default"), verdicts)
    )


def hooks() -> str:
    """The hooks that a project may implement."""
    parts = ["# Hooks\n\nA project can implement these pytest hooks in its `conftest.py`.\n"]
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
        "shard",
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
        "against_python",
        "other_side",
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
    parts = ["# The perfdl command\n\n`perfdl` is a command for baselines, traces, run files and this machine.\n"]
    for name in sorted(_MODULES):
        module = _load(name)
        summary = " ".join((module.__doc__ or "").split("\n\n")[0].split())
        parser = argparse.ArgumentParser(prog=f"perfdl {name}", add_help=False)
        module.add_arguments(parser)
        parts.append(f"\n## `perfdl {name}`\n\n{summary}\n\n")
        arguments = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
        if arguments:
            parts.append(_arguments(parser, arguments))
        if name == "check":
            parts.append(_known_problems())
        for below in parser._actions:
            if isinstance(below, argparse._SubParsersAction):
                told = {choice.dest: choice.help or "" for choice in below._choices_actions}
                for action, inner in below.choices.items():
                    rows = [each for each in inner._actions if not isinstance(each, argparse._HelpAction)]
                    said = told[action][:1].upper() + told[action][1:]
                    parts.append(f"### `perfdl {name} {action}`\n\n{said}.\n\n{_arguments(inner, rows)}\n")
    return "".join(parts).rstrip("\n") + "\n"


def _known_problems() -> str:
    rows = [
        (
            f"{known.software} {known.versions}",
            USES[known.use],
            f"{known.effect} ([source]({known.source}))",
            f"`{known.do}`" if known.do.startswith("pip ") else known.do,
        )
        for known in KNOWN_PROBLEMS
    ]
    return (
        "\n### Versions with known problems\n\n"
        "`perfdl check` names those that are installed. `perfdl trace` and the findings of a measurement name those\n"
        "that recorded the trace and concern something that it holds. Every entry has a public source. If the source\n"
        "does not name the release with the fix, the entry covers the releases that the problem was seen with.\n\n"
        "Operators that are recorded twice are also recognized in a trace of an unknown version: a finding says how\n"
        "many operators contain an equal operator. Counts stay as they were recorded.\n\n"
        + _table(("versions", "concerns", "effect", "what to do"), rows)
    )


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
        "case_record": _fields(record.Case),
        "work": _fields(record.CaseWork),
        "occasion": _fields(record.Occasion),
        "refreshed": _fields(record.Refreshed),
        "case": _fields(verdict.CaseVerdict),
        "group": _fields(verdict.GroupVerdict),
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
        "waiver_bytes": size(waivers.LIMIT),
        "waivers": str(waivers.MOST),
        "schemas": _table(
            ("file", "schema"),
            [(each.title, f"[{name}.json](schemas/{name}.json)") for name, each in schemas.PUBLISHED.items()],
        ),
    }
    return re.sub(r"\{(\w+)\}", lambda found: tables[found[1]], _FILES)


_FILES = """# File formats

In all files, durations are integer nanoseconds, sizes are bytes, and shares and effects are ratios (0.1 is 10 %).
Unknown values are null, never NaN.

## Schemas

There is a [JSON Schema](https://json-schema.org) (2020-12) for every file and output that other programs read:

{schemas}
The number at the end of `$id` is the version. It is the field `schema` of the files and outputs that have this field.
Later versions of pytest-perfdl may add fields without a new version, so ignore unknown fields, as pytest-perfdl does.
Files of earlier versions may lack fields that were added later.
pytest-perfdl refuses a file with a later version, because it would misread the file.

## Secrets and files of others

Reports, messages, baselines and JSON output contain `***` instead of user names, passwords and signatures in URLs, of
headers of authorization, of private keys, of tokens in the formats of well-known services, and of the values of
environment variables whose names say that they are secret, such as `GITHUB_TOKEN`: those of at least 8 characters that
are not words of letters alone. A test whose id contains a secret has no baseline: give the parameter an id (`ids=`).
Traces are not searched. Every file of a pull request or an artifact has a largest size. Paths in these
files must be in the folder of the file, and symbolic links to other places are not followed.

## The report folder

The report folder is `perf-report/` by default:

| file | content |
|---|---|
| `index.html` | one self-contained page |
| `traces/*.base.json.gz`, `*.new.json.gz` | Chrome traces of one observed step of either side |
| `traces/*.diff.json.gz` | both steps in one Chrome trace, see [Read a trace diff](../how-to/read-trace-diff.md) |
| `traces/*.speedscope.json` | both steps for [speedscope](https://www.speedscope.app) |
| `traces/*.ranks.json.gz`, `*.base-ranks.json.gz` | one step of [all ranks](../how-to/distributed.md) of either side |
| `run.json` | everything, for other programs; `--perf-json FILE` writes another copy |
| `summary.md` | a summary for a pull-request comment; on GitHub Actions also for the job summary |

## Baselines

The baseline of a test is a small file, `baselines/<machine ID>/<test file>/<test>.json`, with schema {record_schema}.
The contents of a baseline are sorted and rounded. Commit and review baselines. The same folder has the trace of one
step.

Times are compared only on equal hardware. So the machine ID names the accelerator, the CPU model, the instruction set,
the threads, and the number of cores (fewer if a container has a CPU quota). A baseline file contains one record:

{record}
### A call

{call}
### A series: one metric

{series}
### A row: an operator, a kernel or a class of idle time

{row}
### A case of a table

{case_record}
### The work of a case

{work}
### An occasion: a recording session

{occasion}
## Waivers

`perf_waivers.toml` is described in [Waive a known slowdown](../how-to/waivers.md). It may have {waiver_bytes} and
{waivers} waivers.

### What a refreshed baseline keeps

{refreshed}
## The run file

The run file is `perf-report/run.json`, with schema {run_schema}. The run file begins with the machine ID (`key`), the
context, the date, the commit, and the number of tests with each verdict. `tests` has one object, on one line, for each
test:

| field | content |
|---|---|
| `verdict`, `reason` | the verdict of the test, and why |
| `metrics` | for every metric: baseline, current, change, interval, limit, verdict, and the waiver that applies |
| `blame` | the causes; a cause of kind `memory` has bytes at the peak, and when they are allocated and freed |
| `memory` | the [breakdown](../how-to/explain-memory.md) of each peak that changed |
| `growth` | bytes that each step keeps |
| `work` | whether a slower step does more work |
| `operators` | operators of a mean step of either side: time, FLOPs, bytes, share of the roofline, what limits them |
| `definition` | how the test itself, its fixtures and its constants differ between the two sides |
| `source_diffs` | changed lines of the functions that contain the causes |
| `integrity` | findings on the measurement |
| `traces` | paths of the traces, relative to the folder of the file |
| `record`, `base_record` | the records of both sides |
| `base_now` | if the environment differs from the baseline's: the baseline's code, measured in this run; else null |

`settings` has the options and ini keys that decide how tests are measured and judged, as text.

In a run with `--perf-shard`, `shard` has the fields `index` (from 1), `count`, `tests` (the number of perf tests in all
shards) and `require` (the number of tests in all shards that must be compared). In other runs, `shard` is null.

### A table: many cases of one test

A test with a [table](../how-to/tables.md) has the fields `cases` and `groups`, which are empty for other tests. `cases`
has one object for every case of the current code, the largest change first:

{case}
`groups` has one object for every group of cases that got slower:

{group}
### A curve: a test's time over the sizes of a parameter

In a [scaling test](../how-to/scaling.md), the size that ran last has the field `curves`. For other tests, `curves` is
empty. A value with an interval is an object of `value`, `low` and `high`. `low` and `high` are the ends of the 95 %
interval.

{curve}
`sizes` has one object for every measured size:

{size}
`fitted` has one object for every point of the curve that the HTML page draws through the sizes. The curve is a line, or
a parabola if no line fits:

{fitted}
`figures` has objects with these fields:

{figure}
`growth` has these fields:

{growth}
`beside` in `growth` has these fields:

{beside}
## The page

The HTML report contains its data in elements. `#perfdl-run` has the run file without records and repeats.
`#perfdl-details-N` has the rows of the N-th test (worst first). `#perfdl-names` has the names that these rows refer to
by number. Each row has these values:

{columns}
In a run of more than {folded} tests, the HTML report stores the rows of folded tests as gzip data in base64.
"""

PAGES = {
    "fixture-and-marker.md": fixture_and_marker,
    "options.md": options,
    "metrics-and-verdicts.md": metrics,
    "hooks.md": hooks,
    "cli.md": commands,
    "whatif-optimizations.md": whatif_optimizations,
    "files.md": files,
}


SCHEMAS = tuple(f"schemas/{name}.json" for name in schemas.PUBLISHED)


def made(name: str) -> str:
    """The text of a page, or of a schema, from the code."""
    return schemas.made(Path(name).stem) if name in SCHEMAS else MADE + PAGES[name]()


def _fields(kind: type) -> str:
    """The fields of a dataclass with the docstring under each."""
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
    (FOLDER / "schemas").mkdir(parents=True, exist_ok=True)
    stale = []
    for name in (*PAGES, *SCHEMAS):
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != made(name):
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(made(name), encoding="utf-8")
    done = "differ from the code" if "--check" in sys.argv else "rewrote"
    print(f"{done}: {', '.join(stale)}" if stale else "all pages agree with the code")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
