"""Rounds of two workers, seen without workers."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest

from pytest_perfdl.judge.round_data import orders
from pytest_perfdl.machine.device_state import DeviceUse
from pytest_perfdl.measure.commands import CallInfo, Finish, OpenCase, Settle, Settled, Time
from pytest_perfdl.measure.loops import Loops
from pytest_perfdl.model.errors import ForkError, SideError, WorkerDied, WorkerTimeout
from pytest_perfdl.model.record import Key, MeasurementPlan
from pytest_perfdl.run import paired_rounds as rounds
from pytest_perfdl.run.paired_rounds import Rounds, RoundSide, run_pass
from pytest_perfdl.run.processes import Start
from pytest_perfdl.workers.channel import CallShown, Shown
from unit.measure.answers import info, result, timed
from unit.measure.test_table_commands import Side, in_turns


class Remote:
    """A worker that waits for its turn once, and may die then."""

    def __init__(self, error=None):
        self.error = error
        self.waits = False
        self.over = False
        self.ended = []
        self.phases, self.failed_cases, self.results, self.metrics, self.origins = {}, {}, [], [], None

    def advance(self):
        self.waits = True

    def take_turn(self):
        self.waits = False
        self.over = True
        if self.error is not None:
            raise self.error

    def end(self, *, gently):
        self.ended.append(gently)


def in_rounds(start, parent=None, shown=None, scripts=None, threads=1, **options):
    """Rounds whose workers are made by `start(side)`, or by `start(side, parent)` where there may be a parent.

    The scripts that they are given are added to `scripts`.
    """

    def begin(test, script, *, checkout, against, side, parent, unfrozen):
        if scripts is not None:
            scripts.append(script)
        begun = start(side) if shown is None else start(side, parent)
        begun.unfrozen = unfrozen
        return begun

    settings = SimpleNamespace(**{"pin": "auto", "start": "auto", "budget": 300.0, **options})
    processes = SimpleNamespace(start=begin, parent=parent, scratch="/scratch")
    context = SimpleNamespace(processes=processes, config=None, settings=settings)
    test = SimpleNamespace(plan=MeasurementPlan(warmup=15, steps=40, threads=threads), loops=Loops(), cases={})
    sides = RoundSide("base", variant="base"), RoundSide("head", variant="head")
    return Rounds(context, test, *sides, seed=1, shown=shown)


@pytest.mark.parametrize("dying", ["base", "head"])
def test_when_one_side_dies_the_other_ends_at_once(dying, monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    started = {}

    def start(side):
        started[side] = Remote(RuntimeError("the worker died") if side == dying else None)
        return started[side]

    with pytest.raises(RuntimeError, match="the worker died"):
        in_rounds(start).measure(1)
    assert [remote.ended for remote in started.values()] == [[True], [True]]


@pytest.mark.parametrize("for_memory", [True, False])
def test_two_of_which_the_system_killed_one_for_its_memory_are_measured_in_turn(for_memory, monkeypatch):
    kills = [0]
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    monkeypatch.setattr(rounds, "kills_for_memory", lambda: kills[0])
    started = []

    def start(side):
        started.append(Remote(WorkerDied("killed by SIGKILL") if not started else None))
        return started[-1]

    take_turn = Remote.take_turn

    def dies(remote):
        kills[0] += for_memory and remote.error is not None
        take_turn(remote)

    monkeypatch.setattr(Remote, "take_turn", dies)
    pair = in_rounds(start)
    if for_memory:
        pair.measure(1)
        assert len(started) == 4, "two that were ended, then one after the other"
    else:
        with pytest.raises(WorkerDied, match="killed by SIGKILL"):
            pair.measure(1)
        assert len(started) == 2


SHOWN = (Shown(), Shown())


def test_both_sides_of_a_round_are_forked_from_one_parent_in_the_order_of_the_coin(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    begun = []

    def start(side, parent):
        begun.append((side, parent))
        return Remote()

    parents = iter(range(100))
    pair = in_rounds(start, parent=lambda test, shown: f"parent {next(parents)}", shown=SHOWN)
    measured = [pair.measure(number) for number in range(1, 13)]
    drawn = orders(1, 12)
    assert len(set(drawn)) == 2
    for number, (order, each) in enumerate(zip(drawn, measured, strict=True)):
        first, second = begun[2 * number : 2 * number + 2]
        assert (each.order, each.start) == (order, "forked")
        assert order.startswith(first[0]), "the coin says which side begins"
        assert {first[0], second[0]} == {"base", "head"}
        assert first[1] == second[1] == f"parent {number}", "both sides begin in the same way"
    assert pair.start_reason == ""


def test_without_what_the_first_processes_showed_both_sides_are_started(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    pair = in_rounds(lambda side: Remote())
    assert pair.measure(1).start == "started"
    assert "the first process of each side" in pair.start_reason


def test_where_the_parent_is_refused_both_sides_are_started_from_then_on(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    asked, begun = [], []

    def refuse(test, shown):
        asked.append(shown)
        raise ForkError("importing the test's modules starts 2 threads")

    def start(side, parent):
        begun.append(parent)
        return Remote()

    pair = in_rounds(start, parent=refuse, shown=SHOWN)
    assert [pair.measure(number).start for number in (1, 2)] == ["started", "started"]
    assert pair.start_reason == "importing the test's modules starts 2 threads"
    assert (asked, begun) == ([SHOWN], [None] * 4)


@pytest.mark.parametrize("failure", ["fork", "death", "test"])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_round_of_which_one_side_cannot_be_forked_is_started_as_a_whole(failure, failing, monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    monkeypatch.setattr(rounds, "kills_for_memory", lambda: 0)
    begun, remotes = [], []

    def start(side, parent):
        begun.append((side, parent))
        fails = parent is not None and len(begun) == failing
        if fails and failure == "fork":
            raise ForkError("the fork server exited")
        remotes.append(Remote())
        if fails:
            if failure == "death":
                remotes[-1].error = WorkerDied("the worker process was killed by SIGSEGV\nhere")
            else:
                monkeypatch.setattr(
                    rounds, "failure", lambda remote, _: "E no" if remote is remotes[failing - 1] else ""
                )
        return remotes[-1]

    pair = in_rounds(start, parent=lambda test, shown: "parent", shown=SHOWN)
    assert pair.measure(1).start == "started"
    first = orders(1, 1)[0].partition(" ")[0]
    assert next(side for side, parent in begun if parent is None) == first, "the order stays as it was drawn"
    assert [parent for _, parent in begun[-2:]] == [None, None]
    assert all(remote.over or remote.ended for remote in remotes)
    assert pair.start_reason in (
        "the fork server exited",
        "the forked process failed: the worker process was killed by SIGSEGV",
        "the test passes in a new process, but fails in a forked process",
    )
    assert pair.measure(2).start == "started"


def call(name="", step_ns=1_000_000, **rest):
    quiet = {"children": False, "threads": False, "device": False, "tracer": ""}
    return CallShown(name, step_ns, **{**quiet, **rest})


def shown(*calls, start_seconds=2.0):
    return Shown(calls=calls, start_seconds=start_seconds)


RUNS = shown(call())


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    monkeypatch.setattr(rounds.os, "sched_getaffinity", lambda process: {2, 3, 5, 7}, raising=False)


def commands(script):
    """What a script tells its worker, `None` where the other side has its turn."""
    made = script(CallInfo("", "function", 1, None, Key("k", {}), {}))
    told, answer = [], None
    while not told or not isinstance(told[-1], Finish):
        told.append(made.send(answer))
        answer = Settled(told[-1].least, settled=True, spread=0.0) if isinstance(told[-1], Settle) else None
    return told


def test_both_sides_of_a_round_are_bound_to_one_core_drawn_anew_each_round(cores):
    scripts = []
    pair = in_rounds(lambda side, parent: Remote(), parent=lambda *_: "parent", shown=(RUNS, RUNS), scripts=scripts)
    drawn = []
    for number in range(1, 41):
        scripts.clear()
        core = pair.measure(number).core
        assert [commands(script)[1].core for script in scripts] == [core, core]
        drawn.append((core, orders(1, number)[-1]))
    assert {core for core, _ in drawn} == {2, 3, 5, 7}
    assert all(
        {order for core, order in drawn if core == each} == {"base first", "head first"} for each in (2, 3, 5, 7)
    )
    assert pair.pin_reason == ""


@pytest.mark.parametrize(
    "reason, pair",
    [
        ("--perf-pin=off", {"shown": (RUNS, RUNS), "pin": "off"}),
        ("the first process of each side", {"shown": None}),
        ("uses 2 threads", {"shown": (RUNS, RUNS), "threads": 2}),
        ("uses a GPU", {"shown": (RUNS, shown(call(device=True)))}),
        ("has child processes", {"shown": (shown(call(children=True)), RUNS)}),
        ("starts threads", {"shown": (shown(call("a"), call("b", threads=True)), RUNS)}),
        ("only one CPU", {"shown": (RUNS, RUNS), "cores": {3}}),
    ],
)
def test_processes_are_left_free_where_one_core_would_change_what_is_measured(reason, pair, cores, monkeypatch):
    if "cores" in pair:
        monkeypatch.setattr(rounds.os, "sched_getaffinity", lambda process: pair["cores"])
    scripts = []
    options = {name: value for name, value in pair.items() if name != "cores"}
    made = in_rounds(lambda *_: Remote(), parent=lambda *_: "parent", scripts=scripts, **options)
    assert made.measure(1).core is None
    assert reason in made.pin_reason
    assert [commands(script)[1].core for script in scripts] == [None, None]


def test_what_rounds_cannot_have_seen_is_said():
    assert rounds.unseen([]) == ""
    seen = [result(*range(1, 41)), result(*range(1, 31)), result(timed=timed(*range(1, 21), loops=3))]
    assert rounds.unseen(seen) == "30 steps timed in a row: costs that come less often are not seen"
    assert rounds.unseen(seen[2:]) == "60 steps timed in a row: costs that come less often are not seen"


@pytest.mark.parametrize("side", [0, 1])
def test_where_the_steps_of_one_side_collect_garbage_nothing_is_frozen_on_either(side, cores):
    begun = []

    def start(*_):
        begun.append(Remote())
        return begun[-1]

    pair = [RUNS, RUNS]
    in_rounds(start, parent=lambda *_: "parent", shown=tuple(pair)).measure(1)
    pair[side] = shown(call("a"), call("b", object_walks=40))
    made = in_rounds(start, parent=lambda *_: "parent", shown=tuple(pair))
    made.measure(1)
    assert [each.unfrozen for each in begun] == [False, False, True, True]
    assert "nothing frozen" in made.how


@pytest.mark.parametrize("side", [0, 1])
def test_a_round_whose_steps_collect_garbage_although_it_is_frozen_is_measured_again(side, cores, monkeypatch):
    """The first processes did not show it: collections are rare, or the sides are alternatives of one test."""
    begun = []

    def start(*_):
        begun.append(Remote())
        return begun[-1]

    monkeypatch.setattr(rounds, "object_walks", lambda remote: remote in begun[2 + side : 3 + side] or len(begun) > 4)
    made = in_rounds(start, parent=lambda *_: "parent", shown=(RUNS, RUNS))
    measured = [made.measure(number) for number in (1, 2, 3)]
    assert [each.unfrozen for each in begun] == [False] * 4 + [True] * 4
    assert [each.start for each in measured] == ["forked"] * 3


@pytest.mark.parametrize("first_ms, again", [(30.1, True), (19.9, False), (10.0, False)])
@pytest.mark.parametrize("side", [0, 1])
def test_a_first_round_that_lacks_a_cost_of_the_first_process_is_measured_otherwise(side, first_ms, again, cores):
    """A thread that reads ahead works on in the other side's turn; one core, and frozen objects, hide costs too."""
    scripts, begun, turns = [], [], []

    def start(*_):
        turns.append(sum(isinstance(each, Time) for each in commands(scripts[-1])))
        begun.append(Remote())
        begun[-1].results = [result(timed=timed(10_000_000))]
        return begun[-1]

    first = [shown(call(step_ns=10_000_000)), shown(call(step_ns=10_000_000))]
    first[side] = shown(call(step_ns=round(first_ms * 1e6)))
    made = in_rounds(start, parent=lambda *_: "parent", shown=tuple(first), scripts=scripts)
    made._values, made._check = lambda *_: {"step_time": 1.0}, lambda *_: None
    measured = [made.measure(number) for number in (1, 2)]
    assert len(begun) == (6 if again else 4)
    assert [each.unfrozen for each in begun] == [again and number > 1 for number in range(len(begun))]
    assert [each.core is None for each in measured] == [again] * 2
    assert turns == ([8, 8, 2, 2, 2, 2] if again else [8] * 4)
    assert ("a step took 30.10 ms in the first process, 10.00 ms in a round" in made.how) == again


