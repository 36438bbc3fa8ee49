"""Non-negative least squares: which features there are, that they come back, and Amdahl's law among them."""

import numpy as np
import pytest

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.scaling.choose import evaluate
from pytest_perfdl.scaling.laws import Form
from pytest_perfdl.scaling.physical import PHYSICAL, Feature, Sum, features, nearest_sum
from unit.scaling.sizes import grid, line, values

WORKERS = (1, 2, 4, 8)


@pytest.mark.parametrize(
    "axes, names",
    [
        pytest.param({"batch": (1, 2)}, ["constant", "batch", "batch^2"], id="one axis"),
        pytest.param(
            {"batch": (1, 2), "layers": (1, 2)},
            [
                *("constant", "batch", "layers", "batch^2", "batch * layers", "layers^2"),
                *("batch^2 * layers", "batch * layers^2", "batch^2 * layers^2"),
            ],
            id="two axes",
        ),
        pytest.param(
            {"workers": WORKERS},
            ["constant", "1 / workers", "workers - 1", "workers * (workers - 1)"],
            id="processors alone",
        ),
        pytest.param(
            {"ops": (1, 2), "flops": (1, 2), "bytes": (1, 2), "layers": (1, 2)},
            ["constant", "ops", "flops", "bytes"],
            id="counted work",
        ),
        pytest.param(
            {"ops": (1, 2), "flops": (1, 2), "comm_bytes": (1, 2), "workers": WORKERS},
            [
                *("constant", "ops", "flops / workers", "flops * (1 - 1/workers)"),
                *("comm_bytes * (1 - 1/workers)", "workers - 1", "workers * (workers - 1)"),
            ],
            id="counted work on processors",
        ),
        pytest.param({"batch": (1, 2), "workers": (1,)}, ["constant", "batch", "batch^2"], id="always one processor"),
    ],
)
def test_features_by_name(axes, names):
    points = grid(lambda **factors: 1e6, intrinsic=list(axes), **axes)
    assert [feature.name for feature in features(points)] == names


def test_fewer_than_one_processor_is_refused():
    with pytest.raises(ScalingError, match="workers counts processors, but has values below 1: remove these points"):
        features(grid(lambda workers: 1e6, extrinsic=["workers"], workers=(0, 1, 2)))


@pytest.mark.parametrize(
    "feature, amounts",
    [
        pytest.param(Feature(), [1, 1], id="constant"),
        pytest.param(Feature((("x", 2), ("y", 1))), [12, 75], id="product of powers"),
        pytest.param(Feature((("x", 1),), "divided", "p"), [2, 1.25], id="divided"),
        pytest.param(Feature((("x", 1),), "undivided", "p"), [0, 3.75], id="undivided"),
        pytest.param(Feature((), "steps", "p"), [0, 3], id="steps"),
        pytest.param(Feature((), "pairs", "p"), [0, 12], id="pairs"),
    ],
)
def test_amounts(feature, amounts):
    columns = {name: np.array(column, dtype=float) for name, column in {"x": [2, 5], "y": [3, 3], "p": [1, 4]}.items()}
    assert feature.column(columns).tolist() == amounts


def test_coefficients_come_back_with_amdahls_serial_share():
    points = grid(
        lambda flops, workers: 2e6 + 1e-2 * flops / workers + 2e-3 * flops * (1 - 1 / workers) + 5e4 * (workers - 1),
        intrinsic=["flops"],
        extrinsic=["workers"],
        flops=(1e8, 3e8, 1e9, 3e9),
        workers=WORKERS,
    )
    fit = evaluate(PHYSICAL, points)
    assert values(fit) == pytest.approx(
        {
            "constant": 2e6,
            "per flops / workers": 1e-2,
            "per flops * (1 - 1/workers)": 2e-3,
            "per workers - 1": 5e4,
        },
        rel=1e-6,
    )
    assert fit.loo_mape < 1e-6


def test_processors_in_each_others_way_come_back():
    """The universal scalability law: beyond some number of processors the step is slower again."""
    points = grid(
        lambda flops, workers: 1e-2 * flops / workers + 1e6 * workers * (workers - 1),
        intrinsic=["flops"],
        extrinsic=["workers"],
        flops=(1e9, 2e9, 4e9),
        workers=(1, 2, 4, 8),
    )
    fit = evaluate(PHYSICAL, points)
    assert values(fit) == pytest.approx({"per flops / workers": 1e-2, "per workers * (workers - 1)": 1e6}, rel=1e-6)
    assert fit.loo_mape < 1e-6


def test_operations_flops_and_bytes_come_back():
    random = np.random.default_rng(0)
    sizes = {"ops": (100, 200, 400), "flops": tuple(random.uniform(1e8, 1e9, 3)), "bytes": (1e6, 2e7, 5e7)}
    points = grid(
        lambda **amount: 3000 * amount["ops"] + 1e-2 * amount["flops"] + 0.1 * amount["bytes"],
        intrinsic=list(sizes),
        **sizes,
    )
    assert values(evaluate(PHYSICAL, points)) == pytest.approx(
        {"per ops": 3000, "per flops": 1e-2, "per bytes": 0.1}, rel=1e-6
    )


def test_no_coefficient_is_negative():
    found = PHYSICAL.fit(line(lambda batch: 1e8 - 1e6 * batch, (2, 4, 8, 16)))
    assert min(found.coefficients) >= 0
    assert found.coefficients[1:] == (0, 0)


def test_intervals_hold_the_truth_and_are_as_wide_as_the_spread_over_seeds():
    truth, found = {"constant": 5e6, "per batch": 1e6}, []
    chosen = (Feature(), Feature((("batch", 1),)))
    form = Form("two features", Sum, lambda points: nearest_sum(chosen, points), PHYSICAL.refit)
    for seed in range(60):
        points = line(lambda batch: 5e6 + 1e6 * batch, range(1, 31), noise=0.05, seed=seed)
        found.append({each.name: each for each in evaluate(form, points).coefficients})
    for name, value in truth.items():
        assert sum(each[name].low <= value <= each[name].high for each in found) >= 54
        spread = np.std([each[name].value for each in found])
        half = np.mean([(each[name].high - each[name].low) / 2 for each in found])
        assert 0.75 < half / 2.048 / spread < 1.5  # 2.048: Student's 97.5 % quantile, 28 degrees of freedom
