"""Runs every command that is shown, in the state that the text describes: `make commands`.

Each document is a story of its own: its commands run in order in one folder. Then runs fail, and every command that
they show, on the terminal, in annotations, in summary.md and on the page, is run on a copy of what they left.
"""

import os
import re
import sys
import time
from pathlib import Path

import pytest
from commands import printed, states
from commands.shown import DOCUMENTS, ROOT, Shown, in_annotations, in_document, in_page, in_summary, in_terminal
from commands.states import NOT_RUN, must, shell

RAN = []
"""Every command line that was run, for the count at the end."""


def say(text):
    """Show how far it is: where stories run in several processes, only the error output reaches the terminal."""
    print(text, file=sys.stderr, flush=True)


class Story:
    """A document's commands as they are run: what goes wrong with one does not hide what is wrong with the next."""

    def __init__(self):
        self.wrong = []
        self.outputs = []

    def run(self, shown, folder, said="", **more):
        try:
            output = run(shown.text, folder, shown.exits, **more)
            assert said in output, f"{shown.text} did not say {said!r}:\n{output}"
            if shown.printed is not None:
                lines = printed.told(output, folder)
                renewed = printed.renewed(shown.printed, lines)
                writes = os.environ.get("PERFDL_OUTPUTS") == "write"
                if writes and not printed.leaves_out(shown.printed):
                    renewed = lines
                assert renewed is not None, f"{shown.place}: printed\n{output}"
                if writes:
                    self.outputs.append((shown, renewed))
        except AssertionError as error:
            say(f"         WRONG  {shown.place}: {str(error)[-2000:]}")
            self.wrong.append(f"{shown.place}: {error}")

    def end(self):
        # The last first: those before it keep their lines.
        for shown, lines in reversed(self.outputs):
            printed.write(shown, lines)
        assert not self.wrong, f"{len(self.wrong)} commands\n\n" + "\n\n".join(self.wrong)


COMMIT = "git add --all baselines && (git diff --cached --quiet || git commit -q -m baselines)"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    return states.recorded(tmp_path_factory.mktemp("recorded") / "project")


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A clone of this repository: what the examples' README speaks of."""
    folder = tmp_path_factory.mktemp("clone") / "project"
    must(f"git clone -q '{ROOT}' '{folder}'", ROOT)
    return folder


@pytest.fixture(scope="session", autouse=True)
def count():
    yield
    say(f"\n{len(RAN)} commands were run, {len(set(RAN))} of them different")


def run(command, folder, expected=(0,), **more):
    """Run a command as it is shown, and see that it does what is said of it."""
    RAN.append(command)
    started = time.monotonic()
    code, output = shell(command, folder, **more)
    wrong = "" if code in expected else f", expected {' or '.join(map(str, expected))}"
    say(f"{time.monotonic() - started:6.1f} s  exit {code}{wrong}  $ {command}")
    assert code in expected, f"exit {code}, expected {expected}: {command}\n{output}"
    assert "Traceback" not in output
    return output


def whole(shown):
    """Whether a command is run, rather than a mention or a form."""
    return shown.runs and shown.text not in NOT_RUN


def told(name):
    """A document's commands that are run, each once: in the state, and with the end, of where it stands first."""
    found = {}
    for each in in_document(name):
        if whole(each):
            found.setdefault(each.text, each)
    return list(found.values())


def place_of(shown, folder):
    """Where a command runs: those of our Makefile in this repository."""
    return ROOT if shown.text.startswith("make ") else folder


TUTORIALS = ("docs/tutorials/first-regression.md", "docs/tutorials/team.md", "docs/tutorials/gpu.md")
GENERAL = [name for name in DOCUMENTS if name not in ("README.md", "CHANGELOG.md", *TUTORIALS, "examples/README.md")]


def test_the_examples(project):
    """First, as it takes longest: a third of all."""
    quick = "--perf-repeats=2 --perf-steps=12 --perf-warmup=3 --perf-budget=20"
    # What is planted is beyond this by far (23 % at least), and few rounds exclude it.
    quick += " --perf-limit=step_time:10% --perf-limit=block_time:10% --perf-limit=per_kernel:off"
    story = Story()
    for shown in told("examples/README.md"):
        story.run(shown, project, PYTEST_ADDOPTS=quick)
        must(COMMIT, project)
    story.end()


