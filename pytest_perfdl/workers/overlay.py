"""Copies files of the working tree into a checkout, to run the current tests on the other revision."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.system.files import replacing
from pytest_perfdl.workers.checkout import Checkout


def with_conftests(tests: Iterable[Path], top: Path) -> list[Path]:
    """Test files, and the conftest files on the way to them from a top folder on."""
    found: dict[Path, None] = {}
    for test in tests:
        # A test that was named through a link is below the top folder only once that is resolved.
        below = (folder for folder in test.parents if folder.resolve().is_relative_to(top.resolve()))
        way = list(below) or [test.parent]
        found |= dict.fromkeys(file for folder in way if (file := folder / "conftest.py").is_file())
        found[test] = None
    return list(found)


def overlay(checkout: Checkout, files: Iterable[Path]) -> None:
    """Put the working tree's files in place of the revision's; what lies outside is on both sides anyhow.

    Raises
    ------
    CheckoutError
        When a file's place is not within the checkout, as where a link leads out of it; nothing was written there.
    """
    for file in files:
        target = _resolved(Path(checkout.path(file)))
        if target == _resolved(file):
            continue
        if not target.is_relative_to(checkout.root.resolve()):
            raise CheckoutError(
                f"{file} cannot be replaced, because it is a link to {target} in the "
                "baseline commit, outside the checkout"
            )
        try:
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.open("rb") as given, replacing(target) as made:
                    shutil.copyfileobj(given, made)
                shutil.copystat(file, target)
            elif target.name == "conftest.py" and target.is_file():
                # The working tree has none: what it does there would be on one side only.
                with replacing(target):
                    pass
        except OSError as error:
            raise CheckoutError(f"cannot copy {file} to the baseline checkout: {error.strerror or error}") from error


def _resolved(file: Path) -> Path:
    """Where a file is; if it is a link itself, that link's place."""
    return file.parent.resolve() / file.name
