"""The search between two environments, with simulated measurements and with real ones."""

import json
import math
import random
import types
from dataclasses import replace

import pytest
from plugin.project import Project, environment

from pytest_perfdl.model.errors import RunFailed
from pytest_perfdl.runs.bisect.answers import to_json
from pytest_perfdl.runs.bisect.child import MixtureChild, report_folder
from pytest_perfdl.runs.bisect.environments import EnvironmentSearch
from pytest_perfdl.runs.bisect.measurements import Measurement, Request
from pytest_perfdl.runs.bisect.mixtures import NEW, Environments
from pytest_perfdl.runs.bisect.search import Options
from pytest_perfdl.system.import_path import LIBRARY_FIRST, module_command
from pytest_perfdl.workers.interpreter import Distribution, Interpreter

NAMES = tuple("abcdefgh")


def interpreter(version, names=NAMES):
    distributions = {name: Distribution(version, version, "", "/nowhere") for name in names}
    return Interpreter("/venv/bin/python", "3.12.1", "/venv", "/usr", ("/venv/lib",), (), distributions)


class Simulated:
    """Rounds with noise of 1 %, slower where the culprits are of the new environment; counts likewise."""

    def __init__(self, effects, *, counts=None, refused=frozenset(), seed=0):
        self.effects, self.counts, self.refused = effects, counts or {}, refused
        self.draw = random.Random(seed)
        self.asked = []

    def measure(self, request, metric, limit):
        chosen = frozenset(NAMES if request.commit == NEW else request.commit.split(","))
        self.asked.append(request)
        if self.refused & chosen and not self.refused <= chosen:
            return Measurement(request, "pip check: a 1 requires b==2", seconds=1.0)
        ops = 100.0 + sum(self.counts.get(name, 0) for name in chosen)
        if not request.timed:
            return Measurement(request, counts={"ops": ops}, base_counts={"ops": 100.0}, seconds=1.0, key="machine")
        slower = 1 + sum(self.effects.get(name, 0.0) for name in chosen)
        pairs = tuple((1.0, slower * math.exp(self.draw.gauss(0, 0.01))) for _ in range(10))
        rounds = {"step_time": pairs}
        counts = {"counts": {"ops": ops}, "base_counts": {"ops": 100.0}}
        return Measurement(request, rounds=rounds, seconds=10.0, key="machine", **counts)


def searched(simulated, **options):
    return EnvironmentSearch(
        Environments(interpreter("1"), interpreter("2")), simulated.measure, Options(**options)
    ).run()


@pytest.mark.parametrize("culprit", NAMES)
def test_one_that_costs_time_alone(culprit):
    for seed in range(3):
        answer = searched(Simulated({culprit: 0.1}, seed=seed))
        assert (answer.status, answer.culprits, answer.metric) == ("found", (culprit,), "step_time")
        assert answer.built <= 5
        low, high = answer.effect.interval
        assert low < 0.1 < high
        assert answer.exit_code == 0


@pytest.mark.parametrize("culprit", NAMES)
def test_one_that_changes_counts_is_found_by_counts_and_proved_by_time(culprit):
    simulated = Simulated({culprit: 0.1}, counts={culprit: 8})
    answer = searched(simulated)

    assert (answer.status, answer.culprits, answer.metric) == ("found", (culprit,), "step_time")
    assert [request.timed for request in simulated.asked] == [True, *[False] * (len(simulated.asked) - 2), True]


def test_a_count_that_is_not_what_costs_the_time():
    answer = searched(Simulated({"c": 0.1}, counts={"f": 8}))

    assert (answer.status, answer.culprits) == ("found", ("c",))


def test_only_counts_got_worse():
    answer = searched(Simulated({}, counts={"f": 8}))

    assert (answer.status, answer.culprits, answer.metric) == ("found", ("f",), "ops")
    assert answer.effect.ratio == pytest.approx(0.08)
    assert "step_time did not get slower" in answer.notes[0]


def test_two_that_have_each_a_part():
    answer = searched(Simulated({"b": 0.1, "g": 0.06}))

    assert answer.culprits == ("b",)
    assert "other distributions have a part too" in answer.notes[0]


def test_packages_that_only_work_together():
    answer = searched(Simulated({"d": 0.1}, refused=frozenset("dg")))

    assert answer.culprits == ("d", "g")
    assert answer.status == "range"
    assert {why for _, why in answer.skipped} == {"pip check: a 1 requires b==2"}
    assert answer.exit_code == 1


