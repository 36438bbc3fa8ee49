"""Warnings, marks and report values that travel, and what becomes of those that cannot."""

import pickle
import sys
import types
import warnings
from enum import IntEnum
from pathlib import Path

import pytest

from pytest_perfdl.workers.channel import RecordedWarning, dump_marks, dump_warning, load_marks, load_warning, plain


class Noted(UserWarning):
    pass


class Bound(UserWarning):
    """Pickles, and cannot be made again from its arguments."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def recorded(message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(message, stacklevel=1)
    return caught[0]


def traveled(value):
    return pickle.loads(pickle.dumps(value))


def there_and_back(warning):
    return load_warning(traveled(dump_warning(warning, "test_it.py::test_step", None)))


@pytest.mark.parametrize("message", [UserWarning("plain"), DeprecationWarning("builtin"), Noted("of a project", 2)])
def test_a_warning_arrives_as_it_was(message):
    warning = recorded(message)
    again = there_and_back(warning)

    assert type(again.message) is type(message)
    assert again.message.args == message.args
    assert again.category is warning.category
    assert (again.filename, again.lineno, again.line) == (warning.filename, warning.lineno, warning.line)


def test_a_warning_that_cannot_be_pickled_keeps_its_name_and_text():
    local = type("Local", (UserWarning,), {})
    for message, text in ((local("from a function"), "from a function"), (Bound("this", "that"), "this and that")):
        again = there_and_back(recorded(message))

        assert again.category.__name__ == type(message).__name__
        assert issubclass(again.category, Warning)
        assert str(again.message) == text


def test_a_warning_of_a_module_that_is_not_loaded_does_not_load_it(monkeypatch):
    module = types.ModuleType("heavy_library")
    module.HeavyWarning = type("HeavyWarning", (UserWarning,), {"__module__": "heavy_library"})
    monkeypatch.setitem(sys.modules, "heavy_library", module)
    message = dump_warning(recorded(module.HeavyWarning("too much")), "", None)
    assert b"heavy_library" in message.warning
    monkeypatch.delitem(sys.modules, "heavy_library")
    again = load_warning(message)

    assert (again.category.__name__, str(again.message)) == ("HeavyWarning", "too much")
    assert "heavy_library" not in sys.modules


def test_a_damaged_warning_keeps_its_text():
    message = RecordedWarning(b"no pickle", "text", "Category", "file.py", 3, None, "", None)

    assert str(load_warning(message).message) == "text"


def marks(*decorators):
    return load_marks(traveled(dump_marks([decorator.mark for decorator in decorators])))


def test_a_mark_arrives_as_it_was():
    (mark,) = marks(pytest.mark.xfail(True, reason="known", raises=(ValueError, KeyError), strict=True))

    assert mark.name == "xfail"
    assert mark.args == (True,)
    assert mark.kwargs == {"reason": "known", "raises": (ValueError, KeyError), "strict": True}


def test_a_mark_with_one_function_decorates_nothing():
    (mark,) = marks(pytest.mark.skipif.with_args(plain))

    assert isinstance(mark, pytest.MarkDecorator)
    assert mark.args == (plain,)


def test_what_of_a_mark_cannot_travel_becomes_something_that_matches_nothing():
    local = type("Local", (Exception,), {})
    (mark,) = marks(pytest.mark.xfail(raises=local, reason="known"))

    assert mark.kwargs == {"raises": str(local), "reason": "known"}


def test_a_class_of_a_mark_that_is_not_loaded_is_stood_in_for(monkeypatch):
    module = types.ModuleType("heavy_library")
    module.HeavyError = type("HeavyError", (Exception,), {"__module__": "heavy_library"})
    monkeypatch.setitem(sys.modules, "heavy_library", module)
    dumped = dump_marks([pytest.mark.xfail(raises=module.HeavyError).mark])
    monkeypatch.delitem(sys.modules, "heavy_library")
    (mark,) = load_marks(dumped)

    raises = mark.kwargs["raises"]
    assert (raises.__module__, raises.__name__) == ("heavy_library", "HeavyError")
    assert not issubclass(pytest.fail.Exception, raises)


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, None),
        (True, True),
        (3, 3),
        (Level.HIGH, 3),
        (2.5, 2.5),
        ("text", "text"),
        (Path("a/b"), str(Path("a/b"))),
        ((1, [Path("c")]), (1, ["c"])),
        ({"key": Path("d"), 5: None}, {"key": "d", "5": None}),
        ({1}, "{1}"),
    ],
)
def test_values_of_reports_become_plain(value, expected):
    found = plain(value)

    assert found == expected
    assert type(found) is type(expected)
