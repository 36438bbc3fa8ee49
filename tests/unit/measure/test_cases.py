"""The cases of a table in one process: opened, timed, freed, and each begun from the same state."""

import functools
import gc
import os
import random
import weakref

import pytest
import torch

from pytest_perfdl.fixture.calling import check_result
from pytest_perfdl.measure import cases, injected_delay
from pytest_perfdl.measure.cases import Calls, CaseProgram, TableProgram
from pytest_perfdl.measure.commands import DescribeCases, OpenCase, Rounds, TimeCase
from pytest_perfdl.measure.global_state import GlobalState
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import CaseWork
from unit.measure.answers import Conversation


def run(open_case, *commands, work_of=lambda _: None):
    """The answers of a process that gets these commands."""
    conversation = Conversation(*commands)
    TableProgram(conversation, open_case, work_of=work_of, check=check_result, seed=0).run()
    return conversation.answers


def work():
    return sum(range(100))


def test_a_case_is_opened_and_timed_with_the_calls_that_it_is_told():
    calls = []
    opened, timed, _ = run(lambda case: lambda: calls.append(case), OpenCase("a", 3, loops=7), TimeCase(5))
    assert (opened.problem, opened.loops) == ("", 7)
    assert len(timed.step_ns) == 5
    assert min(timed.step_ns) > 0
    # The first call is checked, three steps warm up, five are timed.
    assert calls == ["a"] * (1 + (3 + 5) * 7)


def test_cold_calls_find_emptied_caches_and_a_step_is_one_of_them():
    log = []

    def call():
        log.append("call")
        return sum(range(1000))

    conversation = Conversation(OpenCase("a", 2), TimeCase(3), OpenCase("a", 1, loops=2), DescribeCases(("a",)))
    TableProgram(
        conversation,
        lambda _: call,
        work_of=lambda _: None,
        check=check_result,
        seed=0,
        flush=lambda: log.append("flush"),
    ).run()
    opened, *_ = conversation.answers
    assert (opened.problem, opened.loops) == ("", 1)
    # By hand: the checked call, two steps of warm-up, three tried, three timed; then the same with two calls a step.
    cold = ["flush", "call"]
    assert log == ["call", *cold * (2 + 3 + 3), "call", *cold * 2, "call", "call"]


def test_an_injected_delay_is_a_share_of_every_step_of_every_case_and_is_told(monkeypatch):
    """By hand, with a clock that passes only when a call takes it or while somebody asks: 25 % of 7 calls of 40,000."""
    now = [0]

    def call():
        now[0] += 40_000

    def ask():
        now[0] += 1
        return now[0]

    for module in (cases, injected_delay):
        monkeypatch.setattr(module, "perf_counter_ns", ask)
    conversation = Conversation(OpenCase("a", 3, loops=7), TimeCase(5), OpenCase("b", 3, loops=14), TimeCase(2))
    program = TableProgram(
        conversation, lambda _: call, work_of=lambda _: None, check=check_result, seed=0, inject=0.25
    )
    program.run()
    _, first, _, second, compiled = conversation.answers
    assert first.step_ns == pytest.approx([350_000] * 5, rel=1e-4)
    assert second.step_ns == pytest.approx([700_000] * 2, rel=1e-4)
    assert [finding.code for finding in compiled.findings] == ["injected"]


def test_the_first_process_finds_how_many_calls_a_step_needs():
    opened, timed, _ = run(lambda _: work, OpenCase("a", 1), TimeCase(3))
    assert opened.loops & (opened.loops - 1) == 0
    assert opened.loops > 1
    assert max(timed.step_ns) > 50_000


def test_a_call_that_does_nothing_is_too_short_to_be_timed():
    opened, _ = run(lambda _: int, OpenCase("a", 1))
    assert opened.problem.startswith("a call takes ")
    assert opened.problem.endswith("too short to be timed")


@pytest.mark.parametrize(
    "error, said",
    [
        (ValueError("wrong\nand more"), "ValueError: wrong"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] out of memory"), "RuntimeError: [enforce fail"),
    ],
)
def test_what_a_case_raises_is_its_problem_and_the_next_one_is_measured(error, said):
    def open_case(case):
        if case == "bad":
            raise error
        return work

    bad, good, timed, _ = run(open_case, OpenCase("bad", 1, 4), OpenCase("good", 1, 4), TimeCase(2))
    assert bad.problem.startswith(said)
    assert "\n" not in bad.problem
    assert (good.problem, len(timed.step_ns)) == ("", 2)


def test_a_case_that_raises_later_has_no_times():
    left = [5]

    def call():
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("enough")
        return work()

    _, timed, _ = run(lambda _: call, OpenCase("a", 1, 1), TimeCase(40))
    assert (timed.step_ns, timed.problem) == ((), "ValueError: enough")


FLOAT, HALF, INDEX = torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)


