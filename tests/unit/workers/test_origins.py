"""Whether a side ran the repository's code from its own folder."""

import subprocess
import sys
import sysconfig
import types

import pytest

from pytest_perfdl.baseline.code import measured_code
from pytest_perfdl.workers.channel import Origins
from pytest_perfdl.workers.origins import code_names, elsewhere, import_roots, origins


@pytest.fixture
def load(monkeypatch):
    """Pretend that these modules were loaded from these files."""

    def pretend(files):
        modules = {name: types.ModuleType(name) for name in files}
        for name, file in files.items():
            modules[name].__file__ = str(file)
        # The module's own name alone: without the true modules, pytest could not tell a failure.
        monkeypatch.setattr(
            "pytest_perfdl.workers.origins.sys", types.SimpleNamespace(**vars(sys) | {"modules": modules})
        )

    return pretend


@pytest.fixture
def tree(tmp_path):
    """A repository with a package, a module and stubs of another package."""
    for name in ("src/demo/__init__.py", "src/demo/core.py", "helper.py", "torch/__init__.py", "tests/__init__.py"):
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "repo"


def reported(tree, site, *names):
    """What a worker reports that loaded modules from a folder of packages."""
    files = []
    for name in names:
        path = site / (name.replace(".", "/") + ".py")
        if any(other.startswith(f"{name}.") for other in names):
            path = site / name.replace(".", "/") / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("other code")
        files.append((name, str(path)))
    return elsewhere(Origins((), (), "", tuple(files)), [tree, tree / "src"])


def test_the_names_of_the_code(tree):
    (tree / ".venv").mkdir()
    (tree / "code.py").write_text("also a module of Python's own")
    assert code_names([tree, tree / "src", tree / "absent"]) == ("demo", "helper", "src", "torch")


def test_modules_from_elsewhere_are_reported_by_name(tree, tmp_path, load):
    site = tmp_path / "site-packages"
    inner = tree / ".venv/lib/python3.11/site-packages/helper.py"
    load({"demo": tree / "src/demo/__init__.py", "demo.core": site / "demo/core.py", "numpy": site / "numpy.py"})
    found = origins(str(tree), "", ("demo", "helper"), "hash")
    assert (found.own, found.foreign, found.outside) == (("demo",), (), (("demo.core", str(site / "demo/core.py")),))
    load({"helper": inner})
    assert origins(str(tree), "", ("helper",), "").outside == (("helper", str(inner)),), "an environment in the tree"


def test_an_installed_copy(tree, tmp_path):
    found = reported(tree, tmp_path / "site-packages", "demo", "demo.core")
    assert found.names == ("demo",)
    assert found.names_and_path == f"demo from {tmp_path / 'site-packages'}"
    assert not found.is_the_same


def test_an_installed_copy_of_the_same_code(tree, tmp_path):
    site = tmp_path / "site-packages"
    (site / "demo").mkdir(parents=True)
    for name in ("__init__.py", "core.py"):
        (site / "demo" / name).write_text(f"src/demo/{name}")
    assert reported(tree, site, "demo", "demo.core").is_the_same
    assert reported(tree, site, "demo", "demo.core", "demo._version").is_the_same, "made while building"
    assert not reported(tree, site, "demo", "demo.core", "demo.gone").is_the_same


def test_stubs_of_another_package_are_not_that_package(tree, tmp_path):
    assert reported(tree, tmp_path / "site-packages", "torch", "torch.nn", "torch.optim") is None


def test_a_folder_of_ones_own_that_is_called_like_one_of_packages(tree):
    file = tree / "vendor/site-packages/helper.py"
    file.parent.mkdir(parents=True)
    file.write_text("vendored")
    found = Origins((), (), "", (("helper", str(file)),))
    assert elsewhere(found, [file.parent]) is None
    assert elsewhere(found, [tree]).names == ("helper",)


def test_a_compiled_extension_says_nothing(tree):
    assert elsewhere(Origins((), (), "", (("demo._C", "/site-packages/demo/_C.so"),)), [tree]) is None


@pytest.mark.parametrize(
    ("files", "roots"),
    [
        (("python/demo/__init__.py", "python/demo/core.py"), {"demo": ("python",), "python": (".",)}),
        (("libs/x/src/y/__init__.py",), {"y": ("libs/x/src",), "src": ("libs/x",), "x": ("libs",), "libs": (".",)}),
        (("y/__init__.py", "y/a/__init__.py", "y/a/b.py"), {"y": (".",)}),
        (("scripts/helper.py",), {"helper": ("scripts",), "scripts": (".",)}),
        # A namespace package has no `__init__.py`: what is on the import path is open.
        (("p/ops/core.py",), {"core": ("p/ops",), "ops": ("p",), "p": (".",)}),
        (("a/same.py", "b/same.py"), {"same": ("a", "b"), "a": (".",), "b": (".",)}),
        (("README.md", "json.py", "tests/conftest.py", "not-a-name.py", "csrc/a.cpp"), {"tests": (".",)}),
    ],
    ids=["deep", "deeper", "inner packages", "module", "namespace", "twice", "others"],
)
def test_where_code_can_be_imported_from(files, roots):
    assert import_roots(files) == roots


