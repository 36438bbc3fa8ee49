"""What a test's marker says of its rounds, and how it stands to the command line."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.config.marker import MarkerOptions


def merged(**keywords):
    return MarkerOptions.merge([pytest.mark.perf(**keywords).mark])


@pytest.mark.parametrize("said, share", [("6%", 0.06), (" 4.5% ", 0.045), ("100%", 1.0), (None, None)])
@pytest.mark.parametrize("elsewhere", [None, 0.10])
def test_the_resolution_is_the_markers_where_it_has_one(said, share, elsewhere):
    options = merged() if said is None else merged(resolution=said)
    found = options.resolution_for(SimpleNamespace(resolution=elsewhere))
    assert found == (elsewhere if share is None else pytest.approx(share))


@pytest.mark.parametrize("bad", ["0%", "-3%", "much", "nan%", "inf%", "", 6, 0.06])
def test_a_resolution_that_is_none_is_refused_in_one_line(bad):
    with pytest.raises(ValueError, match=r"^resolution= must be a percentage above 0 such as '6%', got ") as error:
        merged(resolution=bad)
    assert "\n" not in str(error.value)


def test_the_period_is_part_of_the_plan():
    settings = SimpleNamespace(warmup=None, steps=None, threads=None, ini_shape={})
    assert [merged(**keywords).plan(settings).period for keywords in ({}, {"period": 1}, {"period": 100})] == [
        1,
        1,
        100,
    ]
    for bad in (0, -1, 2.5, True, "100"):
        with pytest.raises(ValueError, match=r"^period= must be an integer of at least 1, got "):
            merged(period=bad)
