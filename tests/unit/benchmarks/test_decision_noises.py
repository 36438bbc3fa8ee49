"""The noises that rules are tried on: what each is, and that lots make the sides of a round exchangeable."""

import math

import numpy as np
import pytest

from unit.benchmarks import recorded_runs  # noqa: F401 (makes the module below importable)

import noises  # isort: skip

SHAPE = (400, 50)


def drawn(name, seed=0, shape=SHAPE):
    return noises.NOISES[name](np.random.default_rng(seed), *shape)


@pytest.mark.parametrize("name", noises.NOISES)
def test_every_noise_is_that_of_its_seed_and_of_every_size(name):
    assert drawn(name).shape == (*SHAPE, 2)
    assert np.array_equal(drawn(name), drawn(name))
    assert not np.array_equal(drawn(name), drawn(name, 1))
    assert np.isfinite(drawn(name)).all()
    assert drawn(name, shape=(3, 0)).shape == (3, 0, 2)


@pytest.mark.parametrize("name", noises.NOISES)
def test_lots_make_the_sides_exchangeable(name):
    found, head_first = noises.rounds(noises.NOISES[name], np.random.default_rng(0), *SHAPE)
    assert found.shape == (*SHAPE, 2)
    count = head_first.size
    for positive in ((found[..., 0] > 0).sum(), head_first.sum()):
        assert abs(positive - count / 2) < 4 * math.sqrt(count) / 2


@pytest.mark.parametrize("name, spread", [("normal, 1.6 %", 0.016), ("normal, 3 %", 0.03), ("normal, 5 %", 0.05)])
def test_the_spread_is_that_of_a_difference(name, spread):
    effects = drawn(name)
    assert np.std(effects[..., 1] - effects[..., 0]) == pytest.approx(spread, rel=0.03)


def test_the_slow_modes():
    assert (drawn("50 % of processes +60 %") > math.log1p(0.3)).mean() == pytest.approx(0.5, abs=0.02)
    assert (drawn("15 % of processes +30 %") > math.log1p(0.15)).mean() == pytest.approx(0.15, abs=0.02)
    doubled = drawn("a neighbor doubles 1 process in 20") > math.log(1.5)
    assert doubled.any(axis=2).mean() == pytest.approx(0.1, abs=0.01)
    assert not doubled.all(axis=2).any(), "never both of a round"


def test_what_lasts_and_what_drifts():
    effects = drawn("AR(1) .8 of the difference, 3 %")
    states = effects[..., 1] - effects[..., 0]
    assert np.std(states) == pytest.approx(0.03, rel=0.05)
    assert np.corrcoef(states[:, :-1].ravel(), states[:, 1:].ravel())[0, 1] == pytest.approx(0.8, abs=0.02)
    walk = drawn("random walk, 2 % a process")
    assert np.std(walk[:, -1, 0]) == pytest.approx(0.02 * math.sqrt(99), rel=0.1)


def test_without_lots_a_fixed_order_looks_like_a_slowdown():
    noise = noises.NOISES["the second of a round 5 % slower"]
    found, head_first = noises.rounds(noise, np.random.default_rng(0), *SHAPE, lots=False)
    assert not head_first.any()
    assert found.mean() == pytest.approx(0.05, abs=0.001)
    found, _ = noises.rounds(noise, np.random.default_rng(0), *SHAPE, slowdown=0.1, metrics=1)
    assert found.mean() == pytest.approx(math.log(1.1), abs=0.002)
