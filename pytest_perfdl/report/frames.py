"""Frames of Python code in reports: "src/model.py:42 in forward" for a line, "forward (path:line)" for a name."""

from __future__ import annotations

from pytest_perfdl.analysis.events.source_lines import FRAME
from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.model.visible import visible

INPUT = "input"
"""Class of idle time, and name of the cause, of waiting for data."""
_CLASSES = {PYTHON: f"{PYTHON} (between operators)", INPUT: f"{INPUT} (wait for the next batch)"}


def frame_words(line: str, path: str = "") -> str:
    """A line of code by its frame.

    >>> frame_words("net.py(29): train_step"), frame_words("net.py(29): train_step", "src/net.py")
    ('net.py:29 in train_step', 'src/net.py:29 in train_step')

    Parameters
    ----------
    path
        Path of the file, where it is known better than to Python.
    """
    match = FRAME.fullmatch(line)
    if match is None:
        return visible(line)
    return f"{visible(path or match['path'])}:{match['line']} in {visible(match['function'])}"


def name_words(name: str) -> str:
    """The name of a cause or of a part of the step, where it is a function of Python or a class of idle time.

    >>> name_words("torch/_tensor.py(566): backward"), name_words("aten::mm")
    ('backward (torch/_tensor.py:566)', 'aten::mm')
    """
    match = FRAME.fullmatch(name)
    if match is None:
        return _CLASSES.get(name) or visible(name)
    return f"{visible(match['function'])} ({visible(match['path'])}:{match['line']})"
