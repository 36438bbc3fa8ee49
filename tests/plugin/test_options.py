"""Where a setting comes from: command line, ini file, `-o` and markers, and which of them holds."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_perfdl.config.marker import KEYWORDS, MarkerOptions
from pytest_perfdl.config.options import INI_ONLY, OPTIONS, ini_keys
from pytest_perfdl.config.short_names import marks
from pytest_perfdl.plugin import SETTINGS
from pytest_perfdl.run.collection import adopt


def settings(inner, *args, ini=""):
    inner.makeini(f"[pytest]\n{ini}\n")
    config = inner.parseconfigure(*args)
    return config.stash[SETTINGS]


def shape(name):
    def read(settings):
        given = getattr(settings, name)
        return given if given is not None else settings.ini_shape.get(name)

    return read


# (ini key, value as text, what it is in the settings, what it is when nothing is said)
WITH_INI = [
    ("perf_dir", "records", lambda settings: settings.folder, "records", "baselines"),
    ("perf_report", "out", lambda settings: settings.report.name, "out", "perf-report"),
    (
        "perf_fail_on",
        "invalid",
        lambda settings: settings.fail_on,
        "invalid",
        "invalid,regressed,missing,outdated,suspect-in-every-round",
    ),
    ("perf_require", "3", lambda settings: settings.require, 3, 0),
    ("perf_traces", "all", lambda settings: settings.traces, "all", "regressed"),
    ("perf_limits", "ops:0", lambda settings: [*settings.limits[0], *settings.limits[1]], ["ops:0"], []),
    ("perf_warmup", "0", shape("warmup"), 0, None),
    ("perf_steps", "7", shape("steps"), 7, None),
    ("perf_repeats", "3", shape("repeats"), 3, None),
    ("perf_threads", "2", shape("threads"), 2, None),
    ("perf_timeout", "2.5", lambda settings: settings.timeout, 2.5, 600.0),
    ("perf_launch", "srun -N2", lambda settings: settings.launch.prefix, ("srun", "-N2"), ()),
    # Several nodes need the options above and below as well: see test_ranks.
    ("perf_nodes", "1", lambda settings: settings.launch.nodes, 1, 1),
    ("perf_rendezvous", "node0:29500", lambda settings: settings.launch.rendezvous, "node0:29500", ""),
    ("perf_rank_timeout", "5", lambda settings: settings.launch.timeout, 5.0, 120.0),
    ("perf_resolution", "6%", lambda settings: settings.resolution, 0.06, None),
    ("perf_budget", "90", lambda settings: settings.budget, 90.0, 300.0),
    ("perf_calibrate", "off", lambda settings: settings.calibrate, "off", "auto"),
    ("perf_memory", "all", lambda settings: settings.memory, "all", "changed"),
    ("perf_pin", "off", lambda settings: settings.pin, "off", "auto"),
    ("perf_against_python", "python3", lambda settings: settings.against_python, "python3", None),
    ("perf_start", "fresh", lambda settings: settings.start, "fresh", "auto"),
    ("perf_device_lock", "off", lambda settings: settings.device_lock, None, Path("/tmp")),
    ("perf_device_lock", "/usr", lambda settings: settings.device_lock, Path("/usr"), Path("/tmp")),
]


@pytest.mark.parametrize("key, text, read, value, default", WITH_INI)
def test_a_value_by_every_way(inner, key, text, read, value, default):
    flag = "--" + key.replace("_", "-").removesuffix("s" if key == "perf_limits" else "")

    assert read(settings(inner)) == default
    assert read(settings(inner, "--perf", f"{flag}={text}")) == value
    assert read(settings(inner, ini=f"{key} = {text}")) == value
    assert read(settings(inner, f"-o{key}={text}")) == value


def test_the_help_shows_basic_options_and_one_line_for_an_ini_key(inner):
    """argparse formats the texts of options, but pytest prints those of ini keys as they are."""
    shown = inner.runpytest_inprocess("--help").stdout.str()
    assert shown.count("step_time:3%") == 3, "the option, its default, the ini key"
    assert "%%" not in shown
    basic = {option.flag for option in OPTIONS if option.level == "basic"}
    assert len(basic) == 13
    assert set(re.findall(r"\((--(?:no-)?perf[\w-]*)\)", shown)) == basic
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for name, kind, brief in ini_keys():
        long = f"perfdl{name.removeprefix('perf')} ({kind}):"
        assert f"{long} {brief}" in lines or (long in lines and brief in lines), name


def test_the_table_above_is_complete():
    keys = {option.ini for option in OPTIONS if option.ini and option.action != "store_true"}

    assert {case[0] for case in WITH_INI} == keys


@pytest.mark.parametrize(
    "key, text, read, value, default",
    [
        ("perf_marker", "speed", lambda settings: settings.markers[-1], "speed", "perf"),
        ("perf_loops", "auto", lambda settings: settings.loops, "auto", None),
        ("perf_loops", "8", lambda settings: settings.loops, 8, None),
        ("perf_key_extra", "torch", lambda settings: settings.key_extra, ("torch",), ()),
        ("perf_against_setup", "make", lambda settings: settings.against_setup, "make", ""),
        ("perf_against_tests", "own", lambda settings: settings.against_tests, "own", "head"),
    ],
)
def test_a_value_that_only_the_ini_file_has(inner, key, text, read, value, default):
    assert key in {each.ini for each in INI_ONLY}
    assert read(settings(inner)) == default
    assert read(settings(inner, ini=f"{key} = {text}")) == value
    assert read(settings(inner, f"-o{key}={text}")) == value


@pytest.mark.parametrize(
    "args, ini, enabled, update",
    [
        ([], "", False, None),
        (["--perf"], "", True, None),
        ([], "perf = true", True, None),
        (["-operf=true"], "", True, None),
        (["--no-perf"], "perf = true", False, None),
        (["--perf", "--no-perf"], "", False, None),
        (["--perf-update"], "", True, "changed"),
        (["--perf-update=new"], "", True, "new"),
        (["--perf-update", "--perf"], "perf = true", True, "changed"),
    ],
)
def test_switching_on_and_off(inner, args, ini, enabled, update):
    found = settings(inner, *args, ini=ini)

    assert (found.enabled, found.update) == (enabled, update)


@pytest.mark.parametrize("flag", ["--pdb", "--trace", "--setup-show", "--setup-only", "--setup-plan"])
def test_debugging_measures_in_this_process(inner, flag):
    assert settings(inner, "--perf").isolate == "process"
    assert settings(inner, "--perf", flag).isolate == "none"


def test_other_settings(inner):
    found = settings(inner, "--perf", "--perf-json=out/run.json", "--perf-github=off", "-v")

    assert found.json == inner.path / "out" / "run.json"
    assert not found.github
    assert found.verbosity == 1


def test_the_command_line_is_before_the_ini_file(inner):
    found = settings(inner, "--perf-steps=9", "--perf-dir=here", ini="perf_steps = 7\nperf_dir = there")

    assert (found.steps, found.ini_shape["steps"], found.folder) == (9, 7, "here")


SUITE = """
    import pytest

    pytestmark = pytest.mark.perf(steps=10, repeats=4, limits={"step_time": "50%", "ops": 1}, tags=("module",))

    @pytest.mark.perf(steps=20, limits={"step_time": "40%"}, budget={"step_time": "1s"})
    class TestIt:
        @pytest.mark.perf(warmup=2, limits={"ops": "off"}, budget={"flops": "1M"})
        def test_inner(self):
            pass

        def test_class(self):
            pass

    def test_module():
        pass
