"""Every command that is shown is one that pytest's parser or ours takes; the cheap ones are run too.

`make commands` runs all of them (every_command.py).
"""

import os
import re
import shlex

import pytest
from commands.shown import everywhere, in_prose
from commands.states import NOT_RUN

from pytest_perfdl import cli
from pytest_perfdl.plugin import SETTINGS

# pytester forgets what its runs import, and numpy cannot be imported twice.
import pytest_perfdl.run.session  # noqa: F401  # isort: skip

ALL = everywhere()
ONCE = list({(each.place.partition(":")[0], each.text): each for each in ALL}.values())
"""A document's or module's commands, each once."""
PYTESTS = [each for each in ONCE if re.match(r"([A-Z_]+=\S+ )*(python -m )?pytest ", each.text)]
PERFDLS = [each for each in ONCE if each.text.startswith("perfdl ")]


def test_the_collection_finds_what_is_shown():
    assert len(PYTESTS) >= 20
    assert len(PERFDLS) >= 45
    assert len([each for each in ALL if each.runs]) >= 90
    assert {each.place.partition(":")[0] for each in ALL} >= {
        "README.md",
        "docs/tutorials/first-regression.md",
        "docs/how-to/update-baselines.md",
        "examples/README.md",
        "pytest_perfdl/baseline/files.py",
    }


def test_a_command_in_a_sentence_ends_where_it_ends():
    assert in_prose("record it again with pytest --perf-update=all.") == ["pytest --perf-update=all"]
    assert in_prose("use perfdl trace FILE --top 5, then; (pytest --perf-against REF)") == [
        "perfdl trace FILE --top",
        "pytest --perf-against REF",
    ]
    assert in_prose("perfdl says more, pytest is run") == []


@pytest.mark.long
@pytest.mark.parametrize("shown", PYTESTS, ids=str)
def test_pytest_takes_it(shown, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("SHARD", "1")
    text = os.path.expandvars(shown.text)
    words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )*(python -m )?pytest ", "", text).partition(" -- ")[0])
    paths = [word for word in words if re.search(r"/|::|\.py\b|\*", word) and not word.startswith("-")]
    if words[-1] in ("--perf-threads", "--perf-inject"):
        words.append("1")
    words = ["origin/main" if word == "REF" else word for word in words]
    config = pytester.parseconfigure("-pperfdl", *words)
    settings = config.stash[SETTINGS]

    assert settings.enabled == any(word.startswith("--perf") for word in words)
    named = [path for path in paths if path != settings.against]
    # With --help pytest reads no further than that.
    files = [] if "--help" in words else config.option.file_or_dir
    assert [path for path in files if path != settings.json] == named


@pytest.mark.parametrize("shown", PERFDLS, ids=str)
def test_perfdl_takes_it(shown, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(shown.text.partition(" > ")[0].replace("...", ""))[1:]
    if words[0] == "scaling" and words[1:2] == ["fit|predict"]:
        words = words[:1]
    taken = parsed(words, monkeypatch)
    said = capsys.readouterr().err

    # A form, or a mention of a command by its name, may lack what it needs; what it says must be there.
    lacking = "the following arguments are required" in said or "expected one argument" in said
    assert taken or lacking, said
    assert taken or not shown.runs or len(words) <= 3, said


def parsed(words, monkeypatch):
    """Whether the arguments are taken, without doing what they ask for."""
    load = cli._load

    def harmless(name):
        module = load(name)
        monkeypatch.setattr(module, "run", lambda _arguments: 0)
        return module

    with monkeypatch.context() as patched:
        patched.setattr(cli, "_load", harmless)
        try:
            return cli.main(words) == 0
        except SystemExit as end:
            return end.code == 0


@pytest.mark.parametrize("name", sorted(cli._MODULES))
def test_every_subcommand_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])

    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"usage: perfdl {name}")
    for command in in_prose(shown):
        assert command.split()[1] in cli._MODULES, command


def test_what_is_not_run_is_reviewed():
    shown = {each.text for each in ALL}

    assert NOT_RUN.keys() <= shown
    assert len(NOT_RUN) <= 10
