"""How many paired rounds a slowdown needs: as many in a shard as in a run of all tests."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from making import record, rows, timed

from pytest_perfdl.diff.matching.names import NO_RULES
from pytest_perfdl.judge import kernels, stopping_rule
from pytest_perfdl.judge.round_data import Round, orders
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.machine.device_state import DeviceUse, DeviceUses
from pytest_perfdl.model.limits import BUILT_IN
from pytest_perfdl.run import confirmation
from pytest_perfdl.run.confirmation import Confirmation
from pytest_perfdl.stats.evidence import least_rounds

LIMITS = BUILT_IN
STEP, ROW = 10_000_000, 4_000_000


class Measuring:
    """Rounds of a step and of its operator that are slower by factors."""

    how = "made"
    results = uses = ()
    withheld = ""

    def __init__(self, step, row):
        self._factors = step, row
        self._random = random.Random(7)
        self._orders = orders(7, 200)
        self.count = 0
        self.profiled = []

    def measure(self, number, *, profiled, cases):
        self.count = number
        self.profiled.append(profiled)
        noise = [1 + self._random.gauss(0, 1e-4) for _ in range(4)]
        step, row = self._factors
        return Round(
            self._orders[number - 1],
            {"step_time": STEP * noise[0]},
            {"step_time": STEP * noise[1] * step},
            {"operator mm": ROW * noise[2]} if profiled else {},
            {"operator mm": ROW * noise[3] * row} if profiled else {},
        )


def confirmed(monkeypatch, measuring, *, collected=1, verdict="regressed"):
    """What rounds of a run make of one test, of all that were collected."""
    monkeypatch.setattr(confirmation, "Rounds", lambda *_, **__: measuring)
    idle = SimpleNamespace(start=lambda *_: None, clear=lambda: None)
    options = SimpleNamespace(resolution_for=lambda _: None)
    test = SimpleNamespace(
        item=SimpleNamespace(nodeid="t.py::test"), limits=LIMITS, options=options, plan=SimpleNamespace(ranks=0)
    )
    context = SimpleNamespace(
        tests=(test,),
        collected=collected,
        progress=idle,
        settings=SimpleNamespace(budget=1e9),
        rules=NO_RULES,
        machines=SimpleNamespace(of=lambda _: None),
    )
    side = record({"step_time": timed(STEP)}, rows=rows(mm=(4, ROW)), profiled=(STEP,))
    found = standing(side, side, (), LIMITS)
    judged = Confirmation(context, test, 1).of_code(found, side, side, side, None, shown=None)
    assert judged.verdict == verdict
    return judged


def rounds_to_fail(monkeypatch, *, step=1.0, row=1.0, **rest):
    measuring = Measuring(step, row)
    confirmed(monkeypatch, measuring, **rest)
    # What looks slower is profiled as long as it does.
    assert all(measuring.profiled)
    return measuring.count


@pytest.mark.parametrize("collected", [1, 47, 4000])
def test_a_slower_step(collected, monkeypatch):
    needed = least_rounds(collected / stopping_rule.ALPHA)
    assert rounds_to_fail(monkeypatch, collected=collected, step=1.5) == needed


@pytest.mark.parametrize("collected", [1, 47, 4000])
def test_a_slower_operator(collected, monkeypatch):
    needed = least_rounds(collected / kernels.ALPHA)
    assert rounds_to_fail(monkeypatch, collected=collected, row=1.5) == needed


def test_of_steps_that_look_unchanged_the_first_rounds_are_profiled(monkeypatch):
    measuring = Measuring(1.0, 1.0)
    needed = iter([1.04, 0.97, 1.02, 1.0])
    measure = measuring.measure

    def noisy(number, *, profiled, cases):
        measuring._factors = next(needed, 1.0), 1.0
        return measure(number, profiled=profiled, cases=cases)

    measuring.measure = noisy
    confirmed(monkeypatch, measuring, verdict="unchanged")
    assert measuring.count > 4
    assert measuring.profiled == [True] * 3 + [False] * (measuring.count - 3)


SECOND = 10**9
IDLE, HOT = DeviceUse(SECOND), DeviceUse(SECOND, {"temperature": SECOND // 2})
SHARED = DeviceUse(SECOND, others=("python (12)",))


class Disturbed(Measuring):
    """Rounds of which the GPU is disturbed in some."""

    def __init__(self, uses):
        super().__init__(1.0, 1.0)
        self.each = uses
        self.uses = []
        self.numbers = []

    @property
    def withheld(self):
        return self.uses[-1].withheld

    def measure(self, number, *, profiled, cases):
        self.numbers.append(number)
        self.uses.append(self.each(number))
        found = super().measure(number, profiled=profiled, cases=cases)
        # What is withheld would be slower by far.
        slower = {name: 3 * value for name, value in found.head.items()}
        return replace(found, head=slower) if self.withheld else found


def test_rounds_in_which_others_used_the_gpu_are_measured_again(monkeypatch):
    measuring = Disturbed(lambda number: DeviceUses(IDLE, SHARED) if number in (1, 3) else DeviceUses(IDLE, IDLE))
    judged = confirmed(monkeypatch, measuring, verdict="unchanged")
    kept = len(measuring.numbers) - 2
    assert measuring.numbers == list(range(1, kept + 3))
    assert judged.rounds.startswith(f"{kept} rounds, ")
    (found,) = [each for each in judged.integrity if each.code == "withheld"]
    assert found.message == (
        f"2 paired rounds of {kept + 2} not used, because other processes used the GPU: python (12): let the GPU cool, "
        "lock its clocks (perfdl check shows the command), and stop other processes"
    )


def test_a_clock_that_is_reduced_on_both_sides_leaves_nothing_to_judge(monkeypatch):
    measuring = Disturbed(lambda _: DeviceUses(HOT, HOT))
    monkeypatch.setattr(confirmation.clocks, "monotonic", lambda: 2e9 if len(measuring.numbers) > 3 else 0.0)
    judged = confirmed(monkeypatch, measuring, verdict="inconclusive")
    (metric,) = [each for each in judged.metrics if each.name == "step_time"]
    assert metric.reason == (
        "no paired round was measured; the clock of the GPU was reduced on both sides by temperature"
    )


def test_memory_errors_and_the_temperature_of_a_throttled_side_are_named(monkeypatch):
    warm, hot = replace(IDLE, celsius=60, watts=250.0), replace(HOT, celsius=88, watts=349.6, memory_errors=1)
    measuring = Disturbed(lambda _: DeviceUses(warm, hot))
    judged = confirmed(monkeypatch, measuring, verdict="unchanged")
    said = {each.code: each.message for each in judged.integrity}
    assert said["memory-errors"].startswith(f"ECC found {len(measuring.numbers)} memory errors of the GPU in paired")
    assert said["throttled-side"].endswith(
        "0% of the time of the baseline code and 50% of that of the current code (GPU at up to 60 °C, 250 W with the "
        "baseline code and 88 °C, 350 W with the current code): times of the current code include that"
    )


@pytest.mark.parametrize("base, head", [(IDLE, IDLE), (replace(IDLE, has_clients=True), IDLE)])
def test_mps_is_a_note(monkeypatch, base, head):
    judged = confirmed(monkeypatch, Disturbed(lambda _: DeviceUses(base, head)), verdict="unchanged")
    said = [each.message for each in judged.integrity if each.code == "mps"]
    text = "CUDA MPS runs kernels of several processes on the GPU at the same time: the two processes of a paired round"
    assert said == ([f"{text} alternate, as without it"] if base.has_clients else [])


def test_rounds_at_the_power_limit_count_and_say_so(monkeypatch):
    drawing = DeviceUse(SECOND, {"the power limit": SECOND * 9 // 10})
    judged = confirmed(monkeypatch, Disturbed(lambda _: DeviceUses(drawing, drawing)), verdict="unchanged")
    (found,) = [each for each in judged.integrity if each.code in ("power-limit", "withheld", "throttled-side")]
    assert found.message == (
        "the clock of the GPU was reduced by the power that the step draws, during 90% of the time of the baseline "
        "code and 90% of that of the current code: times are those at the power limit of this machine"
    )


@pytest.mark.parametrize("side", ["baseline", "current"])
def test_a_clock_that_is_reduced_on_one_side_is_named(monkeypatch, side):
    uses = DeviceUses(HOT, IDLE) if side == "baseline" else DeviceUses(IDLE, HOT)
    judged = confirmed(monkeypatch, Disturbed(lambda _: uses), verdict="unchanged")
    (found,) = [each for each in judged.integrity if each.code == "throttled-side"]
    shares = ("50%", "0%") if side == "baseline" else ("0%", "50%")
    assert found.message == (
        f"the clock of the GPU was reduced by temperature during {shares[0]} of the time of the baseline code and "
        f"{shares[1]} of that of the current code: times of the {side} code include that"
    )
