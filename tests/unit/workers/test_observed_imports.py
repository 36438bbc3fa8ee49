"""What a process sees of how its test loads."""

import os
import sys

import pytest

from pytest_perfdl.workers.channel import CallShown
from pytest_perfdl.workers.files_read import Watch


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes modules, as installed ones or as the repository's, and imports one of them as a test would."""
    installed, repository = tmp_path / "lib" / "site-packages", tmp_path / "repository"
    for folder in (installed, repository):
        folder.mkdir(parents=True)
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    before = set(sys.modules)

    def write(name, text="", *, repository_s=False):
        path = (repository if repository_s else installed) / f"{name.replace('.', os.sep)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_third_party_modules_are_seen_in_the_order_of_loading(load):
    files = {name: load(name, text) for name, text in (("zeta_lib", "import alpha_lib"), ("alpha_lib", ""))}
    load("project_code", "import zeta_lib, colorsys", repository_s=True)
    watch = Watch(("project_code",))
    import project_code  # noqa: F401

    assert watch.shown().modules == (("zeta_lib", files["zeta_lib"]), ("alpha_lib", files["alpha_lib"]))
    assert watch.shown().environment == watch.shown().hooks == ()
    assert [name for name, _ in watch.shown({sys.modules["alpha_lib"]}).modules] == ["zeta_lib"], "a pytest plugin"


def test_an_installed_copy_of_the_repository_s_code_is_no_third_party(load):
    load("project_code")
    watch = Watch(("project_code",))
    import project_code  # noqa: F401

    assert watch.shown().modules == ()


def test_what_only_measuring_loads_is_told_apart(load):
    load("first_lib"), load("counter_lib")
    watch = Watch(())
    import counter_lib  # noqa: F401
    import first_lib  # noqa: F401

    call = CallShown("", 1000, children=False, threads=False, device=False, tracer="")
    watch.end_call(call, ["counter_lib"])
    shown = watch.shown()
    assert [name for name, _ in shown.modules] == ["first_lib"]
    assert [name for name, _ in shown.besides] == ["counter_lib"]
    assert shown.calls == (call,)


def test_a_variable_that_changed_before_a_third_party_import_is_named(load, monkeypatch):
    load("first_lib"), load("second_lib")
    load("helper_code", "import os\nos.environ['PERFDL_TEST_LATE'] = '1'", repository_s=True)
    watch = Watch(())
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "1234")
    import first_lib  # noqa: F401

    assert watch.shown().environment == ()
    monkeypatch.setenv("PERFDL_TEST_VARIABLE", "4")
    import helper_code  # noqa: F401

    assert watch.shown().environment == (), "nothing third-party was imported since"
    import second_lib  # noqa: F401

    monkeypatch.delenv("PERFDL_TEST_LATE")
    assert watch.shown().environment == ("PERFDL_TEST_LATE", "PERFDL_TEST_VARIABLE")


def test_what_a_third_party_module_itself_changes_it_changes_everywhere(load, monkeypatch):
    monkeypatch.setenv("PERFDL_TEST_VARIABLE", "1")
    load("setter_lib", "import os\nos.environ['PERFDL_TEST_VARIABLE'] = '2'\nimport second_lib\n")
    load("second_lib"), load("third_lib")
    watch = Watch(())
    import setter_lib  # noqa: F401
    import third_lib  # noqa: F401

    assert watch.shown().environment == ()
    # Unless nobody loads it beforehand.
    watch.end_call(CallShown("", 1, children=False, threads=False, device=False, tracer=""), ["setter_lib"])
    assert watch.shown().environment == ("PERFDL_TEST_VARIABLE",)


@pytest.mark.parametrize("place", ["meta_path", "path_hooks"])
def test_import_hooks_of_others_are_named(place, load):
    class Transforms:
        def find_spec(self, *_):
            return None

        def __call__(self, path):
            raise ImportError

    early = Transforms()
    getattr(sys, place).append(early)
    watch = Watch(())
    assert watch.shown().hooks == (), "what was there from the beginning belongs to the installation"
    getattr(sys, place).append(Transforms())
    assert watch.shown().hooks == (f"{__name__}.Transforms",)


@pytest.mark.parametrize("name", ["_SixMetaPathImporter", "MetadataPathFinder", "VendorImporter"])
def test_finders_that_libraries_put_there_for_their_own_are_no_hooks(name, load):
    watch = Watch(())
    sys.meta_path.append(type(name, (), {"find_spec": lambda *_: None})())
    assert watch.shown().hooks == ()
