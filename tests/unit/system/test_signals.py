"""SIGTERM and SIGHUP on the way of Ctrl-C."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from pytest_perfdl.system.processes import Ending

number = signal.Signals[sys.argv[1]]
# In the background, or under nohup, these tests ignore it, and so would their children.
signal.signal(number, signal.SIG_IGN if sys.argv[2] == "ignored" else signal.SIG_DFL)
if sys.argv[2] == "handled":
    signal.signal(number, lambda *_: print("theirs"))
ending = Ending()
try:
    if sys.argv[2] == "cleaning":
        ending.hold()
    os.kill(os.getpid(), number)
    print("went on")
except KeyboardInterrupt as error:
    os.kill(os.getpid(), number)
    print("interrupted by", error)
ending.finish()
print("alive", signal.getsignal(number) in (signal.SIG_DFL, ending._handle))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(
    ("state", "printed", "ends"),
    [
        ("default", "interrupted by {name}\n", True),
        ("cleaning", "went on\n", True),
        ("ignored", "went on\nalive False\n", False),
        ("handled", "theirs\nwent on\nalive False\n", False),
    ],
)
def test_what_becomes_of_a_signal(name, state, printed, ends):
    done = subprocess.run([sys.executable, "-c", SCRIPT, name, state], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (printed.format(name=name), "")
    assert done.returncode == (-signal.Signals[name] if ends else 0)