"""


def adopted(inner, *args, ini=""):
    found = settings(inner, *args, ini=ini)
    items, _ = inner.inline_genitems("-p", "no:randomly")
    return {item.name: test for item, test in zip(items, adopt(items, found)[0].values(), strict=True)}


def text(demand):
    return None if demand is None else demand.text


def test_markers_are_merged_from_module_to_class_to_function(inner):
    inner.makepyfile(SUITE)
    tests = adopted(inner)
    found = {
        name: (
            test.plan.steps,
            test.plan.warmup,
            test.options.repeats,
            text(test.limits.for_metric("step_time")),
            text(test.limits.for_metric("ops")),
            text(test.limits.budget_for("step_time")),
            text(test.limits.budget_for("flops")),
            test.options.tags,
        )
        for name, test in tests.items()
    }

    assert found == {
        "test_inner": (20, 2, 4, "40%", None, "1s", "1M", ("module",)),
        "test_class": (20, 15, 4, "40%", "1", "1s", None, ("module",)),
        "test_module": (10, 15, 4, "50%", "1", None, None, ("module",)),
    }


@pytest.mark.parametrize(
    "args, ini, steps, threads",
    [
        ((), "", 10, 1),
        ((), "perf_steps = 7\nperf_threads = 2", 10, 2),
        (("--perf-steps=9", "--perf-threads=3"), "perf_steps = 7\nperf_threads = 2", 9, 3),
    ],
)
def test_for_the_run_shape_the_command_line_is_before_the_marker_before_the_ini_file(inner, args, ini, steps, threads):
    inner.makepyfile(SUITE)
    plan = adopted(inner, *args, ini=ini)["test_module"].plan

    assert (plan.steps, plan.threads) == (steps, threads)


def test_for_limits_the_marker_is_before_the_command_line_before_the_ini_file(inner):
    inner.makepyfile(SUITE)
    args = ("--perf-limit=step_time:1%", "--perf-limit=kernels:2")
    limits = adopted(inner, *args, ini="perf_limits =\n    kernels:3\n    launches:4\n    ops:5")["test_module"].limits

    named = {name: text(limits.for_metric(name)) for name in ("step_time", "kernels", "launches", "ops", "block_time")}
    assert named == {"step_time": "50%", "kernels": "2", "launches": "4", "ops": "1", "block_time": "3%"}


@pytest.mark.parametrize("recording, default", [(True, 10), (False, 1)])
def test_how_many_repeats(inner, recording, default):
    def repeats(*args, ini="", marker=None):
        return MarkerOptions(repeats=marker).repeats_for(settings(inner, *args, ini=ini), recording=recording)

    assert repeats() == default
    assert repeats(ini="perf_repeats = 2") == 2
    assert repeats(ini="perf_repeats = 2", marker=3) == 3
    assert repeats("--perf-repeats=4", ini="perf_repeats = 2", marker=3) == 4


def test_perf_tests_come_first_and_each_kind_keeps_its_order(inner):
    inner.makepyfile(
        """
        import pytest

        def test_a(): pass
        @pytest.mark.perf
        def test_b(): pass
        def test_c(): pass
        def test_d(perf): pass
        """
    )
    found = settings(inner)
    items, _ = inner.inline_genitems()
    tests = adopt(items, found)[0]

    assert [item.name for item in items] == ["test_b", "test_d", "test_a", "test_c"]
    assert [test.item.name for test in tests.values()] == ["test_b", "test_d"]


def hashes(inner, **sources):
    found = {}
    for name, source in sources.items():
        inner.makepyfile(**{f"test_{name}": f"import pytest\nMARK = pytest.mark.perf\n{source}"})
        items, _ = inner.inline_genitems(f"test_{name}.py")
        found[name] = [test.hash for test in adopt(items, settings(inner))[0].values()]
    return found


def test_what_makes_another_test(inner):
    body = "    total = 1 + 1\n    assert total\n"
    found = hashes(
        inner,
        base=f"@MARK\ndef test_step():\n{body}",
        decorated=f"@pytest.mark.perf(limits={{'ops': 3}})\n@MARK\ndef test_step():\n{body}",
        commented="@MARK\ndef test_step():\n    # why\n    total = 1 + 1\n\n    assert total\n",
        moved=f"X = 1\n\n\n@MARK\ndef test_step():\n{body}",
        edited="@MARK\ndef test_step():\n    total = 1 + 2\n    assert total\n",
        parametrized=f"@MARK\n@pytest.mark.parametrize('n', [1, 2])\ndef test_step(n):\n{body}",
    )
    base = found.pop("base")

    assert found["decorated"] == found["commented"] == found["moved"] == base
    assert found["edited"] != base
    first, second = found["parametrized"]
    assert len({first, second, *base}) == 3


def test_parameters_with_the_same_ids_are_told_apart_by_their_values(inner):
    source = "@MARK\n@pytest.mark.parametrize('size', [{}], ids=['large'])\ndef test_step(size): pass\n"
    found = hashes(inner, small=source.format(10), large=source.format(20), again=source.format(20))

    assert found["small"] != found["large"] == found["again"]


def test_options_are_frozen(inner):
    found = settings(inner)

    with pytest.raises(AttributeError):
        found.enabled = True
    assert replace(found, enabled=True).enabled


@pytest.mark.parametrize("spelling", ["--perf-update", "--perfdl-update"])
@pytest.mark.parametrize(
    "args, update, paths",
    [
        (["UPDATE"], "changed", []),
        (["UPDATE", "a.py::test_one", "b"], "changed", ["a.py::test_one", "b"]),
        (["a.py", "b", "UPDATE"], "changed", ["a.py", "b"]),
        (["UPDATE=all", "a.py"], "all", ["a.py"]),
        (["a.py", "UPDATE=append"], "append", ["a.py"]),
        (["-x", "UPDATE", "-k", "one", "a.py"], "changed", ["a.py"]),
        (["UPDATE", "-k", "one", "-x", "a.py"], "changed", ["a.py"]),
        (["-k", "one", "a.py", "UPDATE=new", "-x", "b"], "new", ["a.py", "b"]),
        (["UPDATE=new", "UPDATE", "a.py"], "changed", ["a.py"]),
    ],
)
def test_updating_takes_no_path_for_a_mode(inner, spelling, args, update, paths):
    config = inner.parseconfigure(*(word.replace("UPDATE", spelling) for word in args))

    assert config.stash[SETTINGS].update == update
    assert config.option.file_or_dir == paths


def test_a_mode_without_an_equals_sign(inner):
    with pytest.raises(
        pytest.UsageError,
        match="there is no file or directory 'all'; to record in mode 'all', write --perf-update='all'",
    ):
        inner.parseconfigure("--perf-update", "all")
    inner.mkdir("all")
    assert inner.parseconfigure("--perf-update", "all").stash[SETTINGS].update == "changed"


@pytest.mark.parametrize(
    "args, ini, said",
    [
        (["--perf-against="], "", "--perf-against: expected a git revision, such as main or HEAD~1"),
        (["--perf-against", " "], "", "--perf-against: expected a git revision, such as main or HEAD~1"),
        (["--perf-against-python="], "", "--perf-against-python: expected the path of a Python interpreter"),
        (
            ["--perf-dir=s3://u:SECRET@a/b"],
            "",
            "--perf-dir: s3://a/b is a URL: name a file or directory on this machine",
        ),
        (["--perf"], "perf_dir = file:///a", "ini perf_dir: file:///a is a URL: name a file or directory on this"),
        (["--perf"], "perf_report = s3://a", "ini perf_report: s3://a is a URL: name a file or directory on this"),
        (
            ["--perf-json=s3://a/run.json"],
            "",
            "--perf-json: s3://a/run.json is a URL: name a file or directory on this",
        ),
        (["--perf"], "perf_key_extra = drivr", "ini perf_key_extra = 'drivr': expected one of python, os, torch, "),
    ],
)
def test_what_would_have_no_effect_is_refused(inner, args, ini, said):
    with pytest.raises(pytest.UsageError, match=re.escape(said)):
        settings(inner, *args, ini=ini)


def test_the_nearest_mark_wins(inner):
    """Of classes the derived one's, of a parameter its own."""
    inner.makepyfile(
        """
        import pytest

        @pytest.mark.perf(warmup=1, steps=11)
        class Base:
            def test_step(self):
                pass

        @pytest.mark.perf(warmup=2)
        class TestDerived(Base):
            pass

        @pytest.mark.parametrize("size", [8, pytest.param(16, marks=pytest.mark.perf(warmup=4))])
        @pytest.mark.perf(warmup=5, steps=12)
        @pytest.mark.perf(warmup=3)
        def test_sizes(size):
            pass
        """
    )
    items, _ = inner.inline_genitems()
    shapes = {}
    for item in items:
        options = MarkerOptions.merge(marks(item, ("perfdl", "perf"), KEYWORDS))
        shapes[item.name] = (options.warmup, options.steps)
    assert shapes == {"test_step": (2, 11), "test_sizes[8]": (3, 12), "test_sizes[16]": (4, 12)}
