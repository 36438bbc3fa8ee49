"""The choice among models, what it says, what it predicts and what it refuses to."""

import numpy as np
import pytest

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import candidates, choose, doublings, evaluate, importance, predict
from pytest_perfdl.scaling.laws import AFFINE
from pytest_perfdl.scaling.physical import PHYSICAL
from pytest_perfdl.scaling.points import Points
from unit.scaling.sizes import grid, line

SIZES = (2, 4, 6, 8, 16, 24, 32, 64)
TWO = {"intrinsic": ["layers"], "extrinsic": ["batch"], "layers": (1, 2, 4, 8), "batch": (2, 4, 8, 16)}
AMDAHL = {"intrinsic": ["flops"], "extrinsic": ["workers"], "flops": (1e8, 3e8, 1e9, 3e9), "workers": (1, 2, 4, 8)}

MADE = [
    pytest.param("affine", line, lambda batch: 12e6 + 1e6 * batch, {"sizes": SIZES}, id="affine"),
    pytest.param(
        "piecewise",
        line,
        lambda batch: 12e6 + 1e6 * batch if batch <= 8 else 40e6 + 2e6 * batch,
        {"sizes": SIZES},
        id="piecewise",
    ),
    pytest.param("generic product", line, lambda batch: 3e6 * batch**0.6, {"sizes": SIZES}, id="power law"),
    pytest.param("physical", line, lambda batch: 3e6 + 1e6 * batch + 1e5 * batch**2, {"sizes": SIZES}, id="quadratic"),
    pytest.param(
        "generic product", grid, lambda layers, batch: 2e6 * layers**1.4 * batch**0.6 + 12e6, TWO, id="product"
    ),
    pytest.param(
        "generic additive", grid, lambda layers, batch: 2e6 * layers**1.4 + 3e6 * batch**0.6 + 5e6, TWO, id="additive"
    ),
    pytest.param(
        "physical",
        grid,
        lambda flops, workers: 2e6 + 1e-2 * flops / workers + 2e-3 * flops * (1 - 1 / workers),
        AMDAHL,
        id="amdahl",
    ),
]


@pytest.mark.parametrize("noise", [0.0, 0.005], ids=["exact", "noisy"])
@pytest.mark.parametrize("name, make, formula, more", MADE)
def test_the_model_that_made_the_points_is_chosen(name, make, formula, more, noise):
    choice = choose(make(formula, noise=noise, **more))
    assert choice.chosen.name == name
    assert choice.chosen.loo_mape < 1e-4 + 3 * noise
    assert choice.explanation[0].startswith(f"{name}: ")


def test_every_models_error_is_reported_least_first():
    choice = choose(line(lambda batch: 3e6 * batch**0.6, SIZES))
    errors = [fit.loo_mape for fit in choice.fits]
    assert [fit.name for fit in choice.fits] == ["generic product", "affine", "physical"]
    assert errors == pytest.approx(sorted(errors))
    for fit in choice.fits[1:]:
        assert f"{fit.name} {fit.loo_mape:.1%}" in choice.explanation[0]


def test_the_choice_is_deterministic():
    points = grid(lambda layers, batch: 2e6 * layers**1.4 * batch**0.6 + 12e6, noise=0.05, **TWO)
    first, second = choose(points), choose(points)
    assert first.explanation == second.explanation
    assert [fit.coefficients for fit in first.fits] == [fit.coefficients for fit in second.fits]


@pytest.mark.parametrize(
    "points, names",
    [
        pytest.param(
            line(lambda batch: 1e6 * batch, (2, 4, 8)), ["affine", "physical", "generic product"], id="three sizes"
        ),
        pytest.param(
            line(lambda batch: 1e6 * batch, (2, 4, 8, 16)), ["affine", "physical", "generic product"], id="four sizes"
        ),
        pytest.param(line(lambda batch: 1e6 + batch, (0, 4, 8, 16)), ["affine", "physical"], id="a size of zero"),
        pytest.param(
            grid(lambda layers, batch: 1e6 * layers * batch, **TWO),
            ["physical", "generic product", "generic additive"],
            id="both kinds",
        ),
        pytest.param(
            grid(lambda layers, batch: 1e6 * layers * batch, **{**TWO, "extrinsic": [], "intrinsic": None}),
            ["physical", "generic product"],
            id="intrinsic alone",
        ),
    ],
)
def test_candidates(points, names):
    assert [form.name for form in candidates(points)] == names


def test_three_sizes_on_a_line_are_a_line_and_others_a_power():
    """Two sizes tell no form from another, so that errors of what is left out of three decide nothing."""
    assert choose(line(lambda batch: 1e6 + 2e5 * batch, (2, 4, 8))).chosen.name == "affine"
    square = choose(line(lambda batch: 1e6 + 1e5 * batch**2, (2, 4, 8)))
    assert square.chosen.name == "generic product"
    assert square.predict({"batch": 16.0}).ns == pytest.approx(1e6 + 1e5 * 256, rel=0.1)


