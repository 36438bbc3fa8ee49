"""Methods of `unittest.TestCase` are measured as they are; those that cannot be fail alone."""

import json

import pytest
from plugin.project import NOT_JUDGED

CASES = """
    import unittest

    import pytest
    import torch

    OPERAND = torch.ones(64, 64)


    class TestSteps(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.set_up = 0

        def setUp(self):
            type(self).set_up += 1

        def tearDown(self):
            assert self.set_up == 1

        @pytest.mark.perf
        def test_step(self):
            OPERAND @ OPERAND

        @pytest.mark.perf
        def test_cleanups(self):
            self.addCleanup(OPERAND.neg)
            OPERAND @ OPERAND

        @pytest.mark.perf
        def test_subtests(self):
            for number in range(2):
                with self.subTest(number=number):
                    OPERAND @ OPERAND

        def test_unmarked(self):
            type(self).set_up = 0


    class Base:
        def test_step(self):
            self.step()


    @pytest.mark.perf
    class TestInherited(Base, unittest.TestCase):
        def step(self):
            OPERAND @ OPERAND


    class TestFixture(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def _perf(self, perf):
            self.perf = perf

        @pytest.mark.perf
        def test_step(self):
            self.perf(torch.matmul, OPERAND, OPERAND)

        def test_unmarked(self):
            assert self.perf(int) == 0


    class TestLoop(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self):
            import asyncio

            self.lock = asyncio.Lock()

        @pytest.mark.perf
        async def test_step(self):
            self.addAsyncCleanup(self.close)
            async with self.lock:
                OPERAND @ OPERAND

        async def close(self):
            OPERAND.neg()


    class TestOutcomes(unittest.TestCase):
        @unittest.skip("not here")
        @pytest.mark.perf
        def test_skipped(self):
            raise AssertionError

        @pytest.mark.perf
        def test_skips(self):
            self.skipTest("not now")

        @unittest.expectedFailure
        @pytest.mark.perf
        def test_expected(self):
            self.assertEqual(1, 2)

        @pytest.mark.perf
        def test_fails(self):
            self.assertEqual(1, 3)

        @pytest.mark.perf
        def test_fails_in_a_subtest(self):
            with self.subTest(number=1):
                self.assertEqual(1, 4)

        @pytest.mark.perf
        async def test_not_awaited(self):
            pass

        @pytest.mark.perf(scaling={"size": [1, 2, 4]})
        def test_sizes(self):
            pass
    """
MEASURED = (
    *("TestSteps::test_step", "TestSteps::test_cleanups", "TestSteps::test_subtests"),
    *("TestInherited::test_step", "TestFixture::test_step", "TestLoop::test_step"),
)
REASONS = {
    "TestOutcomes::test_skipped": "the test was skipped",
    "TestOutcomes::test_skips": "the test was skipped",
    "TestOutcomes::test_expected": "the test failed, as its xfail mark expects",
    "TestOutcomes::test_fails": "the test failed, so its measurement was not used",
    "TestOutcomes::test_fails_in_a_subtest": "the test failed, so its measurement was not used",
    "TestOutcomes::test_not_awaited": "the test failed, so its measurement was not used",
    "TestOutcomes::test_sizes": "sizes are arguments, which methods of a unittest.TestCase do not get",
}


@pytest.mark.long
def test_every_shape_is_measured_or_fails_alone(project):
    project.write("test_cases.py", CASES)
    ran = project.run("--perf", "--perf-json=run.json", "--perf-repeats=1", "-v", *NOT_JUDGED)
    results = {
        test["id"].partition("::")[2]: test for test in json.loads((project.root / "run.json").read_text())["tests"]
    }

    assert ran.code == 1
    assert results.keys() == {*MEASURED, *REASONS}
    assert {name for name, test in results.items() if test["metrics"]} == {*MEASURED}
    for name, reason in REASONS.items():
        assert reason in results[name]["reason"], name
    assert "AssertionError: 1 != 3" in ran.output
    assert "AssertionError: 1 != 4" in ran.output
    assert "nothing was measured, because a subtest failed" in ran.output
    assert "TestOutcomes does not await the test, which is a coroutine function: derive it from" in ran.output
    # Reported in the first step alone.
    assert ran.output.count("SUBPASSED") == 2
    # What the step computes, not what its cleanups do.
    figures = {name: {each: metric["new"] for each, metric in results[name]["metrics"].items()} for name in MEASURED}
    of_one = figures["TestSteps::test_step"]["ops"]
    for name in MEASURED:
        assert figures[name]["ops"] == of_one * (2 if "subtests" in name else 1), name
        assert "growth" not in figures[name], name


def test_marked_methods_alone_are_perf_tests(inner):
    inner.makepyfile(
        """
        import unittest
        import pytest

        class TestSteps(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _perf(self, perf):
                self.perf = perf

            @pytest.mark.perf
            def test_marked(self):
                assert self.perf(int) == 0

            def test_unmarked(self):
                assert self.perf(int) == 0
        """
    )
    result = inner.runpytest_inprocess()

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("perf: 1 perf test ran once, unmeasured; run pytest --perf to measure")


def test_comparisons_of_a_test_case_need_an_assertion(inner):
    inner.makepyfile(
        """
        import unittest
        import pytest

        class TestSteps(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _perf(self, perf):
                self.perf = perf

            @pytest.mark.perf
            def test_compares(self):
                self.perf.compare(int, float)
        """
    )
    result = inner.runpytest_inprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*perf.compare(...) without an assertion: add *")
