"""Of a stack, what the user wrote."""

from pathlib import Path

import _pytest
import pluggy
import torch

from pytest_perfdl.fixture import calling
from pytest_perfdl.workers.process import user_stack


def frame(file, line, function):
    return f'  File "{file}", line {line} in {function}'


PYTEST = [
    frame(calling.__file__, 60, "run"),
    frame(Path(_pytest.__file__).parent / "python.py", 166, "pytest_pyfunc_call"),
    frame(Path(pluggy.__file__).parent / "_callers.py", 121, "_multicall"),
    frame("<string>", 1, "<module>"),
]


def stack(*frames, thread="Thread 0x01 (most recent call first):"):
    return "\n".join((thread, *frames))


def test_the_frames_of_the_test_and_of_what_it_calls_are_kept():
    called = frame(Path(torch.__file__).parent / "nn" / "module.py", 7, "forward")
    own = [frame("/p/model.py", 12, "step"), frame("/p/tests/test_it.py", 30, "test_it")]
    helper = stack(*PYTEST, thread="Thread 0x02 (most recent call first):")
    text = f"{helper}\n\n{stack(called, own[0], PYTEST[0], own[1], *PYTEST)}"

    assert user_stack(text, "/p") == ("model.py:12 in step", stack(called, *own))
    assert user_stack(text, "/elsewhere")[0] == "/p/model.py:12 in step"


def test_the_place_is_that_of_the_main_thread_which_comes_last():
    texts = [stack(frame(f"/p/{name}.py", 1, name)) for name in ("loader", "main")]

    assert user_stack("\n\n".join(texts), "/p") == ("main.py:1 in main", "\n\n".join(texts))


def test_a_stack_of_nothing_else_and_a_text_that_is_none_are_left_as_they_are():
    assert user_stack(stack(*PYTEST), "/p") == ("", stack(*PYTEST))
    assert user_stack("(it does not answer)", "/p") == ("", "(it does not answer)")
