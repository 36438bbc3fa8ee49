"""`scaling=` of the marker and `perf.assert_scaling`: one test for each size, one curve for all of them."""

from __future__ import annotations

import json

import pytest
from plugin.project import NOT_JUDGED, SHORT

SUITE = """
import pytest

@pytest.mark.perf(scaling={"batch": [1, 10, 100]})
def test_step(perf, batch):
    perf(sum, range(2_000 * batch))
    perf.assert_scaling(exponent=0.5)
"""


def collected(inner, *arguments):
    return inner.runpytest_inprocess("--collect-only", "-q", *arguments)


def test_every_size_is_a_test(inner):
    inner.makepyfile(
        """
        import pytest

        @pytest.mark.perf(scaling={"batch": [2, 4, 0.5], "workers": [1, 2, 3]})
        @pytest.mark.parametrize("kind", ["a"])
        def test_step(batch, workers, kind):
            pass

        @pytest.mark.perf(scaling={"batch": [1, 2, 3]})
        class TestClass:
            def test_one(self, batch):
                pass

            @pytest.mark.perf(scaling={"batch": [7, 8, 9]})
            def test_other(self, batch):
                pass
        """
    )
    lines = collected(inner).outlines
    assert sum("::test_step[" in line for line in lines) == 9
    assert any(line.endswith("::test_step[batch=0.5-workers=3-a]") for line in lines)
    assert any(line.endswith("::test_one[batch=3]") for line in lines)
    assert [line.rpartition("[")[2] for line in lines if "test_other" in line] == ["batch=7]", "batch=8]", "batch=9]"]


def test_without_perf_every_size_runs_once(inner):
    inner.makepyfile(SUITE)
    done = inner.runpytest_inprocess()
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(["*3 perf tests ran once*"])


def test_another_marker_name(inner):
    inner.makeini("[pytest]\nperf_marker = speed")
    inner.makepyfile(SUITE.replace("mark.perf", "mark.speed"))
    inner.runpytest_inprocess().assert_outcomes(passed=3)


@pytest.mark.parametrize(
    "scaling",
    [
        "[2, 4, 8]",
        "{}",
        "{'batch': [2, 4]}",
        "{'batch': [2, 4, 4]}",
        "{'batch': [0, 2, 4]}",
        "{'batch': [1, 2, True]}",
        "{'batch': '248'}",
        "{'batch': [1, 2, float('inf')]}",
        "{'a batch': [1, 2, 3]}",
    ],
)
def test_sizes_that_are_none_are_refused(inner, scaling):
    inner.makepyfile(
        f"""
        import pytest

        @pytest.mark.perf(scaling={scaling})
        def test_step(batch):
            pass
        """
    )
    done = inner.runpytest_inprocess()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*@pytest.mark.perf: scaling*must *, got *"])


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ("exponent='steep'", "exponent='steep': expected a number such as 1.1"),
        ("exponent=float('nan')", "exponent=nan: expected a number"),
        ("fixed='5'", "fixed='5': '5' is not a quantity in ns"),
        ("fixed=5", "fixed=5: expected a time such as '5ms'"),
        ("per_unit='-1ms'", "per_unit='-1ms': expected a time such as '5ms'"),
        ("3", "perf.assert_scaling(3): expected the name of a parameter"),
    ],
)
def test_wrong_bounds_are_one_line(inner, arguments, problem):
    inner.makepyfile(f"def test_step(perf):\n    perf(int)\n    perf.assert_scaling({arguments})\n")
    done = inner.runpytest_inprocess()
    assert any(problem in line for line in done.outlines)
    done.assert_outcomes(failed=1)


@pytest.mark.long
def test_a_curve_is_judged_with_its_last_size(project):
    project.write("test_curve.py", SUITE)
    done = project.run("--perf", *NOT_JUDGED, "--perf-fail-on=regressed", "--perf-json=run.json")
    assert done.code == 1, done.output
    data = json.loads((project.root / "run.json").read_text())
    verdicts = {test["id"].partition("::")[2]: test["verdict"] for test in data["tests"]}
    assert verdicts == {
        "test_step[batch=1]": "missing",
        "test_step[batch=10]": "missing",
        "test_step[batch=100]": "regressed",
    }
    figures = data["tests"][-1]["metrics"]["step_time over batch, largest exponent"]
    assert 0.7 < figures["new"] < 1.3
    assert figures["limit"] == "<= 0.5"
    (curve,) = data["tests"][-1]["curves"]
    assert [each["size"] for each in curve["sizes"]] == [1, 10, 100]
    assert curve["growth"] is None, "there are no baselines"
    assert not any(test["curves"] for test in data["tests"][:-1])


@pytest.mark.long
def test_parametrized_tests_are_a_curve_too(project):
    project.write(
        "test_curve.py",
        SUITE.replace(
            '@pytest.mark.perf(scaling={"batch": [1, 10, 100]})', '@pytest.mark.parametrize("n", [1, 10, 100])'
        )
        .replace("batch", "n")
        .replace("assert_scaling(", "assert_scaling('n', "),
    )
    done = project.run("--perf", *SHORT, "--perf-fail-on=regressed", "-k", "test_step", "--perf-json=run.json")
    assert done.code == 1, done.output
    assert "step_time over n, largest exponent" in done.output
