"""Live trials: what is kept of a run, which are still missing, and how the counts stand to what is demanded."""

import subprocess
from dataclasses import asdict

import pytest

from pytest_perfdl.stats.quantiles import clopper_pearson
from unit.benchmarks import recorded_runs  # noqa: F401 (makes the modules below importable)

from common import kept  # isort: skip
import acceptance  # isort: skip
import side_load  # isort: skip
import trials  # isort: skip
from scratch_project import ExamplesProject, ScratchProject  # isort: skip


def metric(verdict, effect=0.01, evidence=None, rounds=None, **more):
    return {
        "kind": "timed",
        "limit": "3%",
        "verdict": verdict,
        "effect": effect,
        "ci95": [effect - 0.01, effect + 0.01],
        "excluded": 0.047,
        "evidence": evidence,
        "rounds": rounds,
        **more,
    }


def entry(verdict, metrics, blame=(), rows=()):
    calls = [{"rows": list(rows), "profiled_ns": [1000, 1000]}]
    return {
        "verdict": verdict,
        "reason": "because",
        "metrics": metrics,
        "blame": [{"name": name} for name in blame],
        "record": {"calls": calls},
    }


def trial(kind="gate-aa", verdict="unchanged", **more):
    given = {
        "kind": kind,
        "number": 0,
        "load": 0.0,
        "verdict": verdict,
        "basis": "paired",
        "rounds": 10,
        "metric": "step_time",
        "effect": 0.01,
        "ci95": (0.0, 0.02),
        "excluded": 0.047,
        "injected": 0.0,
        "named": (),
        "operator_share": 0.01,
        "reason": "",
        "seconds": 60.0,
        "date": "2026-11-21T12:00:00Z",
        "occasion": "2026-11-21T11:00:00Z",
    }
    return trials.Trial(**{**given, **more})


class TestOutcome:
    def outcome(self, found):
        return trials.outcome(found, "gate+5", 3, 0.2, 5.0, 61.5, "then")

    def test_paired_and_by_the_metric_that_decided(self):
        metrics = {
            "step_time": metric("unchanged", 0.2),
            "block_time": metric("regressed", 0.051, "paired", 15),
            "step_p99": metric("regressed", 0.9, limit=None),
            "ops": metric("regressed", 0.9, kind="counted"),
        }
        found = self.outcome(entry("regressed", metrics, blame=["aten::mm", "aten::add"]))
        assert (found.verdict, found.basis, found.rounds) == ("regressed", "paired", 15)
        assert (found.metric, found.effect, found.excluded) == ("block_time", 0.051, 0.047)
        assert found.ci95 == pytest.approx((0.041, 0.061))
        assert found.named == ("aten::mm", "aten::add")
        assert (found.kind, found.number, found.load, found.injected, found.seconds) == ("gate+5", 3, 0.2, 5.0, 61.5)

    def test_operators_that_are_slower_themselves_come_before_what_is_blamed(self):
        rows = {"operator aten::add": metric("regressed", 0.1), "operator aten::mm": metric("regressed", 0.5)}
        found = self.outcome(entry("regressed", {"step_time": metric("unchanged"), **rows}, blame=["aten::mul"]))
        assert found.named == ("operator aten::mm", "operator aten::add", "aten::mul")
        assert (found.metric, found.effect) == ("operator aten::mm", 0.5)
        # A metric of the whole step that says the same goes before them.
        found = self.outcome(entry("regressed", {"step_time": metric("regressed"), **rows}))
        assert (found.metric, found.effect) == ("step_time", 0.01)

    @pytest.mark.parametrize("basis", ["unpaired", ""])
    def test_what_it_rests_on(self, basis):
        found = self.outcome(entry("unchanged", {"step_time": metric("unchanged", evidence=basis)}))
        assert (found.basis, found.rounds) == (basis, 0)

    def test_without_a_metric_of_time(self):
        found = self.outcome(entry("invalid", {}))
        assert (found.verdict, found.metric, found.effect, found.ci95, found.excluded) == (
            "invalid",
            "",
            None,
            None,
            None,
        )

    def test_share_of_the_operator(self):
        rows = [{"name": "aten::mm", "ns": [500, 500]}, {"name": acceptance.OPERATOR, "ns": [10, 30]}]
        assert self.outcome(entry("unchanged", {}, rows=rows)).operator_share == 0.02
        assert self.outcome(entry("unchanged", {})).operator_share is None


