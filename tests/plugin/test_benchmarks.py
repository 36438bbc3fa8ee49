"""`--perf-benchmarks`: tests of pytest-benchmark measured as they are."""

import json

import pytest
from plugin.project import NOT_JUDGED

SUITE = """
    import time
    from functools import partial

    import pytest


    class Runs(list):
        def __call__(self, *args, **kwargs):
            self.append((*args, *kwargs.items()))


    def pair():
        return [1], {"bar": 2}


    def test_call(benchmark):
        assert benchmark(sorted, [3, 1, 2], reverse=True) == [3, 2, 1]
        stats = benchmark.stats
        assert stats["mean"] == stats.stats.mean == stats.get("mean") > 0
        assert len(stats.stats.data) == stats["rounds"] > 1
        assert stats["min"] <= stats["median"] <= stats["max"]
        assert stats.get("nothing", 3) == 3


    def test_keywords(benchmark):
        assert benchmark(dict, name=1, setup=2, period=3) == {"name": 1, "setup": 2, "period": 3}


    def test_decorated(benchmark):
        @benchmark
        def result():
            return time.sleep(1e-6)

        assert result is None


    @pytest.mark.benchmark(group="sorting", min_rounds=2, disable_gc=True, timer=time.time)
    @pytest.mark.parametrize("size", [10, 20])
    def test_names(benchmark, size):
        benchmark.extra_info["size"] = size
        benchmark(sorted, range(size))
        assert (benchmark.group, benchmark.name, benchmark.param) == ("sorting", f"test_names[{size}]", str(size))
        assert benchmark.fullname == f"test_suite.py::test_names[{size}]"
        assert benchmark.params == {"size": size}
        assert benchmark.stats.extra_info == {"size": size}
        assert benchmark.enabled != benchmark.disabled


    def test_twice(benchmark):
        benchmark(len, "a")
        with pytest.raises(Exception, match=r"only be used once. Previously it was used in benchmark\\(...\\) mode"):
            benchmark.pedantic(len, ("a",))


    @pytest.mark.parametrize(
        ("given", "calls"),
        [
            ({}, 1),
            ({"iterations": 10}, 11),
            ({"iterations": 10, "rounds": 15}, 151),
            ({"rounds": 15}, 15),
            ({"warmup_rounds": 15, "rounds": 5}, 20),
        ],
    )
    def test_pedantic(benchmark, given, calls):
        runs = Runs()
        benchmark.pedantic(runs, args=[123], **given)
        assert runs == [(123,)] * calls


    def test_pedantic_setup(benchmark):
        runs, order = Runs(), []
        benchmark.pedantic(
            lambda *args, **kwargs: (order.append("call"), runs(*args, **kwargs)),
            setup=lambda: (order.append("setup"), pair())[1],
            teardown=lambda foo, bar: order.append(f"teardown {foo} {bar}"),
            rounds=3,
        )
        assert runs == [(1, ("bar", 2))] * 3
        assert order == ["setup", "call", "teardown 1 2"] * 3


    def test_pedantic_setup_without_arguments(benchmark):
        runs = Runs()
        benchmark.pedantic(runs, args=[1], kwargs={"bar": 2}, setup=lambda: None, rounds=2)
        assert runs == [(1, ("bar", 2))] * 2


    def test_pedantic_both(benchmark):
        runs = Runs()
        with pytest.raises(TypeError, match="Can't use `args` or `kwargs` if `setup` returns the arguments"):
            benchmark.pedantic(runs, args=[1], setup=pair)
        assert runs == []


    @pytest.mark.parametrize(
        "given",
        [{"rounds": 0}, {"rounds": "x"}, {"warmup_rounds": -1}, {"iterations": 0}, {"iterations": 2, "setup": pair}],
    )
    def test_pedantic_invalid(benchmark, given):
        with pytest.raises(ValueError):
            benchmark.pedantic(None, **given)


    @pytest.fixture
    def slept(benchmark):
        return partial(benchmark, time.sleep)


    def test_through_a_fixture(slept):
        slept(1e-5)
"""
ERRORS = ("test_pedantic_both", "test_pedantic_invalid")
"""Tests in which nothing is measured."""


def of_run(project):
    tests = json.loads((project.root / "run.json").read_text())["tests"]
    return {test["id"].partition("::")[2]: test for test in tests}


@pytest.mark.long
@pytest.mark.parametrize("plugins", [(), ("pytest_benchmark.plugin",)], ids=["alone", "beside"])
def test_a_suite_of_pytest_benchmark_is_measured(project, plugins):
    project.write("test_suite.py", SUITE)
    ran = project.run(
        "--perf", "--perf-benchmarks", "--perf-json=run.json", "--perf-repeats=1", *NOT_JUDGED, plugins=plugins
    )
    found = of_run(project)

    without = {name for name, test in found.items() if not test["metrics"]}
    assert {name.partition("[")[0] for name in without} == {*ERRORS}
    timed = set(found["test_pedantic[given1-11]"]["metrics"])
    assert {"step_time", "block_time"} <= timed
    assert not {"ops", "flops", "allocations", "peak_memory"} & timed
    assert "peak_memory" in found["test_call"]["metrics"]
    assert ran.summary() == ""


