"""Replaying a recording: which runs a decision may draw, and what the table says of many."""

import importlib.util
import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from pytest_perfdl.judge.round_data import Round
from pytest_perfdl.judge.stopping_rule import Spent
from pytest_perfdl.judge.stored_repeats import MOST_REPEATS
from unit.benchmarks.recorded_runs import HERE, MILLISECOND, USUAL, measured, noisy, recording

import noises  # isort: skip (recorded_runs makes these importable)
import ours  # isort: skip
import replay  # isort: skip
import recording as kept  # isort: skip
import synthetic  # isort: skip
from common.tables import write_between  # isort: skip
from recording import Cell  # isort: skip
from rules import RULES  # isort: skip
from shortcut import Shortcut  # isort: skip

_spec = importlib.util.spec_from_file_location("decision_quality_run", HERE / "run.py")
run = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = run
_spec.loader.exec_module(run)


@pytest.fixture(scope="module")
def runs():
    return recording()


@pytest.fixture(scope="module")
def pool(runs):
    return replay.Pool(runs, "numbers")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


class TestRecording:
    def test_metrics_are_the_plugins_of_its_forty_steps(self):
        # 1..40 ms: the quartile lies three quarters of the way from the 10th to the 11th; what comes later is not seen.
        found = measured([ms * MILLISECOND for ms in range(1, 101)]).metrics()
        assert found["step_time"] == 10.75 * MILLISECOND
        assert found["block_time"] == 20.5 * MILLISECOND

    def test_what_others_took_is_taken_off(self):
        idle = measured([10 * MILLISECOND] * 40)
        delays = (4 * MILLISECOND,) * 40
        blocks = tuple((*block[:4], 40 * MILLISECOND, 0) for block in idle.blocks)
        busy = replace(idle, delay_ns=delays, blocks=blocks, other_load=1.0)
        assert busy.metrics()["step_time"] == 6 * MILLISECOND
        assert replace(busy, other_load=0.0).metrics()["step_time"] == 10 * MILLISECOND

    def test_packed_and_unpacked_the_same(self, tmp_path, runs):
        packed = tmp_path / "data" / "recorded.json.gz"
        size = kept.pack(runs[::-1], {"cpu": "some"}, packed)
        assert size == packed.stat().st_size
        assert kept.unpack(packed) == ({"cpu": "some"}, runs), "in the order of time"
        before = packed.read_bytes()
        kept.pack(runs, {"cpu": "some"}, packed)
        assert packed.read_bytes() == before

    def test_kept_line_by_line(self, tmp_path, runs):
        lines = tmp_path / "lines.jsonl"
        assert kept.read_lines(lines) == []
        for each in runs[:5]:
            kept.append_line(lines, each)
        assert kept.unpack(lines) == ({}, runs[:5])
        assert json.loads(lines.read_text().splitlines()[0])["kind"] in ("process", "round")


