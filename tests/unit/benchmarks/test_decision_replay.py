"""Replaying a recording: which runs a decision may draw, and what the table says of many."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
from recorded_runs import HERE, MILLISECOND, measured, noisy, recording

from pytest_perfdl.judge.futility import FEWEST

import ours  # isort: skip (recorded_runs makes these importable)
import replay  # isort: skip
import recording as kept  # isort: skip
from rules import RULES  # isort: skip

_spec = importlib.util.spec_from_file_location("decision_quality_run", HERE / "run.py")
run = importlib.util.module_from_spec(_spec)
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

    def test_sides_of_unchanged_rounds_are_exchanged_and_others_are_not(self, pool, rng):
        def drawn(share):
            """How many of 200 rounds have their sides as recorded, and how many run the base first."""
            recorded = {each.base.metrics()["step_time"]: each.order for each in pool.rounds(share)}
            draw = pool.drawing(share, rng)
            rounds = [draw()[0] for _ in range(200)]
            same = [each for each in rounds if each.base["step_time"] in recorded]
            assert all(each.order == recorded[each.base["step_time"]] for each in same)
            assert len({each.base["step_time"] for each in same}) == len(recorded), "every one is drawn"
            return len(same), sum(each.order == "base first" for each in rounds)

        as_recorded, base_first = drawn(0.10)
        assert as_recorded == 200
        assert 70 < base_first < 130, "a coin's, not the recording's"
        as_recorded, base_first = drawn(0.0)
        assert 70 < as_recorded < 130
        assert 70 < base_first < 130

    def test_rounds_that_ran_in_one_order_only(self, runs, rng):
        lopsided = replay.Pool([each for each in runs if getattr(each, "order", "") != "head first"], "numbers")
        assert lopsided.drawing(0.0, rng)()[0].order in ("base first", "head first")
        with pytest.raises(replay.NotRecorded, match=r"no rounds of numbers at \+5% that ran head first"):
            lopsided.drawing(0.05, rng)

    def test_seconds_of_a_process(self, pool):
        one = replace(pool.unchanged[0], start_seconds=1.5, measured=measured([10 * MILLISECOND] * 100))
        # 15 steps to warm up and 40 timed ones of 10 ms.
        assert replay.process_seconds(one, 40) == pytest.approx(1.5 + 0.55)


class TestOurs:
    def metrics(self, rng, level, count):
        return [noisy(rng, level * np.exp(0.01 * rng.standard_normal()), 0.02).metrics() for _ in range(count)]

    def test_unchanged_code_needs_no_rounds(self, rng):
        def none():
            raise AssertionError("no round is needed")

        stored = self.metrics(rng, 10, 10)
        assert ours.gate(stored, stored[4], none) == ours.Outcome("unchanged", 0.0)

    def test_what_is_suspected_and_slower_fails(self, pool, rng):
        found = ours.gate(self.metrics(rng, 10, 10), self.metrics(rng, 12, 1)[0], pool.drawing(0.20, rng))
        assert (found.verdict, found.alarm, found.rounds) == ("regressed", True, 11)
        assert found.seconds == 11 * 5.0

    def test_what_is_suspected_and_not_slower_is_given_up_and_passes(self, pool, rng):
        found = ours.gate(self.metrics(rng, 10, 10), self.metrics(rng, 12, 1)[0], pool.drawing(0.0, rng))
        assert (found.verdict, found.alarm, found.rounds) == ("inconclusive", False, FEWEST)

    def test_against_goes_to_rounds_always_and_holds_the_limit_given(self, pool, rng):
        one = self.metrics(rng, 10, 1)[0]
        assert ours.against(one, one, pool.drawing(0.0, rng)).verdict == "unchanged"
        assert ours.against(one, one, pool.drawing(0.03, rng)).verdict != "regressed"
        assert ours.against(one, one, pool.drawing(0.03, rng), run.STRICT).verdict == "regressed"

    def test_the_budget_of_seconds_ends_the_rounds(self, pool, rng):
        draw = pool.drawing(0.20, rng)
        found = ours.gate(self.metrics(rng, 10, 10), self.metrics(rng, 12, 1)[0], lambda: (draw()[0], 160.0))
        assert (found.verdict, found.rounds) == ("inconclusive", 2)

    @pytest.mark.parametrize("level, verdict", [(10, "unchanged"), (13, "regressed")], ids=["same", "slower"])
    def test_unpaired(self, rng, level, verdict):
        stored = self.metrics(rng, 10, 10)
        fresh = self.metrics(rng, 13, 1) + self.metrics(rng, level, ours.UNPAIRED_REPEATS)
        found = ours.unpaired(stored, fresh, [2.0] * ours.UNPAIRED_REPEATS)
        assert found.verdict == verdict
        assert 0 < found.seconds <= 2.0 * ours.UNPAIRED_REPEATS


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
        found = {name: {share: replay.Tally(1, 100, 2.0) for share in run.SHARES} for name in run.DECIDERS}
        text = run.report({}, runs, found, intervals=True)
        head, _, first, *_ = text.splitlines()
        assert head.count("|") == first.count("|") == 8
        assert "1 % (0.2-5)" in first
        assert len(text.splitlines()) == 2 + len(found) + 2
        assert sum("pytest-perfdl" in name for name in found) == 4
        assert len(found) >= 9
        assert "each share is of 100 decisions" in text.lower()

    def test_the_table_of_a_recording(self, pool):
        found = run.decide_all([pool], 2, 1)
        assert {tuple(each) for each in found.values()} == {run.SHARES}
        assert found["**pytest-perfdl, `--perf-against`**"][0.0].alarms == 0
        assert found["**pytest-perfdl, `--perf-against`**"][0.2].alarms == 2

    def test_readme_keeps_what_is_around_the_table(self, tmp_path):
        start, end = run.MARKERS
        readme = tmp_path / "README.md"
        readme.write_text(f"above\n{start}\nold\n{end}\nbelow\n")
        for _ in range(2):
            run.into_readme(readme, "| new |")
        assert readme.read_text() == f"above\n{start}\n| new |\n{end}\nbelow\n"

    @pytest.mark.parametrize("text", ["", "{0} {0} {1}", "{1} {0}"], ids=["none", "twice", "turned"])
    def test_readme_without_its_markers_is_left_alone(self, tmp_path, text):
        readme = tmp_path / "README.md"
        readme.write_text(text.format(*run.MARKERS))
        with pytest.raises(ValueError, match="expected one <!-- decision-quality -->"):
            run.into_readme(readme, "| new |")
        assert readme.read_text() == text.format(*run.MARKERS)