def test_where_children_work_for_the_steps_each_side_is_timed_in_one_turn(cores):
    scripts = []
    loading = shown(call(children=True)), shown(call())
    made = in_rounds(lambda *_: Remote(), parent=lambda *_: "parent", shown=loading, scripts=scripts)
    made.measure(1)
    for told in map(commands, scripts):
        untimed, timed_steps = (each for each in told if isinstance(each, Time))
        assert (untimed.blocks, untimed.block, untimed.opens) == (timed_steps.blocks, timed_steps.block, False)
        assert (timed_steps.opens, timed_steps.closes, timed_steps.last) == (True, True, True)
    assert "each side in one turn" in made.how


def test_one_side_sleeps_while_the_other_warms_up_and_is_timed(cores):
    scripts = []
    pair = in_rounds(lambda *_: Remote(), scripts=scripts)
    pair.measure(1)
    for told in map(commands, scripts):
        assert told[0] is None, "both have come to their first step before one of them warms up"
        assert all(before is None or after is None for before, after in itertools.pairwise(told))


def test_expensive_steps_are_reduced_alike_on_both_sides(cores):
    scripts = []
    slow = shown(call(step_ns=2_000_000_000)), shown(call(step_ns=1_000_000_000))
    pair = in_rounds(lambda *_: Remote(), parent=lambda *_: "parent", shown=slow, scripts=scripts)
    pair.measure(1)
    first, second = map(commands, scripts)
    assert first == second
    timed = [each for each in first if isinstance(each, Time)]
    assert (first[1].least, first[1].most) == (2, 2)
    assert (len(timed), {each.block for each in timed}) == (4, {1})
    assert pair.size_note == (
        "the time budget (--perf-budget) allows only 2 of 15 warm-up steps, 4 of 40 timed steps, because one step "
        "takes 2.000 s"
    )


