"""What `perfdl` says when it is called wrongly: one line that names the subcommand."""

import pytest

from pytest_perfdl.cli import main
from unit.trace.chrome import text, x


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "perfdl: the following arguments are required: COMMAND"),
        (["nope"], "perfdl: argument COMMAND: invalid choice: 'nope' (choose from "),
        (["trace"], "perfdl trace: the following arguments are required: FILE"),
        (["whatif", "a.json", "--nope", "x"], "perfdl whatif: unrecognized arguments: --nope x"),
        (["scaling", "fit"], "perfdl scaling fit: the following arguments are required: POINTS"),
        (["scaling", "predict"], "perfdl scaling predict: the following arguments are required: MODEL"),
        (["list", "--dir", "s3://a/b"], "perfdl list: argument --dir: s3://a/b is a URL: name a file or directory on"),
        (["baseline", "verify", "--dir", "file:///a"], "perfdl baseline verify: argument --dir: file:///a is a URL: "),
        (["history", "--dir", "memory://a"], "perfdl history: argument --dir: memory://a is a URL: name a file or"),
        (
            ["merge", "a", "--out", "s3://k:SECRET@b"],
            "perfdl merge: argument -o/--out: s3://b is a URL: name a file or",
        ),
        (["report", "a", "--out", "s3://a/b"], "perfdl report: argument -o/--out: s3://a/b is a URL: name a file or"),
        (["baseline", "migrate"], "perfdl baseline: argument ACTION: invalid choice: 'migrate' (choose from "),
    ],
)
def test_a_wrong_call_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(said)
    assert line.endswith(f"(see {said.split(':')[0]} --help)")


NOTHING = '{"traceEvents": []}'


@pytest.mark.parametrize(
    "arguments, said",
    [
        (
            ["view", "none.json", "--no-browser", "--port", "99999"],
            "perfdl view: --port 99999: expected a number from 0",
        ),
        (["view", "none.json", "--no-browser", "--port", "-1"], "perfdl view: --port -1: expected a number from 0"),
        (["view", "folder"], "perfdl view: folder is not a file"),
        (["trace", "one.json", "--html", "folder"], "perfdl trace: folder cannot be written: Is a directory"),
        (["trace", "folder"], "perfdl trace: folder contains no traces: it has no files"),
        (["scaling", "fit", "nowhere.csv"], "perfdl scaling: nowhere.csv cannot be read: No such file or directory"),
        (
            ["scaling", "predict", "none.json"],
            "perfdl scaling: none.json is not a model file of `perfdl scaling fit --save`",
        ),
        (
            ["diff", "none.json", "none.json"],
            "perfdl diff: none.json has no complete events: there is nothing",
        ),
        (["diff", "HEAD", "HEAD"], "perfdl diff: HEAD is not a file, a folder or a git revision"),
        (["whatif", "folder"], "perfdl whatif: folder contains no traces: it has no files"),
        (["constants", "none.json", "-o", "folder"], "perfdl constants: folder cannot be read: Is a directory"),
        (["export", "folder"], "perfdl export: folder/run.json cannot be read: No such file or directory"),
        (
            ["export", "none.json"],
            "perfdl export: none.json is not a run file of pytest --perf: it has no list of tests",
        ),
        (["report", "folder"], "perfdl report: folder/run.json cannot be read: No such file or directory"),
        (
            ["accept", "none.json"],
            "perfdl accept: none.json is not a run file of pytest --perf: it has no list of tests",
        ),
        (["list"], "perfdl list: there is no baselines folder baselines: set the folder with --dir"),
        (["prune", "--dir", "none.json"], "perfdl prune: there is no baselines folder none.json"),
    ],
)
def test_what_cannot_be_used_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "folder").mkdir()
    (tmp_path / "none.json").write_text(NOTHING)
    (tmp_path / "one.json").write_bytes(text([x("aten::mm", 1, 1)]))
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)
    assert "--perf-report" not in line


@pytest.mark.parametrize(
    "error, said",
    [
        (RecursionError("maximum recursion depth"), "the input is nested too deeply"),
        (MemoryError(), "not enough memory for the input"),
        (OverflowError("int too big"), "the input contains numbers that are too large"),
    ],
    ids=["nested", "large", "numbers"],
)
def test_what_no_file_of_ours_holds_is_one_line(error, said, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr("pytest_perfdl.cli.listing.run", fail)
    assert main(["list"]) == 2
    assert (
        capsys.readouterr().err
        == f"perfdl list: {said}: check that the input file is complete and has the right format\n"
    )


def test_no_command_overwrites_what_it_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kept = {}
    (tmp_path / "runs").mkdir()
    for name in ("t.json", "points.csv", "runs/run.json"):
        (tmp_path / name).write_text(name)
        kept[name] = name
    (tmp_path / "link.json").symlink_to("t.json")
    for arguments in (
        ["trace", "t.json", "--html", "./t.json"],
        ["trace", "t.json", "link.json", "--trace", "t.json"],
        ["diff", "t.json", "other.json", "--html", "link.json"],
        ["whatif", "t.json", "--apply", "cuda_graph", "--trace", "t.json"],
        ["scaling", "fit", "points.csv", "--save", "points.csv"],
        ["scaling", "predict", "t.json", "--at", "batch=8", "--plot", "t.json"],
        ["export", "runs", "-o", "runs/run.json"],
        ["history", "runs", "--html", "runs/run.json"],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.endswith(" would be overwritten, and is an input: write to another file\n")
    assert {name: (tmp_path / name).read_text() for name in kept} == kept
