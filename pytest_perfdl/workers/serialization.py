"""pytest's objects as messages: warnings and marks are pickled, values in reports are plain data.

Reading a message must not import what the test imports: a warning class of torch would import torch into the
orchestrating process. Names in modules that are not imported there are read as placeholder classes of the same name.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from typing import Any

import pytest

from pytest_perfdl.workers.messages import RecordedWarning


def dump_warning(message: warnings.WarningMessage, nodeid: str, location: Any) -> RecordedWarning:
    """A recorded warning as a message."""
    category = message.category or type(message.message)
    return RecordedWarning(
        warning=_dumped({"message": message.message, "category": category}),
        text=str(message.message),
        category=category.__name__,
        filename=message.filename,
        lineno=message.lineno,
        line=message.line,
        nodeid=nodeid,
        location=location,
    )


def load_warning(recorded: RecordedWarning) -> warnings.WarningMessage:
    """The warning again; of a class that cannot be had here, one of the same name with the same text."""
    try:
        fields = _load(recorded.warning)
    except Exception:
        category = type(recorded.category, (UserWarning,), {})
        fields = {"message": category(recorded.text), "category": category}
    return warnings.WarningMessage(**fields, filename=recorded.filename, lineno=recorded.lineno, line=recorded.line)


def dump_marks(marks: list[pytest.Mark]) -> tuple[bytes, ...]:
    """Marks as bytes; what a mark carries that cannot be pickled (a local exception class) becomes text."""
    return tuple(
        _dumped(
            (
                mark.name,
                tuple(value if _dumped(value) else str(value) for value in mark.args),
                {name: value if _dumped(value) else str(value) for name, value in mark.kwargs.items()},
            )
        )
        for mark in marks
    )


def load_marks(dumped: tuple[bytes, ...]) -> list[pytest.MarkDecorator]:
    """The marks, ready for `item.add_marker`."""
    loaded = [_load(data, standing_in=True) for data in dumped]
    return [getattr(pytest.mark, name).with_args(*args, **kwargs) for name, args, kwargs in loaded]


def plain(value: object) -> object:
    """The value as numbers, text, lists and dicts of Python's own; everything else as text."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else [plain(part) for part in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def _dumped(value: object) -> bytes:
    """Pickled, or nothing where that does not work both ways."""
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        return b""
    return data


def _load(data: bytes, *, standing_in: bool = False) -> Any:
    return _Unpickler(io.BytesIO(data), standing_in).load()


class _Unpickler(pickle.Unpickler):
    """Finds classes in loaded modules only."""

    def __init__(self, data: io.BytesIO, standing_in: bool) -> None:
        super().__init__(data)
        self._standing_in = standing_in

    def find_class(self, module: str, name: str) -> Any:
        """The class, or an empty exception class of its name if that will do."""
        if module in sys.modules:
            return super().find_class(module, name)
        if self._standing_in:
            return type(name, (Exception,), {"__module__": module})
        raise pickle.UnpicklingError(f"{module} is not loaded")
