"""What is said of the machine after a timed pass."""

import mmap

import pytest

from pytest_perfdl.machine.state import Surroundings
from pytest_perfdl.measure.commands import CaseResult
from pytest_perfdl.run import assemble
from unit.measure.answers import named, result, timed


def around(before=(), after=(), **state):
    return result(
        timed=timed(100, 100, reference_before=before, reference_after=after, surroundings=Surroundings(**state))
    )


def found(*results):
    return [(finding.code, finding.message) for finding in assemble.findings(results)]


def test_a_quiet_machine_gives_no_findings():
    quiet = around((50, 51, 50), (50, 52, 51), clocks_mhz=(2600.0, 2700.0), throttled=0, swapped_pages=0,
                   stolen_ticks=1, busy_ticks=40)  # fmt: skip

    assert found(quiet, around(), around(clocks_mhz=(0.0, 0.0))) == []


def test_a_machine_that_changed_while_measuring():
    changed = around((50, 51, 50), (65, 66, 65))
    ((code, message),) = found(around((50,), (60,)), changed)

    assert code == "machine-changed"
    assert message.startswith("the machine's speed changed by 30% during the measurement (reference load). ")


def stalled(*steps, **rest):
    return result(timed=timed(*steps, **rest))


def test_a_step_that_stalls_is_told():
    usual = (1_000_000,) * 39
    ((code, message),) = found(stalled(*usual, 166_000_000), stalled(*usual, 120_000_000))

    assert code == "stalled"
    assert message.startswith("a step took 166 times as long as the median step: block_time ")


def test_what_is_no_stall():
    usual = (1_000_000,) * 9
    # Slow steps now and then; others used the CPU; an interrupt.
    assert found(stalled(*usual, 49_000_000)) == []
    assert found(stalled(*usual, 166_000_000, delay_ns=(0,) * 9 + (160_000_000,))) == []
    assert found(stalled(*((1000,) * 9), 166_000)) == []
    assert found(stalled(*((1_000_000,) * 9), 2_000_000, delay_ns=(999_999,) * 9 + (0,))) == []


def cases(**steps):
    return result(cases=tuple(CaseResult(name, 1, step_ns) for name, step_ns in steps.items()))


def test_cases_with_a_step_that_stalls_are_told():
    usual = (100_000,) * 9
    ((code, message),) = found(cases(a=(*usual, 100_000)), cases(a=(*usual, 16_600_000), b=usual, failed=()))

    assert code == "stalled"
    assert "median step of its case in a (166 times): the time of a case, " in message
    assert found(cases(a=(*usual, 9_900_000), b=(1_000_000,) * 9 + (50_000_000,))) == []

    worst, other, third = (*usual, 16_600_000), (*usual, 10_000_000), (*usual, 11_000_000)
    ((_, message),) = found(cases(a=other, b=worst), cases(c=third, a=other))
    assert "its case in b (166 times), c (110 times), a (100 times): " in message


def test_each_call_is_told_apart():
    forward, backward = (named(name, around((50,), (60,))) for name in ("forward", "backward"))
    messages = [message for _, message in found(forward, backward, forward)]

    assert [message.split(":")[0] for message in messages] == ["forward", "backward"]


@pytest.mark.parametrize(
    "before, after",
    [((100, 100, 100), (109, 109, 109)), ((100, 100, 160), (130, 130, 130)), ((), (130,)), ((100,), ())],
    ids=["nine-percent", "within-the-runs-spread", "not-before", "not-after"],
)
def test_what_is_no_change_of_speed(before, after):
    assert found(around(before, after)) == []


def test_a_faster_machine_changed_too():
    assert "changed by 30%" in found(around((130,), (100,)))[0][1]


@pytest.mark.parametrize(
    "state, code, says",
    [
        (
            {"clocks_mhz": (2600.0, 3200.0)},
            "clock-changed",
            "clock varied between 2600 and 3200 MHz during timing: fix",
        ),
        (
            {"throttled": 1},
            "throttled",
            "throttled once during timing because of temperature or power: let the machine cool",
        ),
        ({"throttled": 3}, "throttled", "throttled 3 times"),
        ({"swapped_pages": 2**20 // mmap.PAGESIZE}, "swapping", "1.000 MiB were swapped during timing: free"),
        ({"major_faults": 2}, "major-faults", "waited for the disk 2 times during timing (major page faults): free"),
        ({"stolen_ticks": 3, "busy_ticks": 30}, "stolen-time", "used 10% of the CPU time during timing"),
    ],
    ids=["clock", "throttled-once", "throttled", "swap", "faults", "stolen"],
)
def test_what_disturbed_is_named_with_what_to_do(state, code, says):
    ((seen, message),) = found(around(), around(**state), around(**state))

    assert seen == code
    assert says in message


def test_too_few_ticks_make_no_share():
    assert found(around(stolen_ticks=10, busy_ticks=19)) == []
    assert found(around(stolen_ticks=10)) == []


def test_one_reference_time_a_repeat_is_the_lower_quartile_of_all_its_calls():
    first, second = around((10, 20), (30, 40)), around((50,), ())

    assert assemble.reference_ns([[first, second], [second]]) == (20, 50)
    assert assemble.reference_ns([[named("forward", first)], [around()]]) == ()
