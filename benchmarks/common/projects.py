"""Scratch projects: git repositories that pytest measures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 3600.0
_AUTHOR = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@example.org", "-c", "commit.gpgsign=false")


class ProjectError(RuntimeError):
    """pytest did not measure, or git failed; the message holds what they said."""


def environment(*without: str) -> dict[str, str]:
    """This process's environment without the variables that begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository; what it printed.

    Raises
    ------
    ProjectError
    """
    command = ["git", *_AUTHOR, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment("GIT_"), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProjectError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def commit(folder: Path, message: str) -> None:
    """Commit everything there is, in a repository that is made where there is none.

    Raises
    ------
    ProjectError
    """
    if not (folder / ".git").exists():
        ignored = folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("__pycache__/\n.pytest_cache/\nperf-report/\n")
        git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)


def copy(template: Path, folder: Path, modules: str = "src") -> None:
    """Make a repository of a template, whose modules are in a folder of it.

    Raises
    ------
    ProjectError
    """
    shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {modules}\n")
    commit(folder, "The code")


def run_pytest(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run pytest in a project; the run file's tests.

    Raises
    ------
    ProjectError
        When it ended with anything but passed or failed tests, or wrote no run file.
    """
    with tempfile.TemporaryDirectory() as report:
        found = Path(report) / "run.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--perf-json={found}"]
        command += [f"--perf-report={report}", "--perf-traces=none", "--perf-github=off", *arguments]
        done = subprocess.run(
            command,
            cwd=folder,
            # Bytecode is kept: where pip compiled none, every worker process would compile torch again.
            env=environment("PYTEST_", "GITHUB_", "PYTHONDONTWRITEBYTECODE"),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        if done.returncode not in (0, 1) or not found.exists():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise ProjectError(f"{' '.join(command)}\nended with exit status {done.returncode}:\n{tail}")
        tests: list[dict[str, Any]] = json.loads(found.read_text())["tests"]
    return tests
