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
