"""How perf tests are split: every test in one shard, about equal work, the same on every machine."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.model.shard import MOST, Shard, parsed
from pytest_perfdl.run.selection import shard_of_each, split, together

GROUPS = st.dictionaries(
    st.text("abcdef[]:/", min_size=1, max_size=6), st.floats(0.01, 1e4), min_size=1, max_size=30
).flatmap(
    lambda seconds: st.tuples(
        st.just(seconds), st.lists(st.integers(0, 5), min_size=len(seconds), max_size=len(seconds))
    )
)


def grouped(names, numbers):
    groups = {}
    for name, number in zip(names, numbers, strict=True):
        groups.setdefault(number or name, []).append(name)
    return list(groups.values())


@given(GROUPS, st.integers(1, 8), st.randoms(use_true_random=False))
def test_a_split_is_a_balanced_partition_whatever_the_order(made, count, shuffler):
    seconds, numbers = made
    groups = grouped(seconds, numbers)
    found = split(groups, seconds, count)

    assert found.keys() == seconds.keys()
    assert set(found.values()) <= set(range(1, count + 1))
    assert all(len({found[name] for name in group}) == 1 for group in groups)
    loads = [sum(seconds[name] for name in found if found[name] == shard) for shard in range(1, count + 1)]
    longest = max(sum(seconds[name] for name in group) for group in groups)
    assert max(loads) - min(loads) <= longest * (1 + 1e-9)

    shuffler.shuffle(groups)
    again = [shuffler.sample(group, len(group)) for group in groups]
    assert split(again, seconds, count) == found


def test_the_longest_goes_to_the_least_loaded_shard_and_ties_are_broken_by_id():
    # By hand: 7 -> 1, 5 -> 2, 4 -> 2 (5 < 7), 3 -> 1 (7 < 9), 2 -> 2 (9 < 10).
    seconds = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0, "e": 7.0}
    assert split([[name] for name in seconds], seconds, 2) == {"e": 1, "d": 2, "c": 2, "b": 1, "a": 2}
    assert split([["b"], ["c"], ["a"]], dict.fromkeys("abc", 1.0), 2) == {"a": 1, "b": 2, "c": 1}


def test_rounding_breaks_no_tie():
    """0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1, so the order of the tests could decide."""
    seconds = {"a": 0.1, "b": 0.2, "c": 0.3, "0": 0.6}
    assert split([["a", "b", "c"], ["0"]], seconds, 2) == split([["c", "b", "a"], ["0"]], seconds, 2)


class Case:
    """A collected test, as far as the split looks at it."""

    def __init__(self, nodeid, path=None, *, scaling=None, **params):
        self.item = SimpleNamespace(nodeid=nodeid, path=path, callspec=SimpleNamespace(params=params))
        self.options = SimpleNamespace(scaling=scaling)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text("def test_x(perf): ...\n")
    return path


def names(groups):
    return sorted(sorted(test.item.nodeid for test in group) for group in groups)


def test_sizes_of_a_curve_stay_together(file):
    scaling = {"batch": [1, 2], "layers": [1, 2]}
    grid = [
        Case(f"t.py::test_grid[{batch}-{layers}-{kind}]", file, scaling=scaling, batch=batch, layers=layers, kind=kind)
        for batch in (1, 2)
        for layers in (1, 2)
        for kind in "xy"
    ]
    others = [Case(f"t.py::test_other[{seed}]", file, seed=seed) for seed in (1, 2)]
    random.Random(3).shuffle(grid)

    # A grid is connected: every size is on a curve over the batch, and on one over the layers.
    found = names(together([*grid, *others]))
    assert found == [
        sorted(test.item.nodeid for test in grid if test.item.nodeid.endswith("-x]")),
        sorted(test.item.nodeid for test in grid if test.item.nodeid.endswith("-y]")),
        ["t.py::test_other[1]"],
        ["t.py::test_other[2]"],
    ]


def test_a_file_that_asserts_scaling_may_hold_curves(file, tmp_path):
    asserting = tmp_path / "test_y.py"
    asserting.write_text("def test_y(perf, n): perf.assert_scaling('n', 'linear')\n")
    tests = [Case(f"{path.name}::test[{n}]", path, n=n) for path in (file, asserting) for n in (1, 2)]
    words = [Case(f"test_y.py::test_words[{word}]", asserting, word=word) for word in "ab"]
    assert names(together([*tests, *words])) == [
        ["test_x.py::test[1]"],
        ["test_x.py::test[2]"],
        ["test_y.py::test[1]", "test_y.py::test[2]"],
        ["test_y.py::test_words[a]"],
        ["test_y.py::test_words[b]"],
    ]


def test_a_test_without_an_expected_duration_takes_the_mean(file):
    tests = [Case(name, file) for name in "abcd"]
    # By hand: d takes (6 + 3 + 1.5) / 3 = 3.5 s; 6 -> 1, 3.5 -> 2, 3 -> 2, 1.5 -> 1.
    assert shard_of_each(tests, {"a": 6.0, "b": 3.0, "c": 1.5, "d": None}, 2) == {"a": 1, "d": 2, "b": 2, "c": 1}
    assert shard_of_each(tests, dict.fromkeys("abcd"), 4) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert shard_of_each([], {}, 3) == {}


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "2", "2/0", "-1/4", "a/b", "1/4/2", "", "1.0/2", "१/४", f"1/{MOST + 1}"]
)
def test_a_text_that_names_no_shard(text):
    with pytest.raises(ValueError):
        parsed(text)


def test_what_a_shard_requires_never_fails_a_run_that_compares_enough():
    # Whatever 7 of 47 tests are not compared, a shard of 12 has at least 5 that are.
    whole = Shard(1, 4, tests=47, require=40)
    assert (whole.required_here(12), whole.required_here(47), whole.required_here(7)) == (5, 40, 0)
