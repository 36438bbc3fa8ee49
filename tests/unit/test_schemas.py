"""The published JSON Schemas describe what is really written, and readers ignore fields that they do not know."""

import copy
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from pytest_perfdl.cli import main
from pytest_perfdl.model import record_json
from pytest_perfdl.results.run_file import dump, read_run, to_json
from pytest_perfdl.runs.bisect import answers
from unit.report import runs
from unit.runs.bisect import test_campaign, test_environments
from unit.test_docs_made import REFERENCE

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference" / "schemas"
TRACES = ROOT / "tests" / "unit" / "trace" / "data"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def schema(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def validator(name):
    return jsonschema.Draft202012Validator(schema(name))


def check(name, data):
    """Whether data fits; data as others get it, read from text."""
    found = sorted(validator(name).iter_errors(json.loads(json.dumps(data, allow_nan=False))), key=str)
    assert not found, "\n".join(f"{error.json_path}: {error.message[:200]}" for error in found[:5])


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_has_a_name_with_a_version_and_ends_no_object(name):
    made = schema(name)
    jsonschema.Draft202012Validator.check_schema(made)
    version = 2 if name in ("trace", "trace-ranks") else 1
    assert made["$id"] == f"urn:pytest-perfdl:schema:{name}:{version}"
    assert made["$schema"].endswith("2020-12/schema")
    assert not [form for form in made.get("$defs", {}) if form.startswith("_")]
    closed = [form for form, each in made.get("$defs", {}).items() if each.get("additionalProperties") is False]
    # A part of the plan that a reader does not know would be another measurement.
    assert closed == (["Plan"] if name in ("baseline", "run") else [])


def test_two_forms_of_one_name_are_refused():
    inner = msgspec.defstruct("_Thing", [("a", int)])
    outer = msgspec.defstruct("ThingForm", [("things", list[inner])])
    with pytest.raises(ValueError, match="has the public name Thing"):
        REFERENCE.schemas.schema_of(outer, "A thing", 1)


def all_runs():
    yield runs.run(*runs.each_verdict(), runs.hostile())
    curved = runs.result("regressed", blame=runs.BLAME, curves=(runs.curve(), runs.curve("depth", base=False)))
    yield runs.run(curved, commit=None, notes=("a note",))
    yield runs.run()


def test_run_files_of_every_verdict():
    for run in all_runs():
        check("run", to_json(run))


def baselines():
    return [*(ROOT / "baselines").rglob("*.json"), *(ROOT / "examples").rglob("baselines/**/*.json")]


def test_the_committed_baselines():
    found = [path for path in baselines() if path.name != "machine.json" and not path.name.endswith(".trace.json")]
    assert found
    for path in found:
        check("baseline", json.loads(path.read_bytes()))


RUN_FILES = [ROOT / "tests" / folder / "run.json" for folder in ("data/tutorial", "browser/data")]


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.parent.name)
def test_run_files_of_real_runs(path):
    check("run", json.loads(path.read_bytes()))


def test_a_baseline_of_every_part():
    check("baseline", record_json.to_json(runs.record("t.py::test_a")))


@pytest.mark.parametrize("trace", sorted(path.name for path in TRACES.glob("*.json.gz")))
def test_summaries_of_traces(trace, capsys):
    assert main(["trace", str(TRACES / trace), "--json"]) == 0
    check("trace", json.loads(capsys.readouterr().out))