def test_steps_of_which_nothing_is_known_are_sized_after_both_have_warmed_up(cores):
    scripts = []
    pair = in_rounds(lambda *_: Remote(), scripts=scripts)
    pair.measure(1)
    info = CallInfo("", "function", 1, None, Key("k", {}), {})
    base, head = (script(info) for script in scripts)
    turns = []
    for side in (base, head):
        assert next(side) is None
    for side, step_ns in ((base, 1_000_000), (head, 3_000_000_000)):
        settle = side.send(None)
        assert settle.seconds == pytest.approx(300 / 8 / 2 / 4)
        assert side.send(Settled(1, settled=True, spread=0.0, step_ns=step_ns)) is None
    for side in (base, head):
        told = [side.send(None)]
        while not isinstance(told[-1], Finish):
            told.append(side.send(None))
        turns.append([each for each in told if isinstance(each, Time)])
    assert len(turns[0]) == len(turns[1]) == 3
    assert {each.block for each in (*turns[0], *turns[1])} == {1}


def test_a_round_leaves_room_for_those_that_a_verdict_needs(cores):
    for start, seconds in ((1.0, 300 / 8), (20.0, 300 / 7), (70.0, 300 / 2)):
        slow = shown(call(step_ns=10**9), start_seconds=start)
        scripts = []
        pair = in_rounds(lambda *_: Remote(), parent=lambda *_: "parent", shown=(slow, slow), scripts=scripts)
        pair.measure(1)
        told = commands(scripts[0])
        steps = told[1].most + sum(each.block for each in told if isinstance(each, Time))
        assert start + 2 * steps <= seconds or steps == 3
        assert steps >= 3


