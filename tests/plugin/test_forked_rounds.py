"""Forked processes, with real workers: they are the test's own run, and nothing of them is left."""

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
from plugin.project import NOT_JUDGED, SHORT, alive, commit, make_repository, until

from pytest_perfdl.run.measurement import MOST_REDRAWS
from pytest_perfdl.workers.forks import unsupported

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(unsupported()), reason="this system cannot fork workers")]

ROUNDS = """
    import json
    from pathlib import Path

    from pytest_perfdl.run.paired_rounds import Rounds, RoundSide
    from pytest_perfdl.model.errors import SideError
    from pytest_perfdl.run import session

    run_test = session.run_test


    def with_rounds(curves, measurement):
        \"\"\"Afterwards the tree is measured against itself, in two rounds.\"\"\"
        result = run_test(curves, measurement)
        shown = measurement.remote.shown
        sides = RoundSide("base"), RoundSide("head")
        rounds = Rounds(measurement.context, measurement.test, *sides, seed=1, shown=(shown, shown))
        with measurement.as_failures():
            made = [rounds.measure(number, profiled=True) for number in (1, 2)]
        Path("rounds.json").write_text(json.dumps({
            "start": [each.start for each in made],
            "core": [each.core for each in made],
            "metrics": sorted(made[0].base),
            "why": rounds.start_reason,
            "pin": rounds.pin_reason,
            "size": rounds.size_note,
        }))
        return result


    session.run_test = with_rounds
    """

TEST = """
    import os
    import warnings
    from pathlib import Path

    import pytest
    import torch


    @pytest.mark.perf(limits={"ops": 0})
    def test_step(perf):
        warnings.warn("once", UserWarning)
        x = torch.ones(64, 64)
        with open("notes.txt", "a") as notes:
            environ = os.environ
            print(os.getpid(), os.getpgid(0), environ["PYTEST_CURRENT_TEST"], environ.get("SET_EARLY"), file=notes)
        with pytest.raises(AssertionError, match="where 3 = len"):
            assert len([1, 2, 3]) == 2
        perf(lambda: x @ x)
    """


def test_a_forked_round_is_the_test_s_own_run(project):
    project.ini("filterwarnings =", "    error", "    default:once")
    project.write("drive.py", ROUNDS)
    # pytest's own process runs this line too, and its workers have its environment.
    project.write("conftest.py", 'import os\nos.environ["SET_EARLY"] = "yes"\nimport torch\n')
    project.write("test_speed.py", TEST)
    run = project.run("--perf", *NOT_JUDGED, "-p", "drive")
    assert run.code == 0, run.output
    told = json.loads((project.root / "rounds.json").read_text())
    assert (told["start"], told["why"]) == (["forked"] * 2, "")
    assert "step_time" in told["metrics"]
    notes = [line.split() for line in (project.root / "notes.txt").read_text().splitlines()]
    assert len(notes) == 5, "the counting process and two rounds of two"
    for pid, group, test, *_, early in notes:
        assert (group, test, early) == (pid, "test_speed.py::test_step", "yes")
        assert not alive(pid)


IMPORTS_ANYIO = next(filter(find_spec, ("httpcore2", "httpcore")), "")


@pytest.mark.skipif(not IMPORTS_ANYIO, reason="wants a library that imports the package of a plugin")
def test_a_plugin_that_a_library_imports_does_not_end_a_forked_process(project):
    # Its assertions are rewritten where pytest imports it first: pytest warns of it otherwise, here an error.
    project.ini("filterwarnings =", "    error", "    default:once")
    project.write("drive.py", ROUNDS)
    project.write("test_speed.py", f"import {IMPORTS_ANYIO}\n" + dedent(TEST))
    run = project.run("--perf", *NOT_JUDGED, "-p", "drive", autoload=True)
    assert run.code == 0, run.output
    told = json.loads((project.root / "rounds.json").read_text())
    assert (told["start"], told["why"]) == (["forked"] * 2, "")


ROOT = str(Path(__file__).resolve().parents[2])
PLUGIN = """
    import os

    LOADED_BY = os.getpid()


    def compare():
        assert [1] == [2]
    """