def test_summaries_with_advice_and_of_ranks(capsys):
    assert main(["trace", str(TRACES / "train.json.gz"), "--advise", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replay"] is not None
    check("trace", found)
    assert main(["trace", *(str(TRACES / f"device_rank{rank}.json.gz") for rank in (0, 1)), "--json"]) == 0
    check("trace-ranks", json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "before, after", [("train", "stack"), ("device_rank0", "device_rank1"), ("device_cuda", "device_cuda")]
)
def test_diffs_of_traces(before, after, capsys):
    assert main(["diff", *(str(TRACES / f"{name}.json.gz") for name in (before, after)), "--json"]) in (0, 1)
    check("diff", json.loads(capsys.readouterr().out))


def test_answers_of_searches():
    simulated, searched = test_campaign.Simulated, test_campaign.searched
    found = searched(simulated(ops=test_campaign.stepped(16, 5, 16, 18), times=[1.0] * 17, skipped={8, 12}), 16)
    check("bisect", answers.to_json(found))
    check("bisect", answers.to_json(searched(simulated(times=[100.0] * 17, rounds=12))))
    check("bisect", answers.to_json(searched(simulated(times=test_campaign.stepped(16, 9, 100.0, 105.0)))))
    found = test_environments.searched(test_environments.Simulated({"c": 0.1}))
    check("bisect-environments", answers.to_json(found))


CONTRACTS = {
    "history": {
        "": {"tests"},
        "Test": {"id", "metric", "points", "change_points"},
        "Point": {"commit", "date", "value", "interval", "environment"},
        "ChangePoint": {"commit", "effect", "probability"},
    },
    "diff": {"": {"id", "step", "limit", "tests"}, "TestDiff": {"id", "step"}},
    "refresh": {"": {"adopted", "refused", "unchanged"}, "Refused": {"id", "why", "effect"}},
}
"""What programs that read the outputs rely on; `unit.cli` checks real outputs of histories and updates."""


@pytest.mark.parametrize("name", CONTRACTS)
def test_fields_that_others_rely_on_are_always_there(name):
    made = schema(name)
    for form, fields in CONTRACTS[name].items():
        assert fields <= set((made["$defs"][form] if form else made)["required"]), form


@pytest.mark.parametrize(
    "place, value",
    [
        (("tests", 1, "verdict"), "slow"),
        (("tests", 1, "metrics", "step_time", "base"), "41 ms"),
        (("tests", 1, "record", "plan", "other"), 1),
        (("schema",), 2),
        (("tests", 1, "metrics", "step_time", "waiver"), "yes"),
        (("date",), None),
    ],
)
def test_a_schema_refuses_what_is_not_written(place, value):
    data = json.loads(dump(to_json(next(all_runs()))))
    *parts, last = place
    inner = data
    for part in parts:
        inner = inner[part]
    inner[last] = value
    assert not validator("run").is_valid(data)


@pytest.mark.parametrize("absent", ["schema", "key", "tests", "waivers"])
def test_a_field_that_is_always_written_is_required(absent):
    data = json.loads(dump(to_json(next(all_runs()))))
    del data[absent]
    assert not validator("run").is_valid(data)


def with_unknown(data):
    """The data with a further field in every object that may have one."""
    if isinstance(data, list):
        return [with_unknown(each) for each in data]
    if not isinstance(data, dict):
        return data
    return {name: with_unknown(each) for name, each in data.items()} | {"of a later version": {"x": [1]}}


def test_readers_ignore_unknown_fields(tmp_path):
    """Objects whose names are data, such as metrics and contexts, have no further fields."""
    run = runs.run(*runs.each_verdict())
    data = json.loads(dump(to_json(run)))
    later = copy.deepcopy(data) | {"of a later version": {"x": [1]}}
    for test in later["tests"]:
        test["of a later version"] = [None]
        test["metrics"] = {name: with_unknown(metric) for name, metric in test["metrics"].items()}
        for record in filter(None, (test["record"], test["base_record"])):
            record["of a later version"] = {}
            record["occasions"] = with_unknown(record["occasions"])
            for call in record["calls"]:
                call["rows"] = with_unknown(call["rows"])
    check("run", later)
    path, plain = tmp_path / "run.json", tmp_path / "plain.json"
    path.write_text(json.dumps(later))
    plain.write_text(json.dumps(data))
    assert read_run(path, tmp_path) == read_run(plain, tmp_path)


def test_a_later_schema_is_refused():
    data = record_json.to_json(runs.record("t.py::test_a"))
    with pytest.raises(record_json.OtherSchemaError, match="another version of pytest-perfdl"):
        record_json.from_json(data | {"schema": record_json.SCHEMA + 1})