@pytest.mark.parametrize("text", ["CUDA out of memory. Tried", "CUDA-capable device(s) is/are busy or unavailable"])
def test_two_that_cannot_be_alive_at_once_run_one_after_the_other_and_say_so(text, cores, monkeypatch):
    alive, most = [], []

    class Alone(Remote):
        def advance(self):
            alive.append(self)
            most.append(len([each for each in alive if not each.over]))
            super().advance()

    monkeypatch.setattr(rounds, "failure", lambda remote, _: text if len(alive) == 2 and remote is alive[1] else "")
    pair = in_rounds(lambda *_: Alone())
    first, second = pair.measure(1), pair.measure(2)
    assert (first.together, second.together) == (False, False)
    assert most == [1, 2, 1, 1, 1, 1]


class Watch:
    """GPUs that count how often they are asked, of which others use one while the second side is timed."""

    def __init__(self):
        self.asked = 0
        self.own = []

    def read(self):
        self.asked += 1
        return self.asked

    def use(self, before, after, own):
        assert after == before + 1, "asked right before and right after the turn"
        self.own.append(own)
        return DeviceUse(1, others=("python (12)",) if len(self.own) == 2 else ())


@pytest.mark.parametrize("device, together", [(True, True), (True, False), (False, True)])
def test_gpus_are_asked_before_and_after_each_turn_in_which_a_side_is_timed(cores, monkeypatch, device, together):
    watch = Watch()
    monkeypatch.setattr(rounds.DeviceWatch, "of", lambda _: watch)

    class Timing(Remote):
        """Warms up in its first turn, and is timed in its second."""

        def __init__(self):
            super().__init__()
            self.command = None

        def take_turn(self):
            self.over = isinstance(self.command, Settle)
            self.command = Time(1, 4) if self.command else Settle(2, 2, 2)
            self.waits = not self.over

    runs = shown(call(device=device))
    pair = in_rounds(lambda *_: Timing(), parent=lambda *_: "parent", shown=(runs, runs))
    pair._fits = together
    pair.measure(1)
    if not device:
        assert (watch.asked, pair.uses, pair.withheld) == (0, [], "")
        return
    assert watch.own == ([2, 2] if together else [1, 1])
    # Before each turn, and after those that were timed.
    assert watch.asked == 2 * (1 + 2)
    (uses,) = pair.uses
    assert {uses.base.others, uses.head.others} == {(), ("python (12)",)}
    assert pair.withheld == "other processes used the GPU: python (12)"