WITH_PLUGIN = """
    import os

    import odd_plugin
    import pytest
    import torch


    @pytest.mark.perf
    def test_step(perf):
        with pytest.raises(AssertionError) as found:
            odd_plugin.compare()
        with open("notes.txt", "a") as notes:
            print(odd_plugin.LOADED_BY == os.getpid(), "[1] == [2]" in str(found.value), file=notes)
        perf(torch.ones(8).sum)
    """


@pytest.mark.parametrize("origin, early", [(None, True), ('{"url": "file:///here"}', False)], ids=["index", "folder"])
def test_plugins_from_an_index_are_loaded_before_processes_are_forked(origin, early, project, tmp_path):
    """Those from folders may be the repository's own, of which each side has another."""
    site = tmp_path / "site-packages"
    info = site / "odd_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-plugin\nVersion: 1.0\n")
    (info / "RECORD").write_text("odd_plugin.py,,\n")
    (info / "entry_points.txt").write_text("[pytest11]\nodd = odd_plugin\n")
    (site / "odd_plugin.py").write_text(dedent(PLUGIN))
    if origin:
        (info / "direct_url.json").write_text(origin)
    project.write("test_speed.py", WITH_PLUGIN)
    project.write(".gitignore", "notes.txt\noutput-*\nperf-report/\n")
    make_repository(project.root)
    commit(project, "one")
    run = project.run(*SHORT, "--perf-against=HEAD", "-v", autoload=True, PYTHONPATH=os.pathsep.join([str(site), ROOT]))
    assert "forked processes; pinned" in " ".join(run.output.split()), run.output
    notes = [line.split() for line in (project.root / "notes.txt").read_text().splitlines()]
    assert {rewritten for _, rewritten in notes} == {"True"}
    # The working tree's first process, and its side of every round.
    assert len(notes) > 3
    assert all(own == str(not early) for own, _ in notes[1:])


def test_a_test_that_changes_the_environment_first_is_started(project):
    project.write("drive.py", ROUNDS)
    project.write(
        "test_speed.py",
        """
        import pytest

        pytestmark = pytest.mark.perf


        @pytest.fixture
        def library(monkeypatch):
            monkeypatch.setenv("LIBRARY_THREADS", "4")
            import torch.utils.flop_counter


        def test_step(perf, library):
            perf(int)
        """,
    )
    run = project.run("--perf", *NOT_JUDGED, "-p", "drive")
    assert run.code == 0, run.output
    told = json.loads((project.root / "rounds.json").read_text())
    assert told["start"] == ["started"] * 2
    assert told["why"] == (
        "the test changes environment variables before it imports third-party modules: LIBRARY_THREADS"
    )


def test_nothing_forked_outlives_a_killed_run(project):
    project.write("drive.py", ROUNDS)
    project.write(
        "test_speed.py",
        """
        import os
        import subprocess
        import time
        from pathlib import Path


        def test_step(perf):
            if Path("first").exists():
                child = subprocess.Popen(["sleep", "600"])
                with open("hanging", "w") as note:
                    print(os.getpid(), os.getppid(), child.pid, file=note)
                time.sleep(600)
            Path("first").touch()
            perf(int)
        """,
    )
    project.write("conftest.py", "import pytest\npytestmark = pytest.mark.perf\n")
    running = project.start("--perf", *NOT_JUDGED, "-p", "drive")
    pids = project.note("hanging")
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    assert os.getpid() not in pids
    until(lambda: not any(map(alive, pids)), 20)


