"""A step that returns its work instead of doing it is refused, however it is called."""

import asyncio

import pytest

from pytest_perfdl.errors import PerfError
from pytest_perfdl.faces import Measured, Smoke
from pytest_perfdl.faces.calling import run


async def coroutine():
    pass


def generator():
    yield 1


async def generator_of_its_kind():
    yield 1


class Awaitable:
    def __await__(self):
        yield


UNDONE = [
    (coroutine, "an awaitable, .*asyncio.run"),
    (Awaitable, "an awaitable, .*asyncio.run"),
    (generator, "a generator, .*list"),
    (generator_of_its_kind, "an asynchronous generator, .*asyncio.run"),
]


class Host:
    """Of a process that measures one alternative of another comparison."""

    side = "base:other"


@pytest.mark.parametrize("step, message", UNDONE)
def test_a_step_that_does_nothing(step, message):
    with pytest.raises(PerfError, match=message):
        Smoke()(step)
    with pytest.raises(PerfError, match=message):
        Smoke().compare(int, step)
    with pytest.raises(PerfError, match=message):
        Measured(Host()).compare(int, step)
    with pytest.raises(PerfError, match=message):
        run(iter([False, True]), step, (), {})


def test_a_step_that_waits_for_its_work():
    assert run(iter([False, True]), lambda: asyncio.run(coroutine()), (), {}) is None
    assert run(iter([False, True]), lambda: list(generator()), (), {}) == [1]


def test_a_step_is_looked_at_once():
    looked = []

    class Result:
        @property
        def __class__(self):
            looked.append(self)
            return object

    run(iter([False] * 5), Result, (), {})
    assert len({id(each) for each in looked}) == 1