def test_of_several_factors_the_least_error_wins_and_not_the_fewest_coefficients():
    """A product of fewer coefficients is as good by chance, and is none of the sum's special cases."""
    points = grid(lambda layers, batch: 1e6 * layers * batch + 2e6 * layers**2, noise=0.1, seed=2, **TWO)
    choice = choose(points)
    physical, product, _ = choice.fits
    assert (physical.name, product.name) == ("physical", "generic product")
    assert product.loo_mape < physical.loo_mape + 0.015
    assert len(product.coefficients) < len(physical.coefficients)
    assert choice.chosen is physical


def test_along_one_axis_a_line_wins_that_is_as_good_as_a_sum():
    choices = [choose(line(lambda batch: 12e6 + 1e6 * batch, SIZES, noise=0.03, seed=seed)) for seed in range(12)]
    assert any(choice.chosen is not choice.fits[0] for choice in choices)
    assert sum(choice.chosen.name == "affine" for choice in choices) >= 9


def test_importance_in_words():
    # The range's middle is sqrt(2 * 32) = 8, and 8 is doubled about itself.
    points = line(lambda batch: 12e6 + 1e6 * batch, (2, 4, 16, 32))
    fit = evaluate(AFFINE, points)
    middle = 8.0
    ratio = (12 + middle * 2**0.5) / (12 + middle / 2**0.5)
    assert doublings(fit, points) == pytest.approx({"batch": ratio})
    assert importance(fit, points) == (f"doubling batch: {ratio:.2f}x the time", "12.00 ms do not depend on size")


def test_what_shortens_the_time_takes_less_and_the_important_comes_first():
    formula = lambda flops, workers: 1e-2 * flops / workers + 8e-3 * flops * (1 - 1 / workers)  # noqa: E731
    points = grid(formula, **AMDAHL)
    said = importance(evaluate(PHYSICAL, points), points)
    assert said[0] == "doubling flops: 2.00x the time"
    assert said[1].startswith("doubling workers: 0.9")
    assert len(said) == 2  # nothing is constant


def test_replicates_spread_is_said():
    points = line(lambda batch: 12e6 + 1e6 * batch, SIZES, noise=0.02, repeats=3)
    assert choose(points).explanation[-1] == f"repeated measurements differ by {points.replicate_spread():.1%}"
    assert choose(line(lambda batch: 1e6 * batch, SIZES)).explanation[-1] == "no configuration was measured twice"


def noisy():
    return line(lambda batch: 12e6 + 1e6 * batch, (4, 8, 16, 32), noise=0.02)


def test_a_prediction_with_its_interval_by_hand():
    # x, t = (1, 1), (2, 2), (3, 4): replicas at 2 give 2 (without 1), 2.5 and 2; errors -1, 1/4, -1/4.
    points = Points.of([({"x": x}, ns) for x, ns in [(1, 1), (2, 2), (3, 4)]])
    fit = evaluate(AFFINE, points)
    found = predict(fit, points, {"x": 2})
    at = float(fit.curve.times({"x": np.array([2.0])})[0])
    variance = 2 / 3 * (2 * (1 / 6) ** 2 + (1 / 3) ** 2) + (1 + 1 / 16 + 1 / 16) / 3 * at**2
    assert found.ns == pytest.approx(at)
    assert found.high == pytest.approx(at + 12.7062 * variance**0.5, rel=1e-5)
    assert found.low == 0
    assert (found.stretch, found.warnings) == (1, ())


def test_most_new_configurations_lie_in_the_interval():
    inside = 0
    for seed in range(40):
        points = line(lambda batch: 12e6 + 1e6 * batch, SIZES, noise=0.03, seed=seed)
        found = predict(evaluate(AFFINE, points), points, {"batch": 40})
        inside += found.low <= 52e6 * (1 + 0.03 * np.random.default_rng(1000 + seed).standard_normal()) <= found.high
    assert inside >= 35


@pytest.mark.parametrize(
    "size, stretch",
    [
        pytest.param(4, 1, id="least"),
        pytest.param(32, 1, id="most"),
        pytest.param(48, 1.5, id="above"),
        pytest.param(64, 2, id="limit above"),
        pytest.param(2, 2, id="limit below"),
    ],
)
def test_up_to_twice_the_range_is_answered(size, stretch):
    found = choose(noisy()).predict({"batch": size})
    assert found.stretch == stretch
    assert bool(found.warnings) is (stretch > 1)


@pytest.mark.parametrize("size", [64.1, 1.9])
def test_beyond_twice_the_range_is_refused_unless_asked_for(size):
    choice = choose(noisy())
    with pytest.raises(ScalingError, match=f"batch {size:g} is outside the measured range 4 to 32 by more than 2x"):
        choice.predict({"batch": size})
    found = choice.predict({"batch": size}, extrapolate=True)
    assert found.low < found.ns < found.high
    assert found.warnings == (f"batch {size:g} is outside the measured range 4 to 32: extrapolated",)


