"""Ids of cases, and the conditions that choose some of them."""

import pytest
import torch

from pytest_perfdl.model.cases import axes_of, id_of, parse_filter
from pytest_perfdl.model.errors import InputError


def work():
    """A function that an id names."""


@pytest.mark.parametrize(
    "value, word",
    [
        ("add", "add"),
        (4096, "4096"),
        (0.1, "0.1"),
        (1e-05, "1e-05"),
        (True, "True"),
        (None, "None"),
        ((64, 128), "64x128"),
        ([1, 2.5], "1x2.5"),
        (torch.float16, "float16"),
        (torch.device("cpu"), "cpu"),
        (work, "work"),
        (torch.add, "add"),
        (torch.nn.GELU, "GELU"),
    ],
)
def test_values_that_an_id_may_have(value, word):
    assert id_of({"axis": value}) == f"axis={word}"
    assert axes_of(f"axis={word}") == {"axis": word}


@pytest.mark.parametrize("value", [object(), "a,b", "a=b", "a\nb", "", {"a": 1}, lambda: None, "x>1", (object(),)])
def test_values_without_a_text_of_their_own_are_refused(value):
    with pytest.raises(InputError, match=r"axis=.* cannot stand in the id of a case"):
        id_of({"axis": value})


def test_an_id_keeps_the_order_of_its_axes():
    assert id_of({"op": "add", "dtype": torch.float16, "n": 1}) == "op=add,dtype=float16,n=1"
    assert axes_of("op=add,dtype=float16,n=1") == {"op": "add", "dtype": "float16", "n": "1"}


@pytest.mark.parametrize("case", ["plain", "a b", "a=1,plain", "a=1=2", ",", "=1"])
def test_other_ids_have_no_axes(case):
    assert axes_of(case) == {}


CASES = ["dtype=float16,n=64", "dtype=float16,n=4096", "dtype=float32,n=64", "other"]


@pytest.mark.parametrize(
    "text, chosen",
    [
        ("", [0, 1, 2, 3]),
        ("dtype=float16", [0, 1]),
        ("dtype!=float16", [2]),
        ("n>=4096", [1]),
        ("n<4096", [0, 2]),
        ("n>64", [1]),
        ("n<=64", [0, 2]),
        ("n=64.0", [0, 2]),
        ("dtype=float16, n>64", [1]),
        ("missing=1", []),
        ("missing!=1", []),
    ],
)
def test_conditions_choose_cases(text, chosen):
    assert [CASES.index(case) for case in filter(parse_filter(text).chooses, CASES)] == chosen


@pytest.mark.parametrize("text, said", [("dtype", "'dtype' is no condition"), ("n>many", "'many' is not a number")])
def test_a_wrong_condition_is_named(text, said):
    with pytest.raises(InputError, match=said):
        parse_filter(text)