class TestDraws:
    @pytest.mark.parametrize("stored, fresh, share", [(10, 1, 0.0), (1, 1, 0.05), (30, 1, 0.2), (10, 6, 0.1)],
                             ids=["gate", "pair", "history", "many"])  # fmt: skip
    def test_successive_ones_and_the_fresh_ones_later(self, pool, rng, stored, fresh, share):
        for _ in range(50):
            before, after = pool.draw(stored, fresh, share, rng)
            assert [len(before), len(after)] == [stored, fresh]
            assert {each.share for each in before} == {0.0}
            assert {each.share for each in after} == {share}
            assert before[-1].at < after[0].at
            for drawn, everyone in ((before, pool.unchanged), (after, pool.slowed(share))):
                first = everyone.index(drawn[0])
                assert drawn == everyone[first : first + len(drawn)]

    def test_every_later_process_can_be_drawn(self, pool, rng):
        drawn = {pool.draw(1, 1, 0.0, rng)[1][0].number for _ in range(2000)}
        assert drawn == {each.number for each in pool.unchanged[1:]}

    def test_too_few_are_named(self, pool, rng):
        with pytest.raises(replay.NotRecorded, match=r"no 25 processes of numbers at \+5%"):
            pool.draw(1, 25, 0.05, rng)
        with pytest.raises(replay.NotRecorded, match=r"no rounds of numbers at \+7%"):
            pool.drawing(0.07, rng)

    @pytest.mark.parametrize("share", [0.0, 0.10])
    def test_rounds_keep_their_sides_and_their_order_is_drawn(self, pool, rng, share):
        recorded = {tuple(each.base.values()): each for each in pool.rounds(share)}
        draw = pool.drawing(share, rng)
        drawn = [draw() for _ in range(400)]
        for each, seconds in drawn:
            known = recorded[tuple(each.base.values())]
            assert (each.order, each.head, seconds) == (known.order, known.head, known.seconds)
        assert len({tuple(each.base.values()) for each, _ in drawn}) == len(recorded), "every one is drawn"
        lopsided = sum(each.order == "base first" for each in recorded.values()) / len(recorded)
        assert sum(each.order == "base first" for each, _ in drawn) / 400 == pytest.approx(0.5, abs=0.08), lopsided

    def test_rounds_of_one_cell_only(self, rng):
        forked = Cell("forked", True, 0.0)
        runs = recording(cells=(forked, USUAL))
        assert {each.cell for each in replay.Pool(runs, "numbers", forked).rounds(0.0)} == {forked}
        with pytest.raises(replay.NotRecorded, match="of 2 cells: choose one"):
            replay.Pool(runs, "numbers")

    def test_rounds_that_ran_in_one_order_only(self, runs, rng):
        lopsided = replay.Pool([each for each in runs if getattr(each, "order", "") != "head first"], "numbers")
        with pytest.raises(replay.NotRecorded, match=r"no rounds of numbers at \+5% that ran head first"):
            lopsided.drawing(0.05, rng)

    def test_seconds_of_a_process(self, pool):
        one = replace(pool.unchanged[0], start_seconds=1.5, measured=measured([10 * MILLISECOND] * 100))
        # 15 steps to warm up and 40 timed ones of 10 ms.
        assert replay.process_seconds(one, 40) == pytest.approx(1.5 + 0.55)

    def test_seconds_before_rounds_are_those_of_both_first_processes(self, pool, rng):
        assert replay.Pool(recording(firsts=2), "numbers").first_seconds(0.05, rng) == 7.0
        # Without any recorded: a process of each side, of 55 steps of about 10 ms.
        assert pool.first_seconds(0.0, rng) == pytest.approx(2 * (1.5 + 0.55), rel=0.05)


def simulated(noise, seed, tests=1, slowdown=0.0, seconds=3.3):
    """One draw a test, from a noise."""
    rng = np.random.default_rng(seed)
    found, head_first = noises.rounds(noise, rng, tests, 200, slowdown=slowdown)
    for differences, first in zip(found, head_first, strict=True):
        made = iter(zip(differences, first, strict=True))

        def draw(made=made):
            each, is_first = next(made)
            order = "head first" if is_first else "base first"
            head = {name: 1e7 * np.exp(value) for name, value in zip(ours.NAMES, each, strict=True)}
            return Round(order, dict.fromkeys(ours.NAMES, 1e7), head), seconds

        yield draw


