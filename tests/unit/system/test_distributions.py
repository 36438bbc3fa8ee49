import importlib.metadata
import sys

import pytest

from pytest_perfdl.system import distributions
from pytest_perfdl.system.distributions import from_an_index, installed, modules_from, packages


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Puts distributions into a folder of the import path, each by the files of its metadata."""
    monkeypatch.syspath_prepend(tmp_path)
    distributions._holders.cache_clear()
    yield lambda name, **files: _put(tmp_path, name, files)
    distributions._holders.cache_clear()


def _put(root, name, files):
    folder = root / f"{name}-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    for file, text in files.items():
        (folder / file.replace("_dot_", ".")).write_text(text)


def test_packages_are_noted_with_their_versions():
    found = packages(["numpy", "_pytest", "pytest", "no_such_module", "numpy"])
    assert list(found) == ["numpy", "pytest"]
    assert found["pytest"] == installed("pytest") == pytest.__version__
    assert installed("no-such-distribution") is None


def test_modules_are_those_that_a_distribution_declares_or_lists(site):
    site("declares", top_level_dot_txt="one\ntwo\n", RECORD="three/a.py,,\n")
    site("lists", RECORD='four/a.py,sha256=0,1\nfive.py,,\nsix.cpython-311-x86_64-linux-gnu.so,,\n"se,ven/a.py",,\n')
    site("lists-nothing")
    found = packages(["one", "two", "three", "four", "five", "six"])
    assert found == {"declares": "1.5", "lists": "1.5"}
    assert packages(["three"]) == {}


def test_modules_of_what_is_installed_here_are_those_that_the_library_finds():
    """Of the standard library's answer, which takes a second."""
    theirs = importlib.metadata.packages_distributions()
    imported = {name.partition(".")[0] for name in sys.modules}
    for module in sorted(imported & theirs.keys()):
        assert set(packages([module])) == set(theirs[module]), module


def test_of_two_distributions_with_one_name_the_first_on_the_path_counts(site, tmp_path, monkeypatch):
    site("demo", RECORD="demo/a.py,,\n")
    later = tmp_path / "later/demo-1.4.dist-info"
    later.mkdir(parents=True)
    (later / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.4\n")
    (later / "RECORD").write_text("demo/a.py,,\n")
    (later / "direct_url.json").write_text('{"url": "file:///here"}')
    monkeypatch.setattr(sys, "path", [*sys.path, str(later.parent)])
    assert packages(["demo"]) == {"demo": "1.5"}
    assert from_an_index("demo")


def test_what_comes_from_a_package_index(site):
    local = '{"url": "file:///here"}'
    site("demo", RECORD="indexed/a.py,,\n")
    site("mine", RECORD="local/a.py,,\nboth/a.py,,\n", direct_url_dot_json=local)
    site("other", RECORD="both/b.py,,\n")
    assert [name for name in ("indexed", "local", "both", "unknown") if from_an_index(name)] == ["indexed"]


def test_modules_that_were_installed_from_a_folder(site, tmp_path, monkeypatch):
    # Newer Pythons, and the importlib_metadata that other tests may import, list no files that are missing.
    monkeypatch.setattr(importlib.metadata.Distribution, "files", [])
    url = f'{{"url": "file://{tmp_path}/here/deeper"}}'
    site("mine", RECORD="local/a.py,,\nmine-1.5.dist-info/METADATA,,\n", direct_url_dot_json=url)
    site("demo", RECORD="indexed/a.py,,\n")
    assert modules_from(tmp_path / "here") == {"local"}
    assert modules_from(tmp_path / "there") == set()
