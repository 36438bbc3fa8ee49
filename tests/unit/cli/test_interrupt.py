"""Ctrl-C at any moment of any command: no traceback, exit code 130."""

import subprocess
import sys

import pytest

from pytest_perfdl.cli import EXAMPLES

SCRIPT = """
import os, runpy, signal, sys
from pytest_perfdl.cli import EXAMPLES

# As a shell starts a command: whoever runs these tests may ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name, example in EXAMPLES.items():
    for moment in map(int, sys.argv[1:]):
        sys.stderr.write(f"{name} {moment}\\n")
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            left = moment

            def interrupt(event, _):
                global left
                if event == "import":
                    left -= 1
                    if left == 0:
                        signal.raise_signal(signal.SIGINT)

            sys.argv = example.split()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.addaudithook(interrupt)
            runpy.run_module("pytest_perfdl.cli", run_name="__main__")
        status = os.waitpid(child, 0)[1]
        print(name, moment, os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


@pytest.mark.long
def test_an_interrupt_while_a_command_starts(tmp_path):
    # From the 20th import to the 22nd the C code of msgspec is being initialized, which does not survive an exception.
    moments = ("1", "2", "10", "60")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *moments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    codes = {tuple(line.split()[:2]): line.split()[2] for line in done.stdout.splitlines()}
    assert codes.keys() == {(name, moment) for name in EXAMPLES for moment in moments}
    # Some commands end before they have imported much.
    assert {code for (_, moment), code in codes.items() if moment in ("1", "2", "10")} == {"130"}
    assert {*codes.values()} <= {"130", "2", "3"}
    assert "Traceback" not in done.stderr
    assert done.stderr.count("perfdl: interrupted") == [*codes.values()].count("130")


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_a_command_cleans_up_after_one(tmp_path, times):
    # The command cleans up in a folder of its own, where the next signals come.
    code = (
        "import sys, signal, os\n"
        "from pytest_perfdl import cli\n"
        "from pytest_perfdl.cli import listing\n"
        "def run(arguments):\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    finally:\n"
        f"        for _ in range({times - 1}):\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "listing.run = run\n"
        "sys.argv = ['perfdl', 'list']\n"
        "sys.exit(cli.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "perfdl: interrupted\n")
