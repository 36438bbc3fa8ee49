"""Whose code a side ran, and where it is imported from: folders elsewhere are shared by both sides, and rightly so."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_perfdl.run.revisions import Revisions
from pytest_perfdl.workers.channel import Origins
from pytest_perfdl.workers.checkout import Checkout


def test_folders_of_the_repository_only(tmp_path):
    top, base = tmp_path / "repo", tmp_path / "base"
    (top / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(top)
    places = [tmp_path / "link/project/lib", tmp_path / "shared"]
    config = SimpleNamespace(rootpath=tmp_path / "link/project", getini=lambda _: places)
    revisions = SimpleNamespace(top=top, _config=config)
    project = top / "project"
    assert Revisions.import_folders(revisions, None) == [top, project, top / "src", project / "src", project / "lib"]
    moved = Revisions.import_folders(revisions, Checkout(top, base))
    assert moved == [base, base / "project", base / "src", base / "project/src", base / "project/lib"]


def test_without_pytests_plugin_for_import_paths(tmp_path):
    def getini(name):
        raise ValueError(name)

    revisions = SimpleNamespace(top=tmp_path, _config=SimpleNamespace(rootpath=tmp_path, getini=getini))
    assert Revisions.import_folders(revisions, None) == [tmp_path, tmp_path / "src"]


@pytest.mark.parametrize(
    "seconds, note",
    [([0.2, 0.3], ""), ([4.0, 2.0], "baseline commits: 1 checked out, 1 reused from earlier runs, in 6.0 s")],
)
def test_long_checkouts_are_noted(seconds, note):
    made = {
        str(kept): SimpleNamespace(is_kept=kept, seconds=each)
        for kept, each in zip((False, True), seconds, strict=True)
    }
    assert Revisions.checked_out.fget(SimpleNamespace(_checkouts=made)) == note


def git(root, *arguments):
    who = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
    return subprocess.run(
        ["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


class Sides:
    """A repository whose first commit is checked out beside it, and what processes of the two sides report."""

    def __init__(self, folder, files, *, head=(), ignored=""):
        self.top, self.site = folder / "repo", folder / "site-packages"
        self.top.mkdir(parents=True)
        git(self.top, "init", "--quiet")
        self.write(self.top, {**dict(files), ".gitignore": ignored})
        git(self.top, "add", "--all")
        git(self.top, "commit", "--quiet", "-m", "base")
        git(self.top, "worktree", "add", "--quiet", "--detach", str(folder / "base"))
        self.write(self.top, dict(head))
        settings = SimpleNamespace(compares_sides=True, against="HEAD", report="perf-report")
        config = SimpleNamespace(rootpath=self.top, getini=lambda _: [])
        self.revisions = Revisions(config, settings, SimpleNamespace(folder="baselines", base=self.top), [])
        self.checkout = Checkout(self.top, folder / "base")

    @staticmethod
    def write(folder, files):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def loaded(self, **rest):
        return Origins((), (), "", prefix=sys.prefix, **rest)

    def mistaken(self, **rest):
        """What is said of both sides if they report the same."""
        found = self.loaded(**rest)
        base = self.revisions.mistaken(found, self.checkout)
        head = self.revisions.mistaken(found, None, self.checkout)
        assert bool(base) == bool(head)
        return base


DEEP = {
    "package": ("python/demo/__init__.py", "demo", "demo/__init__.py"),
    "deeper package": ("libs/x/src/demo/__init__.py", "demo", "demo/__init__.py"),
    "namespace package": ("python/demo/ops/core.py", "demo.ops.core", "demo/ops/core.py"),
    "module": ("scripts/demo.py", "demo", "demo.py"),
    "on the import path": ("src/demo/__init__.py", "demo", "demo/__init__.py"),
}


@pytest.mark.parametrize(("file", "module", "copy"), DEEP.values(), ids=DEEP)
def test_a_copy_of_what_differs_between_the_sides(tmp_path, file, module, copy):
    sides = Sides(tmp_path, {file: "N = 1\n"}, head={file: "N = 2\n"})
    outside = ((module, str(sides.site / copy)),)
    where = "/".join(file.split("/")[: -copy.count("/") - 1])
    assert sides.mistaken(outside=outside) == (
        f"the baseline side imported {module} from {sides.site}, so both sides run the same code: install the package "
        f"in editable mode (pip install -e .), or set pythonpath = {where} in the ini file"
    )
    assert "demo" in {*sides.revisions.names(None)[0], *sides.revisions.names(None)[1]}
    sides.write(sides.top, {f"{where}/pyproject.toml": ""})
    assert f"(pip install -e {where})" in sides.mistaken(outside=outside)


@pytest.mark.parametrize(
    "files",
    [{"python/demo/__init__.py": "N = 1\n", "python/demo/other.py": ""}, {"third_party/demo/__init__.py": "older"}],
    ids=["unchanged", "vendored"],
)
def test_a_copy_of_what_is_the_same_on_both_sides(tmp_path, files):
    # What is installed may be another project's; and it cannot make a difference between the sides.
    sides = Sides(tmp_path, {**files, "model.py": "1"}, head={"model.py": "2"})
    outside = (("demo", str(sides.site / "demo/__init__.py")),)
    assert not sides.mistaken(outside=outside)
    assert not sides.mistaken(outside=(("demo.strange", str(sides.site / "demo/strange.py")),))
    (folder,) = {name.rpartition("/")[0] for name in files}
    sides = Sides(tmp_path / "changed", files, head={f"{folder}/new.py": ""})
    git(sides.top, "add", "--all")
    assert sides.mistaken(outside=(("demo", str(sides.site / "demo/__init__.py")),)), "what was not loaded counts too"


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [("a", "b", True), ("a", "a", False), (None, "b", False)],
    ids=["differs", "the same", "only there"],
)
@pytest.mark.parametrize("name", ["table.bin", "lib/w.so", "lib/w.so.1"])
def test_files_of_the_other_side(tmp_path, base, head, said, name):
    # By an absolute path, both sides read the working tree's: as it should be for data that only that has.
    sides = Sides(tmp_path, {} if base is None else {name: base}, head={name: head})
    found = sides.revisions.mistaken(sides.loaded(borrowed=(name,)), sides.checkout)
    assert bool(found) == (said or (".so" in name and base is None))
    if found:
        assert found.startswith(f"the baseline side loaded or read {name} of the working tree, so both sides use")


@pytest.mark.parametrize("name", ["demo/_fast.so", "demo/_fast.cpython-311-x86_64-linux-gnu.so", "table.bin", "gen.py"])
def test_a_file_that_git_ignores_is_on_one_side_only(tmp_path, name):
    sides = Sides(tmp_path, {"demo/__init__.py": ""}, ignored="*.so\ntable.bin\ngen.py\n")
    with_it, without = sides.loaded(files=("demo/__init__.py", name)), sides.loaded(files=("demo/__init__.py",))

    def said(head, base):
        return sides.revisions.one_sided(head, base, sides.checkout)

    sides.write(sides.top, {name: "made"})
    sides.revisions._began = time.time_ns()
    assert said(with_it, without) == (
        f"the current side used {name}, which git ignores and the baseline commit's checkout lacks, so the sides "
        "differ by more than their commits: make it there too with perf_against_setup, or delete it"
    )
    assert not said(with_it, sides.loaded(borrowed=(name,))), "both sides read the working tree's"
    assert not said(without, without)
    sides.revisions._began = 0
    assert not said(with_it, without), "the run itself has made it"
    sides.write(sides.checkout.root, {name: "made"})
    assert not said(with_it, with_it)
    (sides.top / name).unlink()
    assert said(without, with_it).startswith(f"the baseline side used {name}, which git ignores and the working tree")


def test_a_submodule_that_the_checkout_has_without_its_files(tmp_path):
    library = Sides(tmp_path / "library", {"fast/__init__.py": ""})
    sides = Sides(tmp_path, {"demo.py": ""})
    git(sides.top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.top), "parts/lib")
    git(sides.top, "commit", "--quiet", "-m", "submodule")
    loaded = sides.loaded(files=("demo.py", "parts/lib/fast/__init__.py"))
    assert not sides.revisions.one_sided(loaded, sides.loaded(), sides.checkout), "the commit has none"
    git(sides.checkout.root, "checkout", "--quiet", "--detach", git(sides.top, "rev-parse", "HEAD"))
    assert sides.revisions.one_sided(loaded, sides.loaded(), sides.checkout) == (
        "the current side used files of parts/lib, a submodule that the baseline commit's checkout has without its "
        "files, so the sides differ by more than their commits: set perf_against_setup = git submodule update --init "
        "--recursive"
    )
    update = ("submodule", "--quiet", "update", "--init", "--recursive")
    git(sides.checkout.root, "-c", "protocol.file.allow=always", *update)
    assert not sides.revisions.one_sided(loaded, sides.loaded(), sides.checkout)


@pytest.mark.parametrize("content, said", [("12 rows", False), ("2 rows", True)], ids=["same", "differs"])
def test_what_the_other_side_made_itself_it_did_not_have(tmp_path, content, said):
    sides = Sides(tmp_path, {"demo/__init__.py": ""}, ignored="table.bin\n")
    sides.write(sides.top, {"table.bin": "12 rows"})
    sides.revisions._began = ready = time.time_ns()
    loaded = sides.loaded(files=("demo/__init__.py", "table.bin"))
    time.sleep(0.02)  # a file's time is that of the last tick
    sides.write(sides.checkout.root, {"table.bin": content})
    found = sides.revisions.one_sided(loaded, loaded, replace(sides.checkout, ready_ns=ready))
    assert ("table.bin, which git ignores and the baseline commit's checkout lacks or made anew" in found) is said
    there = replace(sides.checkout, ready_ns=time.time_ns() + 10**9)
    assert not sides.revisions.one_sided(loaded, loaded, there), "perf_against_setup made it"


def test_what_says_nothing_about_the_code(tmp_path):
    names = ("demo.egg-info/entry_points.txt", "demo/_version.py", "cache/a.bin", ".hypothesis/x", "perf-report/x.json")
    names = (*names, "__pycache__/x.pyc", "baselines/x.json", "notes.txt")
    sides = Sides(tmp_path, {"demo/__init__.py": ""}, ignored="\n".join(names))
    sides.write(sides.top, dict.fromkeys((*names, "cache/CACHEDIR.TAG"), ""))
    sides.revisions._began = time.time_ns()
    assert sides.revisions.ignored(names) == ["notes.txt"]
    # An editor may have opened it, so it is no proof.
    found = sides.loaded(unnoted=names), sides.loaded()
    assert not sides.revisions.one_sided(*found, sides.checkout)
    assert sides.revisions.maybe_one_sided(*found, sides.checkout).startswith(
        "compiled code or another process opened notes.txt while the current side ran, which git ignores and"
    )
    assert not sides.revisions.maybe_one_sided(sides.loaded(), sides.loaded(unnoted=names), sides.checkout)


@pytest.mark.parametrize(
    ("place", "changed", "said"),
    [
        ("cache/made.py", "demo.py", True),
        ("other/demo.py", "demo.py", True),
        ("other/setup_of_it.py", "demo.py", False),
        ("lib/libkernel.so", "demo.py", False),
        ("lib/libkernel.so", "kernel.c", True),
    ],
    ids=["generated", "another clone", "another project", "library", "library of changed sources"],
)
def test_code_outside_that_both_sides_ran(tmp_path, place, changed, said):
    sides = Sides(tmp_path, {"demo.py": "1", "kernel.c": "1"}, head={changed: "2"})
    sides.write(tmp_path, {place: "some", "other/pyproject.toml": ""})
    found, none = sides.loaded(elsewhere=(str(tmp_path / place),)), sides.loaded()
    text = sides.revisions.shared(found, found, sides.checkout)
    assert text.startswith(f"both sides ran {tmp_path / place}, which is outside of the repository") is said
    assert bool(text) is said
    assert not sides.revisions.shared(found, none, sides.checkout)
    assert not sides.revisions.shared(none, found, sides.checkout)


@pytest.mark.parametrize(
    ("files", "loaded", "said"),
    [
        (("demo/core.py", "tests/test_a.py"), ("tests/test_a.py", "tests/conftest.py", "pytest.ini", "a.txt"), True),
        (("demo/core.py", "tests/test_a.py"), ("tests/test_a.py", "demo/core.py"), False),
        (("demo/core.py", "tests/test_a.py"), ("tests/test_a.py", "lib/w.so"), False),
        (("tests/test_a.py", "setup.py", "docs/conf.py"), ("tests/test_a.py",), False),
    ],
    ids=["tests", "code", "library", "nothing but tests"],
)
def test_only_tests_were_loaded(tmp_path, files, loaded, said):
    sides = Sides(tmp_path, dict.fromkeys(files, ""))
    text = "side loaded no code of this repository but tests and conftest files"
    found = sides.loaded(files=loaded)
    assert sides.revisions.only_tests(found, None) == (f"the current {text}" if said else "")
    assert sides.revisions.only_tests(found, sides.checkout) == (f"the baseline {text}" if said else "")


@pytest.mark.parametrize("module", ["demo._C", "demo_cuda"])
@pytest.mark.parametrize(("changed", "said"), [("csrc/deep/kernel.cu", True), ("demo/__init__.py", False)])
def test_a_compiled_module_that_was_installed_once(tmp_path, monkeypatch, module, changed, said):
    """As after `pip install .`: each side's Python code loads the same library."""
    files = {"demo/__init__.py": "1", "csrc/deep/kernel.cu": "1"}
    sides = Sides(tmp_path, files, head={changed: "2"})
    library = sides.site / f"{module.replace('.', '/')}.cpython-311-x86_64-linux-gnu.so"
    package = sides.site / "demo-1.0.dist-info"
    url = json.dumps({"dir_info": {}, "url": f"file://{sides.top}/csrc"})
    metadata = {"METADATA": "Name: demo\nVersion: 1.0\n", "direct_url.json": url, "RECORD": "demo_cuda.so,,\n"}
    # Newer Pythons, and setuptools' own importlib_metadata, do not list files that are missing.
    sides.write(sides.site, {"demo_cuda.so": ""})
    sides.write(package, metadata)
    monkeypatch.syspath_prepend(str(sides.site))
    assert {"demo", "demo_cuda"} <= {name for names in sides.revisions.names(None) for name in names}
    found = replace(sides.loaded(outside=((module, str(library)),)), own=("demo",))
    text = sides.revisions.mistaken(found, None, sides.checkout)
    assert text == sides.revisions.mistaken(found, sides.checkout)
    assert text.startswith(f"both sides load {library}, built once, but the sources of compiled code differ") == said
    assert bool(text) == said
    assert not sides.mistaken(outside=(("numpy.core", str(sides.site / "numpy/core.so")),)), "another project's"