class TestPlan:
    def test_kinds_come_in_turns(self):
        assert trials.plan(["a", "b"], 2, 0.3) == [("a", 0, 0.3), ("b", 0, 0.3), ("a", 1, 0.3), ("b", 1, 0.3)]

    def test_what_was_kept_is_read_again(self, tmp_path):
        path = tmp_path / "kept" / "trials.jsonl"
        assert trials.read(path) == []
        made = [trial(), trial("operator", ci95=None, effect=None, named=("aten::mm",))]
        for each in made:
            kept.keep(path, asdict(each))
        assert trials.read(path) == made

    def test_time_left_is_that_of_the_kind(self):
        done = [trial("gate-aa", seconds=10.0), trial("ab-aa", seconds=100.0), trial("ab-aa", seconds=140.0)]
        assert trials.left([("ab-aa", 1, 0.0)] * 3, done) == "6 min left"
        assert trials.left([("ab-aa", 1, 0.0)] * 300, done) == "10.0 h left"
        assert trials.left([], []) == "0 min left"


_POWER = next(demand for demand in acceptance.DEMANDS if demand.what == "+5 %")


class TestAcceptance:
    @pytest.mark.parametrize("hits, count, confidence, ends", [
        (0, 300, 0.90, (0.0, 1 - 0.05 ** (1 / 300))),
        (40, 40, 0.95, (0.025 ** (1 / 40), 1.0)),
        # Tables: 5 of 10.
        (5, 10, 0.95, (0.18709, 0.81291)),
    ], ids=["none", "all", "half"])  # fmt: skip
    def test_exact_interval(self, hits, count, confidence, ends):
        assert clopper_pearson(hits, count, confidence) == pytest.approx(ends, abs=1e-5)

    @pytest.mark.parametrize("hits, count, met", [
        (0, 0, "-"),
        (0, 298, "more trials"),
        (0, 299, "yes"),
        (1, 472, "more trials"),
        (1, 473, "yes"),
        (2, 628, "yes"),
        (2, 100, "no"),
    ], ids=str)  # fmt: skip
    def test_false_alarms_need_their_bound_below_one_percent(self, hits, count, met):
        assert acceptance.DEMANDS[0].met(hits, count) == met

    @pytest.mark.parametrize("hits, count, met", [(34, 40, "yes"), (33, 40, "no"), (4, 4, "yes"), (0, 0, "-")], ids=str)
    def test_power_is_the_share_found(self, hits, count, met):
        assert _POWER.met(hits, count) == met

    @pytest.mark.parametrize("named, share, verdict, hit", [
        (("operator aten::cumsum", "aten::mm"), 0.005, "regressed", True),
        (("aten::mm", "operator aten::cumsum"), 0.02, "regressed", False),
        ((), 0.02, "regressed", False),
        (("operator aten::cumsum",), 0.004, "regressed", False),
        (("operator aten::cumsum",), None, "regressed", False),
        (("operator aten::cumsum",), 0.02, "changed", False),
    ], ids=["first", "second", "nothing", "too-small", "unknown", "passes"])  # fmt: skip
    def test_an_operator_counts_if_it_is_large_enough_and_named_first(self, named, share, verdict, hit):
        assert acceptance.named(trial("operator", verdict, named=named, operator_share=share)) is hit

    def test_every_demand_is_of_kinds_that_exist_and_every_kind_is_demanded(self):
        demanded = {kind for demand in acceptance.DEMANDS for kind in demand.kinds}
        assert demanded == set(trials.KINDS)

    def test_tables(self):
        made = [trial("gate+5", "regressed"), trial("gate+5", "inconclusive"), trial("gate-aa", load=0.3)]
        text = acceptance.tables(made)
        assert "| +5 % | 1 of 2 | 1.3% to 98.7% | at least 17 of 20 | no |" in text
        assert "| unchanged, false alarms | 0 of 1 | up to 95.00% |" in text
        assert "| gate+5 | 0% | 2 | regressed 1, inconclusive 1 | 2 | +1.0% | 60 |" in text
        assert "| gate-aa | 30% | 1 |" in text
        assert "3 trials on 1 day(s), with baselines of 1 occasion(s)." in text
        assert acceptance.tables([]) == "no trials yet"