def test_where_a_namespace_package_was_imported_from(tree, tmp_path):
    path = tree / "python/space/ops/core.py"
    path.parent.mkdir(parents=True)
    path.write_text("own")
    site = tmp_path / "site-packages"
    found = Origins((), (), "", (("space.ops.core", str(site / "space/ops/core.py")),))
    there = elsewhere(found, [tree / "python"])
    assert there.names_and_path == f"space.ops.core from {site}"
    assert there.packages == [tree / "python/space/ops/core.py"]


def test_distributions_that_share_a_namespace_package_are_told_apart(tree, tmp_path):
    own, site = tree / "python/space/ours/__init__.py", tmp_path / "site-packages"
    own.parent.mkdir(parents=True)
    own.write_text("own")
    files = ("ours/__init__.py", "theirs/__init__.py", "theirs/a.py", "theirs/b.py")
    names = {file: f"space/{file}".removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for file in files}
    outside = tuple((name, str(site / "space" / file)) for file, name in names.items())
    there = elsewhere(Origins((), (), "", outside), [tree / "python"])
    assert there.names_and_path == f"space.ours from {site}"
    assert there.packages == [own.parent]


def test_modules_of_a_worktree_within_the_tree_are_not_its_own(tree, load):
    """As coding agents make them: .worktrees/feature."""
    other, submodule = tree / ".worktrees/feature", tree / "third/part"
    for folder, pointer in ((other, "/repo/.git/worktrees/feature"), (submodule, "../../.git/modules/part")):
        (folder / "demo").mkdir(parents=True)
        (folder / ".git").write_text(f"gitdir: {pointer}\n")
        (folder / "demo/__init__.py").write_text("other")
    load({"demo": other / "demo/__init__.py", "part": submodule / "demo/__init__.py"})
    found = origins(str(tree), "", ("demo", "part"), "")
    assert found.own == ("part",)
    assert found.files == ("third/part/demo/__init__.py",)
    assert found.outside == (("demo", str(other / "demo/__init__.py")),)
    assert elsewhere(found, [tree / "src"]).names_and_path == f"demo from {other}"


def test_what_was_read_is_said_by_side(tree, tmp_path, load):
    load({})
    base = tree / ".git/perfdl/checkout"
    for name in ("a.txt", "b.txt", ".git/perfdl/checkout/a.txt", ".git/perfdl/checkout/c.txt"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("some")
    (base / ".git").write_text(f"gitdir: {tree}/.git/worktrees/checkout\n")
    (tree / ".git/perfdl/w.so").write_text("built for the checkout")
    paths = {str(tree / "b.txt"), str(tree / ".git/perfdl/w.so"), str(base / "a.txt"), str(tmp_path / "gone.txt")}
    unnoted = {str(base / "c.txt"), str(base / "a.txt"), str(tree / "a.txt")}
    reads = types.SimpleNamespace(files=lambda: paths, unnoted=lambda: unnoted, elsewhere=set)
    found = origins(str(base), str(tree), (), "", reads)
    assert (found.files, found.borrowed, found.unnoted) == (("a.txt",), ("b.txt",), ("c.txt",))
    found = origins(str(tree), str(base), (), "", reads)
    assert (found.files, found.borrowed, found.unnoted) == (("b.txt",), ("a.txt",), ("a.txt",))
    found = origins(str(tree), "", (), "", reads)
    assert (found.files, found.borrowed, found.unnoted) == (("b.txt",), (), ("a.txt",))
    assert origins(str(tree), "", (), "").unnoted is None


def test_code_of_neither_side_is_reported(tree, tmp_path, load):
    places = [
        tmp_path / name for name in ("cache/made.py", "cache/script.py", "plugin.py", "lib/libkernel.so", "gone.py")
    ]
    (tmp_path / "lib").mkdir()
    (tmp_path / "cache").mkdir()
    for place in places[:-1]:
        place.write_text("some")
    python = f"{sys.base_prefix}/lib/libpython.so"
    made, script, plugin, library, _ = map(str, places)
    load({"made": places[0], "plugin": places[2], "demo": tree / "src/demo/core.py"})
    opened = {script, library, *map(str, places), str(tree / "src/demo/core.py"), types.__file__, pytest.__file__}
    reads = types.SimpleNamespace(files=set, unnoted=set, elsewhere=lambda: {*opened, "/usr/lib/libm.so.6", python})
    assert origins(str(tree), "", (), "", reads, besides=[plugin]).elsewhere == (made, script, library)


def test_modules_without_a_version_leave_the_record_incomplete(tree, tmp_path, load):
    """A sibling project on PYTHONPATH, or installed editable: its version stays when its code changes."""
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    loose = tmp_path / "sibling/other/__init__.py"
    files = {"other": loose, "numpy": tmp_path / "site-packages/numpy/__init__.py", "demo": tree / "src/demo/core.py"}
    load({**files, "_sysconfigdata_x": f"{sysconfig.get_path('stdlib')}/_sysconfigdata_x.py", "json": "/elsewhere.py"})
    reads = types.SimpleNamespace(files=set, unnoted=set, elsewhere=set)
    found = origins(str(tree), "", (), "", reads)
    assert (found.unnoted, found.packages) == ((str(loose),), ("_sysconfigdata_x", "numpy", "other"))
    assert measured_code(tree, found.files, (), unnoted=found.unnoted).code.left_out == 1
    reads = types.SimpleNamespace(files=set, unnoted=lambda: None, elsewhere=set)
    assert origins(str(tree), "", (), "", reads).unnoted is None