CONFTEST = """
    import pytest


    @pytest.fixture
    def benchmark(benchmark):
        benchmark.extra_info["from"] = "conftest"
        return benchmark
"""
FOREIGN = """
    import pytest


    @pytest.fixture
    def benchmark():
        return sorted
"""
PAIR = """
    import pytest


    def test_fixture(benchmark):
        assert benchmark(sorted, [2, 1]) == [1, 2]


    @pytest.mark.benchmark
    def test_marker():
        sorted(range(10))


    def test_plain():
        pass
"""


@pytest.fixture
def collected(inner):
    def run(*args, conftest="", ini=""):
        inner.makepyfile(test_pair=PAIR)
        inner.makeconftest(conftest)
        inner.makeini(f"[pytest]\n{ini}")
        ran = inner.runpytest("--perf", "--perf-isolate=none", "--perf-steps=4", "--perf-warmup=2", *args)
        text = str(ran.stdout)
        return ran, {
            name for name in ("test_fixture", "test_marker", "test_plain") if f"test_pair.py::{name}\n" in text
        }

    return run


@pytest.mark.parametrize(
    ("args", "conftest", "ini", "measured"),
    [
        (["--perf-benchmarks"], "", "", {"test_fixture"}),
        ([], "", "perf_benchmarks = true", {"test_fixture"}),
        ([], "", "perf_benchmarks = marked", {"test_fixture", "test_marker"}),
        (["--perf-benchmarks"], CONFTEST, "", {"test_fixture"}),
        (["-p", "pytest_benchmark.plugin", "--perf-benchmarks"], "", "", {"test_fixture"}),
        (["-p", "pytest_benchmark.plugin", "--perf-benchmarks"], CONFTEST, "", {"test_fixture"}),
        (["-p", "pytest_benchmark.plugin", "--perf-benchmarks", "--benchmark-only"], "", "", {"test_fixture"}),
    ],
)
def test_which_tests_are_measured(collected, args, conftest, ini, measured):
    ran, found = collected(*args, conftest=conftest, ini=f"{ini}\nmarkers = benchmark: theirs")
    assert ran.ret == 0
    assert found == measured


@pytest.mark.parametrize(
    ("args", "conftest"),
    [
        (["-p", "pytest_benchmark.plugin"], ""),
        (["-p", "pytest_benchmark.plugin", "--perf-benchmarks", "--benchmark-disable"], ""),
        (["-p", "pytest_benchmark.plugin", "--perf-benchmarks", "--benchmark-skip"], ""),
        (["--perf-benchmarks"], FOREIGN),
    ],
)
def test_which_tests_are_left_alone(collected, args, conftest):
    ran, found = collected(*args, conftest=conftest, ini="markers = benchmark: theirs")
    assert ran.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert found == set()


def test_without_perf_pytest_benchmark_measures_as_before(inner):
    inner.makepyfile(test_pair=PAIR)
    ran = inner.runpytest("-p", "pytest_benchmark.plugin", "-o", "perf_benchmarks=true", "--benchmark-min-rounds=1")
    ran.assert_outcomes(passed=3)
    ran.stdout.fnmatch_lines(["*benchmark: 1 tests*"])


def test_without_perf_and_pytest_benchmark_functions_run_once(inner):
    inner.makepyfile(
        """
        def test_once(benchmark):
            calls = []
            benchmark.pedantic(calls.append, (1,), rounds=5, teardown=calls.append)
            assert calls == [1, 1] and benchmark.stats is None and benchmark.disabled
        """
    )
    inner.runpytest("-o", "perf_benchmarks=true").assert_outcomes(passed=1)
    inner.runpytest().assert_outcomes(errors=1)


def test_options_without_effect_are_named_once(collected):
    ran, _ = collected(
        "-p", "pytest_benchmark.plugin", "--perf-benchmarks", "--benchmark-min-rounds=7", "--benchmark-autosave"
    )
    (line,) = [each for each in ran.outlines if "--benchmark-" in each]
    assert line == "perf: not used with perf_benchmarks: --benchmark-autosave, --benchmark-min-rounds"


def test_an_invalid_mode_is_refused(collected):
    ran, _ = collected(ini="perf_benchmarks = some")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert "ini perf_benchmarks = 'some': expected one of false, true, marked" in str(ran.stderr)


def test_an_unknown_keyword_of_the_marker_is_that_tests_error(inner):
    inner.makepyfile(
        """
        import pytest


        @pytest.mark.benchmark(rounds=3)
        def test_one(benchmark):
            benchmark(len, "a")


        def test_other(benchmark):
            benchmark(len, "a")
        """
    )
    ran = inner.runpytest("--perf", "--perf-benchmarks", "--perf-isolate=none", "--perf-steps=4", "--perf-warmup=2")
    ran.assert_outcomes(passed=1, errors=1)
    ran.stdout.fnmatch_lines(["E*benchmark mark can't have 'rounds' keyword argument."])
