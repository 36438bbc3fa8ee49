"""What a process sees of how its test loads."""

import gc
import importlib.util
import os
import sys

import pytest

from pytest_perfdl.workers import files_read
from pytest_perfdl.workers.channel import CallShown, LoadModules
from pytest_perfdl.workers.files_read import Watch
from pytest_perfdl.workers.fork_server import _load


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
        write.files[name] = str(path)
        return str(path)

    write.files = {}
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


def test_what_pytest_rewrites_may_be_loaded_by_the_way(load):
    files = {name: load(name, text) for name, text in (("user_lib", "import plugin_lib"), ("plugin_lib", "x = 1"))}
    pytest.register_assert_rewrite("plugin_lib")
    watch = Watch(())
    import user_lib

    shown = watch.shown()
    assert "rewrite" in type(user_lib.plugin_lib.__loader__).__module__
    assert shown.modules == (("user_lib", files["user_lib"]),)
    assert ("plugin_lib", files["plugin_lib"]) in shown.besides
    for allowed, problem in (
        (shown.besides, ""),
        ((), "importing the test's modules loads plugin_lib, which a normal"),
    ):
        for name in ("user_lib", "plugin_lib"):
            sys.modules.pop(name, None)
        assert _load(LoadModules(shown.modules, allowed, ()), {}).partition(" run of")[0] == problem


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

    # Not by monkeypatch, which would bring it back at the end.
    del os.environ["PERFDL_TEST_LATE"]
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


@pytest.mark.parametrize(
    "name", ["_SixMetaPathImporter", "MetadataPathFinder", "VendorImporter", "_LegacyModuleAliasFinder"]
)
def test_finders_that_libraries_put_there_for_their_own_are_no_hooks(name, load):
    watch = Watch(())
    sys.meta_path.append(type(name, (), {"find_spec": lambda *_: None})())
    assert watch.shown().hooks == ()


# A forked process: what was imported before is hidden until the test asks for it.

LIBRARY = {
    "zeta_lib": "import alpha_lib, zeta_package.inner",
    "alpha_lib": "import json",
    "zeta_package.__init__": "from . import outer",
    "zeta_package.inner": "",
    "zeta_package.outer": "",
    "zeta_package.lazy": "",
    "late_lib": "import alpha_lib",
}
SETS = "import os\nos.environ['PERFDL_TEST_SET'] = '1'\n"


@pytest.fixture
def forked(load, monkeypatch):
    """Loads modules as what is forked from does; the Watch of the fork. Without any, the Watch of a new process."""
    for name, text in LIBRARY.items():
        load(name, text)
    monkeypatch.setattr("builtins.__import__", __import__)
    before = set(sys.modules)

    def fork(*names):
        for name in set(sys.modules) - before:
            del sys.modules[name]
        os.environ.pop("PERFDL_TEST_SET", None)
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, Watch)]
        groups = {}
        assert _load(LoadModules(tuple((name, load.files[name]) for name in names), None, ()), groups) == ""
        return Watch(("project_code",), groups if names else None)

    yield fork
    gc.unfreeze()
    os.environ.pop("PERFDL_TEST_SET", None)


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (["zeta_lib"], "import zeta_lib"),
        (["zeta_lib"], "import zeta_lib, late_lib"),
        (["zeta_lib"], "import zeta_package.inner\nimport zeta_lib"),
        (["zeta_lib"], "from zeta_package import lazy\nimport zeta_lib"),
        (["zeta_lib"], "import importlib\nimportlib.import_module('alpha_lib')\nimport zeta_lib"),
        (["zeta_lib"], f"import zeta_lib\n{SETS}import late_lib"),
        (["zeta_lib", "late_lib"], "import zeta_lib, late_lib"),
        (["late_lib", "zeta_package.lazy"], "import zeta_package, late_lib"),
        (["zeta_package.lazy", "zeta_lib"], "import zeta_package\nfrom zeta_package import lazy\nimport zeta_lib"),
    ],
)
def test_a_forked_process_shows_what_a_new_one_shows(before, text, forked):
    def load_all(watch):
        names = {}
        exec(text, names)
        assert watch.start_call() == ""
        return watch.shown(), {name for name in names if not name.startswith("__")}

    started, names = load_all(forked())
    watch = forked(*before)
    assert not {name.partition(".")[0] for name in sys.modules} & {"zeta_lib", "alpha_lib", "zeta_package", "late_lib"}
    shown, same = load_all(watch)
    assert (set(shown.modules), shown.environment, names) == (set(started.modules), started.environment, same)
    assert {name for name, _ in shown.besides} <= {"zeta_package.lazy"}