@pytest.mark.parametrize(
    "args, kwargs, dtype",
    [
        ((FLOAT,), {}, "float32"),
        ((HALF, INDEX), {}, "bfloat16"),
        ((5, [INDEX]), {"weights": {"first": HALF}}, "bfloat16"),
        ((torch.nn.Linear, INDEX), {}, "float32"),
        ((HALF,), {"out": FLOAT}, "bfloat16+float32"),
        ((INDEX,), {}, "int64"),
        ((torch.ones(2).to(torch.float8_e4m3fn),), {}, "float8"),
        ((5,), {}, ""),
    ],
)
def test_the_first_process_says_what_a_call_has_to_do_and_on_which_element_type(args, kwargs, dtype):
    # A module that lived as long as the parameters of tests would be a model of other tests, too.
    args = tuple(each(2, 2) if each is torch.nn.Linear else each for each in args)

    def open_case(_):
        return functools.partial(lambda *_, **__: work(), *args, **kwargs)

    opened, again, _ = run(
        open_case, OpenCase("a", 1), OpenCase("a", 1, 1), work_of=lambda case: CaseWork(flops=7.0, items=len(case))
    )
    assert opened.work == CaseWork(flops=7.0, items=1, dtype=dtype)
    assert again.work is None


def test_work_that_is_not_stated_stays_unknown():
    opened, _ = run(lambda _: functools.partial(work), OpenCase("a", 1))
    assert opened.work is None


def test_work_that_is_no_number_is_the_problem_of_its_case():
    def work_of(case):
        if case == "bad":
            raise PerfError("flops=many: expected a number")
        return CaseWork(flops=1.0)

    bad, good, _ = run(lambda _: work, OpenCase("bad", 1), OpenCase("good", 1), work_of=work_of)
    assert "flops=many: expected a number" in bad.problem
    assert (good.problem, good.work) == ("", CaseWork(flops=1.0))


def test_a_result_that_is_no_work_yet_is_a_problem():
    opened, _ = run(lambda _: lambda: (each for each in range(3)), OpenCase("a", 1))
    assert "returned a generator" in opened.problem


def test_arguments_are_freed_before_the_next_case():
    class Large:
        pass

    kept, alive = [], []

    def open_case(case):
        alive.append(sum(each() is not None for each in kept))
        large = Large()
        kept.append(weakref.ref(large))
        return lambda: (large, work())

    run(open_case, OpenCase("a", 1, 1), TimeCase(1), OpenCase("b", 1, 1), TimeCase(1), OpenCase("c", 1, 1))
    assert alive == [0, 0, 0]


def test_every_case_begins_with_the_same_random_numbers():
    seen = []

    def open_case(_):
        seen.append((random.random(), torch.rand(1).item()))
        return work

    run(open_case, OpenCase("a", 1, 1), OpenCase("b", 1, 1))
    assert seen[0] == seen[1]