IN_FORKS = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest

    pytestmark = pytest.mark.perf


    def is_forked():
        return "workers.fork_server" in Path(f"/proc/{os.getppid()}/cmdline").read_text()


    def in_a_fork():
        if is_forked():
            Path("forked").write_text(f"{os.getpid()}\\n")
            WHAT


    def test_step(perf):
        in_a_fork()
        perf(int)
    """


@pytest.mark.parametrize(
    "what, why",
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the forked process failed: the worker process was killed by SIGSEGV"),
        ("os._exit(7)", "the forked process failed: the worker process exited with code 7"),
        ("assert False", "the test passes in a new process, but fails in a forked process"),
    ],
)
def test_a_round_that_does_not_survive_being_forked_is_started(what, why, project):
    project.write("drive.py", ROUNDS)
    project.write("test_speed.py", IN_FORKS.replace("WHAT", what))
    run = project.run("--perf", *NOT_JUDGED, "-p", "drive")
    assert run.code == 0, run.output
    told = json.loads((project.root / "rounds.json").read_text())
    assert (told["start"], told["why"]) == (["started"] * 2, why)
    assert (project.root / "forked").exists()


def test_why_a_forked_process_could_not_begin_is_said_in_one_line(project):
    project.write("drive.py", ROUNDS)
    project.write("test_speed.py", TEST)
    project.write(
        "conftest.py",
        """
        import os
        from pathlib import Path

        if "workers.fork_server" in Path(f"/proc/{os.getppid()}/cmdline").read_text():
            raise RuntimeError("not in forks")
        """,
    )
    run = project.run("--perf", *NOT_JUDGED, "-p", "drive")
    assert run.code == 0, run.output
    told = json.loads((project.root / "rounds.json").read_text())
    assert told["start"] == ["started"] * 2
    assert "the forked process failed: " in told["why"]
    assert "RuntimeError: not in forks" in told["why"]
    assert "Traceback" not in told["why"]


RECORDED = """
    import os
    from pathlib import Path

    import pytest
    import LIBRARY


    @pytest.mark.perf
    def test_step(perf):
        with open("notes.txt", "a") as notes:
            command = Path(f"/proc/{os.getppid()}/cmdline").read_text()
            print(os.getpid(), os.getppid(), "workers.fork_server" in command, file=notes)
        perf(lambda: LIBRARY.cos(LIBRARY.pi * LIBRARY.ONE))
    """


@pytest.mark.parametrize(
    ("library", "one", "start"), [("torch", "ones(64)", "auto"), ("math", "e", "auto"), ("torch", "ones(64)", "fresh")]
)
def test_a_recording_is_forked_from_one_parent_unless_processes_are_started(library, one, start, project):
    project.write("test_speed.py", RECORDED.replace("ONE", one).replace("LIBRARY", library))
    run = project.run("--perf-update", "--perf-repeats=4", f"--perf-start={start}")
    assert run.code == 0, run.output
    notes = [line.split() for line in (project.root / "notes.txt").read_text().splitlines()]
    assert 4 <= len({pid for pid, *_ in notes}) <= 4 + MOST_REDRAWS, "some may be measured again on a busy machine"
    # After them another parent has its turn.
    ((_, is_forked),) = {tuple(rest) for _, *rest in notes[:4]}
    assert is_forked == str(start == "auto")
    (baseline,) = (project.root / "baselines").rglob("*.json")
    (call,) = json.loads(baseline.read_text())["calls"]
    series = call["metrics"]
    assert {name: len(each["values"]) for name, each in series.items()} == dict.fromkeys(series, 4)
    exact = ("ops", "allocations") if library == "torch" else ("ops",)
    assert [len(set(series[name]["values"])) for name in exact] == [1] * len(exact)


COLLECTING = """
    import gc
    import os

    import pytest
    import torch

    pytestmark = pytest.mark.perf


    @pytest.mark.parametrize("step", [int, gc.collect], ids=["quiet", "collecting"])
    def test_step(perf, step):
        frozen = []

        def count():
            frozen.append(gc.get_freeze_count())
            step()

        perf(count)
        with open("notes.txt", "a") as notes:
            print(step.__name__, os.getpid(), frozen[0], file=notes)
    """


def test_collections_in_the_steps_cost_in_a_forked_process_what_they_cost_in_a_new_one(project):
    project.write("drive.py", ROUNDS)
    project.write("test_speed.py", COLLECTING)
    run = project.run(*SHORT, "--perf-update", "--perf-repeats=2", "-p", "drive")
    assert run.code == 0, run.output
    assert json.loads((project.root / "rounds.json").read_text())["start"] == ["forked"] * 2
    notes = [line.split() for line in (project.root / "notes.txt").read_text().splitlines()]
    frozen = {step: [int(count) for name, _, count in notes if name == step] for step in ("int", "collect")}
    # In the first process nothing is frozen; then there are a repeat and two rounds of two.
    assert all(len(counts) >= 6 for counts in frozen.values())
    assert all(count > 100_000 for count in frozen["int"][1:]), "no page is copied where the steps do not collect"
    # Some interpreters begin with a few hundred frozen objects of their own.
    assert max(*frozen["int"][:1], *frozen["collect"]) < 1000


@pytest.mark.parametrize("what", ["os.kill(os.getpid(), signal.SIGSEGV)", "assert False"])
def test_a_repeat_that_does_not_survive_being_forked_is_started(what, project):
    project.write("test_speed.py", IN_FORKS.replace("WHAT", what))
    run = project.run("--perf-update", "--perf-repeats=3")
    assert run.code == 0, run.output
    assert (project.root / "forked").exists()
    (baseline,) = (project.root / "baselines").rglob("*.json")
    assert [each["repeats"] for each in json.loads(baseline.read_text())["occasions"]] == [3]


def test_a_forked_process_that_hangs_says_where_and_is_ended(project):
    project.write("drive.py", ROUNDS)
    project.write("test_speed.py", IN_FORKS.replace("WHAT", "time.sleep(600)"))
    run = project.run("--perf", *NOT_JUDGED, "-p", "drive", "--perf-timeout=25")
    assert run.code == 1
    assert "the test did not finish within 25 s (--perf-timeout) at test_speed.py:" in run.output
    assert "in in_a_fork" in run.output
    (pid,) = project.note("forked")
    assert not alive(pid)


FIRST = """
    import os
    import warnings
    from pathlib import Path

    import pytest
    IMPORT


    @pytest.fixture
    def resource():
        yield
        with open("ended.txt", "a") as notes:
            print(os.getpid(), file=notes)


    @pytest.mark.perf
    def test_step(perf, resource):
        warnings.warn("seen once", UserWarning)
        is_forked = "workers.fork_server" in Path(f"/proc/{os.getppid()}/cmdline").read_text()
        with open("notes.txt", "a") as notes:
            print(os.getpid(), "forked" if is_forked else "started", "NAME", file=notes)
        perf(int)
    """


def test_first_processes_are_forked_unless_new_ones_would_load_other_modules(project):
    project.ini("filterwarnings = default:seen once")
    # As the run before has loaded it. The second test does not load all of it.
    kept = [[name, find_spec(name).origin] for name in ("networkx", "torch")]
    project.write(".pytest_cache/v/perfdl/modules", json.dumps(kept))
    for name, line in (("a", "import networkx"), ("b", "import torch")):
        project.write(f"test_{name}.py", FIRST.replace("IMPORT", line).replace("NAME", name))
    run = project.run("--perf", *NOT_JUDGED)
    assert run.code == 0, run.output
    notes = [line.split() for line in (project.root / "notes.txt").read_text().splitlines()]
    assert [note[1:] for note in notes] == [["forked", "a"], ["forked", "b"], ["started", "b"]]
    assert [pid for pid, *_ in notes] == (project.root / "ended.txt").read_text().split(), "fixtures are torn down"
    assert run.output.count("UserWarning: seen once") == 2, run.output
    again = project.run("--perf", *NOT_JUDGED, "--perf-start=fresh")
    assert again.code == 0, again.output
    assert [line.split()[1] for line in (project.root / "notes.txt").read_text().splitlines()[3:]] == ["started"] * 2


def test_what_no_test_loads_any_more_is_not_loaded_again(project):
    cache = ".pytest_cache/v/perfdl/modules"
    project.write(cache, json.dumps([[name, find_spec(name).origin] for name in ("networkx", "torch")]))
    for name in "ab":
        project.write(f"test_{name}.py", FIRST.replace("IMPORT", "import torch").replace("NAME", name))
    for notes in (["forked a", "started a", "forked b"], ["forked a", "forked b"]):
        (project.root / "notes.txt").unlink(missing_ok=True)
        run = project.run("--perf", *NOT_JUDGED, "-p", "no:randomly")
        assert run.code == 0, run.output
        lines = (project.root / "notes.txt").read_text().splitlines()
        assert [line.partition(" ")[2] for line in lines] == notes
        assert [name for name, _ in json.loads((project.root / cache).read_text())] == [
            "torch",
            "numpy.random",
        ]


def test_a_test_that_fails_in_a_fork_alone_is_measured_in_a_new_process(project):
    text = IN_FORKS.replace("WHAT", "assert False, 'not in a fork'")
    project.write("test_speed.py", text.replace("import pytest\n", "import pytest\n    import torch\n"))
    run = project.run("--perf", *NOT_JUDGED)
    assert run.code == 0, run.output
    assert (project.root / "forked").exists()
    assert "1 passed" in run.output
    assert "not in a fork" not in run.output
