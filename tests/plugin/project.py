"""A project with perf tests in a folder of its own, and pytest run on it as a user would."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import venv
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from plugin import warm as warm_processes

SHORT = ("--perf-steps=4", "--perf-warmup=2")
"""The least run shape: for tests to which the figures do not matter."""
NOT_JUDGED = (*SHORT, "--perf-fail-on=invalid")
"""For tests that have no baseline."""
_NOT_INHERITED = (
    *("BUILD_NUMBER", "CI", "COV_", "COVERAGE_", "GH_", "GIT_", "GITHUB_"),
    *("PERFDL_", "PYTEST_", "PYTHONDONTWRITEBYTECODE", "RUNNER_"),
)
_written = itertools.count(1_700_000_000)
"""Times of files: a module written again within a second and of equal size is taken for the compiled one."""


def surroundings(**more):
    """The environment of this process without what CI systems, git, pytest and coverage set, and with `more`.

    pytest, for one, prints longer lines in its summary where `CI` is set.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)} | more


@dataclass(frozen=True, slots=True)
class Finished:
    """A pytest run that has ended."""

    code: int
    output: str

    @property
    def lines(self):
        return self.output.splitlines()

    def line(self, part):
        """The one line that holds the text."""
        (found,) = [line for line in self.lines if part in line]
        return found

    def summary(self):
        """The last line, without its rule and its time."""
        return self.lines[-1].strip("= ").partition(" in ")[0]


@dataclass(frozen=True, slots=True)
class Case:
    """A test as the JUnit file tells it."""

    outcome: str
    """`passed`, or the name of the elements for what went wrong, joined by a space."""
    text: str
    """What they say."""
    properties: dict


class Running:
    """A pytest run under way."""

    def __init__(self, command, root, env, warm=None, log=None):
        self._log = log or root / f"output-{len(list(root.glob('output-*')))}.txt"
        with self._log.open("wb") as log:
            if warm is not None:
                self.process = warm_processes.run(warm, command, root, log.fileno(), env)
                return
            self.process = subprocess.Popen(
                command,
                cwd=root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Where these tests run in the background, they ignore it, and so would their children.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self):
        return self._log.read_text(errors="replace")

    def finish(self, timeout=300):
        """Wait for the end."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"not finished after {timeout} s:\n{self.output}") from None
        return Finished(code, self.output)


class Project:
    """A folder with a `pytest.ini` and whatever is written into it."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.ini(*options)

    def ini(self, *options):
        """Write it; the machine's limits are measured, and its devices locked, only where an option says so.

        Tests of this suite may run at the same time, and most do not depend on how long anything takes, nor on a
        verdict: on a busy machine one may take the whole of the default budget, as long as `finish` waits.
        """
        for default in ("perf_calibrate = off", "perf_device_lock = off", "perf_budget = 60"):
            name = default.partition(" ")[0]
            if not any(option.startswith(name) for option in options):
                options = (default, *options)
        (self.root / "pytest.ini").write_text("\n".join(["[pytest]", *options]) + "\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        os.utime(path, times=(now := next(_written), now))
        return path

    def copy(self, folder):
        shutil.copytree(folder, self.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    def start(self, *args, plugins=(), autoload=False, python=sys.executable, warm=None, **env):
        """Start pytest; of all plugins only this one and those named are loaded, unless `autoload`.

        It is forked from a process that has imported torch if `warm` is given.
        """
        settings = {"COLUMNS": "120", "NO_COLOR": "1"}
        if not autoload:
            settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        named = [] if autoload else [f"-p{name}" for name in ("perfdl", *plugins)]
        command = [str(python), "-m", "pytest", *named, *map(str, args)]
        return Running(command, self.root, surroundings(**settings | env), warm)

    def command(self, *args, python=sys.executable, timeout=300):
        """Run `perfdl` to its end."""
        env = surroundings(COLUMNS="120", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        return Running([str(python), "-m", "pytest_perfdl.cli", *map(str, args)], self.root, env).finish(timeout)

    def run(self, *args, timeout=300, cold=False, **options):
        """Run pytest to its end; see `start`.

        It is forked unless `cold`, or what it gets decides how an interpreter, pytest or torch start.
        """
        started = [
            name for name in options if name in ("autoload", "python") or name.startswith(warm_processes.READ_AT_START)
        ]
        forks = not cold and started in ([], ["PYTHONPATH"])
        return self.start(*args, warm=warm_processes.warm(self.root) if forks else None, **options).finish(timeout)

    def baselines(self):
        """Every file below the baseline folder by its path from there."""
        base = self.root / "baselines"
        return {path.relative_to(base).as_posix(): path.read_bytes() for path in base.rglob("*") if path.is_file()}

    def baseline(self, test):
        """Path of the record of a test, by the name of its file without `.json`."""
        (found,) = (self.root / "baselines").rglob(f"{test}.json")
        return found

    def cases(self, name="junit.xml"):
        """The tests of a JUnit file by their names."""
        return {case.get("name"): _case(case) for case in ElementTree.parse(self.root / name).iter("testcase")}

    def note(self, name, within=120):
        """The words of a file that a test of this project writes while it runs."""
        path = self.root / name
        return until(lambda: path.is_file() and path.read_text().endswith("\n") and path.read_text().split(), within)


def git(root, *arguments):
    """Run git in a folder; what it says."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def make_repository(root):
    """Put a folder under git, with an author of its own."""
    git(root, "init", "--quiet", "-b", "main")
    git(root, "config", "user.email", "author@example.org")
    git(root, "config", "user.name", "Author")


def commit(project, message):
    """Commit all of a project; the commit's hash."""
    git(project.root, "add", "--all")
    git(project.root, "commit", "--quiet", "-m", message)
    return git(project.root, "rev-parse", "HEAD")


def environment(path, *, bare=False, **distributions):
    """The interpreter of a new virtual environment with these distributions.

    It also sees everything that is installed here, unless `bare`. A distribution is given by its version and the source
    of its only module.
    """
    venv.create(path, symlinks=True)
    (packages,) = path.glob("lib/python*/site-packages")
    if not bare:
        (packages / "all.pth").write_text("".join(f"{entry}\n" for entry in sys.path if entry and "zip" not in entry))
    for name, (version, source) in distributions.items():
        install(packages, name, version, source)
    return path / "bin" / "python"


def install(packages, name, version, source, requires=()):
    """Put a distribution of one module into a folder, as pip does."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    texts = {f"{name}.py": source, f"{info}/METADATA": metadata}
    (packages / info).mkdir()
    for file, text in texts.items():
        (packages / file).write_text(text)
    digests = {file: hashlib.sha256(text.encode()).hexdigest() for file, text in texts.items()}
    record = [f"{file},sha256={digest},{len(texts[file])}" for file, digest in digests.items()]
    (packages / info / "RECORD").write_text("\n".join([*record, f"{info}/RECORD,,", ""]))


def until(question, within=60):
    """Ask until the answer is not false; the bound is for a machine that is busy with other things."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        answer = question()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"still waiting after {within} s")


def alive(pid):
    """Whether a process runs; one that has ended and is not waited for does not."""
    try:
        os.kill(int(pid), 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").is_dir()


def _case(case):
    wrong = [part for part in case if part.tag in ("failure", "error", "skipped")]
    return Case(
        outcome=" ".join(part.tag for part in wrong) or "passed",
        text="\n".join(f"{part.get('message', '')}\n{part.text or ''}" for part in wrong),
        properties={part.get("name"): part.get("value") for part in case.iter("property")},
    )
