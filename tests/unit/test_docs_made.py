"""What the documentation quotes is what the code says and the program prints today."""

import importlib.util
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_perfdl.config.marker import KEYWORDS
from pytest_perfdl.model.metrics import METRICS
from pytest_perfdl.results.verdict import EVERY_ROUND, VERDICTS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(path):
    """A script in a folder that is no package."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # A script finds the modules next to it, as when Python runs it.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


REFERENCE, SAMPLES = script(DOCS / "reference.py"), script(DOCS / "samples.py")
RECORD = script(SAMPLES.DATA / "record.py")


@pytest.mark.parametrize("name", [*REFERENCE.PAGES, *REFERENCE.SCHEMAS])
def test_a_reference_page_is_what_the_code_says(name):
    assert (REFERENCE.FOLDER / name).read_text(encoding="utf-8") == REFERENCE.made(name), "run python docs/reference.py"


def test_a_circle_of_files_is_found_where_a_call_closes_it():
    pytest.importorskip("grimp", reason="installed with the linters")
    package_map = script(DOCS / "package_map.py")
    source = """
        import pytest_perfdl.a, importlib

        def find(name):
            importlib.import_module("pytest_perfdl.b")
            importlib.import_module(f"pytest_perfdl.c.{name}")
            importlib.import_module("scipy.optimize")
            importlib.import_module(name)
    """
    modules = {f"pytest_perfdl.{each}" for each in ("a", "b", "b.d", "c", "c.d", "c.e", "c.__main__")}
    called = package_map.called(textwrap.dedent(source), modules)
    assert called == {"pytest_perfdl.b", "pytest_perfdl.c.d", "pytest_perfdl.c.e"}
    assert set(package_map.circle({"a": {"b"}, "b": {"a"}, "c": {"a"}})) == {"a", "b"}
    graph = package_map.files()
    assert "pytest_perfdl.cli.diff" in graph["pytest_perfdl.cli"]
    assert not package_map.circle(graph)
    assert list(package_map.unnamed()) == []


def test_a_module_that_its_package_does_not_name_is_said(tmp_path, monkeypatch):
    pytest.importorskip("grimp")
    package_map = script(DOCS / "package_map.py")
    monkeypatch.setattr(package_map, "ROOT", tmp_path)
    for name, modules in {"trace": ("reader", "writer", "times", "ids"), "cli": ("diff", "common")}.items():
        folder = tmp_path / "pytest_perfdl" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text('"""A package: `reader` first, then `trace.times.Times` and `write`."""')
        for each in modules:
            (folder / f"{each}.py").touch()
    assert list(package_map.unnamed()) == [
        f"pytest_perfdl/{path}" for path in ("cli/common.py", "trace/ids.py", "trace/writer.py")
    ]


@pytest.mark.long
def test_every_table_of_the_reference_has_rows():
    for name in REFERENCE.PAGES:
        for table in re.findall(r"(?:^\|.*\n)+", REFERENCE.made(name), re.MULTILINE):
            assert table.count("\n") > 2, f"{name}: {table}"
    commands = REFERENCE.made("cli.md")
    assert "### `perfdl scaling predict`" in commands
    assert "| `--at NAME=VALUE,...` |" in commands
    assert "| `POINTS` |" in commands


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLES.FILES)
def test_samples_are_what_the_program_prints(name):
    text = (SAMPLES.ROOT / name).read_text(encoding="utf-8")
    assert SAMPLES.rewritten(text) == text, "run python docs/samples.py"


@pytest.mark.parametrize("name", SAMPLES.FILES)
def test_all_output_in_the_documentation_is_a_sample(name):
    """Outside of samples are commands, code and settings, never what a program printed.

    What is marked as printed is compared by `make commands`.
    """
    text = SAMPLES.SAMPLE.sub("", (SAMPLES.ROOT / name).read_text(encoding="utf-8"))
    text = re.sub(r"(?ms)<!-- printed -->\n```console\n.*?^```$", "", text)
    for kind, body in re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```$", text):
        assert kind in {"console", "bash", "python", "yaml", "ini", "json", "toml", "diff"}, (
            f"a fence of {kind or 'no kind'}: {body}"
        )
        if kind == "console":
            assert all(line.startswith("$ ") for line in body.splitlines()), body
    prose = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    command = re.compile(r"    (?:[A-Z_]+=\S+ )*(?:pytest|perfdl|python) ")
    assert all(command.match(line) for line in prose.splitlines() if line.startswith("    ")), name


def test_the_tutorial_shows_what_its_own_change_did():
    text = (DOCS / "tutorials" / "first-regression.md").read_text(encoding="utf-8")
    change = re.search(r"(?s)```diff\n(.*?)```", text)[1].splitlines()
    shown = next(found["body"] for found in SAMPLES.SAMPLE.finditer(text) if found["name"] == "tutorial")
    assert {line.replace(" ", "") for line in change} <= {line.replace(" ", "") for line in shown.splitlines()}


def test_what_is_made_up_is_made_as_its_script_says(tmp_path, monkeypatch):
    monkeypatch.setattr(RECORD, "DATA", tmp_path)
    RECORD.points()
    RECORD.campaign()
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(made) == {"points.csv", "perf-qualify.jsonl"}
    assert made == {name: (SAMPLES.DATA / name).read_bytes() for name in made}
    RECORD.nights()
    made = {path.name: path.read_bytes() for path in (tmp_path / "nights").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (SAMPLES.DATA / "nights").iterdir()}


def sample(text, name="command", about=""):
    return f"Before.\n\n<!-- sample: {name}{about} -->\n```console\n{text}```\n<!-- end -->\n\nAfter.\n"


TRACE = "$ perfdl trace mixer.json.gz --top 5\n"


def test_a_sample_is_what_its_own_command_prints():
    made = SAMPLES.rewritten(sample(TRACE, about=" lines=1"))
    assert made == sample(TRACE + "mixer.json.gz: 3 steps, 1,546 events\n...\n", about=" lines=1")
    assert SAMPLES.rewritten(made.replace("1,546", "1,547")) == made


@pytest.mark.long
def test_commands_of_a_document_follow_each_other():
    fit = "$ perfdl scaling fit points.csv --intrinsic layers --extrinsic batch,workers --save model.json  # kept\n"
    saved = sample(fit, about=" lines=1")
    asked = sample("$ perfdl scaling predict model.json --layers 8 --batch 16 --workers 6\n", about=" lines=1")
    assert "\nlayers 8, batch 16, workers 6: " in SAMPLES.rewritten(saved + asked)
    with pytest.raises(SAMPLES.SampleError, match=r"model\.json cannot be read"):
        SAMPLES.rewritten(asked)


def test_a_failing_command_is_a_sample_only_where_that_is_said():
    wrong = sample("$ perfdl trace nothing.json\n")
    with pytest.raises(SAMPLES.SampleError, match="exit code 2"):
        SAMPLES.rewritten(wrong)
    said = wrong.replace("```console", "<!-- exit: 2 -->\n```console")
    assert "$ perfdl trace nothing.json\nperfdl trace: " in SAMPLES.rewritten(said)


@pytest.mark.parametrize(
    "text, why",
    [
        (sample("", name="unheard-of"), "no sample 'unheard-of'"),
        (sample("$ rm -r here\n"), "a command of perfdl"),
        (sample(""), "a command of perfdl"),
    ],
)
def test_a_sample_that_nothing_can_make_is_an_error(text, why):
    with pytest.raises(SAMPLES.SampleError, match=why):
        SAMPLES.rewritten(text)


@pytest.mark.parametrize(
    "lines, shown",
    [
        (None, "1 2 3 4 5"),
        ("1-5", "1 2 3 4 5"),
        ("1-", "1 2 3 4 5"),
        ("1-2", "1 2 ..."),
        ("2", "... 2 ..."),
        ("4-", "... 4 5"),
        ("1,3,5", "1 ... 3 ... 5"),
        ("1-2,3-5", "1 2 3 4 5"),
    ],
)
def test_lines_of_a_sample(lines, shown):
    assert SAMPLES.selected("1\n2\n3\n4\n5\n", lines).split() == shown.split()


@pytest.mark.parametrize("lines", ["0", "6", "2-1", "1-6", "2,2", "3,1"])
def test_lines_that_are_not_there_are_an_error(lines):
    with pytest.raises(SAMPLES.SampleError, match="of 5 lines"):
        SAMPLES.selected("1\n2\n3\n4\n5\n", lines)


def test_the_check_names_stale_documents_and_leaves_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(SAMPLES, "ROOT", tmp_path)
    monkeypatch.setattr(SAMPLES, "FILES", ("stale.md", "no-samples.md"))
    stale = sample(TRACE + "4 steps\n", about=" lines=1")
    (tmp_path / "stale.md").write_text(stale)
    (tmp_path / "no-samples.md").write_text("Nothing.\n")
    monkeypatch.setattr(sys, "argv", ["samples.py", "--check"])
    assert SAMPLES.main() == 1
    assert capsys.readouterr().out == "not what the program prints: stale.md\n"
    assert (tmp_path / "stale.md").read_text() == stale
    monkeypatch.setattr(sys, "argv", ["samples.py"])
    assert SAMPLES.main() == 0
    assert "\nmixer.json.gz: 3 steps" in (tmp_path / "stale.md").read_text()


def test_every_metric_of_a_run_is_described():
    run = json.loads(SAMPLES.RUN.read_text(encoding="utf-8"))
    assert {name for test in run["tests"] for name in test["metrics"] if " " not in name} <= set(METRICS)


def test_the_readme_names_metrics_that_exist():
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## What it measures") :].partition("\nLimits are set")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert len(named) > 12
    assert named <= set(METRICS)


def test_the_readme_has_the_numbers_of_the_benchmarks():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    page = (DOCS / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
    measured = {row[0]: row[1:] for row in rows_of(page)}
    for label, source in {
        "**pytest-perfdl**, `--perf` and `--perf-against`": "**pytest-perfdl** (forked, pinned, quiet)",
        "**pytest-perfdl**, without git (unpaired)": "**pytest-perfdl**, unpaired",
        "pytest-benchmark 5.3, `mean:5%`": "pytest-benchmark 5.3, `mean:5%`",
        "asv continuous": "asv continuous",
    }.items():
        (shown,) = [row[1:] for row in rows_of(readme) if row[0] == label]
        alarms, _, five, ten, _, _, seconds = measured[source]
        assert shown == [alarms, five, ten, seconds], label
    processes, rounds = re.search(r"Recorded: (\d+) processes, and (\d+) rounds", page).groups()
    assert f"On {processes} recorded processes and {rounds} recorded rounds" in readme


def rows_of(text):
    """The cells of every row of every table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_every_argument_of_the_marker_and_every_verdict_is_described():
    assert set(KEYWORDS) <= set(REFERENCE.MARKER)
    assert set(REFERENCE.MEANINGS) == {*VERDICTS, EVERY_ROUND}


def test_every_picture_of_the_documentation_is_there():
    for page in DOCS.rglob("*.md"):
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.split(")")[0]
            if target.endswith(".png"):
                assert (page.parent / target).is_file(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_stay_in_the_documentation(page):
    """The strict build refuses others; it is not installed wherever the tests run."""
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        found = (page.parent / target).resolve()
        assert found.exists(), target
        assert found.is_relative_to(DOCS), target


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "examples/README.md"])
def test_links_of_the_other_documents_lead_somewhere(name):
    page = DOCS.parent / name
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
        assert not anchor or target, anchor


def test_the_files_that_contributing_names_are_there():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:pytest_perfdl|tests|docs)/[\w./]+)`", text)
    assert len(named) > 15
    assert [path for path in named if not (DOCS.parent / path).exists()] == []