class TestSideLoad:
    def test_spells_are_those_of_the_seed_and_add_up_to_the_share(self):
        def first(seed, count=4000):
            return [spell for spell, _ in zip(side_load.spells(0.3, seed), range(count), strict=False)]

        assert first(1, 20) == first(1, 20) != first(2, 20)
        work, rest = map(sum, zip(*first(1), strict=True))
        assert work / (work + rest) == pytest.approx(0.3, abs=0.02)

    def test_no_load_starts_nothing(self, monkeypatch):
        monkeypatch.setattr(side_load.subprocess, "Popen", None)
        with side_load.side_load(0.0, 1):
            pass


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return ScratchProject(tmp_path_factory.mktemp("trials") / "project")


class TestScratchProject:
    def test_every_kind_changes_only_the_working_tree(self, project):
        for name, kind in trials.KINDS.items():
            if kind.of_examples:
                continue
            project.plant(kind.plant)
            changed = project.git("status", "--porcelain").split()
            assert changed == (["M", "src/trial_package/plant.py"] if kind.plant else []), name
            project.restore()
            assert project.git("status", "--porcelain") == ""

    def test_a_plant_that_does_not_exist(self, project):
        with pytest.raises(KeyError, match="NOTHING"):
            project.plant({"NOTHING": 1.0})

    def test_an_existing_one_is_taken_as_it_is(self, project):
        project.plant({"EVERY": 2})
        again = ScratchProject(project.folder)
        assert not again.recorded
        assert again.git("log", "--format=%s").split("\n") == ["The code", ""]
        assert again.git("status", "--porcelain") == "", "what an interrupted trial left is gone"

    def test_pytest_collects_its_tests(self, project):
        found = subprocess.run(
            ["git", "ls-files"], cwd=project.folder, capture_output=True, text=True, check=True
        ).stdout.split()
        own = [test for kind in trials.KINDS.values() if not kind.of_examples for test in kind.tests]
        assert {test.split("::")[0] for test in own} <= set(found)
        assert ".gitignore" in found


class TestExamplesProject:
    def test_half_of_the_trials_have_a_commit_of_whitespace_and_one_kind_a_slower_step(self, tmp_path):
        project = ExamplesProject(tmp_path / "examples")
        files = project.git("ls-files").split()
        assert {test.split("::")[0] for test in (*project.examples, project.readme)} <= set(files)
        before = (project.folder / "examples/models/gpt.py").read_text()
        project.plant({"commit": 1})
        assert project.git("log", "--format=%s").split("\n")[:2] == ["Whitespace", "The code"]
        assert (project.folder / "examples/models/gpt.py").read_text() == before + "\n"
        project.plant(trials.KINDS["forward"].plant)
        assert project.git("status", "--porcelain").split() == ["M", "tests/test_speed.py"]
        assert "(model(batch) + model(batch)).square()" in (project.folder / "tests/test_speed.py").read_text()
        project.restore()
        assert project.git("status", "--porcelain") == ""
        with pytest.raises(KeyError, match="nothing"):
            project.plant({"nothing": 1})