def test_the_order_of_cases_is_that_of_the_round_and_not_of_a_side(monkeypatch):
    """A mutant that orders them by side would run other commands in either process."""
    monkeypatch.setattr(rounds, "free_memory", lambda: 1.0)
    ids, scripts = frozenset("abcdefgh"), []
    measuring = in_rounds(lambda side: Remote(), scripts=scripts)
    measuring._loops = dict.fromkeys(ids, 4)
    orders_seen = []
    for number in (1, 2, 3):
        scripts.clear()
        measuring.measure(number, cases=ids)
        both = [Side(script(info(kind="table", cases=tuple(sorted(ids))))) for script in scripts]
        in_turns(*both)
        assert both[0].commands == both[1].commands
        orders_seen.append(tuple(command.case for command in both[0].commands if isinstance(command, OpenCase)))
    assert all(set(order) == ids for order in orders_seen)
    assert len(set(orders_seen)) == 3, "what a case leaves behind meets other cases in every round"
    assert orders_seen[0] == rounds.case_order(1, 1, ids, {})


def test_cases_that_share_what_is_set_up_around_them_follow_each_other():
    groups = {case: case[0] for case in ("a1", "a2", "a3", "b1", "b2")}
    orders_seen = {rounds.case_order(0, number, frozenset({*groups, "c"}), groups) for number in range(40)}
    assert len(orders_seen) > 10
    for order in orders_seen:
        letters = [case[0] for case in order]
        assert [letter for place, letter in enumerate(letters) if letters[place - 1 : place] != [letter]] == list(
            dict.fromkeys(letters)
        )


@pytest.mark.parametrize(
    ("ends", "started", "said"),
    [
        ([None], [7], ""),
        ([WorkerDied("killed by SIGSEGV"), None], [7, None], ""),
        ([ForkError("no answer"), None], [7, None], ""),
        (["not in a fork", None], [7, None], ""),
        (["once", "always"], [7, None], "the test failed on the baseline side while looking\nalways"),
        ([WorkerDied("once"), WorkerDied("killed by SIGBUS")], [7, None], "killed by SIGBUS"),
        ([WorkerTimeout("now")], [7], "the test did not finish in time on the baseline side while looking"),
    ],
)
def test_a_pass_after_the_rounds_is_forked_as_they_were_or_started(ends, started, said, monkeypatch):
    parents, left = [], iter(ends)

    def start(test, script, *, parent=None, unfrozen=False, **side):
        assert (side["checkout"], unfrozen) == ("their code", parent is not None)
        parents.append(parent)
        remote = SimpleNamespace(text="")
        remote.finish = lambda: finish(remote)
        return remote

    def finish(remote):
        end = next(left)
        if isinstance(end, Exception):
            raise end
        remote.text = end or ""

    monkeypatch.setattr(rounds, "failure", lambda remote, config: remote.text)
    processes = SimpleNamespace(start=start, last_fork=lambda test: Start("test", 7, True))
    context = SimpleNamespace(processes=processes, config=None)
    with pytest.raises(SideError, match=f"^{said}$") if said else contextlib.nullcontext():
        run_pass(context, None, RoundSide("base", "their code"), None, "looking")
    assert parents == started
