"""Tests that are coroutine functions, under anyio, and under a plugin that runs them as pytest-asyncio does."""

import json

import pytest
from plugin.project import NOT_JUDGED

CASES = """
    import asyncio

    import pytest
    import torch

    OPERAND = torch.ones(64, 64)
    pytestmark = pytest.mark.anyio


    @pytest.fixture
    def anyio_backend():
        return "asyncio"


    @pytest.fixture
    async def lock():
        return asyncio.Lock()


    async def step(lock):
        async with lock:
            await asyncio.sleep(0)
            return OPERAND @ OPERAND


    async def test_step(perf, lock):
        assert (await perf(step, lock)).shape == (64, 64)


    @pytest.mark.perf
    async def test_whole(lock):
        await step(lock)


    async def test_loop(perf, lock):
        for _ in perf.steps([1, 2]):
            await step(lock)


    class Elements:
        async def __aiter__(self):
            for element in range(3):
                await asyncio.sleep(0)
                yield element


    async def test_async_loop(perf, lock):
        async for _ in perf.steps(Elements()):
            await step(lock)


    async def test_prepared(perf, lock):
        async def setup():
            await asyncio.sleep(0)
            return (lock,), {}

        await perf(step, setup=setup)


    async def serve():
        while True:
            await asyncio.sleep(0.001)


    async def test_beside(perf, lock):
        server = asyncio.ensure_future(serve())
        await perf(step, lock)
        server.cancel()


    async def test_not_awaited(perf, lock):
        perf(step, lock)


    def test_in_a_plain_function(perf):
        perf(step, None)


    async def test_left(perf):
        async for _ in perf.steps(Elements()):
            break
    """
MEASURED = {"test_step", "test_whole", "test_loop", "test_async_loop", "test_prepared", "test_beside"}
AS_PYTEST_ASYNCIO = """
    import asyncio
    import inspect

    import pytest


    class Item(pytest.Function):
        def runtest(self):
            body = self.obj
            assert inspect.iscoroutinefunction(body)
            with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
                patch.setattr(self, "obj", lambda **arguments: runner.run(body(**arguments)))
                super().runtest()


    def pytest_collection_modifyitems(items):
        for item in items:
            if inspect.iscoroutinefunction(item.function):
                item.__class__ = Item
    """


def results(project):
    tests = json.loads((project.root / "run.json").read_text())["tests"]
    return {test["id"].partition("::")[2]: test for test in tests}


@pytest.mark.long
def test_coroutine_functions_are_measured_in_the_loop_of_the_test(project):
    project.write("test_cases.py", CASES)
    ran = project.run("--perf", "--perf-json=run.json", "--perf-repeats=1", *NOT_JUDGED, plugins=("anyio",))
    found = results(project)

    assert ran.code == 1
    assert {name for name, test in found.items() if test["metrics"]} == MEASURED
    figures = {name: {each: metric["new"] for each, metric in found[name]["metrics"].items()} for name in MEASURED}
    assert {figures[name]["flops"] for name in MEASURED} == {2 * 64**3}
    assert "data_wait" in figures["test_async_loop"]
    assert "1 task alive at the end of a step: serve (test_cases.py:" in json.dumps(found["test_beside"])
    assert not any("alive at the end" in json.dumps(found[name]) for name in MEASURED - {"test_beside"})
    assert ran.output.count("was not awaited: write await perf(STEP, ...) in an `async def` test") == 2
    assert "the loop over perf.steps(...) ended before the measurement was complete" in ran.output
    assert "never awaited" not in ran.output


@pytest.mark.long
def test_under_a_plugin_with_items_of_its_own(project):
    body = """
        import asyncio
        import pytest
        import torch

        async def step():
            await asyncio.sleep(0)
            return torch.ones(64, 64) @ torch.ones(64, 64)

        async def test_step(perf):
            await perf(step)

        @pytest.mark.perf
        async def test_whole():
            await step()
        """
    project.write("conftest.py", AS_PYTEST_ASYNCIO)
    project.write("test_cases.py", body)
    ran = project.run("--perf", "--perf-json=run.json", "--perf-repeats=1", *NOT_JUDGED)
    found = results(project)

    assert ran.code == 0
    assert {found[name]["metrics"]["flops"]["new"] for name in ("test_step", "test_whole")} == {2 * 64**3}


def test_without_measuring_a_step_runs_once(inner):
    inner.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.anyio
        calls = []

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        async def step():
            calls.append(1)
            return 2

        async def test_step(perf):
            assert await perf(step) == 2
            assert calls == [1]

        async def test_not_awaited(perf):
            perf(step)
        """
    )
    result = inner.runpytest_inprocess("-panyio")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*was not awaited: write await perf(STEP, ...)*")


@pytest.mark.long
def test_without_a_plugin_a_test_fails_as_in_pytest(project):
    project.write("test_cases.py", "async def test_step(perf):\n    pass\n")
    plain, measured = project.run(), project.run("--perf")

    for ran in (plain, measured):
        assert ran.code == 1
        assert "async def functions are not natively supported." in ran.output