def test_no_difference_and_faster():
    same = searched(Simulated({}))
    assert (same.status, same.exit_code, same.built) == ("no difference", 3, 0)
    faster = searched(Simulated({"b": -0.2}))
    assert (faster.status, faster.exit_code) == ("faster", 3)
    equal = EnvironmentSearch(Environments(interpreter("1"), interpreter("1")), Simulated({}).measure).run()
    assert (equal.status, equal.exit_code) == ("no difference", 3)
    assert "the same distributions" in equal.reason


def test_a_metric_that_the_test_does_not_have():
    with pytest.raises(RunFailed, match="the test has no metric kernels: it has ops"):
        searched(Simulated({}), metric="kernels")
    assert searched(Simulated({}), metric="ops").status == "no difference"


def test_an_end_that_cannot_be_measured():
    class Failing:
        def measure(self, request, metric, limit):
            return Measurement(request, "ModuleNotFoundError: No module named 'x'")

    with pytest.raises(RunFailed, match="cannot be compared with the old one: ModuleNotFoundError: No module named"):
        searched(Failing())


def test_packages_may_change_the_machine_id():
    class Renamed(Simulated):
        def measure(self, request, metric, limit):
            return replace(super().measure(request, metric, limit), key=request.commit)

    assert searched(Renamed({"c": 0.1})).culprits == ("c",)


def test_the_json_form():
    data = json.loads(json.dumps(to_json(searched(Simulated({"c": 0.1})))))

    assert data["culprits"] == [{"name": "c", "old": "1", "new": "2"}]
    assert data["status"] == "found"
    assert data["interval"][0] < data["effect"] < data["interval"][1]
    assert len(data["differing"]) == len(NAMES)
    assert 0 < data["built_environments"] <= 5


def test_the_command_of_a_mixture(tmp_path):
    both = types.SimpleNamespace(old=types.SimpleNamespace(executable="/old/python"))
    child = MixtureChild(both, "test_a.py", ("-k", "x"), tmp_path)
    timed = child.command(Request(NEW, "old", True), "/new/python", tmp_path, "step_time", 0.05)
    counted = child.command(Request("a", None, False), "/mixed/python", tmp_path, "ops", 0.0)

    assert list(timed[:4]) == module_command("/new/python", "pytest", "test_a.py", path=LIBRARY_FIRST)
    assert {"--perf-against-python=/old/python", "--perf-limit=step_time:5%", "-k"} <= set(timed)
    assert not any("against-python=/" in word for word in counted)
    assert "--perf-limit=step_time:off" in counted


def test_each_comparison_keeps_its_own_report(tmp_path):
    """The one of the culprits alone is written with --out, and it need not be the last that was made."""
    requests = [
        Request(name, "old", timed) for name in (NEW, "a", "b", ",".join(NAMES * 50)) for timed in (True, False)
    ]
    folders = {report_folder(tmp_path, request) for request in requests}

    assert len(folders) == len(requests)
    assert all(len(folder.name) < 255 for folder in folders)


@pytest.mark.long
def test_real_environments(tmp_path, monkeypatch, capsys):
    """Three libraries differ; the new one of one of them does more operators. Another one cannot be mixed."""
    from pytest_perfdl.cli import main

    work = "import torch\ndef work(x):\n    for _ in range({}):\n        x = torch.tanh(x)\n    return x\n"
    plain = "def same(x):\n    return x\n"
    libraries = {"first_lib": plain, "kernels_lib": work.format(4), "other_lib": plain}
    newer = libraries | {"kernels_lib": work.format(40)}
    old = environment(tmp_path / "old", **{name: ("1.0", text) for name, text in libraries.items()})
    new = environment(tmp_path / "new", **{name: ("2.0", text) for name, text in newer.items()})
    project = Project(tmp_path / "project")
    project.write(
        "test_speed.py",
        """
        import first_lib
        import kernels_lib
        import other_lib
        import torch

        def test_work(perf):
            x = torch.randn(64, 64)
            perf(lambda: other_lib.same(kernels_lib.work(first_lib.same(x))))
        """,
    )
    monkeypatch.chdir(project.root)
    options = ("-p", "perfdl", "--perf-warmup=2", "--perf-steps=4", "--perf-memory=off", "-p", "no:randomly")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    arguments = ["bisect", "--environments", "--metric=ops", "--json", str(old), str(new), "test_speed.py", "--"]
    code = main([*arguments, *options])
    printed = capsys.readouterr()

    assert code == 0, printed.err
    found = json.loads(printed.out)
    assert [each["name"] for each in found["culprits"]] == ["kernels-lib"]
    assert found["effect"] == pytest.approx(9.0)
    assert found["built_environments"] <= 3
    assert {each.name for each in tmp_path.iterdir()} == {"old", "new", "project"}, "no environment is left"