class TestOurs:
    def metrics(self, rng, level, count):
        return [noisy(rng, level * np.exp(0.01 * rng.standard_normal()), 0.02).metrics() for _ in range(count)]

    def test_unchanged_code_is_called_so_with_its_bound(self, pool, rng):
        found = ours.Perf().decide(pool.drawing(0.0, rng))
        assert (found.verdict, found.fails, found.positive) == ("unchanged", False, True)
        assert 3 <= found.rounds <= 10
        assert 0 < found.excluded <= 0.03
        assert found.seconds == 5.0 * found.rounds

    def test_what_is_slower_fails_and_later_in_a_larger_run(self, pool, rng):
        alone, many = (ours.Perf(tests=tests).decide(pool.drawing(0.10, rng)) for tests in (1, 40))
        assert (alone.verdict, alone.fails) == (many.verdict, many.fails) == ("regressed", True)
        # Evidence of 200 and of 8000: that many signs in a row give it.
        assert (alone.rounds, many.rounds) == (9, 15)

    def test_the_limit_given_is_held(self, pool, rng):
        assert ours.Perf(limits=run.STRICT).decide(pool.drawing(0.03, rng)).verdict == "regressed"
        assert ours.Perf().decide(pool.drawing(0.03, rng)).rounds > 9

    def test_the_budget_ends_the_rounds_and_a_suspect_in_every_one_of_them_fails(self, pool, rng):
        draw = pool.drawing(0.10, rng)
        slow = ours.Perf().decide(lambda: (draw()[0], 160.0))
        # Two rounds end the budget; suspected, it gets twice as much.
        assert (slow.verdict, slow.rounds, slow.fails) == ("suspect", 4, False)
        slow = ours.Perf().decide(lambda: (draw()[0], 75.0))
        assert (slow.verdict, slow.rounds, slow.fails) == ("suspect", 8, True)

    def test_a_loop_that_others_feed_has_its_mean_only(self, pool, rng):
        draw = pool.drawing(0.10, rng)

        def means():
            drawn, seconds = draw()
            sides = ({"block_time": side["block_time"]} for side in (drawn.base, drawn.head))
            return Round(drawn.order, *sides), seconds

        assert ours.Perf().decide(means).verdict == "regressed"

    @pytest.mark.parametrize("level, verdict", [(10, "inconclusive"), (13, "regressed")], ids=["same", "slower"])
    def test_unpaired(self, rng, level, verdict):
        stored = self.metrics(rng, 10, 10)
        found = ours.unpaired(stored, self.metrics(rng, level, MOST_REPEATS), [2.0] * (MOST_REPEATS - 1))
        assert found.verdict == verdict or (level == 10 and found.verdict == "unchanged")
        assert found.fails is (verdict == "regressed")
        assert 0 <= found.seconds <= 2.0 * MOST_REPEATS


class TestShortcut:
    @pytest.mark.parametrize("name", noises.NOISES)
    @pytest.mark.parametrize("tests, slowdown", [(1, 0.0), (40, 0.0), (1, 0.04)], ids=["alone", "many", "slower"])
    def test_a_look_that_is_left_out_would_have_left_the_test_open(self, name, tests, slowdown):
        for draw in simulated(noises.NOISES[name], 3, tests=2, slowdown=slowdown):
            gate = ours.Perf(tests=tests).gate(ours.NAMES)
            shortcut, rounds, seconds, asked = Shortcut(gate), [], 0.0, 0
            outcome = gate.look([])
            while outcome.open and len(rounds) < 16:
                drawn, took = draw()
                rounds.append(drawn)
                seconds += took
                shortcut.add(drawn)
                spent = Spent(seconds, 30.0)
                outcome = gate.look(rounds, spent)
                sure = shortcut.surely_open(spent)
                asked += not sure
                assert outcome.open or not sure
            assert not sure or outcome.open
            assert asked < max(2, len(rounds)), "it leaves some out"

    @pytest.mark.long
    @pytest.mark.parametrize("above, ends", [(0.0, False), (0.01, True)], ids=["at the limit", "above"])
    def test_many_rounds_of_which_the_second_process_is_slower(self, rng, above, ends):
        gate = ours.Perf().gate(ours.NAMES)
        shortcut, rounds, asked = Shortcut(gate), [], 0
        for number in range(100):
            order, to_be_second = (("base first", 0.02), ("head first", -0.02))[number % 2]
            log = gate.held[0].bet + above + to_be_second + rng.normal(0, 0.004)
            rounds.append(Round(order, dict.fromkeys(ours.NAMES, 1e6), dict.fromkeys(ours.NAMES, 1e6 * math.exp(log))))
            shortcut.add(rounds[-1])
            spent = Spent(float(number), 1000.0)
            sure = shortcut.surely_open(spent)
            asked += not sure
            outcome = gate.look(rounds, spent)
            assert outcome.open or not sure
            if not outcome.open:
                break
        assert outcome.open is not ends
        assert asked < len(rounds) / 2


