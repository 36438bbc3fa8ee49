"""What `perfdl trace`, `diff` and `whatif` make of files without a trace in them, and of folders."""

import gzip
import json
import pickle

import pytest

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli import main
from unit.cli.test_diff import BEFORE, OPS, record, rows
from unit.trace.chrome import kernel, launch, memory, step, text, x
from unit.trace.test_formats import FORMATS

COMMANDS = {
    "trace": lambda path: ["trace", path],
    "diff": lambda path: ["diff", path, path],
    "whatif": lambda path: ["whatif", path],
}
COMPARED = ("run", "baseline")
"""What `perfdl diff` reads."""
CHAKRA = FORMATS["chakra"][0]
each_command = pytest.mark.parametrize("command", COMMANDS)


def work(rank=None, steps=2, each=900):
    """A trace of steps of 1 ms, of one rank of a job."""
    events = []
    for number in range(steps):
        start = number * 1000
        events += [
            step(number, start, 1000),
            x("aten::mm", start, 50),
            launch(start + 10, 5, number + 1),
            kernel("gemm", start + 50, each, number + 1),
        ]
    return text(events, **({} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}))


@pytest.mark.parametrize(
    ("command", "kind"),
    [(command, kind) for command in COMMANDS for kind in FORMATS if command != "diff" or kind not in COMPARED],
)
def test_other_formats_are_named_by_every_command(command, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data, said = FORMATS[kind]
    (tmp_path / "x.json").write_bytes(data)
    assert main(COMMANDS[command]("x.json")) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"perfdl {command}: x.json is {said}\n")


@each_command
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (text([]), "x.json has no complete events: there is nothing to analyze"),
        (b"[]", "x.json has no complete events: there is nothing to analyze"),
        (
            text([x("a", 1, 1, cat="v8")]),
            "x.json has no PyTorch categories among 1 event (categories: v8): record it with torch.profiler",
        ),
    ],
    ids=["no events", "an empty list", "no categories"],
)
def test_without_anything_to_analyze_there_is_no_report(command, data, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_bytes(data)
    assert main(COMMANDS[command]("x.json")) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"perfdl {command}: {said}\n")


def test_memory_events_alone_have_no_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_bytes(text([memory(1, 512, Addr=1, **{"Total Allocated": 512})]))
    said = "x.json has only 1 memory event: compare its memory with `perfdl diff --memory`"
    for command in ("diff", "whatif"):
        assert main(COMMANDS[command]("x.json")) == 2
        assert capsys.readouterr().err == f"perfdl {command}: {said}\n"
    assert main(["trace", "x.json"]) == 0
    out = capsys.readouterr().out
    assert "Bottleneck: Unknown: the trace has no operators, calls or kernels." in out
    assert "Memory (cpu): peak 512 B allocated" in out
    assert main(["diff", "--memory", "x.json", "x.json"]) == 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two ranks in a folder of other files, one level down too."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job"
    (path / "deep").mkdir(parents=True)
    (path / ".cache").mkdir()
    (path / "a.pt.trace.json").write_bytes(work(0))
    (path / "deep" / "trace").write_bytes(gzip.compress(work(1)))
    (path / "et.json").write_bytes(CHAKRA)
    (path / "notes.txt").write_text("hello")
    (path / "deep" / "big.json.gz").write_bytes(FORMATS["lfs"][0])
    (path / ".cache" / "hidden").write_text("hidden")
    return path


LEFT_OUT = (
    "3 files in job are not traces and were left out: deep/big.json.gz (a Git LFS pointer), "
    "et.json (a PyTorch execution trace (Chakra)), notes.txt (not valid JSON: invalid character (byte 0))"
)


@each_command
def test_a_folder_is_read_for_what_is_a_trace_in_it(command, folder, capsys):
    assert main(COMMANDS[command]("job")) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if "left out" in line]
    assert lines[0] == f"perfdl {command}: {LEFT_OUT}"
    assert len(lines) == (2 if command == "diff" else 1)
    for path in (folder / "et.json", folder / "notes.txt", folder / "deep" / "big.json.gz"):
        path.unlink()
    assert main(COMMANDS[command]("job")) == 0
    again = capsys.readouterr()
    assert again.out == printed.out
    assert "left out" not in again.err


def test_a_folder_is_the_ranks_of_a_job(folder, capsys):
    assert main(["trace", "job", "--json"]) == 0
    assert [each["rank"] for each in json.loads(capsys.readouterr().out)["traces"]] == [0, 1]
    (folder / "deep" / "trace").unlink()
    assert main(["trace", "job", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rank"] == 0


@each_command
def test_a_folder_without_traces_is_refused(command, folder, capsys):
    (folder / "a.pt.trace.json").unlink()
    (folder / "deep" / "trace").unlink()
    for number in range(9):
        (folder / f"z{number}").write_text("")
    assert main(COMMANDS[command]("job")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    said = "contains nothing to compare" if command == "diff" else "contains no traces"
    assert line.startswith(f"perfdl {command}: job {said}: it has deep/big.json.gz (a Git LFS pointer), et.json (a ")
    assert line.endswith("z4 (empty), and 4 more files")


def test_a_folder_of_baselines_names_what_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Store(tmp_path, "baselines").save(record(OPS, rows=rows(BEFORE)), {})
    folder = tmp_path / "baselines"
    (folder / "key").mkdir(exist_ok=True)
    (folder / "key" / "machine.json").write_text('{"cores": 8}')
    assert main(["diff", "baselines", "baselines"]) == 0
    assert capsys.readouterr().err == ""
    (folder / "t.json").write_bytes(work())
    (folder / "et.json").write_bytes(CHAKRA)
    assert main(["diff", "baselines", "baselines"]) == 0
    lines = capsys.readouterr().err.splitlines()
    said = "2 files in baselines are not baselines and were left out"
    assert set(lines) == {f"perfdl diff: {said}: et.json (a PyTorch execution trace (Chakra)), t.json (a trace)"}
    (folder / "cut.json").write_text('{\n "calls": [\n  {"metr')
    assert main(["diff", "baselines", "baselines"]) == 2
    assert "baselines/cut.json is not a trace, a run.json file or a baseline: " in capsys.readouterr().err


def test_a_snapshot_is_told_by_its_content(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshot").write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    (tmp_path / "pointer").write_bytes(FORMATS["lfs"][0])
    assert main(["diff", "--memory", "snapshot", "snapshot"]) == 2
    assert capsys.readouterr().err.startswith("perfdl diff: snapshot has no stack traces of allocations")
    assert main(["diff", "--memory", "pointer", "snapshot"]) == 2
    assert capsys.readouterr().err.startswith("perfdl diff: pointer is a Git LFS pointer, not a trace: fetch")
    assert main(["diff", "pointer"]) == 2
    assert capsys.readouterr().err.startswith("perfdl diff: pointer is not a run.json file but a Git LFS pointer: pass")
