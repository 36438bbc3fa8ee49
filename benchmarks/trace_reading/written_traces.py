"""Do the viewers that people use load the traces that we write?

    python benchmarks/trace_reading/written_traces.py --setup ~/rivals

Writes traces with `pytest_perfdl.trace.write` (one step's exemplar, both sides of a regression, a whole trace written
again, one by hand that has everything a trace may hold) and opens each of them in HTA, traceinsight, TraceLens and, in
a headless Chromium, in speedscope. One line a viewer and trace: loaded, or the error. Exits with 1 if any failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import environments
import samples
import speedscope
from measuring import HERE, Outcome, Tool, measure


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    for tool in ("hta", "traceinsight", "tracelens"):
        add(f"--{tool}", type=Path, metavar="PYTHON", help=f"interpreter that has {tool}")
    add("--setup", type=Path, metavar="DIR", help="make environments and fetch speedscope there, or use those there")
    add("--tracelens-source", default="", metavar="WHAT", help="what pip installs for TraceLens: a checkout, say")
    add("--speedscope", type=Path, metavar="DIR", help="the unpacked npm package")
    add("--chromium", help="the browser (default: the first that is found)")
    add("--screenshots", type=Path, metavar="DIR", help="also keep a picture of each trace in speedscope")
    add("--keep", type=Path, metavar="DIR", help="write the traces there and leave them")
    add("--timeout", type=float, default=300, metavar="SECONDS")
    return parser.parse_args()


def python_tools(arguments: argparse.Namespace) -> Iterator[Tool]:
    made = environments.make(arguments.setup, arguments.tracelens_source) if arguments.setup else {}
    for name, title, script in (
        ("hta", "HTA", "run_hta.py"),
        ("traceinsight", "traceinsight", "run_hta.py"),
        ("tracelens", "TraceLens", "run_tracelens.py"),
    ):
        python = getattr(arguments, name) or made.get(name)
        if python is not None:
            yield Tool(title, python, script)
        else:
            print(f"{title}: no interpreter was given, it is left out")


def in_python(tool: Tool, path: Path, timeout: float) -> tuple[bool, str]:
    """Whether the tool loads the trace, and what its analyses say."""
    outcome = Outcome()
    measure(tool, path, outcome, timeout)
    if "" in outcome.failures:
        return False, outcome.failures[""]
    if outcome.failures:
        said = "; ".join(f"{name}: {text}" for name, text in outcome.failures.items())
        return True, f"loaded; of its analyses fail {said}"
    return True, "loaded, all analyses run"


def check(arguments: argparse.Namespace, folder: Path) -> int:
    synthetic = folder / "synthetic.json"
    command = [sys.executable, str(HERE / "synthetic.py"), "--events", "10000", str(synthetic)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    paths = samples.write_all(folder, synthetic)
    failed = 0
    for tool in python_tools(arguments):
        for path in paths:
            loads, said = in_python(tool, path, arguments.timeout)
            failed += not loads
            print(f"{tool.name}, {path.name}: {said}", flush=True)
    page = speedscope.page(arguments.speedscope, arguments.setup)
    browser = speedscope.browser(arguments.chromium)
    if page is None or browser is None:
        print(f"speedscope: {'no package' if page is None else 'no browser'} was found, it is left out")
        return failed
    for path in paths:
        shot = arguments.screenshots / f"{path.name}.png" if arguments.screenshots else None
        loads, said = speedscope.show(browser, page, path, shot, arguments.timeout)
        failed += not loads
        print(f"speedscope, {path.name}: {said}", flush=True)
    return failed


def main() -> int:
    arguments = parse()
    for folder in (arguments.keep, arguments.screenshots):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    if arguments.keep:
        return 1 if check(arguments, arguments.keep) else 0
    with tempfile.TemporaryDirectory(prefix="written-traces-") as folder:
        return 1 if check(arguments, Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