def test_modules_are_the_ones_that_were_loaded_before(forked):
    watch = forked("zeta_lib")
    hidden = dict(watch._hidden)
    import zeta_lib
    import zeta_package
    from zeta_package import outer

    assert (zeta_lib, outer) == (hidden["zeta_lib"], hidden["zeta_package.outer"])
    assert zeta_lib.__spec__.loader.path == zeta_lib.__file__
    assert zeta_package.inner is hidden["zeta_package.inner"]


def test_a_module_that_is_only_looked_for_is_loaded_once(forked, load):
    load("pair_package.inner")
    load.files["pair_package"] = load("pair_package.__init__", "from . import inner")
    watch = forked("pair_package")
    hidden = dict(watch._hidden)
    found = importlib.util.find_spec("pair_package")
    own = hidden["pair_package"].__spec__
    assert (found.origin, found.has_location, found.submodule_search_locations) == (
        own.origin,
        True,
        own.submodule_search_locations,
    )
    assert not {"pair_package", "pair_package.inner"} & set(sys.modules)
    assert not watch.shown().modules
    import pair_package

    assert pair_package is hidden["pair_package"]
    assert pair_package.inner is hidden["pair_package.inner"]
    assert pair_package.__spec__ is own
    assert watch.start_call() == ""


def test_a_module_that_is_looked_for_and_not_imported_is_not_the_tests(forked):
    watch = forked("zeta_lib")
    importlib.util.find_spec("zeta_lib")
    assert not watch.shown().modules
    assert watch.start_call() == "the test has not imported zeta_lib"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import late_lib", "the test has not imported zeta_lib"),
        (f"{SETS}import zeta_lib", "the test changes PERFDL_TEST_SET before it imports modules"),
        ("import gc, zeta_lib\ngc.freeze()", "the test freezes objects (gc.freeze)"),
        ("import sys, zeta_lib\nsys.meta_path.append(type('Odd', (), {})())", "the test uses import hook builtins.Odd"),
        ("from zeta_package import outer\nimport zeta_lib", "the test imports zeta_package before zeta_lib"),
    ],
)
def test_a_fork_that_a_new_process_would_not_be_like_says_why(text, reason, forked):
    watch = forked("zeta_lib")
    # As compiled code: a new process would load it before what the parent loaded it with.
    watch._hidden["zeta_package.outer"].__file__ = "/lib/site-packages/zeta_package/outer.so"
    exec(text, {"__name__": "builtins"})
    assert watch.start_call() == reason
    assert watch.start_call() == "", "said once"


def test_many_modules_that_are_not_asked_for_are_none_of_the_tests(forked, load):
    for number in range(6):
        load(f"zeta_package.many_{number}")
    load("zeta_package.all_of_them", "\n".join(f"from . import many_{number}" for number in range(6)))
    watch = forked("zeta_lib", "zeta_package.all_of_them")
    import zeta_lib  # noqa: F401
    import zeta_package  # noqa: F401

    assert watch.start_call() == "the test has not imported zeta_package.all_of_them"


@pytest.mark.parametrize(
    ("text", "reason"), [("import zeta_package", ""), ("pass", "the test has not imported zeta_package")]
)
def test_what_seeding_loads_is_none_of_the_tests_where_its_package_is_loaded(forked, load, monkeypatch, text, reason):
    load("zeta_package.all_of_them")
    watch = forked("zeta_package.all_of_them")
    watch._hidden["zeta_package.all_of_them"].__file__ = "/lib/site-packages/zeta_package/all.so"
    monkeypatch.setattr(files_read, "SEEDED", "zeta_package.all_of_them")
    exec(text)
    assert watch.start_call() == reason


def test_code_of_the_repository_is_loaded_by_each_side(forked, load):
    load("installed_lib", "import project_code")
    load("project_code", repository_s=True)
    watch = forked("installed_lib")
    import installed_lib  # noqa: F401

    assert watch.start_call() == "project_code is the repository's, and was loaded with what is installed"


@pytest.mark.parametrize("number", [5, 6])
def test_more_than_a_few_modules_after_the_first_call_are_late(number, load):
    load("early_lib")
    watch = Watch(())
    import early_lib  # noqa: F401

    assert not watch.shown().late
    watch.start_call()
    for each in range(number):
        load(f"late_{each}_lib")
        __import__(f"late_{each}_lib")
    assert watch.shown().late == (number == 6)


def test_a_module_of_python_under_a_second_name_is_not_the_repository_s(forked, load):
    load("installed_lib", "import sys, zipfile; sys.modules['installed_lib.overlay'] = zipfile")
    watch = forked("installed_lib")
    import installed_lib  # noqa: F401

    assert watch.start_call() == ""
