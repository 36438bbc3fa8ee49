"""Evidence for a change: a name's sum, its certain places, those of another shape; and the likeliest cause."""

import numpy as np
import pytest

from pytest_perfdl.diff import causes, diff, likeliest
from pytest_perfdl.diff.side import Side
from pytest_perfdl.judge.blame import find_causes
from pytest_perfdl.model.step_part import Part

BLOCKS = 8
OPERATORS = {"mm": 100_000, "gelu": 20_000}
REST = 3_000_000


def side(rounds=10, seed=0, *, more=None, shapes=None, spread=0.1, hit=None, rest_spread=0.001):
    """A step of `BLOCKS` blocks with each operator and a rest of Python; `more` maps (operator, block) to factors."""
    rng = np.random.default_rng(seed)
    places = [(name, block) for name in OPERATORS for block in range(BLOCKS)]
    parts = [
        Part("operator", name, module=f"Net.{block}", shapes=(shapes or {}).get((name, block), "[8, 8]"))
        for name, block in places
    ]
    ns = np.array([OPERATORS[name] * (more or {}).get((name, block), 1.0) for name, block in places])
    ns = ns[:, None] * rng.normal(1, spread, (len(places), rounds))
    rest = REST * (more or {}).get("rest", 1.0) * rng.normal(1, rest_spread, (1, rounds))
    for column, extra in (hit or {}).items():
        rest[0, column] += extra
    ns = np.vstack((ns, rest))
    count = np.ones((len(parts) + 1, rounds))
    count[-1] = 0
    python = Part("idle", "Python and host")
    classes = (*["forward"] * len(parts), "Python and host")
    return Side("runs", "run", (*parts, python), classes, ns.sum(axis=0), ns, ns * (count > 0), count)


def changes_of(found, name):
    return [change for change in found.changes if (change.new_parts or change.base_parts)[0].name == name]


def test_what_is_small_in_each_of_many_places_is_certain_in_the_sum():
    everywhere = {("gelu", block): 1.12 for block in range(BLOCKS)}
    found = diff(side(seed=1), side(seed=2, more=everywhere), paired=True)
    assert sum(change.certain for change in changes_of(found, "gelu")) <= 1
    (cause,) = causes(found)
    assert (cause.name, cause.module, cause.certain) == ("gelu", "Net", True)
    assert cause.own_ns == pytest.approx(0.12 * 20_000 * BLOCKS, rel=0.4)
    low, high = found.intervals["operator", "gelu", "changed"]
    assert 0 < low < cause.own_ns < high


def test_a_name_whose_sum_is_noise_is_its_certain_places_only():
    one = {("mm", 3): 3.0}
    noisy = [side(seed=seed, more=more, spread=0.4) for seed, more in ((3, None), (4, one))]
    for each, spread in zip(noisy, (0.02, 0.02), strict=True):
        row = each.parts.index(Part("operator", "mm", module="Net.3", shapes="[8, 8]"))
        each.ns[row] = each.ns[row].mean() * (1 + spread * np.linspace(-1, 1, 10))
    found = diff(*noisy, paired=True)
    low, high = found.intervals["operator", "mm", "changed"]
    assert low <= 0 <= high
    (cause,) = [each for each in causes(found) if each.name == "mm"]
    assert (cause.module, cause.base.count) == ("Net.3", 1)
    (whole,) = [each for each in causes(found, everything=True) if each.name == "mm"]
    assert whole.base.count == BLOCKS


def test_other_shapes_are_other_work_and_say_where():
    """Too small a change to be certain, among neighbors that vary more: the shapes tell it all the same."""
    found = diff(
        side(seed=5, spread=0.3),
        side(seed=6, spread=0.3, more={("mm", 5): 1.4}, shapes={("mm", 5): "[8, 10]"}),
        paired=True,
    )
    assert not any(change.certain for change in changes_of(found, "mm"))
    (cause,) = [each for each in causes(found) if each.name == "mm"]
    assert (cause.module, cause.certain) == ("Net.5", True)


def test_the_intervals_hold_together_on_unchanged_code():
    """Of 200 comparisons of a side with itself at most 5 % have any interval without zero: 17 is 97.5 % of that."""
    wrong = 0
    for seed in range(200):
        found = diff(side(seed=2 * seed), side(seed=2 * seed + 1), paired=True)
        wrong += any(change.certain for change in found.changes) or any(
            not low <= 0 <= high for low, high in found.intervals.values()
        )
    assert wrong <= 17