@pytest.mark.parametrize("name", [name for name in GENERAL if told(name)])
def test_a_document(name, recorded, tmp_path):
    folder = states.copy_of(recorded, tmp_path / "project")
    story = Story()
    for number, shown in enumerate(told(name)):
        make = states.STATES.get(shown.state)
        story.run(shown, make(recorded, tmp_path / str(number)) if make else place_of(shown, folder))
    story.end()


def test_the_readme_from_nothing(recorded, tmp_path):
    folder = states.written(tmp_path / "project")
    story = Story()
    for number, shown in enumerate(told("README.md")):
        if make := states.STATES.get(shown.state):
            story.run(shown, make(recorded, tmp_path / str(number)))
        else:
            story.run(shown, place_of(shown, folder))
        if shown.text.startswith("pytest --perf-update"):
            must(COMMIT, folder)
    story.end()


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_from_nothing(name, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    must("git init -q -b main", folder)
    text = (ROOT / name).read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"(?s)```python\n(.*?)```", text) if "def test_" in block]
    path = re.search(r"`(tests/test_\w+\.py)`:", text)[1]
    (folder / "tests").mkdir()
    (folder / path).write_text(code, encoding="utf-8")
    diffs = [(text[: found.start()].count("\n") + 1, found[1]) for found in re.finditer(r"(?s)```diff\n(.*?)```", text)]
    story = Story()
    for shown in [each for each in in_document(name) if whole(each)]:
        while diffs and int(shown.place.rpartition(":")[2]) > diffs[0][0]:
            states.apply_diff(folder, path, diffs.pop(0)[1])
        if shown.state == "fixed":
            undone = states.copy_of(folder, tmp_path / "fixed")
            must("git checkout -q tests", undone)
            story.run(shown, undone)
        else:
            fails = shown.exits == (1,) and "pytest" in shown.text
            story.run(shown, folder, "PERF REGRESSED" if fails else "")
    story.end()
    assert not diffs


# Runs that fail, and what they show.


def shown_by(command, folder, root, expected=(1,)):
    """The commands that a failing run of a project shows, by where it shows them."""
    summary = folder / "step-summary.txt"
    summary.write_text("")
    output = run(command, folder, expected, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    report = root / "perf-report"
    return {
        "terminal": in_terminal(output),
        "annotations": in_annotations(output),
        "summary": in_summary(summary.read_text()),
        "page": in_page((report / "index.html").read_text()),
    }


CASES = {
    "a regression": ("pytest --perf", "."),
    "against a revision": ("pytest --perf-against origin/main -o perf_threads=1 --perf-limit=step_time:5%", "."),
    "in a folder below": ("pytest -q --perf test_speed.py", "tests"),
    "as a module, with options": ("python -m pytest --perf -k train -p no:cacheprovider --perf-threads 1", "."),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_failing_run_shows(case, recorded, tmp_path):
    command, where = CASES[case]
    failed = states.copy_of(recorded, tmp_path / "failed")
    states.make_slower(failed)
    found = shown_by(command, failed / where, failed)
    against = "--perf-against" in command

    for place, commands in found.items():
        assert [each for each in commands if "--perf-update" not in each], place
        assert bool([each for each in commands if "--perf-update" in each]) != against, place
    story = Story()
    for number, each in enumerate(dict.fromkeys(each for commands in found.values() for each in commands)):
        folder = states.copy_of(failed, tmp_path / f"copy-{number}") / where
        updates = "--perf-update" in each
        exits, said = ((0,), "1 baseline written") if updates else ((1,), "PERF REGRESSED")
        places = ", ".join(place for place, commands in found.items() if each in commands)
        story.run(Shown(each, places, exits), folder, said)
        if updates:
            story.run(Shown(command, "the run itself"), folder)
    story.end()


def test_what_a_run_without_baselines_shows(tmp_path):
    folder = states.written(tmp_path / "project", ini=states.QUICK)
    found = shown_by("pytest --perf", folder, folder)
    for commands in found.values():
        assert [each for each in commands if "--perf-update=new" in each]
    run(found["terminal"][0], folder)
    run("pytest --perf", folder)


def test_a_run_that_wrote_nothing_shows_how_to_accept_it_elsewhere(recorded, tmp_path):
    folder = states.copy_of(recorded, tmp_path / "project")
    states.make_slower(folder)
    run("pytest --perf", folder, (1,))
    before = {path: path.read_bytes() for path in Path(folder, "baselines").rglob("*.json")}
    output = run("perfdl accept perf-report/run.json", folder)
    assert {path: path.read_bytes() for path in before} != before
    for command in in_terminal(output):
        run(command, folder)
