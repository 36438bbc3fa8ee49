"""Whether a side ran the repository's code from its own folder."""

import sys
import types

import pytest

from pytest_perfdl.workers.messages import Origins
from pytest_perfdl.workers.origins import code_names, elsewhere, origins


@pytest.fixture
def load(monkeypatch):
    """Pretend that these modules were loaded from these files."""

    def pretend(files):
        modules = {name: types.ModuleType(name) for name in files}
        for name, file in files.items():
            modules[name].__file__ = str(file)
        monkeypatch.setattr(sys, "modules", modules)

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
