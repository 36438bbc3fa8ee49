"""Comparisons: whether what is named first is right, what is kept, and how the counts stand to what is demanded."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parents[3] / "benchmarks" / "blame"
sys.path.insert(0, str(HERE))

import end_to_end  # noqa: E402 (the benchmarks are no package)
import scoring  # noqa: E402
import totals  # noqa: E402
from suite import MODELS, PLANTS  # noqa: E402

_spec = importlib.util.spec_from_file_location("blame_run", HERE / "run.py")
run = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run)

COUNTED = "blamed/gpt.py(7): count_pairs"
MILLISECOND = 1_000_000


def cause(name="aten::gelu", module="ConvNet.stages", line="", kind="operator"):
    return scoring.Named(kind, name, module, line, MILLISECOND, 0.9, {"duration": MILLISECOND})


def comparison(plant="gelu_by_tanh", *causes, effect=0.05, wanted_line="", model="convnet", number=0, **more):
    change = scoring.Change(
        20.0 * MILLISECOND, 20.0 * MILLISECOND * (1 + effect), effect, (effect - 0.01, effect + 0.01)
    )
    given = {
        "rounds": 6,
        "timed": change,
        "profiled": change,
        "verdict": "regressed",
        "named": len(causes),
        "certain": len(causes),
        "coverage": 0.999,
        "residual_ns": 0,
        "detectable": 0.012,
        "seconds": 60.0,
        "date": "2026-11-21T12:00:00Z",
    }
    mode = more.pop("mode", "quick")
    task = scoring.Task(mode, plant, model, number)
    return scoring.score(scoring.Comparison(task=task, causes=causes, wanted_line=wanted_line, **{**given, **more}))


class TestScore:
    @pytest.mark.parametrize("first, right", [
        (cause(), scoring.Right(True, True, None)),
        (cause(module="ConvNet.stages.*.activation"), scoring.Right(True, True, None)),
        (cause("aten::gelu", "ConvNet"), scoring.Right(True, False, None)),
        (cause("aten::gelu", "ConvNet.stages.0.activation"), scoring.Right(True, False, None)),
        (cause("aten::mm"), scoring.Right(False, True, None)),
    ], ids=["right", "in-each-block", "another-module", "one-block", "another-operator"])  # fmt: skip
    def test_by_name_and_module(self, first, right):
        assert comparison("gelu_by_tanh", first, cause("aten::other")).right == right

    def test_nothing_named_is_wrong(self):
        assert comparison().right == scoring.Right(False, False, None)
        assert comparison(wanted_line=COUNTED).right == scoring.Right(False, False, False)

    def test_unchanged_code_has_no_right_answer(self):
        assert comparison("", cause()).right is None

    @pytest.mark.parametrize("name, line, kind, right", [
        ("Python and host", COUNTED, "idle", (True, True)),
        ("Python and host", f"src/{COUNTED}", "idle", (True, True)),
        ("blamed/gpt.py(7): count_pairs", "blamed/gpt.py(9): train_step", "idle", (True, False)),
        ("Python and host", "blamed/gpt.py(8): count_pairs", "idle", (True, False)),
        ("Python and host", "", "idle", (False, False)),
        ("Python and host", "blamed/gpt.py(9): train_step", "idle", (False, False)),
        ("aten::item", COUNTED, "operator", (False, True)),
    ], ids=["line", "longer-path", "by-name", "other-line", "no-line", "other-function", "operator"])  # fmt: skip
    def test_python_is_named_by_its_function(self, name, line, kind, right):
        found = comparison("pairs_counted", cause(name, "", line, kind), wanted_line=COUNTED)
        assert (found.right.name, found.right.line) == right
        assert found.right.module

    def test_a_line_is_demanded_of_python_only(self):
        operator, python = PLANTS["gelu_by_tanh"], PLANTS["pairs_counted"]
        for line in (None, False, True):
            assert scoring.Right(True, True, line).as_demanded(operator)
            assert scoring.Right(True, True, line).as_demanded(python) is (line is True)
        assert not scoring.Right(True, False, True).as_demanded(operator)
        assert not scoring.Right(False, True, True).as_demanded(operator)


class TestKept:
    def test_what_was_kept_is_read_again(self, tmp_path):
        path = tmp_path / "kept" / "blame.jsonl"
        assert scoring.read(path) == []
        made = [
            comparison("gelu_by_tanh", cause(), cause("aten::mm")),
            comparison("", timed=None, profiled=None, coverage=None, residual_ns=None, detectable=None),
        ]
        for each in made:
            scoring.keep(path, each)
        assert scoring.read(path) == made

    def test_more_rounds_take_the_place_of_fewer(self, tmp_path):
        path = tmp_path / "new" / "blame.jsonl"
        few, other, more = comparison(rounds=2), comparison(number=1), comparison(rounds=6)
        assert scoring.latest([few, other, more]) == [more, other]
        scoring.write(path, [few, more])
        scoring.write(path, [other])
        assert scoring.read(path) == [other]

    def test_it_is_scored_anew_when_it_is_read(self, tmp_path):
        path = tmp_path / "blame.jsonl"
        scoring.keep(path, replace(comparison("gelu_by_tanh", cause()), right=scoring.Right(False, False, None)))
        assert scoring.read(path)[0].right == scoring.Right(True, True, None)


class TestPlan:
    def test_plants_and_unchanged_code_come_in_turns(self):
        tasks = run.plan("quick", ["gelu_by_tanh", "wider_mlp"], 1, 2)
        plants = [(task.plant, task.model, task.number) for task in tasks]
        still = [[("", model, number) for model in MODELS] for number in range(2)]
        assert plants == [("gelu_by_tanh", "convnet", 0), ("wider_mlp", "gpt", 0), *still[0], *still[1]]
        assert len(set(tasks)) == len(tasks)

    @pytest.mark.parametrize("rounds, mode, numbers", [
        (6, "quick", [1, 2]),
        (5, "quick", [2]),
        (7, "quick", [0, 1, 2]),
        (6, "end to end", [0, 2]),
    ], ids=["as-many", "fewer-wanted", "more-wanted", "rounds-are-pytest's"])  # fmt: skip
    def test_what_is_missing(self, rounds, mode, numbers):
        done = [comparison(), comparison(number=1, rounds=5), comparison(number=1, rounds=0, mode="end to end")]
        options = SimpleNamespace(
            end_to_end=mode != "quick", rounds=rounds, plant=["gelu_by_tanh"], count=3, unchanged=0
        )
        assert [(task.mode, task.number) for task in run.missing(done, options)] == [(mode, each) for each in numbers]

    def test_time_left_is_that_of_the_model(self):
        done = [comparison(seconds=100.0), comparison(number=1, seconds=140.0), comparison("wider_mlp", model="gpt")]
        tasks = [scoring.Task("quick", "gelu_by_tanh", "convnet", number) for number in range(300)]
        assert run.left(tasks[:3], done) == "6 min left"
        assert run.left(tasks, done) == "10.0 h left"
        assert run.left([], []) == "0 min left"

    @pytest.mark.parametrize("found, text", [
        (comparison("gelu_by_tanh", cause()), "+5.0%, right: aten::gelu in ConvNet.stages, +1.000 ms"),
        (
            comparison("pairs_counted", cause("Python and host", "", "gpt.py(1): step", "idle"), wanted_line=COUNTED),
            "+5.0%, WRONG name and line: Python and host in gpt.py(1): step, +1.000 ms",
        ),
        (comparison("", cause(), timed=None), "regressed, named: aten::gelu in ConvNet.stages, +1.000 ms"),
        (comparison(), "+5.0%, nothing named"),
    ], ids=["right", "wrong", "unchanged", "nothing"])  # fmt: skip
    def test_a_comparison_in_words(self, found, text):
        assert run.words(found) == text


class TestEndToEnd:
    def test_what_the_run_file_says(self):
        blame = [
            {
                "kind": "operator",
                "name": f"aten::{name}",
                "module": "ConvNet",
                "line": "convnet.py(3): forward",
                "delta_ns": 5,
                "share": 0.5,
                "effects": {"count": 5},
                "call": "",
            }
            for name in ("one", "two", "three", "four")
        ]
        metric = {"base": 10, "new": 11, "effect": 0.1, "ci95": [0.05, 0.15], "rounds": 15}
        test = {"metrics": {"block_time": {**metric, "effect": 0.2}, "step_time": metric}, "blame": blame}
        task = scoring.Task("end to end", "gelu_by_tanh", "convnet", 0)
        found = end_to_end.outcome(task, {**test, "verdict": "regressed"}, 90.0)
        assert found.timed == scoring.Change(10, 11, 0.1, (0.05, 0.15))
        assert [each.name for each in found.causes] == ["aten::one", "aten::two", "aten::three"]
        assert (found.named, found.rounds, found.verdict, found.seconds) == (4, 15, "regressed", 90.0)
        assert found.wanted_line == PLANTS["gelu_by_tanh"].line

    def test_a_metric_that_was_not_compared(self):
        metric = {"base": None, "new": 11, "effect": None, "ci95": None, "rounds": None}
        test = {"metrics": {"block_time": metric}, "blame": [], "verdict": "new"}
        found = end_to_end.outcome(scoring.Task("end to end", "", "convnet", 0), test, 1.0)
        assert (found.timed, found.causes, found.rounds, found.wanted_line) == (None, (), 0, "")

    def test_one_plant_is_switched_on_in_the_working_tree(self, tmp_path):
        source = tmp_path / "project" / "src" / "blamed"
        repository = end_to_end.Repository(tmp_path / "project")
        committed = {path: path.read_text().splitlines() for path in source.iterdir()}
        for name, model in (("wider_mlp", "gpt"), ("pause_added", "tagger")):
            repository.plant(name)
            changed = {path: path.read_text().splitlines() for path in source.iterdir()}
            (path,) = (path for path in changed if changed[path] != committed[path])
            assert path.stem == model
            lines = [(old, new) for old, new in zip(committed[path], changed[path], strict=True) if old != new]
            assert all(f'planted("{name}")' in old and "True" in new for old, new in lines)
        repository.plant("")
        assert {path: path.read_text().splitlines() for path in source.iterdir()} == committed
        assert (tmp_path / "project" / ".gitignore").exists()


class TestTotals:
    @pytest.mark.parametrize("effect, plant, what", [
        (0.30, "wider_mlp", "effect of 3 % to 30 %"),
        (0.03, "wider_mlp", "effect of 3 % to 30 %"),
        (0.0299, "wider_mlp", "1 % to 3 %, duration only"),
        (0.01, "gelu_by_hand", "1 % to 3 %, counts change"),
        (0.0099, "gelu_by_hand", "below 1 % or above 30 %"),
        (0.3001, "gelu_by_hand", "below 1 % or above 30 %"),
        (-0.05, "gelu_by_hand", "below 1 % or above 30 %"),
    ], ids=str)  # fmt: skip
    def test_every_effect_is_held_to_one_demand(self, effect, plant, what):
        assert [each.what for each in totals.DEMANDS if each.of(PLANTS[plant], effect)] == [what]

    @pytest.mark.parametrize("hits, trials, met", [(19, 20, "yes"), (18, 20, "no"), (0, 0, "-")], ids=str)
    def test_met_is_by_the_share_found(self, hits, trials, met):
        assert totals.DEMANDS[0].met(hits, trials) == met
        assert totals.DEMANDS[2].met(hits, trials) == "-"

    def test_a_plant_has_one_effect_the_median_of_its_comparisons(self):
        found = [comparison(effect=effect, number=number) for number, effect in enumerate((0.02, 0.04, 0.20))]
        profiled = comparison("wider_mlp", timed=None, effect=0.07)
        assert totals.effects([*found, profiled, comparison("", effect=0.5)]) == {
            "gelu_by_tanh": 0.04,
            "wider_mlp": 0.07,
        }

    def test_tables(self):
        found = [
            comparison("gelu_by_tanh", cause(), number=0),
            comparison("gelu_by_tanh", cause("aten::mm"), number=1, coverage=0.9),
            comparison("shortcut_copied", cause("aten::copy_", "ConvNet.stages.0"), effect=0.015),
            comparison("", model="gpt"),
            comparison("", cause(), model="gpt", number=1, detectable=0.02),
        ]
        text = totals.tables(found)
        assert "| effect of 3 % to 30 % | 1 | 1 of 2 | 1% to 99% | 1/2 | 2/2 | - | at least 95% | no |" in text
        assert "| 1 % to 3 %, counts change | 1 | 1 of 1 | 3% to 100% | 1/1 | 1/1 | - | at least 80% | yes |" in text
        assert "| 1 % to 3 %, duration only | 0 | 0 of 0 | - | - | - | - | reported | - |" in text
        gelu = next(line for line in text.splitlines() if line.startswith("| `gelu_by_tanh`"))
        assert "| duration | +5.0% | +5.0% | 1/2 | 1/2 | 2/2 | - |" in gelu
        assert gelu.endswith("(1), `aten::mm` in `ConvNet.stages` (1) | 90.0% | 0 ns |")
        assert "| all | 2 | 1 | 1% to 99% | at most 1 of 20 | no | 1.60% of the step |" in text
        assert totals.tables([]) == "no comparisons yet\n"

    def test_a_part_too_small_to_be_a_cause_is_an_alarm_too(self):
        text = totals.tables([comparison("", certain=1, model="gpt")])
        assert "| all | 1 | 1 | 3% to 100% | at most 1 of 20 | no | 1.20% of the step | a part too small" in text


def test_the_tables_are_written_between_the_pages_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Blame\n\nBefore.\n\n<!-- blame-table -->\nold\n<!-- /blame-table -->\n\nAfter.\n")
    found = [comparison("gelu_by_tanh", cause("aten::tanh"))]
    for _ in range(2):
        run.document(page, found)
        written = page.read_text()
        assert written.startswith("# Blame\n\nBefore.\n\n<!-- blame-table -->\n\n### Planted, quick\n\n| effect |")
        assert written.endswith("\n\n<!-- /blame-table -->\n\nAfter.\n")
        assert "old" not in written
    page.write_text(run.DOCS.read_text())
    run.document(page, found)