class TestSuites:
    @pytest.mark.long
    def test_unchanged_suites_raise_no_alarm_and_slower_ones_do(self, pool, monkeypatch):
        alarmed, tests = replay.suites(ours.Perf(tests=4), [pool, pool], 3, 4, [1])
        assert (alarmed, len(tests)) == (0, 12)
        assert all(each.positive for each in tests)
        monkeypatch.setattr(replay, "UNCHANGED", 0.20)
        alarmed, tests = replay.suites(ours.Perf(tests=4), [pool], 3, 4, [1])
        assert (alarmed, sum(each.fails for each in tests)) == (3, 12)


class TestSynthetic:
    @pytest.mark.long
    def test_jobs_of_a_seed(self):
        job = synthetic.Job("normal, 1.6 %", 0.10, 6, 1, 1)
        found = synthetic.judged(job)
        assert (found.count, found.alarms, found.positive, found.wrong) == (6, 6, 0, 0)
        assert synthetic.judged(job) == found
        still = synthetic.judged(replace(job, slowdown=0.0))
        assert (still.alarms, still.positive) == (0, 6)

    def test_a_bound_is_wrong_where_the_slowdown_is_larger(self):
        said = ours.Outcome("unchanged", False, 10.0, 3, 0.025)
        assert synthetic.is_wrong(said, 0.03)
        assert not synthetic.is_wrong(said, 0.02)
        assert not synthetic.is_wrong(replace(said, verdict="inconclusive"), 0.03)

    def test_the_slow_row_is_the_one_that_is_named(self):
        def after(slowdown, **more):
            return synthetic.named_after(np.random.default_rng(0), 6, 0.02, slowdown, 1, **{"touched": True, **more})

        assert after(0.5) < after(0.5, touched=False) < 20
        assert after(0.0) is None


