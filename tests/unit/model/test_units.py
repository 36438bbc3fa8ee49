import pytest

from pytest_perfdl.model.units import format_percent, format_quantity, parse_quantity


@pytest.mark.parametrize(
    "text, unit, value",
    [
        ("45ms", "ns", 45_000_000),
        (" 1.5 us ", "ns", 1_500),
        (".5µs", "ns", 500),
        ("2min", "ns", 120e9),
        ("2GiB", "B", 2**31),
        ("2GB", "B", 2_000_000_000),
        ("3k", "1", 3_000),
        ("1.2Gflop", "flop", 1.2e9),
        ("1.2G", "flop", 1.2e9),
        ("-3", "1", -3),
        ("1e3", "1", 1_000),
        ("85%", "%", 85),
        ("85", "%", 85),
        ("12 tok/s", "tok/s", 12),
    ],
)
def test_quantities_are_read_in_base_units(text, unit, value):
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text, unit", [("45", "ns"), ("45mb", "B"), ("", "1"), ("ms", "ns"), ("4 5ms", "ns"),
                                        ("3%", "ns"), ("inf", "1"), ("nan", "1"), ("1e999", "1"), ("1,5ms", "ns"),
                                        ("0x10", "1"), ("3 apples", "tok/s")])  # fmt: skip
def test_what_is_no_quantity_is_refused_in_one_line(text, unit):
    with pytest.raises(ValueError) as error:
        parse_quantity(text, unit)
    assert repr(text.strip()) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value, unit, shown",
    [
        (0, "ns", "0 ns"),
        (999, "ns", "999 ns"),
        (1_000, "ns", "1.000 µs"),
        (999_999, "ns", "1.000 ms"),
        (41_234_567, "ns", "41.23 ms"),
        (-41_234_567, "ns", "-41.23 ms"),
        (1_023, "B", "1023 B"),
        (1_024, "B", "1.000 KiB"),
        (3 * 2**30, "B", "3.000 GiB"),
        (1_699, "1", "1699"),
        (12_345_678_901, "1", "12345678901"),
        (1_699.25, "1", "1699"),
        (2.5, "1", "2.500"),
        (1.5e9, "flop", "1.500 Gflop"),
        (123.4, "tok/s", "123.4 tok/s"),
    ],
)
def test_quantities_are_shown_with_four_digits_and_a_fitting_unit(value, unit, shown):
    assert format_quantity(value, unit) == shown


def test_a_difference_carries_its_sign():
    assert format_quantity(12, "1", signed=True) == "+12"
    assert format_quantity(0, "1", signed=True) == "0"
    assert format_quantity(-2_048, "B", signed=True) == "-2.000 KiB"


@pytest.mark.parametrize("ratio, shown", [(0.094, "+9.4%"), (-0.062, "-6.2%"), (0.9994, "+99.9%"), (1.0, "+100%"),
                                          (12.34, "+1234%"), (0, "+0.0%")])  # fmt: skip
def test_percentages(ratio, shown):
    assert format_percent(ratio) == shown


@pytest.mark.parametrize("unit, values", [("ns", [999.4, 9_999_499, 999_949_999]), ("B", [2**20 - 1]),
                                          ("flop", [999_999])])  # fmt: skip
def test_no_value_is_shown_as_a_thousand_of_a_unit_that_has_a_larger_one(unit, values):
    for value in values:
        number = format_quantity(value, unit).split()[0]
        assert len(number.replace(".", "")) <= 4, format_quantity(value, unit)