def test_two_values_do_not_tell_how_what_is_beyond_them_bends():
    choice = choose(grid(lambda layers, batch: 1e6 * layers * batch, **{**TWO, "layers": (2, 4)}))
    beyond = choice.predict({"layers": 8, "batch": 4})
    warning = "extrapolated from only two values, so a curved relation cannot be detected"
    assert beyond.warnings == (f"layers 8 is outside the measured range 2 to 4: {warning}",)
    assert choice.predict({"layers": 4, "batch": 32}).warnings == (
        "batch 32 is outside the measured range 2 to 16: extrapolated",
    )
    assert choice.predict({"layers": 3, "batch": 4}).warnings == ()


def test_no_extrapolation_reaches_zero():
    with pytest.raises(ScalingError, match="by more than 2x"):
        choose(noisy()).predict({"batch": 0})
    with pytest.raises(
        ScalingError, match="batch 0 is outside the measured range 4 to 32: a prediction at 0 needs a measurement at 0"
    ):
        choose(noisy()).predict({"batch": 0}, extrapolate=True)


def test_a_time_beyond_all_numbers_is_refused():
    choice = choose(line(lambda batch: 1e6 * batch**2.5, SIZES))
    assert choice.chosen.name == "generic product"
    with pytest.raises(ScalingError, match="generic product predicts no finite time for these values of the factors"):
        choice.predict({"batch": 1e300}, extrapolate=True)


def test_intervals_widen_by_the_stretch():
    points = noisy()
    fit = evaluate(AFFINE, points)
    ns, low, high = (float(value[0]) for value in fit.interval({"batch": np.array([128.0])}))
    found = predict(fit, points, {"batch": 128}, extrapolate=True)
    assert found.stretch == 4
    assert found.high - found.ns == pytest.approx(4 * (high - ns))
    assert found.ns - found.low == pytest.approx(4 * (ns - low))


@pytest.mark.parametrize(
    "at, problem",
    [
        pytest.param({}, "the value of factor batch is missing", id="missing"),
        pytest.param({"batch": 8, "size": 1}, "there is no factor 'size'", id="unknown"),
        pytest.param({"batch": float("nan")}, "factor batch is nan", id="nan"),
        pytest.param({"batch": -8}, "factor batch is -8", id="negative"),
        pytest.param({"batch": 8, "layers": 4}, "layers was 3 in every measured point", id="another constant"),
    ],
)
def test_what_cannot_be_predicted(at, problem):
    points = Points.of([({"layers": 3, "batch": size}, 1e6 * size) for size in (4, 8, 16)])
    choice = choose(points)
    assert choice.predict({"batch": 8}).ns == pytest.approx(8e6)
    assert choice.predict({"batch": 8, "layers": 3}).ns == pytest.approx(8e6)
    with pytest.raises(ScalingError, match=problem):
        choice.predict(at)


@pytest.mark.parametrize(
    "sizes, problem",
    [((4,), "1 configuration measured, but at least 3"), ((4, 8), "2 configurations measured, but at least 3")],
    ids=["one", "two"],
)
def test_too_few_configurations_are_refused(sizes, problem):
    with pytest.raises(ScalingError, match=problem):
        choose(line(lambda batch: 1e6 * batch, sizes, repeats=5))


def test_no_model_at_all_is_refused():
    points = grid(lambda layers, batch: 1e6 * layers * batch, **TWO)
    with pytest.raises(ScalingError, match=r"no model can be fitted \(affine: exactly one factor must vary, not 2\)"):
        choose(points, (AFFINE,))


def test_constant_times_are_warned_of():
    choice = choose(line(lambda batch: 5e6, SIZES))
    assert choice.warnings == ("all measured times are equal, so no factor has an effect",)
    assert choice.predict({"batch": 10}).ns == pytest.approx(5e6)


def test_factors_that_vary_together_are_warned_of():
    points = Points.of([({"a": size, "b": size**2}, 1e6 * size) for size in (1.0, 2.0, 4.0, 8.0)])
    assert "a, b vary together, so the effect of each cannot be separated" in choose(points, (PHYSICAL,)).warnings


def test_a_factor_that_does_not_vary_is_warned_of():
    points = Points.of([({"layers": 3, "batch": size}, 1e6 * size) for size in (4, 8, 16)])
    assert choose(points).warnings == ("layers is 3 in every measured point, so its effect is unknown",)


def test_times_nine_decades_apart_are_warned_of():
    choice = choose(line(lambda batch: batch, (1, 1e3, 1e6, 1e9)))
    assert choice.warnings == ("times differ by a factor of 1e+09: few models fit such a wide range",)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("error")
def test_points_at_the_ends_of_what_is_allowed_overflow_nothing(seed):
    ends = np.random.default_rng(seed).choice([1e-18, 1.0, 1e18], size=(8, 3)).tolist()
    rows = [({"layers": layers, "batch": batch}, ns) for layers, batch, ns in ends]
    assert choose(Points.of(rows, extrinsic=["batch"])).fits
