"""Checks whether a test would run exactly the code of its baseline, in the same environment."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_perfdl.baseline.code import installed, present
from pytest_perfdl.model.units import some

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_perfdl.model.record import MeasurementPlan, Record, Scalar


def difference(
    base: Record, top: Path, test: Path, *, test_hash: str, plan: MeasurementPlan, context: Mapping[str, Scalar]
) -> str:
    """What is, or may be, other than when a baseline was recorded, in words; empty where everything is the same.

    The files that the test loaded or read then decide which others it loads and reads now, but for `conftest.py` files,
    which pytest finds by itself.

    Parameters
    ----------
    base
        The baseline, under this machine's key.
    top, test
        Top of the repository, and the test's file.
    test_hash, plan, context
        Of the test and its process as they are now; how many steps are taken does not matter.
    """
    code = base.code
    if code is None:
        return "the baseline does not contain hashes of the recorded code"
    if not code.is_complete:
        ignored = f" ({some(code.ignored)})" if code.ignored else ""
        return f"the test used files without a hash in the baseline{ignored}"
    if base.test_hash != test_hash:
        return "the test changed"
    if (base.plan.threads, base.plan.seed) != (plan.threads, plan.seed):
        return "threads or seed changed"
    if changed := sorted(name for name in {*base.context, *context} if base.context.get(name) != context.get(name)):
        return f"the environment changed ({some(changed)})"
    if changed := [name for name, version in code.packages.items() if installed(name) != version]:
        return f"packages changed ({some(changed)})"
    now = present(top, code.files)
    if changed := [name for name, content in code.files.items() if now.get(name) != content]:
        return f"files changed ({some(changed)})"
    if not test.resolve().is_relative_to(top):
        return "the test's file is outside the repository"
    inside = PurePosixPath(test.resolve().relative_to(top).as_posix())
    conftests = [str(folder / "conftest.py") for folder in inside.parents]
    if added := [name for name in conftests if name not in code.files and (top / name).is_file()]:
        return f"files were added ({some(added)})"
    return ""
