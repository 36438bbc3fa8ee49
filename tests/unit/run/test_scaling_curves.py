"""Curves of tests that differ in a size: which tests, what is said of them, what further repeats decide.

The records are made of numbers; nothing is measured, so all that happens between tests of a run is seen here.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from making import record, timed

from pytest_perfdl.fixture.requests import CurveExpectation
from pytest_perfdl.judge.stored_repeats import confirm
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.results.run import Result
from pytest_perfdl.results.verdict import FAILS_BY_DEFAULT, MetricVerdict
from pytest_perfdl.run.scaling_curves import Curves, members

SIZES = (2, 4, 8, 16)
TOP = 32e6


def base_time(size):
    return 16e6 + 1e6 * size


PLANTED = {
    "overhead regression": lambda size: 0.25 * TOP,
    "per-sample regression": lambda size: 0.25 * TOP * size / 16,
    "complexity regression": lambda size: 0.25 * TOP * (size / 16) ** 2,
}


class Machine:
    """Repeats of a step, with seeded noise of every process and of every occasion."""

    def __init__(self, seed, *, sd=0.02, occasion=0.02):
        self._random = np.random.default_rng(seed)
        self._sd, self._occasion = sd, occasion
        self.another_occasion()

    def another_occasion(self):
        self._shift = self._occasion * self._random.standard_normal()

    def repeats(self, ns, count):
        noise = self._sd * self._random.standard_normal(count) + self._shift
        return record({"step_time": timed(*(ns * np.exp(noise)).tolist())})


class Measurement:
    """A test that was measured, as `Curves` sees one; and its result."""

    def __init__(self, size, *, others=(), curves=(), scaling=None, name="t.py::test_step"):
        params = {"batch": size, **dict(others)}
        nodeid = f"{name}[{'-'.join(f'{key}={value}' for key, value in params.items())}]"
        self.test = SimpleNamespace(
            item=SimpleNamespace(nodeid=nodeid, callspec=SimpleNamespace(params=params)),
            options=SimpleNamespace(scaling=scaling),
            limits=BUILT_IN,
        )
        self.curves = list(curves)
        self.result = None
        self.drawn = 0
        self.draw = None

    def fresh(self, repeats):
        self.drawn += repeats
        return self.draw(repeats)


def judged(new, base, limits=BUILT_IN):
    """A size by itself, held against stored repeats."""
    return confirm(standing(new, base, (), limits), base, new, limits)


def judge(curves, trial, judgement, new, base, *, updated=False):
    """Have the curves judged of which a test is the last one, whose own judgement this is."""
    own = Result(trial.test.item.nodeid, "t.py", 1, judgement, False, new=new, base=base, updated=updated)
    trial.result = curves.judge(trial, own)


def run(added=lambda size: 0, *, seed=0, sd=0.02, paired=False, bases=True, update=None, sizes=SIZES, **more):
    """The trials of a family, each measured and judged in turn."""
    machine = Machine(seed, sd=sd, occasion=more.pop("occasion", 0.02))
    scaling, updated = more.pop("scaling", {"batch": sizes}), more.pop("updated", False)
    rounds, drift = more.pop("rounds", None), more.pop("drift", lambda size: 0)
    adopted = more.pop("adopted", 1)
    trials = [Measurement(size, scaling=scaling, **more) for size in sizes]
    stored = {size: machine.repeats(base_time(size), 5) if bases else None for size in sizes}
    machine.another_occasion()
    curves = Curves(context([trial.test for trial in trials][::adopted], update=update))
    for trial, size in zip(trials, sizes, strict=True):
        ns = base_time(size) + added(size)
        # What the machine alone adds meets both sides of a round.
        slow = drift(size)
        trial.draw = lambda count, ns=ns + slow: machine.repeats(ns, count)
        new, base = machine.repeats(ns + slow, 1), stored[size]
        judgement = judged(new, base, BUILT_IN.unpaired())
        if paired and added(size) > 0.1 * base_time(size):
            judgement = in_rounds(judgement, ns / base_time(size) - 1)
        if rounds is not None:
            judgement = in_rounds(judgement, ns / base_time(size) - 1 + rounds, verdict="inconclusive")
        judge(curves, trial, judgement, new, base, updated=updated)
    return trials


def context(tests, *, update=None):
    return SimpleNamespace(tests=tuple(tests), recording=update is not None, fail_on=FAILS_BY_DEFAULT)


def in_rounds(judgement, effect, *, verdict="regressed"):
    """A judgement after paired rounds that found so much more."""
    metrics = [
        replace(each, verdict=verdict, evidence="paired", effect=effect, ci95=(effect - 0.02, effect + 0.02))
        for each in judgement.metrics
    ]
    return replace(judgement, verdict=verdict, reason="slower", metrics=tuple(metrics))


def curve_of(trials, name="step_time over batch") -> MetricVerdict:
    (found,) = (each for each in trials[-1].result.judgement.metrics if each.name == name)
    return found


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
def test_planted_growth_is_named_by_kind_in_nine_of_ten_trials(kind, paired):
    found = [curve_of(run(PLANTED[kind], seed=seed, paired=paired)) for seed in range(10)]
    assert sum(each.reason.startswith(f"{kind}: +") for each in found) >= 9
    assert sum(each.verdict == "regressed" for each in found) >= (9 if paired else 5)


def test_nothing_is_found_in_unchanged_code():
    found = [curve_of(run(seed=seed)) for seed in range(20)]
    assert [each.verdict for each in found] == ["unchanged"] * 20


def test_the_verdict_is_the_last_tests():
    trials = run(PLANTED["complexity regression"], paired=True, seed=1)
    result = trials[-1].result
    assert result.judgement.verdict == "regressed"
    assert result.fails
    assert result.judgement.reason.startswith("step_time over batch: complexity regression: +2")
    assert result.judgement.reason.endswith("; slower")
    names = [each.name for each in result.judgement.metrics]
    assert names == [
        "step_time",
        "step_time over batch",
        "step_time over batch, fixed part",
        "step_time over batch, per sample",
        "step_time over batch, exponent",
    ]
    assert all(len(trial.result.judgement.metrics) == 1 for trial in trials[:-1])


def test_a_suspect_curve_draws_further_repeats():
    trials = run(PLANTED["overhead regression"])
    assert [trial.drawn for trial in trials] == [3] * 4
    assert curve_of(trials).verdict == "regressed"
    assert curve_of(trials).evidence == "unpaired"


def test_a_machine_that_is_slower_at_large_sizes_is_no_growth_in_rounds():
    """As where neighbors take the cache: the small sizes do not notice."""
    drift = PLANTED["per-sample regression"]
    alone = [curve_of(run(seed=seed, drift=drift)).verdict for seed in range(10)]
    assert alone.count("regressed") > 5, "unpaired, nothing tells it from a regression"
    trials = [run(seed=seed, drift=drift, rounds=0.0) for seed in range(10)]
    assert {(curve_of(each).verdict, curve_of(each).evidence) for each in trials} == {("unchanged", "paired")}
    assert not any(trial.drawn for each in trials for trial in each)


def test_only_small_sizes_are_measured_again_where_large_ones_were_confirmed():
    trials = run(PLANTED["complexity regression"], paired=True)
    assert [trial.drawn for trial in trials] == [3, 3, 3, 0]
    assert "paired rounds at 1 of 4 sizes" in curve_of(trials).reason


@pytest.mark.parametrize("kind", PLANTED)
def test_rounds_that_proved_nothing_of_any_size_may_prove_it_of_the_curve(kind):
    trials = run(PLANTED[kind], rounds=0.0)
    assert [trial.drawn for trial in trials] == [0] * 4, "every size has been measured in pairs"
    found = curve_of(trials)
    assert found.verdict == "regressed"
    assert found.reason.startswith(f"{kind}: +")
    assert "paired rounds at 4 of 4 sizes" in found.reason


def test_rounds_on_unchanged_code_prove_nothing_of_the_curve():
    """Whatever stored times say of single sizes, it is not held against rounds."""
    found = [curve_of(run(seed=seed, sd=0.1, rounds=0.01)).verdict for seed in range(10)]
    assert found == ["unchanged"] * 10


def test_on_a_noisy_machine_growth_is_inconclusive_rather_than_unchanged():
    found = [curve_of(run(PLANTED["per-sample regression"], seed=seed, sd=0.12)) for seed in range(20)]
    undecided = [each for each in found if each.verdict == "inconclusive"]
    assert undecided
    assert all(each.reason.endswith(": the interval is too wide to decide") for each in undecided)
    assert sum(each.verdict == "unchanged" for each in found) < 5


def test_a_noisy_machine_raises_no_alarm():
    verdicts = [curve_of(run(seed=seed, sd=0.08)).verdict for seed in range(20)]
    assert "regressed" not in verdicts
    assert verdicts.count("suspect") <= 1


def test_nothing_is_drawn_for_an_unchanged_curve_nor_while_baselines_are_written():
    assert not any(trial.drawn for trial in run())
    trials = run(PLANTED["overhead regression"], update="all")
    assert not any(trial.drawn for trial in trials)
    assert curve_of(trials).verdict == "suspect"


def test_a_faster_curve_is_improved():
    found = curve_of(run(lambda size: -0.4 * base_time(size)))
    assert found.verdict == "improved"
    assert found.effect == pytest.approx(-0.4, abs=0.05)


def test_without_baselines_there_is_nothing_to_hold_a_curve_against():
    (metric,) = run(bases=False)[-1].result.judgement.metrics
    assert metric.name == "step_time"


@pytest.mark.parametrize("verdict, said", [("outdated", ["step_time"]), ("invalid", ["step_time"])])
def test_broken_and_outdated_sizes_are_not_held_against_baselines(verdict, said):
    machine = Machine(0)
    trials = [Measurement(size, scaling={"batch": SIZES}) for size in SIZES[:3]]
    curves = Curves(context([trial.test for trial in trials]))
    for trial in trials:
        new, base = machine.repeats(2 * TOP, 1), machine.repeats(TOP, 5)
        judgement = judged(new, base)
        judge(curves, trial, replace(judgement, verdict=verdict) if trial is trials[0] else judgement, new, base)
    assert [each.name for each in trials[-1].result.judgement.metrics] == said


def test_other_parameters_make_other_curves():
    others = {"width": "narrow"}
    trials = [Measurement(size, others=others, scaling={"batch": SIZES}) for size in SIZES]
    apart = Measurement(16, others={"width": "wide"}, scaling={"batch": SIZES})
    curves = Curves(context([trial.test for trial in (*trials, apart)]))
    machine = Machine(0)
    for trial in (*trials, apart):
        new = machine.repeats(base_time(trial.test.item.callspec.params["batch"]), 1)
        judge(curves, trial, judged(new, new), new, new)
    assert curve_of(trials).verdict == "unchanged"
    (finding,) = apart.result.judgement.integrity
    assert finding.message == "the curve over batch was not compared: 1 of 1 sizes measured"


def test_sizes_that_were_not_measured_leave_the_others():
    trials = [Measurement(size, scaling={"batch": SIZES}) for size in SIZES]
    curves = Curves(context([trial.test for trial in trials]))
    machine = Machine(0)
    for trial in trials[1:]:
        new = machine.repeats(base_time(trial.test.item.callspec.params["batch"]), 1)
        judge(curves, trial, judged(new, new), new, new)
        # As of a test that is skipped before it is set up.
        curves.note_end(trials[0].test)
    assert trials[0].result is None
    assert curve_of(trials).verdict == "unchanged"
    assert curves.left_out == []


def expecting(**bounds):
    values = {"axis": "batch", "exponent": None, "fixed": None, "per_unit": None}
    return [CurveExpectation(**{**values, **bounds})]


@pytest.mark.parametrize(
    "bounds, part, verdict",
    [
        pytest.param({"exponent": 1.1}, "largest exponent", "unchanged", id="exponent kept"),
        pytest.param({"exponent": 0.1}, "largest exponent", "regressed", id="exponent exceeded"),
        pytest.param({"fixed": "30ms"}, "largest fixed part", "unchanged", id="fixed kept"),
        pytest.param({"fixed": "10ms"}, "largest fixed part", "regressed", id="fixed exceeded"),
        pytest.param({"per_unit": "2ms"}, "largest time per sample", "unchanged", id="slope kept"),
        pytest.param({"per_unit": "500us"}, "largest time per sample", "regressed", id="slope exceeded"),
    ],
)
def test_bounds_of_the_test_itself(bounds, part, verdict):
    trials = run(curves=expecting(**bounds), scaling=None)
    found = curve_of(trials, f"step_time over batch, {part}")
    assert found.verdict == verdict
    assert str(found.limit) == f"<= {next(iter(bounds.values()))}"
    assert found.reason.endswith(f"(95% interval), expected {found.limit}")
    assert (trials[-1].result.judgement.verdict == "regressed") is (verdict == "regressed")


def test_undecided_bounds_draw_further_repeats():
    trials = run(curves=expecting(per_unit="1ms"))
    assert [trial.drawn for trial in trials] == [3] * 4
    found = curve_of(trials, "step_time over batch, largest time per sample")
    assert found.verdict == "inconclusive"
    assert found.reason.endswith("use more processes (--perf-repeats)")


def test_the_markers_only_axis_needs_no_name():
    trials = run(curves=expecting(axis="", exponent=2))
    assert curve_of(trials, "step_time over batch, largest exponent").verdict == "unchanged"


@pytest.mark.parametrize(
    "axis, problem",
    [("", "the argument axis is missing"), ("layers", "the test has no parameter 'layers' that is a number above 0")],
    ids=["missing", "unknown"],
)
def test_an_axis_that_is_none_is_said(axis, problem):
    judgement = run(curves=expecting(axis=axis), scaling=None)[-1].result.judgement
    assert judgement.verdict == "invalid"
    assert judgement.reason == f"perf.assert_scaling({axis!r}): {problem}"


def shown(trials):
    """The curve that reports show, which the last size alone has."""
    assert not any(trial.result.curves for trial in trials[:-1])
    (found,) = trials[-1].result.curves
    return found


def interval(found):
    return found.value, found.low, found.high


def test_what_reports_show_of_a_curve_by_hand():
    found = shown(run(PLANTED["overhead regression"], sd=0, occasion=0))
    assert (found.name, found.metric, found.axis, found.unit) == (
        "step_time over batch",
        "step_time",
        "batch",
        "sample",
    )
    assert [each.size for each in found.sizes] == [2, 4, 8, 16]
    # Repeats that do not spread have SD_FLOOR, 1 %; of five and three with Student's t at 4 * 4 and 4 * 2 degrees.
    shares = 2.1199 * 0.01 / 5**0.5, 2.3060 * 0.01 / 3**0.5
    for each in found.sizes:
        before = base_time(each.size)
        for time, ns, share in ((each.base, before, shares[0]), (each.new, before + 8e6, shares[1])):
            assert interval(time) == pytest.approx((ns, ns * np.exp(-share), ns * np.exp(share)), rel=1e-5)
        half = 2.1199 * np.hypot(0.01 * (1 / 5 + 1 / 3) ** 0.5, 0.03)
        ratio = np.log(before + 8e6) - np.log(before)
        assert interval(each.change) == pytest.approx(np.expm1([ratio, ratio - half, ratio + half]), rel=1e-3)
        assert not each.paired
    assert {2, 4, 8, 16} <= {each.size for each in found.fitted}
    assert found.fitted[0].size == 2
    assert found.fitted[-1].size == 16
    for each in found.fitted:
        assert each.base.value == pytest.approx(base_time(each.size), abs=1)
        assert each.new.value == pytest.approx(base_time(each.size) + 8e6, abs=1)
        assert each.new.low < each.new.value < each.new.high
    overhead, slope, exponent = found.figures
    assert [each.kind for each in found.figures] == ["overhead", "per unit", "complexity"]
    assert [overhead.base.value, overhead.new.value, overhead.change.value] == pytest.approx([16e6, 24e6, 8e6])
    assert [slope.base.value, slope.new.value] == pytest.approx([1e6, 1e6])
    assert slope.change.low < 0 < slope.change.high
    assert 0 < exponent.new.value < exponent.base.value < 1
    assert found.growth.kind == "overhead"
    assert found.growth.amount.value == pytest.approx(8e6)


def test_a_curve_bends_where_a_line_does_not_fit():
    found = shown(run(PLANTED["complexity regression"], sd=0, occasion=0))
    (at_eight,) = (each for each in found.fitted if each.size == 8)
    assert at_eight.new.value == pytest.approx(base_time(8) + 2e6, abs=1)


def test_sizes_in_paired_rounds_show_what_those_found():
    found = shown(run(PLANTED["complexity regression"], paired=True))
    assert [each.paired for each in found.sizes] == [False, False, False, True]
    last = found.sizes[-1]
    assert interval(last.change) == pytest.approx((0.25, 0.23, 0.27), abs=0.002)
    assert last.new.value == pytest.approx(1.25 * last.base.value)
    # What is called a square is drawn as one, below the line from end to end.
    fitted = {each.size: each.new.value for each in found.fitted}
    assert fitted[8] < fitted[2] + (fitted[16] - fitted[2]) * 6 / 14 - 0.5e6


def test_where_all_sizes_are_in_pairs_times_are_those_of_the_rounds():
    machine = Machine(0)
    trials = [Measurement(size, scaling={"batch": SIZES}) for size in SIZES]
    curves = Curves(context([trial.test for trial in trials]))
    for trial, size in zip(trials, SIZES, strict=True):
        new, base = machine.repeats(base_time(size), 1), machine.repeats(base_time(size), 1)
        judgement = in_rounds(judged(new, base), 0.25)
        (metric,) = judgement.metrics
        metric = replace(metric, base=2 * base_time(size), rounds=9)
        judge(curves, trial, replace(judgement, metrics=(metric,)), new, base)
    found = shown(trials)
    assert curve_of(trials).evidence == "paired"
    for each in found.sizes:
        ns, share = 2 * base_time(each.size), 1.96 * 0.1 / 3  # ASSUMED_SD, since one repeat has no spread
        assert interval(each.base) == pytest.approx((ns, ns * np.exp(-share), ns * np.exp(share)), rel=2e-3)
        assert each.new.value == pytest.approx(1.25 * ns)
        assert each.paired


def test_without_baselines_a_curve_is_shown_by_itself():
    found = shown(run(bases=False))
    assert found.growth is None
    assert not any(each.base or each.change for each in (*found.sizes, *found.figures))
    assert not any(each.base for each in found.fitted)
    assert found.figures[0].new.value == pytest.approx(16e6, rel=0.3)


def test_a_size_without_a_baseline_leaves_those_of_the_others():
    machine = Machine(0)
    trials = [Measurement(size, scaling={"batch": SIZES}) for size in SIZES]
    curves = Curves(context([trial.test for trial in trials]))
    for trial, size in zip(trials, SIZES, strict=True):
        new, base = machine.repeats(base_time(size), 1), None if size == 8 else machine.repeats(base_time(size), 5)
        judge(curves, trial, judged(new, base), new, base)
    found = shown(trials)
    assert [each.base is None for each in found.sizes] == [False, False, True, False]
    assert found.growth is None
    assert found.fitted[0].base is None
    assert found.figures[0].base is None


def test_an_undecided_bound_without_baselines_shows_the_repeats_that_decided():
    trials = run(curves=expecting(per_unit="1ms"), bases=False)
    assert [trial.drawn for trial in trials] == [3] * 4
    # Three repeats of four sizes tell how they spread, one of each does not.
    narrow, wide = (shown(each).sizes[0].new for each in (trials, run(bases=False)))
    assert (narrow.high - narrow.low) / narrow.value < 0.5 * (wide.high - wide.low) / wide.value


def test_a_new_baseline_does_not_lift_a_bound():
    bounds = {"curves": expecting(exponent=0.1), "scaling": None, "update": "all"}
    assert run(**bounds, updated=True)[-1].result.fails


def test_a_curve_is_judged_by_whichever_size_runs_last():
    """`--ff` runs the size that failed first."""
    trials = run(PLANTED["overhead regression"], adopted=-1)
    assert curve_of(trials).verdict == curve_of(run(PLANTED["overhead regression"])).verdict == "regressed"
    assert [bool(trial.result.curves) for trial in trials] == [False, False, False, True]
    assert set(trials[-1].result.curves[0].tests) == {trial.test.item.nodeid for trial in trials}


def test_a_curve_whose_last_size_does_not_run_leaves_a_line():
    trials = [Measurement(size, scaling={"batch": SIZES}) for size in SIZES]
    curves = Curves(context([trial.test for trial in trials]))
    said = []
    for trial in trials[:-1]:
        new = record({"step_time": timed(base_time(2))})
        judge(curves, trial, judged(new, None), new, None)
        said += curves.left_out
    curves.note_end(trials[-1].test)
    assert curves.left_out == said[2:]
    assert said == [
        f"the curve of t.py::test_step over batch was not compared: {count} of 4 sizes measured, {why}"
        for count, why in (
            (1, "at least 3 sizes are needed"),
            (2, "at least 3 sizes are needed"),
            (3, "the test of the last size has no result"),
        )
    ]


def test_folders_with_brackets_are_told_apart():
    one, other = (Measurement(2, name=f"exp[1]/{name}.py::test_step").test for name in "ab")
    assert members(one, "batch", (one, other)) == [one]
