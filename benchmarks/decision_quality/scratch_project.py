"""The project that trials run in: a git repository with a package, perf tests and committed baselines."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from common import projects

TEMPLATE = HERE / "scratch"
PLANT = Path("src/trial_package/plant.py")
TRIALS = "tests/test_speed.py"
"""The perf tests of trials; the others are those that rounds are recorded of."""
_STAMPS = itertools.count(int(time.time()) - 10**8)


class ScratchProject:
    """One such repository; a folder that holds one already is taken as it is."""

    recorded_tests: tuple[str, ...] = (TRIALS,)
    """Those that have baselines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / ".git").exists():
            projects.copy(TEMPLATE, folder)
        self.restore()

    def git(self, *arguments: str) -> str:
        """Run git in it."""
        return projects.git(self.folder, *arguments)

    def restore(self) -> None:
        """The code as it was committed."""
        self.git("checkout", "--quiet", "--", str(PLANT))
        self._age()

    def _age(self) -> None:
        """Give the planted file a time of its own: equal ones, and equal sizes, would pass for what was compiled."""
        stamp = next(_STAMPS)
        os.utime(self.folder / PLANT, (stamp, stamp))

    def plant(self, values: Mapping[str, float]) -> None:
        """Make the working tree slower than what is committed.

        Raises
        ------
        KeyError
            For a name that is not in the template.
        """
        text = (TEMPLATE / PLANT).read_text()
        for name, value in values.items():
            text, found = re.subn(rf"^( *){name} = .*$", rf"\g<1>{name} = {value!r}", text, flags=re.MULTILINE)
            if not found:
                raise KeyError(name)
        (self.folder / PLANT).write_text(text)
        self._age()

    @property
    def recorded(self) -> bool:
        """Whether it has baselines."""
        return any((self.folder / "baselines").rglob("*.json"))

    def record(self, repeats: int) -> None:
        """Write and commit baselines, or add repeats of this occasion to those that are there.

        Raises
        ------
        ProjectError
        """
        mode = "append" if self.recorded else "all"
        projects.run_pytest(self.folder, f"--perf-update={mode}", f"--perf-repeats={repeats}", *self.recorded_tests)
        projects.commit(self.folder, "Baselines" if mode == "all" else "Baselines of another occasion")


class ExamplesProject(ScratchProject):
    """This repository's examples, and README's test, in a repository of their own.

    `plant` takes "commit", which commits a change of whitespace in modules that the examples load, and "forward",
    which gives README's step so many forward passes more.
    """

    readme = "tests/test_speed.py::test_train_step"
    examples = (
        "examples/test_gpt.py::test_train_step",
        "examples/test_convnet.py::test_classify",
        "examples/test_dlrm.py::test_train_step",
        "examples/test_transformers.py::test_train_step",
        "examples/test_transformers.py::test_decode",
    )
    recorded_tests = (readme, *examples)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / ".git").exists():
            ignored = shutil.ignore_patterns("__pycache__", "baselines", "perf-report")
            shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
            (folder / "tests").mkdir()
            (folder / "tests" / "test_speed.py").write_text(_readmes_test())
            (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly\n")
            projects.commit(folder, "The code")

    def restore(self) -> None:
        """The code as it was committed last."""
        self.git("checkout", "--quiet", "--", ".")

    def plant(self, values: Mapping[str, float]) -> None:
        """Commit a change of whitespace, or make README's step slower.

        Raises
        ------
        KeyError
            For a name that is neither.
        """
        for name, value in values.items():
            if name == "commit":
                for path in sorted((self.folder / "examples" / "models").glob("*.py")):
                    path.write_text(path.read_text() + "\n")
                projects.commit(self.folder, "Whitespace")
            elif name == "forward":
                path = self.folder / "tests" / "test_speed.py"
                old, passes = "model(batch)", " + ".join(["model(batch)"] * (1 + int(value)))
                path.write_text(path.read_text().replace(old, f"({passes})", 1))
            else:
                raise KeyError(name)


def _readmes_test() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return next(block for block in re.findall(r"(?s)```python\n(.*?)```", text) if "def test_train_step" in block)