def test_settings_that_a_case_changes_are_put_back_before_the_next_one(tmp_path):
    before, seen = GlobalState.now(), []

    def open_case(case):
        seen.append(GlobalState.now())
        if case != "changes":
            return work
        torch.set_num_threads(before.of_torch[0] + 1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("medium")
        torch.set_autocast_enabled("cpu", True)
        torch.set_anomaly_enabled(True)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.mkldnn.enabled = False
        os.environ["OMP_SCHEDULE"] = "dynamic"
        os.chdir(tmp_path)
        gc.disable()
        return work

    changed = before
    run(open_case, OpenCase("changes", 1, 1), OpenCase("after", 1, 1))
    assert seen == [before, before]
    run(open_case, OpenCase("changes", 1, 1))
    assert GlobalState.now() == changed, "nor does the test that made the table see them"


def test_what_is_not_restored_stays_so_that_a_leak_is_seen_alone_only():
    leaks = []

    def open_case(case):
        leaks.append(case)
        return work

    run(open_case, OpenCase("a", 1, 1), OpenCase("b", 1, 1))
    assert leaks == ["a", "b"]


def test_operators_of_all_cases_come_from_one_profile(capfd):
    def open_case(case):
        if case == "raises":
            raise ValueError
        x = torch.ones(8)
        return {"add": lambda: x + x, "two": lambda: (x * x).sum()}[case]

    described, _ = run(open_case, DescribeCases(("add", "raises", "two")))
    assert capfd.readouterr().err == "", "the profiler is not heard"
    assert described.operators["add"] == {"aten::add": 1}
    assert {"aten::mul": 1, "aten::sum": 1}.items() <= described.operators["two"].items()
    assert "aten::ones" not in described.operators["add"], "what a setup runs is no part of a call"
    assert "raises" not in described.operators
    assert described.kernels == {}


def test_allocations_of_a_call_are_exact():
    """By hand: one for each result, none in place; what a setup makes is no part of a call.

    A number that an operator gets is a tensor of its own: with 1.0 instead of x, there would be more.
    """

    def open_case(case):
        x = torch.ones(1000)
        return {
            "one": lambda: x + x,
            "two": lambda: (x + x).exp(),
            "in place": lambda: x.mul_(x),
            "empty": lambda: [torch.empty(10) for _ in range(7)],
        }[case]

    ids = ("one", "two", "in place", "empty")
    described = [run(open_case, DescribeCases(order))[0].allocations for order in (ids, ids[::-1], ids)]
    assert described == [{"one": 1, "two": 2, "in place": 0, "empty": 7}] * 3


def test_an_unknown_command_is_an_error():
    with pytest.raises(TypeError, match="unknown command"):
        run(lambda _: work, "anything")


class WholeCases(CaseProgram):
    """Cases that do more than their call, as tests do."""

    def __init__(self, conversation, bodies):
        super().__init__(conversation, seed=0)
        self.bodies = bodies

    def run_case(self, case):
        try:
            self.bodies[case](self)
        except Exception as error:
            return f"failed: {error}"
        return ""


def run_tests(bodies, *commands):
    conversation = Conversation(*commands)
    WholeCases(conversation, bodies).run()
    return conversation.answers


def test_a_case_goes_on_after_its_last_call_and_before_the_next_case():
    events = []

    def body(name):
        def run(program):
            events.append(f"{name} begins")
            program.serve(Calls(lambda: events.append(name)))
            events.append(f"{name} ends")

        return run

    first, timed, second, _ = run_tests(
        {"a": body("a"), "b": body("b")}, OpenCase("a", 0, 1), TimeCase(2), OpenCase("b", 1, 1)
    )
    assert events == ["a begins", "a", "a", "a ends", "b begins", "b", "b ends"]
    assert (first.problem, second.problem, len(timed.step_ns)) == ("", "", 2)


def test_a_case_that_makes_no_call_or_fails_before_it_says_so():
    def fails(program):
        raise ValueError("broken")

    nothing, failed, _ = run_tests({"a": lambda _: None, "b": fails}, OpenCase("a", 1), OpenCase("b", 1))
    assert nothing.problem == "it measured nothing"
    assert failed.problem == "failed: broken"


def test_what_a_call_raises_is_raised_where_it_was_made():
    caught = []
    left = [2]

    def call():
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("enough")

    def catches(program):
        try:
            program.serve(Calls(call))
        except ValueError as error:
            caught.append(str(error))

    opened, timed, after, _ = run_tests(
        {"a": catches, "b": lambda program: program.serve(Calls(int))},
        OpenCase("a", 1, 1),
        TimeCase(3),
        OpenCase("b", 1, 1),
    )
    assert caught == ["enough"]
    assert (opened.problem, timed.problem, timed.step_ns, after.problem) == ("", "ValueError: enough", (), "")


def test_a_case_that_says_how_often_its_calls_are_made_gets_these_and_no_more():
    calls = []

    def body(program):
        program.serve(lambda loops: calls.append(loops) or 7, rounds=Rounds(timed=3, warmup=2, calls=5))

    opened, timed, described, _ = run_tests({"a": body}, OpenCase("a", 15), TimeCase(3), DescribeCases(("a",)))
    assert opened.rounds == Rounds(3, 2, 5)
    assert timed.step_ns == (7, 7, 7)
    # Warm-up and rounds, once timed and once where others are described.
    assert calls == [5] * 5 + [5] * 5
    assert described.operators == {}