def test_the_likeliest_cause_where_one_round_was_hit():
    """The step is surely slower; one interrupted round leaves nothing certain in the profile."""
    base = side(seed=7, spread=0.01, hit={2: 4_000_000})
    new = side(seed=8, spread=0.01, more={"rest": 1.05})
    found = diff(base, new, paired=True)
    assert causes(found) == ()
    assert found.delta_ns < 0
    cause = likeliest(found, 0.05 * REST)
    assert cause is not None
    assert (cause.name, cause.certain) == ("Python and host", False)
    (told,) = find_causes({"": found}, {"": 0.03})
    assert (told.name, told.certain, told.share) == ("Python and host", False, None)
    assert find_causes({"": found}) == ()


@pytest.mark.parametrize("change", [2_000_000.0, -150_000.0], ids=["too small a part", "the other way"])
def test_no_likeliest_cause(change):
    found = diff(side(seed=7, spread=0.01), side(seed=8, spread=0.01, more={"rest": 1.05}), paired=True)
    assert likeliest(found, change) is None


def test_no_likeliest_cause_of_few_or_of_unequal_columns():
    short = diff(side(4), side(4, seed=1, more={"rest": 1.05}), paired=True)
    assert likeliest(short, 150_000) is None
    assert likeliest(diff(side(10), side(9, seed=1, more={"rest": 1.05})), 150_000) is None


@pytest.mark.parametrize(
    "operators, first",
    [(30_000, "mm"), (90_000, "mm"), (8_000, "Python and host")],
    ids=["half of it", "most", "little"],
)
def test_python_between_more_operators_follows_from_them(operators, first):
    """A module gains 50 us of Python; its operators, of which there are more now, gain so much."""

    def made(calls, ns, python, seed):
        rng = np.random.default_rng(seed)
        parts = (
            Part("operator", "mm", module="Net.0.linear"),
            Part("idle", "Python and host", module="Net.0"),
            Part("idle", "Python and host"),
        )
        times = np.array([ns, python, REST])[:, None] * rng.normal(1, 0.001, (3, 10))
        count = np.array([[calls] * 10, [0] * 10, [0] * 10], dtype=float)
        return Side("runs", "run", parts, ("forward", "Python", "Python"), times.sum(axis=0), times, times, count)

    found = diff(made(1, 100_000, 50_000, 1), made(8, 100_000 + operators, 100_000, 2), paired=True)
    told = find_causes({"": found}, {"": 0.02})
    assert {cause.name for cause in told} == {"mm", "Python and host"}
    assert told[0].name == first


def test_places_that_go_the_same_way_in_all_rounds_but_one_count_with_the_certain_one():
    """Slower in all blocks, and one round of all but one was hit: its module alone would be the wrong place."""
    slower = {("gelu", block): 1.3 for block in range(BLOCKS)}
    base, new = side(seed=11, spread=0.01), side(seed=12, more=slower, spread=0.01)
    hit = [base.parts.index(Part("operator", "gelu", module=f"Net.{block}", shapes="[8, 8]")) for block in range(1, 8)]
    base.ns[hit, 4] += 400_000
    base.step_ns[4] += 400_000 * len(hit)
    found = diff(base, new, paired=True)
    assert [change.new_parts[0].module for change in changes_of(found, "gelu") if change.certain] == ["Net.0"]
    (cause,) = [each for each in causes(found) if each.name == "gelu"]
    assert (cause.base.count, cause.module) == (BLOCKS, "Net")


@pytest.mark.parametrize(
    "timed, order, told",
    [(None, ["mm", "gelu"], False), ({"": 0.05}, ["mm", "gelu"], False), ({"": -0.05}, ["gelu", "mm"], True)],
    ids=["either way", "slower", "faster"],
)
def test_where_the_profiled_step_may_have_gone_either_way_the_largest_cause_is_first(timed, order, told):
    """Python varies by more than both changes together; only the timed steps can say which way the step went."""
    more = {("gelu", block): 0.5 for block in range(BLOCKS)} | {("mm", block): 1.3 for block in range(BLOCKS)}
    base = side(seed=21, spread=0.01, rest_spread=0.4, more={"rest": 1.2})
    new = side(seed=22, spread=0.01, rest_spread=0.4, more=more)
    found = diff(base, new, paired=True)
    assert found.delta_ns < 0
    assert found.interval[1] > 0
    blame = find_causes({"": found}, timed)
    assert [cause.name for cause in blame] == order
    assert all((cause.share is not None) is told for cause in blame)
    if timed is None:
        leaning = find_causes({"": found}, leaning={"": -0.01})
        assert [cause.name for cause in leaning] == order[::-1]
        assert all(cause.share is None for cause in leaning)
