"""The limits of a machine among a project's baselines: read, measured once, refused, held against what is now."""

from dataclasses import replace

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.machine.rates import Machine
from pytest_perfdl.model.errors import ConstantsError
from pytest_perfdl.model.record import Key
from pytest_perfdl.run import machine_rates
from pytest_perfdl.run.machine_rates import MachineRates, reached, unfit

KEY = Key("cpu-2c-1t", {"threads": 1, "accelerators": 0})
FOUND = Machine(
    flops_per_s={"float32": 1e11, "float64": 5e10},
    bandwidths=((2**18, 4e10), (2**27, 1e10)),
    spread={"float32": 0.01, "float64": 0.1},
    key="cpu-2c-1t torch 2.13.0",
    date="2026-11-23",
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, "baselines")


@pytest.fixture
def measuring(monkeypatch):
    """What measuring finds, or raises; and how often it was asked for."""
    asked = []

    def give(answer):
        def calibrated(*arguments, **more):
            asked.append((arguments, more))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(machine_rates, "calibrated", calibrated)
        return asked

    return give


def test_limits_are_measured_once_and_kept(store, measuring):
    asked = measuring(FOUND)
    limits = MachineRates(store)
    assert limits.of(KEY) is None
    assert limits.measure(KEY, ("torch",)) == ""
    assert limits.measure(KEY) == ""
    assert asked == [((1, False, ("torch",)), {})]
    assert limits.of(KEY) == FOUND
    assert (store.base / "cpu-2c-1t" / "machine.json").exists()
    # Another run reads them.
    later = MachineRates(store)
    assert later.of(KEY) == FOUND
    assert later.measure(KEY) == ""
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer, said",
    [
        (
            ConstantsError(
                "other processes used 0.50 CPUs during the measurement: stop other processes and measure again"
            ),
            "other processes used 0.50",
        ),
        (
            replace(FOUND, key="other-1t torch 2.13.0"),
            "the machine ID in the worker process differs from this process's machine ID: other-1t torch",
        ),
    ],
)
def test_limits_that_cannot_be_measured_are_left_out_and_not_asked_for_again(store, measuring, answer, said):
    asked = measuring(answer)
    limits = MachineRates(store)
    assert limits.measure(KEY).startswith(said)
    assert limits.measure(KEY).startswith(said)
    assert len(asked) == 1
    assert limits.of(KEY) is None
    assert not store.base.exists()


def test_a_damaged_file_is_refused_with_what_to_do(store):
    path = store.key_folder(KEY.slug) / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}{")
    with pytest.raises(ConstantsError) as refused:
        MachineRates(store).of(KEY)
    assert str(refused.value).endswith("restore the file from git, or delete the file and run pytest --perf-update")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "now, level, said",
    [
        (FOUND, "ok", "the machine reaches the peak rates in machine.json (recorded 2026-11-23)"),
        (replace(FOUND, flops_per_s={"float32": 0.91e11, "float64": 3.6e10}), "ok", "the machine reaches"),
        (
            replace(FOUND, flops_per_s={"float32": 0.89e11, "float64": 3.4e10}),
            "warn",
            "float32 is 89.00 Gflop/s (recorded: 100.0 Gflop/s); float64 is 34.00 Gflop/s (recorded: 50.00 Gflop/s)",
        ),
        (
            replace(FOUND, bandwidths=((2**18, 4e10), (2**27, 0.8e10))),
            "warn",
            "memory bandwidth for 128.0 MiB is 8.000 GB/s (recorded: 10.00 GB/s)",
        ),
        (ConstantsError("disturbed: others"), "note", "the peak rates could not be compared with machine.json"),
    ],
)
def test_a_machine_reaches_its_limits_or_not(store, measuring, monkeypatch, now, level, said):
    monkeypatch.setattr("pytest_perfdl.measure.calibration.prepare", lambda threads: FOUND.key)
    measuring(now)
    assert reached(store) == []
    FOUND.save(store.key_folder(KEY.slug) / "machine.json")
    (finding,) = reached(store)
    assert (finding.level, finding.topic) == (level, "limits")
    assert finding.found.startswith(said)


def test_another_machines_limits_are_not_held_against_this_one(store, measuring, monkeypatch):
    monkeypatch.setattr("pytest_perfdl.measure.calibration.prepare", lambda threads: "other-1t torch 2")
    measuring(FOUND)
    FOUND.save(store.key_folder(KEY.slug) / "machine.json")
    assert reached(store) == []


def test_a_quota_or_a_battery_leave_no_limits(tmp_path):
    assert unfit(tmp_path) == ""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert unfit(tmp_path).startswith("0.5 of ")
    assert unfit(tmp_path).endswith("all threads stop when the quota of a period is used up")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    mains = tmp_path / "sys/class/power_supply/AC"
    mains.mkdir(parents=True)
    (mains / "type").write_text("Mains\n")
    (mains / "online").write_text("0\n")
    assert unfit(tmp_path) == "on battery: laptops reduce clocks on battery"


class TestMissed:
    @pytest.mark.parametrize(
        "now, said",
        [
            (FOUND, ""),
            (replace(FOUND, flops_per_s={"float32": 0.91e11, "float64": 4e10}), ""),
            (
                replace(FOUND, flops_per_s={"float32": 0.89e11, "float64": 4e10}),
                (
                    "the machine does not reach its recorded peak rates: float32 is 89.00 Gflop/s "
                    "(recorded: 100.0 Gflop/s)"
                ),
            ),
            (
                ConstantsError("other processes used 0.50 CPUs"),
                "the peak rates of the machine could not be measured again: other processes used 0.50 CPUs",
            ),
        ],
    )
    def test_what_the_machine_does_not_reach_now_is_measured_once(self, store, measuring, now, said):
        measuring(FOUND)
        limits = MachineRates(store)
        limits.measure(KEY)
        asked = measuring(now)
        before = len(asked)
        assert [limits.missed(KEY, ("torch",)), limits.missed(KEY)] == [said] * 2
        assert len(asked) == before + 1
        assert asked[-1] == ((1, False, ("torch",)), {"seconds": 2.5})

    def test_limits_by_key_for_reports(self, store, measuring):
        measuring(FOUND)
        limits = MachineRates(store)
        limits.measure(KEY)
        other = Key("other", {})
        assert limits.peaks([KEY, other, KEY]) == {KEY.slug: FOUND.peaks}
        (store.base / KEY.slug / "machine.json").write_text("{")
        assert MachineRates(store).peaks([KEY]) == {}