class TestTable:
    def test_wilson(self):
        # With z = 1.95996: z^2 / (n + z^2), and for a half 1 / 2 -+ z / 2 / sqrt(n + z^2).
        assert replay.wilson(0, 10) == pytest.approx((0, 0.27753), abs=1e-5)
        assert replay.wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)

    def test_tallies_are_the_same_for_the_same_seed(self, pool):
        decide = replay.other(RULES[0])
        one, again, another = (replay.tally(decide, [pool, pool], 0.05, 20, [seed]) for seed in (1, 1, 2))
        assert one == again
        assert one.decisions == 40
        assert one.seconds != another.seconds

    @pytest.mark.parametrize("share, text", [(0, "0"), (0.004, "0.4"), (0.31, "31"), (0.996, "99.6"), (1, "100")],
                             ids=["none", "few", "some", "most", "all"])  # fmt: skip
    def test_percent_never_rounds_to_none_or_all(self, share, text):
        assert run.percent(share) == text

    def test_seconds(self):
        assert run.seconds([2.24, 2.3]) == "2.2"
        assert run.seconds([4.41, 51.2]) == "4.4 to 51"

    def test_one_row_a_rule_one_column_a_slowdown(self, runs, pool):
        recorded = run.Recorded({}, runs)
        tally = replay.Tally(1, 100, 2.0, 3.0, 98, 0.021)
        found = {name: dict.fromkeys(recorded.shares, tally) for name in run.deciders(recorded)}
        text = run.report(recorded, found, intervals=True)
        head, _, first, *_ = text.splitlines()
        assert head.count("|") == first.count("|") == 10
        assert "1 % (0.2-5)" in first
        assert "| 98 % | 2.1 % |" in first
        assert text.count("\n|") == 1 + len(found)
        assert sum("pytest-perfdl" in name for name in found) == 4
        assert len(found) >= 9
        assert "each share is of 100 decisions" in text.lower()
        assert "At least 20 rounds of unchanged code and 20 of each slowdown" in text

    def test_one_row_a_cell_the_default_on_a_quiet_machine_first(self):
        cells = [
            Cell(start, pinned, load)
            for start in ("started", "forked")
            for pinned in (False, True)
            for load in (0.3, 0.0)
        ]
        recorded = run.Recorded({}, recording(cells=cells, rounds=2))
        assert recorded.cells[0] == Cell("forked", True, 0.0)
        rows = [name for name in run.deciders(recorded) if "(" in name]
        assert rows[:2] == [
            "**pytest-perfdl** (forked, pinned, quiet)",
            "**pytest-perfdl** (forked, pinned, neighbor 30%)",
        ]
        assert len([name for name in rows if "pytest-perfdl" in name]) == 8

    def test_what_was_to_be_quiet_and_was_not_is_said(self, runs):
        rounds = [each for each in runs if isinstance(each, kept.Round)]
        assert run.quiet(rounds) == " In 0 % of the quiet rounds, other processes used at least 5% of a CPU."
        busy = [replace(each, idle_load=0.05) for each in rounds[:10]]
        assert "In 10 % of" in run.quiet([*busy, *rounds[10:100]])
        assert "not known" in run.quiet([replace(each, idle_load=None) for each in rounds])

    @pytest.mark.long
    def test_the_table_of_a_recording(self, runs):
        recorded = run.Recorded({}, runs)
        found = run.decide_all(recorded, 2, 1)
        assert {tuple(each) for each in found.values()} == {recorded.shares} == {(0.0, 0.03, 0.05, 0.10, 0.20)}
        ours_ = found["**pytest-perfdl** (started, free, quiet)"]
        assert [ours_[share].alarms for share in (0.0, 0.2)] == [0, 2]
        assert ours_[0.0].positive == 2
        assert found[RULES[0].name][0.0].positive is None

    def test_a_page_keeps_what_is_around_the_table(self, tmp_path):
        start, end = run.MARKERS
        readme = tmp_path / "README.md"
        readme.write_text(f"above\n{start}\nold\n{end}\nbelow\n")
        for _ in range(2):
            write_between(readme, *run.MARKERS, "| new |")
        assert readme.read_text() == f"above\n{start}\n| new |\n{end}\nbelow\n"

    @pytest.mark.parametrize("text", ["", "{0} {0} {1}", "{1} {0}"], ids=["none", "twice", "turned"])
    def test_a_page_without_its_markers_is_left_alone(self, tmp_path, text):
        readme = tmp_path / "README.md"
        readme.write_text(text.format(*run.MARKERS))
        with pytest.raises(ValueError, match="expected one <!-- decision-quality -->"):
            write_between(readme, *run.MARKERS, "| new |")
        assert readme.read_text() == text.format(*run.MARKERS)


def test_a_slowdown_that_reaches_the_steps_in_part_is_said(rng):
    runs = recording(shares=(0.05, 0.10))
    assert run.arrived(run.Recorded({}, runs)) == ""
    hidden = [
        replace(each, head={name: value / (1 + each.share / 2) for name, value in each.head.items()})
        if isinstance(each, kept.Round)
        else each
        for each in runs
    ]
    said = run.arrived(run.Recorded({}, hidden))
    assert re.fullmatch(
        r" The wait slows numbers by less than that, because a part of it is hidden: in the first row by "
        r"\+2\.\d% at \+5%, \+[45]\.\d% at \+10%\.",
        said,
    )
