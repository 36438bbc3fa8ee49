"""Forking workers: what is refused, and how a forked process is watched. The modules that are loaded are small ones."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pytest_perfdl.model.errors import ForkError
from pytest_perfdl.system import processes
from pytest_perfdl.workers import forks
from pytest_perfdl.workers.channel import CallShown, Shown, pair
from pytest_perfdl.workers.forks import (
    PARENTS,
    ROUNDS_IN_A_ROW,
    ROUNDS_OF_A_PARENT,
    Common,
    ForkParent,
    Forks,
    common,
    keep_loaded,
    last_loaded,
)
from pytest_perfdl.workers.process import environment

pytestmark = pytest.mark.skipif(bool(forks.unsupported()), reason="this system cannot fork workers")

LIB = (("some_lib", "/lib/some_lib.py"), ("more_lib", "/lib/more_lib.py"))


def traced(tracer):
    return CallShown("", 1000, children=False, threads=False, device=False, tracer=tracer)


@pytest.mark.parametrize(
    "shown, reason",
    [
        (Shown(LIB, environment=("OMP_NUM_THREADS",)), "changes environment variables before .*: OMP_NUM_THREADS"),
        (Shown(LIB, hooks=("beartype.claw.Loader",)), "uses import hooks: beartype.claw.Loader"),
        (
            Shown(LIB, reads=(("some_lib", "/repository/settings.txt"),)),
            "importing module some_lib reads settings.txt, a file of the repository",
        ),
        (
            Shown(LIB, calls=(traced("a trace function from coverage"),)),
            "a trace function from coverage traces the test",
        ),
        (Shown((("some_lib", "/venv/some_lib.py"),)), "some_lib is .*/venv/some_lib.py"),
    ],
    ids=["environment", "hooks", "files", "tracer", "origin"],
)
@pytest.mark.parametrize("side", ["base", "head"])
def test_a_test_that_a_fork_would_not_be_like_is_refused(shown, reason, side):
    plain = Shown(LIB, calls=(traced(""),))
    assert common(plain, plain).modules == LIB
    with pytest.raises(ForkError, match=reason) as refusal:
        common(shown, plain) if side == "base" else common(plain, shown)
    assert "\n" not in str(refusal.value)


def test_what_one_side_alone_loads_is_not_loaded_beforehand():
    base, head = (
        Shown(LIB, besides=(("counter", "/c.py"),)),
        Shown((LIB[1], ("new_lib", "/n.py"), ("counter", "/c.py"))),
    )
    wanted = common(base, head)
    assert wanted.modules == (LIB[1],)
    assert wanted.allowed == (("counter", "/c.py"),)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Writes installed modules; what it returns is what a test that loads them has shown."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)

    def write(**modules):
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        return tuple((name, str(folder / f"{name}.py")) for name in modules)

    return write


@contextlib.contextmanager
def parent_of(modules, allowed=()):
    parent = ForkParent(Common(tuple(modules), tuple(allowed)), environment(1), ())
    try:
        parent.load()
        yield parent
    finally:
        parent.close()


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "starts 1 thread",
        ),
        (
            "import pytest_perfdl.workers.fork_server as f; f._DEVICES = (__file__,); kept = open(__file__)",
            "opens .*odd_lib.py",
        ),
        ("import asyncio; loop = asyncio.new_event_loop()", r"opens (anon_inode:\[eventpoll\]|socket:)"),
        ("import socket; pair = socket.socketpair()", r"opens socket:\["),
        ("import os; ends = os.pipe()", r"opens pipe:\["),
        ("import gc; gc.freeze()", r"freezes objects \(gc.freeze\)"),
        ("raise RuntimeError('not today')", "odd_lib cannot be imported on its own: RuntimeError: not today"),
        ("import another_lib", "loads another_lib, which a normal run of the test does not load"),
        ("import os; os._exit(3)", "the fork server exited"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the fork server exited"),
    ],
    ids=["thread", "device", "loop", "socket", "pipe", "frozen", "error", "more", "exit", "killed"],
)
def test_a_process_that_is_not_fit_to_be_forked_is_refused(text, reason, library):
    (odd, _) = library(odd_lib=text, another_lib="")
    with pytest.raises(ForkError, match=reason), parent_of([odd]):
        pass


def test_a_module_that_comes_from_elsewhere_by_itself_is_refused(library):
    library(odd_lib="")
    with (
        pytest.raises(ForkError, match=r"odd_lib is /elsewhere/odd_lib.py in the test"),
        parent_of([("odd_lib", "/elsewhere/odd_lib.py")]),
    ):
        pass


def test_what_the_test_loads_too_may_come_by_the_way(library):
    first, by_the_way = library(first_lib="import by_the_way", by_the_way="")
    made_up = ("made_up_lib", "/no/such/file.py")
    with parent_of([first, made_up], [by_the_way]) as parent:
        assert parent.alive


def test_a_parent_that_does_not_answer_is_refused(library, monkeypatch):
    monkeypatch.setattr(forks, "_LOADING_SECONDS", 0.5)
    (slow,) = library(slow_lib="import time; time.sleep(600)")
    with pytest.raises(ForkError, match=r"did not answer within 0.5 s"), parent_of([slow]):
        pass


class Forked:
    """A worker without a job: it waits for one until its channel is closed."""

    def __init__(self, parent):
        self.channel, theirs = pair()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        descriptors = (theirs.fileno(), self.output.fileno(), self.output.fileno())
        self.process = parent.fork(descriptors, sys.path, str(Path.cwd()), environment(1))
        theirs.close()
        processes.guard(self.process.pid)

    def close(self):
        processes.end(self.process.pid)
        self.channel.close()
        self.output.close()


@pytest.fixture
def forked(library):
    with parent_of(library(some_lib="import os; os.environ['SET_BY_LIB'] = 'yes'")) as parent:
        made = []

        def fork():
            made.append(Forked(parent))
            return made[-1]

        fork.parent = parent
        yield fork
        for each in made:
            each.close()


def test_a_forked_process_leads_a_group_and_says_how_it_ended(forked):
    first, second = forked(), forked()
    assert first.process.pid != second.process.pid
    # It makes the group itself, which may be a moment after it was forked.
    end = time.monotonic() + 10
    while os.getpgid(first.process.pid) != first.process.pid and time.monotonic() < end:
        time.sleep(0.01)
    assert os.getpgid(first.process.pid) == first.process.pid
    assert first.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(0.01)
    first.channel.close()
    assert first.process.wait(10) == 1, "a worker whose channel is closed ends so"
    os.kill(second.process.pid, signal.SIGTERM)
    assert (second.process.wait(10), second.process.poll()) == (-signal.SIGTERM, -signal.SIGTERM)


def test_the_system_ends_what_is_forked_when_the_parent_is_gone(forked):
    child = forked()
    os.kill(forked.parent.pid, signal.SIGKILL)
    assert child.process.wait(10) == -signal.SIGKILL
    with pytest.raises(ForkError, match="the fork server exited"):
        forked.parent.fork((0, 1, 2), [], "/", {})


def test_a_forked_process_that_cannot_be_watched_is_none(forked, monkeypatch):
    def refuse(pid):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(forks.os, "pidfd_open", refuse)
    ours, theirs = pair()
    with pytest.raises(ForkError, match="cannot be monitored: Too many open files"), tempfile.TemporaryFile() as output:
        forked.parent.fork((theirs.fileno(), output.fileno(), output.fileno()), sys.path, "/", environment(1))
    theirs.close()
    ours.close()


def test_a_parent_loads_modules_of_which_a_later_one_removes_some(library):
    modules = library(gone_lib="", first_lib="import gone_lib", last_lib="import sys; del sys.modules['gone_lib']")
    with parent_of(modules[1:], modules[:1]) as parent:
        assert parent.alive


@pytest.fixture
def shelf():
    made = Forks()
    yield made
    made.close()


def take(shelf, wanted, rounds, *, wait=True):
    """The numbers, in the order of their first rounds, of the parents that some rounds are forked from."""
    parents = [shelf.parent(wanted, 1, wait=wait) for _ in range(rounds)]
    numbers = {parent: number for number, parent in enumerate(dict.fromkeys(parents))}
    return [numbers[parent] for parent in parents]


@pytest.mark.long
def test_several_parents_take_turns_and_are_renewed_after_some_rounds(library, shelf):
    (first,) = library(first_lib="")
    wanted = Common((first,), ())
    assert take(shelf, wanted, 12) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0]
    pool = list(shelf._pool)
    assert len(pool) == PARENTS
    for parent in pool:
        parent.rounds = ROUNDS_OF_A_PARENT - 1
    assert [shelf.parent(wanted, 1) for _ in range(PARENTS)] == pool
    renewed = shelf.parent(wanted, 1)
    assert renewed not in pool
    assert renewed.alive
    assert not pool[0].alive


@pytest.mark.long
def test_parents_that_load_other_modules_or_have_ended_are_not_shared(library, shelf):
    first, second = library(first_lib="", second_lib="")
    one = shelf.parent(Common((first,), ()), 1)
    another = shelf.parent(Common((first, second), ()), 1)
    assert another is not one, "it loads other modules"
    other_threads = shelf.parent(Common((first, second), ()), 2)
    assert other_threads is not another
    os.kill(other_threads.pid, signal.SIGKILL)
    while other_threads.alive:
        time.sleep(0.01)
    assert shelf.parent(Common((first, second), ()), 2).alive


@pytest.mark.long
def test_a_parent_that_loads_is_held_while_steps_are_timed_and_has_its_turn_once_it_has_loaded(library, shelf):
    (slow,) = library(slow_lib="import time; time.sleep(0.5)")
    wanted = Common((slow,), ())
    assert take(shelf, wanted, ROUNDS_IN_A_ROW, wait=False) == [0, 0, 0]
    assert len(shelf._pool) == 1, "a test may end with these rounds"
    assert take(shelf, wanted, 1, wait=False) == [0]
    one, other = shelf._pool
    shelf.hold(True)
    assert status(other.pid) == "T"
    assert status(one.pid) == "S", "it has loaded"
    assert take(shelf, wanted, 1, wait=False) == [0]
    assert shelf._pool == [one, other], "one at a time"
    shelf.hold(False)
    other.load()
    assert shelf.parent(wanted, 1) is other
    shelf.hold(True)
    assert status(other.pid) == "S"


@pytest.mark.long
def test_a_parent_that_is_held_goes_on_when_it_is_waited_for(library, shelf):
    (slow,) = library(slow_lib="import time; time.sleep(0.5)")
    shelf.prepare(Common((slow,), ()), 1)
    shelf.hold(True)
    assert shelf.parent(Common((slow,), ()), 1).alive


def status(pid):
    """State of a process as Linux gives it: T if it is stopped, S if it waits."""
    while True:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "R":
            return state
        time.sleep(0.01)


def test_a_parent_that_was_prepared_is_taken_where_it_loads_what_is_wanted(library, shelf):
    first, second = library(first_lib="", second_lib="")
    shelf.prepare(Common((first,), ()), 1)
    (prepared,) = shelf._pool
    assert shelf.parent(Common((first,), ()), 1) is prepared
    shelf.prepare(Common((first,), ()), 1)
    assert shelf._pool == [prepared], "the one that is there serves"
    assert shelf.parent(Common((first, second), ()), 1) is not prepared
    assert not prepared.alive


def test_the_parent_that_is_there_serves_first_processes_and_rounds_that_load_what_it_has(library, shelf):
    first, by_the_way, second = library(first_lib="import by_the_way", by_the_way="", second_lib="")
    with pytest.raises(ForkError, match="nothing is known"):
        shelf.present(None, 1)
    parent = shelf.present(Common((first,), None), 1)
    assert parent.roots == (first,)
    assert shelf.present(Common((second,), None), 1) is shelf.present(None, 1) is parent
    assert shelf.parent(Common((first, by_the_way), ()), 1) is parent
    assert shelf.parent(Common((first,), (by_the_way, second)), 1) is parent
    more = shelf.parent(Common((first, by_the_way, second), ()), 1)
    assert more is not parent, "it lacks a module"
    less = shelf.parent(Common((first, by_the_way), ()), 1)
    assert less is not more, "it has a module too many"
    assert shelf.present(Common((second,), None), 2) is not less, "of other threads"


def test_a_parent_still_fits_where_only_folders_without_its_modules_join_the_path(
    library, shelf, tmp_path, monkeypatch
):
    (first,) = library(first_lib="")
    parent = shelf.present(Common((first,), None), 1)
    tests, others = tmp_path / "tests", tmp_path / "others"
    for folder, name in ((tests, "test_step.py"), (others, "first_lib.py")):
        folder.mkdir()
        (folder / name).touch()
    monkeypatch.syspath_prepend(tests)
    monkeypatch.syspath_prepend(tmp_path / "missing")
    assert shelf.present(None, 1) is parent
    monkeypatch.syspath_prepend(others)
    with pytest.raises(ForkError):
        shelf.present(None, 1)
    sys.path.remove(str(others))
    assert shelf.present(None, 1) is parent
    sys.path.reverse()
    with pytest.raises(ForkError):
        shelf.present(None, 1)
    sys.path.reverse()
    monkeypatch.setenv("PERFDL_TEST_LATE", "1")
    with pytest.raises(ForkError):
        shelf.present(None, 1)


class Cache:
    def __init__(self, kept=None):
        self.kept = {} if kept is None else {"perfdl/modules": kept}

    def get(self, key, default):
        return self.kept.get(key, default)

    def set(self, key, value):
        self.kept[key] = value


def test_a_run_loads_beforehand_what_the_last_one_loaded(library):
    first, by_the_way = library(first_lib="import by_the_way", by_the_way="")
    cache, forks = Cache(), Forks()
    try:
        keep_loaded(cache, forks)
        assert cache.kept == {}
        forks.parent(Common((first,), (by_the_way,)), 1)
        keep_loaded(cache, forks)
        assert cache.kept == {}, "what rounds are forked from may have loaded more than a test does before its calls"
        parent = forks.parent(Common((first,), (by_the_way,)), 1, first=True)
        keep_loaded(cache, forks)
        assert cache.kept == {}, "no first process was forked"
        forks.judge(parent, like_new=True)
        keep_loaded(cache, forks)
    finally:
        forks.close()
    assert cache.kept == {"perfdl/modules": [list(first)]}
    later = last_loaded(cache, 1, start="auto")
    try:
        assert later.parent(Common((first, by_the_way), ()), 1) is later.present(None, 1)
    finally:
        later.close()


@pytest.mark.parametrize("likes", list(itertools.product([False, True], repeat=3)))
def test_a_parent_that_all_first_processes_refused_is_neither_asked_again_nor_kept(library, shelf, likes):
    (first,) = library(first_lib="")
    parent, cache = shelf.present(Common((first,), None), 1), Cache([["old_lib", "/lib/old_lib.py"]])
    for count, like in enumerate(likes, start=1):
        shelf.judge(parent, like)
        keep_loaded(cache, shelf)
        accepted = any(likes[:count])
        assert cache.kept == {"perfdl/modules": [list(first)] if accepted else []}
        for otherwise, why in ((None, "nothing is known"), (Common((first,), None), "was like a new one")):
            with contextlib.nullcontext() if accepted else pytest.raises(ForkError, match=why):
                assert shelf.present(otherwise, 1) is parent


@pytest.mark.parametrize("kept", [None, [], 3, "text", [3], [["gone_lib", "/lib/gone_lib.py"]], {"a": 1}])
@pytest.mark.parametrize("start", ["auto", "fresh"])
def test_without_a_sound_note_nothing_is_there(kept, start):
    forks = last_loaded(Cache(kept), 1, start=start)
    try:
        with pytest.raises(ForkError):
            forks.present(None, 1)
    finally:
        forks.close()
    assert last_loaded(None, 1, start=start)._pool == []


def test_what_is_wrong_with_a_prepared_parent_is_said_when_it_is_asked_for(library, shelf):
    (odd,) = library(odd_lib="raise RuntimeError('not today')")
    shelf.prepare(Common((odd,), ()), 1)
    with pytest.raises(ForkError, match="not today"):
        shelf.parent(Common((odd,), ()), 1)
    shelf.prepare(Common((odd,), ()), 1)
    assert shelf._pool == [], "it is not tried again"


def test_a_parent_that_was_refused_is_not_tried_again(library, shelf, monkeypatch):
    (odd,) = library(odd_lib="raise RuntimeError('not today')")
    for _ in range(2):
        with pytest.raises(ForkError, match="not today"):
            shelf.parent(Common((odd,), ()), 1)
        library(odd_lib="")


def test_a_parent_that_answers_late_is_of_no_use_any_more(library, monkeypatch):
    """Its answer would be taken for that to the next message."""
    with parent_of(library(some_lib="")) as parent:
        monkeypatch.setattr(forks, "_ANSWER_SECONDS", 0.2)
        os.kill(parent.pid, signal.SIGSTOP)
        assert parent.reap(1) == -signal.SIGKILL
        with pytest.raises(ForkError, match="was stopped, because it did not answer"):
            parent.fork((), sys.path, str(Path.cwd()), environment(1))


def interrupt_next(parent, monkeypatch):
    """Ctrl-C while the answer to the next message is waited for."""

    def receive(**_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(parent._channel, "receive", receive)


def test_an_answer_that_ctrl_c_did_not_let_come_is_not_taken_for_the_next(forked, monkeypatch):
    worker = forked()
    parent = worker.process._parent
    interrupt_next(parent, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        parent.fork((), sys.path, str(Path.cwd()), environment(1))
    os.kill(worker.process.pid, signal.SIGKILL)
    assert worker.process.wait(10) == -signal.SIGKILL


def test_a_process_that_ctrl_c_interrupts_the_end_of_has_ended(forked, monkeypatch):
    worker = forked()
    os.kill(worker.process.pid, signal.SIGKILL)
    interrupt_next(worker.process._parent, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        worker.process.wait(10)
    assert worker.process.poll() == -signal.SIGKILL


def test_trouble_of_one_parent_leaves_the_others_in_use(library, shelf):
    wanted = Common(tuple(library(some_lib="")), ())
    first = shelf.parent(wanted, 1)
    first.rounds = ROUNDS_IN_A_ROW
    shelf.parent(wanted, 1)
    (other,) = (each for each in shelf._pool if each is not first)
    processes.end(other.pid)
    with pytest.raises(ForkError, match="exited"):
        shelf._loaded(other)
    assert shelf.parent(wanted, 1) is first
