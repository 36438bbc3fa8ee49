"""The source of the blamed lines: which file and function they are, and what changed there."""

from __future__ import annotations

import os
import subprocess

import pytest

from pytest_perfdl.model.step_part import Part
from pytest_perfdl.results.verdict import SourceDiff
from pytest_perfdl.run.definitions import LINES, Touched, source_diffs, touched, uncalled_diffs
from pytest_perfdl.workers.checkout import Checkout

TRAIN = """\
import torch


def warm(model):
    return model


@torch.no_grad()
def step(model, batch):
    loss = model(batch)
    loss.backward()
    return loss


def last(model):
    scale = [x for x in model]
    return scale
"""


class Project:
    """A repository whose first commit is on the other side, in a folder beside it."""

    def __init__(self, folder):
        self.root, self.other = folder / "project", folder / "other"
        self.commit = ""

    def git(self, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false")
        done = subprocess.run(["git", *own, *arguments], cwd=self.root, env=clean, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def begin(self, **files):
        for name, text in files.items():
            for top in (self.root, self.other):
                self.write(name.replace("__", "/") + ".py", text, top)
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "before")
        self.commit = self.git("rev-parse", "HEAD")

    def write(self, name, text, top=None):
        path = (top or self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def change(self, *pairs, name="src/train.py"):
        path = self.root / name
        text = path.read_text()
        for before, after in pairs:
            assert text.count(before) == 1
            text = text.replace(before, after)
        path.write_text(text)

    def found(self, *lines):
        return source_diffs(lines, Checkout(self.root, self.other), self.commit)


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    made.begin(src__train=TRAIN, src__model=TRAIN, tests__model=TRAIN)
    return made


def test_what_changed_in_the_function(project):
    project.change(
        ("    loss.backward()\n", "    loss.backward()\n    print(loss)\n"), ("    return model\n", "    return 1\n")
    )
    assert project.found("", "train.py(8): step", "train.py(8): step") == (
        SourceDiff(
            "src/train.py",
            "step",
            "@@ -8,5 +8,6 @@\n @torch.no_grad()\n def step(model, batch):\n     loss = model(batch)\n"
            "     loss.backward()\n+    print(loss)\n     return loss",
            line=12,
        ),
    )


CHANGES = {
    "its first line": (("def step(model, batch):", "def step(model, batch, much=1):"), ["step"]),
    "its last line": (("    return loss\n", ""), ["step"]),
    "its decorator gone": (("@torch.no_grad()\n", ""), ["step"]),
    "its decorator": (("no_grad", "enable_grad"), ["step"]),
    "the line above it": (("    return model\n\n\n", "    return model\n\n"), []),
    "another function": (("    return model\n", "    return 1\n"), ["warm"]),
    "a comprehension": (("x for x in", "2 * x for x in"), ["last", "<listcomp>"]),
    "nothing": (("def warm", "def warm"), []),
}


@pytest.mark.parametrize("what", CHANGES)
def test_only_the_functions_that_changed(project, what):
    change, named = CHANGES[what]
    project.change(change)
    lines = ("train.py(4): warm", "src/train.py(8): step", "train.py(15): last", "train.py(16): <listcomp>")
    assert [each.function for each in project.found(*lines)] == named


def test_the_only_function_of_its_name_is_found_where_it_moved(project):
    project.change(("    loss.backward()\n", ""), ("import torch\n", "import torch\n\nMUCH = 1\n"))
    (found,) = project.found("train.py(8): step")
    # The lines that moved it are not its own.
    assert (found.function, "MUCH" in found.text, "-    loss.backward()" in found.text) == ("step", False, True)


@pytest.mark.parametrize(
    "line",
    [
        "model.py(8): step",
        "absent.py(8): step",
        "rain.py(8): step",
        "train.py(8): gone",
        "/elsewhere/src/train.py(8): step",
        "<string>(8): step",
        "train.py: step",
        "nn.Module: Net_0",
    ],
    ids=["two files", "no file", "half a name", "no function", "outside", "no source", "no line", "a module"],
)
def test_what_is_not_known_is_not_said(project, line):
    for name in ("src/train.py", "src/model.py", "tests/model.py"):
        project.change(("    loss.backward()\n", ""), name=name)
    assert project.found(line) == ()


def test_absolute_paths_and_folders_tell_files_apart(project):
    for name in ("src/model.py", "tests/model.py"):
        project.change(("    loss.backward()\n", ""), name=name)
    lines = (f"{project.root}/src/model.py(8): step", f"{project.other}/tests/model.py(8): step")
    assert [each.file for each in project.found(*lines)] == ["src/model.py", "tests/model.py"]
    assert [each.file for each in project.found("tests/model.py(8): step")] == ["tests/model.py"]


def test_what_both_sides_have_is_no_change(project):
    project.change(("    loss.backward()\n", ""), name="tests/model.py")
    assert project.found("tests/model.py(8): step")
    project.write("tests/model.py", (project.root / "tests/model.py").read_bytes(), project.other)
    assert project.found("tests/model.py(8): step") == ()


def test_a_function_at_the_top_of_a_file_that_is_new(project):
    project.write("src/new.py", "def f():\n    return 1\n")
    assert project.found("new.py(1): f") == (), "it is not tracked"
    project.git("add", "--all")
    (found,) = project.found("new.py(1): f")
    assert found.text == "@@ -0,0 +1,2 @@\n+def f():\n+    return 1"


def test_no_more_than_so_many_lines_and_functions(project):
    project.change(("    loss.backward()\n", "".join(f"    a{i} = {i}\n" for i in range(60))))
    (found,) = project.found("train.py(8): step")
    lines = found.text.split("\n")
    # A header, 3 lines before and 1 after, 60 and 1 that changed.
    assert (len(lines), lines[-1]) == (LINES, "... 27 more lines")
    text = "".join(f"def f{i}():\n    return {i}\n\n\n" for i in range(5))
    project.write("src/many.py", text)
    project.git("add", "--all")
    found = project.found(*(f"many.py({4 * i + 1}): f{i}" for i in range(5)))
    assert [each.function for each in found] == ["f0", "f1", "f2"]


@pytest.mark.parametrize(
    "text",
    [b"def step(:\n", b"def step():\n    return '\xe9\xff'\n", b"\0", b""],
    ids=["syntax", "bytes", "null", "empty"],
)
def test_text_that_is_no_python_says_nothing(project, text):
    project.write("src/train.py", text)
    assert project.found("train.py(1): step") == ()


def test_text_that_is_not_utf8_is_shown(project):
    project.write("src/train.py", b"# -*- coding: latin-1 -*-\ndef step():\n    return '\xe9'\n")
    (found,) = project.found("train.py(2): step")
    assert "+    return '\udce9'" in found.text


def test_odd_settings_and_names_of_files(project):
    for name, value in (("diff.noprefix", "true"), ("color.ui", "always"), ("diff.suppressBlankEmpty", "true")):
        project.git("config", name, value)
    project.write("src/a[1] b.py", "def f():\n    return 1\n")
    project.git("add", "--all")
    project.change(("    loss.backward()\n", ""))
    assert [each.file for each in project.found("a[1] b.py(1): f", "train.py(8): step")] == [
        "src/a[1] b.py",
        "src/train.py",
    ]


def test_the_module_itself(project):
    project.change(("import torch\n", "import torch\n\nMUCH = 1\n"))
    (found,) = project.found("train.py(1): <module>")
    assert found.text.startswith("@@ -1,5 +1,7 @@\n import torch\n \n+MUCH = 1\n+\n")


def test_without_git(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    assert source_diffs(["train.py(8): step"], Checkout(tmp_path, tmp_path / "other"), "HEAD") == ()


def places(project, files=("train.py",)):
    return {(each.name, each.owner) for each in touched(files, Checkout(project.root, project.other))}


def test_functions_are_touched_by_their_code_and_not_by_their_format(tmp_path):
    project = Project(tmp_path)
    project.begin(train=TRAIN)
    project.write(
        "train.py", "# a comment\n\n" + TRAIN.replace("    loss = model(batch)", "    loss  =  model( batch )")
    )
    assert places(project) == set()
    project.write("train.py", TRAIN.replace("loss = model(batch)", "loss = model(batch) * 2"))
    assert places(project) == {("step", "")}
    project.write("train.py", TRAIN + "\n\nclass Net:\n    def forward(self, x):\n        return x\n")
    assert places(project) == {("forward", "Net")}
    assert places(project, ["other.py", "data.bin"]) == set()


@pytest.mark.parametrize(
    ("part", "held"),
    [
        (Part("operator", "aten::mm", line="src/train.py(8): step"), True),
        (Part("operator", "aten::mm", line="train.py(8): step"), True),
        (Part("operator", "aten::mm", line="src/train.py(8): steps"), False),
        (Part("operator", "aten::mm", line="src/retrain.py(8): step"), False),
        (Part("operator", "aten::mm", module="Net_0.Block_1"), False),
        (Part("operator", "aten::mm"), False),
    ],
)
def test_a_part_runs_in_the_function_on_whose_lines_it_was_called(part, held):
    assert Touched("src/train.py", "step").holds(part) is held


def test_a_part_runs_in_the_modules_of_a_class():
    forward = Touched("src/train.py", "forward", "Block")
    assert forward.holds(Part("kernel", "gemm", module="Net_0.Block_1"))
    assert not forward.holds(Part("kernel", "gemm", module="Net_0.Blocks_1"))


UNCALLED = """
class Net:
    def __init__(self, width=64):
        # as wide as it was
        self.width = width

    def forward(self, x):
        return x * self.width
"""


def test_the_line_is_the_first_changed_one_of_code(project):
    project.change(("    loss.backward()\n", "    # twice\n\n    loss.backward()\n    loss.backward()\n"))
    (only,) = project.found("train.py(8): step")
    assert project.root.joinpath("src/train.py").read_text().splitlines()[only.line - 1] == "    loss.backward()"


def test_a_line_that_went_is_named_by_what_is_there_now(project):
    project.change(("    loss.backward()\n", ""))
    (only,) = project.found("train.py(8): step")
    assert project.root.joinpath("src/train.py").read_text().splitlines()[only.line - 1] == "    return loss"


def test_what_no_cause_comes_from_is_given_with_its_class(tmp_path):
    project = Project(tmp_path)
    project.begin(src__net=UNCALLED)
    project.change(("width=64", "width=512"), name="src/net.py")
    checkout = Checkout(project.root, project.other)
    (only,) = uncalled_diffs(touched(["src/net.py"], checkout), checkout, project.commit)
    assert (only.file, only.function, only.line, only.called) == ("src/net.py", "Net.__init__", 3, False)
    assert "+    def __init__(self, width=512):" in only.text
