"""`--perf-benchmarks`: tests of pytest-benchmark measured as they are."""

import json

import pytest
from plugin.project import NOT_JUDGED, SHORT

THEIRS = "pytest_benchmark.plugin"
SUITE = """
    import time
    from functools import partial

    import pytest
    import torch


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


    def test_torch(benchmark):
        x = torch.ones(8, 8)
        assert benchmark(torch.mm, x, x).sum() == 512
"""
ERRORS = ("test_pedantic_both", "test_pedantic_invalid")
"""Tests in which nothing is measured."""


def of_run(project):
    tests = json.loads((project.root / "run.json").read_text())["tests"]
    return {test["id"].partition("::")[2]: test for test in tests}


@pytest.mark.long
@pytest.mark.parametrize("plugins", [(), (THEIRS,)], ids=["alone", "beside"])
def test_a_suite_of_pytest_benchmark_is_measured(project, plugins):
    project.write("test_suite.py", SUITE)
    options = ("--perf-benchmarks", "-o", "perf_shared=false", "--perf-json=run.json", "--perf-repeats=1")
    ran = project.run("--perf", *options, *NOT_JUDGED, plugins=plugins)
    found = of_run(project)

    without = {name for name, test in found.items() if not test["metrics"]}
    assert {name.partition("[")[0] for name in without} == {*ERRORS}
    timed = set(found["test_pedantic[given1-11]"]["metrics"])
    assert {"step_time", "block_time"} <= timed
    assert not {"ops", "flops", "allocations", "peak_memory"} & timed
    assert "no call is left to be profiled" in json.dumps(found["test_pedantic[given1-11]"])
    assert found["test_torch"]["metrics"]["flops"]["new"] == 1024
    assert ran.summary() == "6 failed, 15 passed"


@pytest.mark.long
@pytest.mark.parametrize("plugins", [(), (THEIRS,)], ids=["alone", "beside"])
def test_a_suite_of_pytest_benchmark_passes_in_shared_processes_as_there(project, plugins):
    project.write("test_suite.py", SUITE)
    options = ("--perf-benchmarks", "--perf-json=run.json", "--perf-repeats=1")
    ran = project.run("--perf", *options, *NOT_JUDGED, plugins=plugins)
    (whole,) = of_run(project)
    assert whole == "benchmarks"
    # One more for all of them.
    assert ran.summary() == "22 passed"


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
        return lambda function, *args: function(*args)
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
def measured_of(project):
    """Measures `PAIR` in pytest's own process; returns the run, and the names of the tests that were measured."""

    def run(*args, plugins=(), conftest="", ini=""):
        for name, text in {"test_pair.py": PAIR, "conftest.py": conftest}.items():
            project.write(name, text)
        project.write("pytest.ini", f"[pytest]\n{ini}\nmarkers = benchmark: theirs")
        ran = project.run("--perf", "--perf-isolate=none", *SHORT, *args, plugins=plugins)
        names = {line.partition("::")[2] for line in ran.lines if line.startswith("test_pair.py::")}
        return ran, names

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "conftest", "ini", "measured"),
    [
        (["--perf-benchmarks"], "", "", {"test_fixture"}),
        ([], "", "perf_benchmarks = true", {"test_fixture"}),
        ([], "", "perf_benchmarks = marked", {"test_fixture", "test_marker"}),
        (["--perf-benchmarks"], CONFTEST, "", {"test_fixture"}),
        (["--benchmark-only", "--perf-benchmarks"], CONFTEST, "", {"test_fixture"}),
    ],
)
def test_which_tests_are_measured(measured_of, args, conftest, ini, measured):
    plugins = [THEIRS] if "--benchmark-only" in args else []
    ran, found = measured_of(*args, plugins=plugins, conftest=conftest, ini=ini)
    assert ran.code == 0
    assert found == measured


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "conftest"),
    [
        ([], ""),
        (["--perf-benchmarks", "--benchmark-disable"], ""),
        (["--perf-benchmarks", "--benchmark-skip"], ""),
        (["--perf-benchmarks"], FOREIGN),
    ],
)
def test_which_tests_are_left_alone(measured_of, args, conftest):
    ran, found = measured_of(*args, plugins=[] if conftest else [THEIRS], conftest=conftest)
    assert ran.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "perf: no perf test was selected, so nothing was measured" in ran.output
    assert found == set()


@pytest.mark.long
def test_a_foreign_benchmark_beside_perf_has_no_say_in_how_often_a_step_is_called(project):
    body = "    calls = []\n    perf(lambda: calls.append(1))\n    assert len(calls) < 200, len(calls)\n"
    project.write("conftest.py", FOREIGN)
    project.write("test_both.py", f"def test_both(perf, benchmark):\n{body}")
    assert project.run("--perf", "--perf-isolate=none", *SHORT).summary() == "1 passed"


@pytest.mark.long
def test_without_perf_pytest_benchmark_measures_as_before(project):
    project.write("test_pair.py", PAIR)
    project.write("pytest.ini", "[pytest]\nperf_benchmarks = true")
    ran = project.run("--benchmark-min-rounds=1", "--benchmark-max-time=0.001", plugins=[THEIRS])
    assert ran.summary() == "3 passed"
    assert "benchmark: 1 tests" in ran.output
    assert "perf: " not in ran.output


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


@pytest.mark.long
def test_options_without_effect_are_named_once(measured_of):
    options = ("--benchmark-min-rounds=7", "--benchmark-autosave")
    ran, _ = measured_of("--perf-benchmarks", *options, plugins=[THEIRS])
    (line,) = [each for each in ran.lines if "--benchmark-" in each]
    assert line == "perf: not used with perf_benchmarks: --benchmark-autosave, --benchmark-min-rounds"


def test_an_invalid_mode_is_refused(inner):
    inner.makeini("[pytest]\nperf_benchmarks = some")
    ran = inner.runpytest("--perf")
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert "ini perf_benchmarks = 'some': expected one of false, true, marked" in str(ran.stderr)


@pytest.mark.long
def test_an_unknown_keyword_of_the_marker_is_that_tests_error(project):
    project.write(
        "test_marks.py",
        """
        import pytest


        @pytest.mark.benchmark(rounds=3)
        def test_one(benchmark):
            benchmark(len, "a")


        def test_other(benchmark):
            benchmark(len, "a")
        """,
    )
    ran = project.run("--perf", "--perf-benchmarks", "--perf-isolate=none", *SHORT)
    assert ran.summary() == "1 passed, 1 error"
    assert "ValueError: benchmark mark can't have 'rounds' keyword argument." in ran.output
