"""`perfdl trace`: the contract of its JSON, what it says on the terminal and on the page, and how it refuses."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from pytest_perfdl.cli import main
from unit.trace.chrome import DATA, corpus_file, each_trace_file, kernel, launch, memory, step, text, x
from unit.whatif.training import STEP, host_step


def events(steps=2):
    """Steps on a GPU: 10 ms each, of which a kernel takes 4 ms and a copy 1 ms."""
    found = []
    for number in range(3, 3 + steps):
        start = (number - 3) * 10_000
        found += [
            step(number, start, 10_000),
            x("aten::mm", start + 100, 400, **{"Input Dims": [[4, 8], [8, 2]]}),
            launch(start + 200, 50, 2 * number),
            x("aten::copy_", start + 1000, 300),
            launch(start + 1100, 50, 2 * number + 1, name="cudaMemcpyAsync"),
            kernel("gemm_128", start + 400, 4000, 2 * number),
            kernel(
                "Memcpy HtoD (Pageable -> Device)", start + 5000, 1000, 2 * number + 1, cat="gpu_memcpy", bytes=10**6
            ),
        ]
    return [
        *found,
        memory(150, 100, 1, 0, Addr=1, **{"Total Allocated": 600, "Total Reserved": 1000}),
        memory(9000, -100, 1, 0, Addr=1, **{"Total Allocated": 500, "Total Reserved": 1000}),
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.json"
    path.write_bytes(text(events(), deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]))
    return path


def figures(capsys, *arguments):
    assert main(["trace", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_json_contract(file, capsys):
    found = figures(capsys, file)
    assert found["gpu"] | {"communication_evidence": None} == {
        "devices": 1,
        "span_ns": 15_600_000,
        "busy_ns": 10_000_000,
        "idle_ns": 5_600_000,
        "compute_ns": 8_000_000,
        "communication_ns": 0,
        "communication_overlapped_ns": 0,
        "communication_exposed_ns": 0,
        "copies_ns": 2_000_000,
        "exposed_copies_ns": 2_000_000,
        "in_flight_communication_ns": 0,
        "waiting_communication_ns": 0,
        "communication_evidence": None,
    }
    assert [(one["name"], one["wall_ns"]) for one in found["steps"]] == [
        ("ProfilerStep#3", 10_000_000),
        ("ProfilerStep#4", 10_000_000),
    ]
    for one in found["steps"]:
        assert sum(one["account"].values()) == one["wall_ns"]
        assert one["account"]["compute"] == 4_000_000
        assert one["account"]["exposed copies"] == 1_000_000
    gemm = next(row for row in found["kernels"] if row["name"] == "gemm_128")
    assert (gemm["count"], gemm["total_ns"], gemm["mean_ns"]) == (2, 8_000_000, 4_000_000)
    assert {row["name"]: row["count"] for row in found["operators"]} == {"aten::mm": 2, "aten::copy_": 2}
    assert found["memory"]["cuda:0"]["peak_allocated_bytes"] == 600
    assert found["memory"]["cuda:0"]["peak_reserved_bytes"] == 1000
    assert found["integrity"]["carry_over"] == found["integrity"]["unlinked"] == 0
    assert sum(found["critical_path"]["classes"].values()) == found["critical_path"]["span_ns"] == 20_000_000
    assert found["bottleneck"]
    assert found["findings"] is not None
    assert found["device"] == "NVIDIA A100-SXM4-40GB"


def test_without_a_device_there_is_no_gpu(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    path.write_bytes(text([step(1, 0, 100), x("aten::mm", 10, 50)]))
    found = figures(capsys, path)
    assert found["gpu"] is None
    assert found["kernels"] == []
    assert found["memory"] == {}
    assert found["steps"][0]["account"]["forward"] == 50_000


@each_trace_file
def test_the_contract_holds_on_every_public_trace(path, capsys):
    found = figures(capsys, path)
    for one in found["steps"]:
        assert sum(one["account"].values()) == one["wall_ns"]
    path = found["critical_path"]
    assert sum(path["classes"].values()) == path["span_ns"]
    gpu = found["gpu"]
    if gpu:
        assert gpu["busy_ns"] + gpu["idle_ns"] == gpu["span_ns"]
        assert gpu["communication_overlapped_ns"] + gpu["communication_exposed_ns"] == gpu["communication_ns"]
    json.dumps(found, allow_nan=False)


@pytest.mark.corpus
def test_published_figures(capsys):
    gpu = figures(capsys, corpus_file("nccl_rank0"))["gpu"]
    assert round(100 * gpu["communication_overlapped_ns"] / gpu["communication_ns"], 3) == 14.946
    assert round(100 * gpu["busy_ns"] / gpu["span_ns"], 4) == 44.7853
    assert gpu["span_ns"] == 1_222_847_000


def test_the_page_on_the_terminal(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["trace", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines).startswith(f"{file}: 2 steps, 14 events, NVIDIA A100-SXM4-40GB Bottleneck: ")
    bottleneck, findings, steps = (
        next(place for place, line in enumerate(lines) if line.startswith(word))
        for word in ("Bottleneck: ", "Findings", "Step time ")
    )
    assert bottleneck < findings < steps
    assert "Step time 10.00 ms (mean of 2 steps, 10.00 ms to 10.00 ms)" in lines
    assert any(re.match(r"  compute +4\.000 ms +40\.0%  =+$", line) for line in lines)
    assert "  The numbers below are per step: totals over the trace divided by 2." in lines
    assert any(re.match(r" +time +share +calls +per call$", line) for line in lines), "exposed is equal to the time"
    assert any(re.match(r"  gemm_128 +4\.000 ms +80\.0% +1 +4\.000 ms$", line) for line in lines)
    assert "  share: percentage of the time of all kernels and copies" in lines
    assert "  copies CPU to device (pageable): 1/step, 976.6 KiB in 1.000 ms (1 GB/s)" in lines
    assert "Memory (cuda:0): peak 600 B allocated, 1000 B reserved; at the peak:" in lines
    assert max(map(len, lines)) <= 100 or len(str(file)) > 60


@each_trace_file
def test_a_terminal_of_80_columns(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["trace", str(path), "--top", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []
    names, title = [], ""
    for line in lines:
        if line.startswith("Kernels and copies"):
            title = line
        elif not line.strip():
            title = ""
        elif title and (found := re.match(r"  (\S.*?) {2,}[\d.,]+ (ns|µs|ms|s)\b", line)):
            names.append(found[1])
    assert len(set(names)) == len(names)
    assert not any(name.startswith("void ") for name in names)


def test_twice_the_steps_are_the_same_numbers_per_step(file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    longer = file.with_name("longer.json")
    longer.write_bytes(text(events(steps=4), deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]))
    rows = []
    for path in (file, longer):
        assert main(["trace", str(path)]) == 0
        out = capsys.readouterr().out
        rows.append(
            [line for line in out.splitlines() if re.match(r"  (gemm_128|Memcpy|copies CPU|aten::\S+ .*s )", line)]
        )
    assert rows[0] == rows[1]
    assert len(rows[0]) == 5
    found = figures(capsys, longer)
    gemm = next(row for row in found["kernels"] if row["name"] == "gemm_128")
    assert (gemm["total_ns"], gemm["per_step"]["total_ns"], gemm["per_step"]["count"]) == (16_000_000, 4_000_000, 1)
    mm = next(row for row in found["operators"] if row["name"] == "aten::mm")
    assert (mm["count"], mm["per_step"]["count"], mm["per_step"]["total_ns"]) == (4, 1, 400_000)
    assert found["critical_path"]["per_step_ns"] == 10_000_000


def test_work_outside_of_steps_is_named(tmp_path, capsys):
    path = tmp_path / "around.json"
    path.write_bytes(text([step(1, 0, 1000), x("aten::mm", 0, 1000), x("aten::add", 1000, 3000)]))
    assert main(["trace", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The numbers below are totals over the trace. The 1 step covers only 25.0% of the trace's time." in out


def test_steps_can_be_selected(file, capsys):
    found = figures(capsys, file, "--select", "step=4")
    assert [one["name"] for one in found["steps"]] == ["ProfilerStep#4"]
    assert found["gpu"]["compute_ns"] == 4_000_000
    assert {row["name"]: row["count"] for row in found["operators"]} == {"aten::mm": 1, "aten::copy_": 1}
    assert len(figures(capsys, file, "--select", "step=1-4")["steps"]) == 2


def test_streams_can_be_selected(tmp_path, capsys):
    path = tmp_path / "streams.json"
    found = [*events(), launch(300, 50, 90), kernel("beside", 500, 2000, 90, stream=20)]
    path.write_bytes(text(found))
    assert {row["name"] for row in figures(capsys, path)["kernels"]} == {
        "gemm_128",
        "Memcpy HtoD (Pageable -> Device)",
        "beside",
    }
    (only,) = figures(capsys, path, "--select", "stream=20")["kernels"]
    assert (only["name"], only["total_ns"]) == ("beside", 2_000_000)
    found = figures(capsys, path, "--select", "stream=7", "--select", "step=3")
    assert found["gpu"]["compute_ns"] == 4_000_000
    assert len(figures(capsys, path, "--select", "stream=7", "--select", "stream=20")["kernels"]) == 3
    assert {row["name"] for row in found["operators"]} == {"aten::mm", "aten::copy_"}, "the host is not on a stream"


@pytest.mark.parametrize(
    ("selection", "kernels", "operators"),
    [
        ("kind=copy", {"Memcpy HtoD (Pageable -> Device)"}, {"aten::mm", "aten::copy_"}),
        ("kind=kernel", {"gemm_128"}, {"aten::mm", "aten::copy_"}),
        ("kind=kernel,kind=copy", {"gemm_128", "Memcpy HtoD (Pageable -> Device)"}, {"aten::mm", "aten::copy_"}),
        ("phase=forward", {"gemm_128", "Memcpy HtoD (Pageable -> Device)"}, {"aten::mm", "aten::copy_"}),
    ],
)
def test_kinds_and_phases_can_be_selected(selection, kernels, operators, file, capsys):
    found = figures(capsys, file, "--select", selection)
    assert {row["name"] for row in found["kernels"]} == kernels
    assert {row["name"] for row in found["operators"]} == operators


def test_ranks_can_be_selected(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_bytes(text(events()))
    both = [tmp_path / "a.json", tmp_path / "b.json"]
    assert main(["trace", *map(str, both), "--select", "rank=1"]) == 0
    out = capsys.readouterr().out
    assert str(both[1]) in out
    assert str(both[0]) not in out
    assert main(["trace", *map(str, both), "--select", "rank=2"]) == 2
    assert "--select: nothing in the job is selected: the ranks of the job are 0, 1" in capsys.readouterr().err


def figures_of(found):
    """Without where events came from, and in which rows: of each rank, and of all."""
    found = json.loads(json.dumps(found))
    for one in found["traces"]:
        del one["source"], one["memory"]
    for one in found["ranks"]["ranks"]:
        del one["source"], one["clock_offset_ns"], one["clock_at_ns"]
    for one in found["ranks"]["collectives"]:
        del one["row"]
    return found


@pytest.mark.parametrize(
    "names",
    [
        ["gloo_rank0", "gloo_rank1"],
        ["device_rank0", "device_rank1"],
        pytest.param(["nccl_rank0", "nccl_rank1"], marks=pytest.mark.corpus),
    ],
)
def test_a_file_of_all_ranks_has_the_figures_of_each(names, tmp_path, capsys):
    files = [corpus_file(name) if name.startswith("nccl") else DATA / f"{name}.json.gz" for name in names]
    merged = tmp_path / "all.json.gz"
    assert main(["trace", *map(str, files), "--trace", str(merged)]) == 0
    capsys.readouterr()
    assert main(["trace", str(merged), "--json"]) == 0
    printed = capsys.readouterr()
    assert f"{merged} contains 2 processes (rank 0, rank 1): read as ranks" in printed.err.splitlines()
    found = json.loads(printed.out)
    assert [one["source"] for one in found["traces"]] == [f"{merged}: rank {number}" for number in (0, 1)]
    assert figures_of(found) == figures_of(figures(capsys, *files))
    # And again, from what was written of it.
    again = tmp_path / "again.json"
    assert main(["trace", str(merged), "--trace", str(again)]) == 0
    capsys.readouterr()
    assert figures_of(figures(capsys, again)) == figures_of(found)
    assert figures(capsys, merged, "--select", "rank=1")["rank"] == 1


def test_a_file_merged_by_hand_among_others(tmp_path, capsys):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.json").write_bytes(text(events()))
    (tmp_path / "ab.json").write_bytes(text([one | {"pid": f"rank {rank}"} for rank in range(2) for one in events()]))
    found = figures(capsys, tmp_path / "ab.json", tmp_path / "c.json")
    apart = figures(capsys, *(tmp_path / f"{name}.json" for name in ("a", "b", "c")))
    assert found["ranks"]["count"] == 3
    assert [one["gpu"] for one in found["traces"]] == [one["gpu"] for one in apart["traces"]]
    advised = figures(capsys, tmp_path / "ab.json", "--advise")
    assert [one["advice"] is None for one in advised["traces"]] == [False, False]


@pytest.mark.parametrize("command", [["trace"], ["trace", "--advise"], ["whatif"], ["diff", "--memory"], ["diff"]])
def test_processes_that_cannot_be_told_apart_are_one_line(command, tmp_path, capsys):
    path = tmp_path / "all.json"
    late = [event | {"ts": event["ts"] + 37, "tid": event["tid"] + 1} for event in events(12)]
    path.write_bytes(text([*events(12), *late]))
    files = [str(path)] * (2 if command[0] == "diff" else 1)
    assert main([command[0], *files, *command[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} contains events of several processes with one process id: 24 correlations, such as 6," in line


def test_rows_can_be_selected(file, capsys):
    assert main(["trace", str(file), "--select", "name~gemm|mm$"]) == 0
    out = capsys.readouterr().out
    assert "gemm_128" in out
    assert "aten::mm" in out
    assert "aten::copy_" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--select", "step=x"], "--select 'step=x': step must be a number or a range such as 3-5"),
        (["--select", "step=9"], "the steps of the trace are 3 to 4"),
        (["--select", f"step={'9' * 5000}"], "step must be a number or a range such as 3-5"),
        (["--select", "stream=9"], "--select: nothing in "),
        (["--select", "stream=9"], ": the streams of the trace are 7"),
        (["--select", "stream~7"], "--select 'stream~7' is not a valid selection"),
        (["--select", "stream=seven"], "--select 'stream=seven': stream must be a number such as 7"),
        (["--select", "color~red"], "--select 'color~red' is not a valid selection"),
        (["--select", "phase=backward"], "the trace has no work in this phase"),
        (["--select", "kind=memset"], "the device ran no work of this kind"),
        (["--select", "name~("], "is not a regular expression"),
        (["--top", "0"], "--top must be at least 1"),
        (["--peaks", "float32=fast"], "--peaks 'fast' is not a quantity in"),
        (["--peaks", "float32=60Tflop"], "--peaks also needs the memory bandwidth"),
    ],
    ids=[
        "step",
        "no-such-step",
        "long-step",
        "no-such-stream",
        "streams",
        "stream-pattern",
        "stream",
        "key",
        "no-such-phase",
        "no-such-kind",
        "regex",
        "top",
        "peak",
        "bandwidth",
    ],
)
def test_wrong_usage_is_one_line(file, capsys, arguments, message):
    assert main(["trace", str(file), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b'{"a": 1}', b"\x1f\x8bnonsense", None],
    ids=["empty", "words", "no-trace", "gzip", "directory"],
)
def test_what_cannot_be_read_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "file.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert main(["trace", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("perfdl trace: ")
    assert err.count("\n") == 1


def test_repairs_are_said_on_stderr_and_kept(file, capsys):
    broken = file.with_name("broken.json.gz")
    broken.write_bytes(gzip.compress(file.read_bytes().replace(b'"dur": 4000', b'"dur": NaN', 1)))
    found = figures(capsys, broken)
    assert any("NaN" in line for line in found["findings"])
    assert main(["trace", str(broken)]) == 0
    assert "NaN" in capsys.readouterr().err


def test_the_html_page(file, tmp_path, capsys):
    page = tmp_path / "out" / "trace.html"
    assert main(["trace", str(file), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    html = page.read_text()
    assert "gemm_128" in html
    assert "aten::mm" in html
    assert "http" not in html.replace("http-equiv", "").replace("https://ui.perfetto.dev", "")
    data = json.loads(re.search(r'id="trace-json">(.*?)</script>', html, re.DOTALL)[1])
    assert data["gpu"]["busy_ns"] == 10_000_000


def loading(path):
    """Three steps of 1 ms, which wait for input for 600 us each."""
    found = []
    for at in (0, 1000, 2000):
        fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        found += [step(at, at, 1000), x(fetch, at, 600, "user_annotation"), x("aten::mm", at + 600, 400)]
    path.write_bytes(text(found))
    return path


def refused(path):
    """The second kernel starts long after its launch, for no reason that the trace shows."""
    path.write_bytes(text([launch(0, 5, 1), kernel("a", 10, 10, 1), launch(15, 5, 2), kernel("b", 900, 10, 2)]))
    return path


def test_advice_is_the_last_section(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["trace", str(loading(tmp_path / "loading.json")), "--advise"]) == 0
    assert capsys.readouterr().out.splitlines()[-7:] == [
        "",
        "Advice, largest predicted gain first",
        "  - The step waits for input data in 60.0% of the critical path (600.0 µs/step).",
        "    DataLoader(num_workers=2): predicted step time 450.0 µs (397.8 µs to 902.2 µs), -55.0%,",
        "    confidence low: the prediction assumes as many free cores as workers; the effect of workers on a",
        "    step that computes on the CPU is unknown: run `perfdl constants` to measure it",
        "    example: examples/strategies/test_async_loading.py",
    ]


def test_advice_as_json(tmp_path, capsys):
    found = figures(capsys, loading(tmp_path / "loading.json"), "--advise")
    assert (found["replay"]["trust"], found["replay"]["measured_ns"]) == ("ok", 3_000_000)
    [advice] = found["advice"]
    assert (advice["finding"], advice["transform"], advice["how"]) == ("input", "workers", "DataLoader(num_workers=2)")
    assert (advice["step_ns"], advice["predicted_step_ns"]) == (1_000_000, 450_000)
    assert advice["interval_ns"] == [397_750, 902_250]
    assert advice["gain"] == pytest.approx(0.55)
    assert advice["trust"] == "low"
    # The same as the command that only predicts.
    assert main(["whatif", str(tmp_path / "loading.json"), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert (predicted["replay"], predicted["advice"]) == (found["replay"], found["advice"])


def test_no_advice_is_one_line_with_the_reason(tmp_path, capsys):
    path = refused(tmp_path / "refused.json")
    found = figures(capsys, path, "--advise")
    assert (found["replay"]["trust"], found["advice"]) == ("refuse", [])
    assert main(["trace", str(path), "--advise"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    reason = found["replay"]["reason"]
    assert "of the trace's time is waiting without a known cause" in reason
    assert out.endswith(f"Advice: none, predictions from this trace are unreliable: {reason}")


def test_a_trace_without_work_has_no_advice(tmp_path, capsys):
    path = tmp_path / "memory.json"
    path.write_bytes(text([memory(1, 512)]))
    found = figures(capsys, path, "--advise")
    assert (found["replay"], found["advice"]) == (None, None)
    assert found["memory"]
    assert found["bottleneck"] == "Unknown: the trace has no operators, calls or kernels."
    assert main(["trace", str(path), "--advise"]) == 0
    assert "advi" not in capsys.readouterr().out


def test_without_advice_nothing_is_simulated(tmp_path, capsys):
    path = loading(tmp_path / "loading.json")
    found = figures(capsys, path)
    assert (found["replay"], found["advice"]) == (None, None)
    assert main(["trace", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "",
        "Add --advise to predict which optimizations make the step faster.",
    ]


def test_advice_on_the_page(tmp_path):
    page = tmp_path / "trace.html"
    assert main(["trace", str(loading(tmp_path / "loading.json")), "--advise", "--html", str(page)]) == 0
    found = re.search(r"<li>(Advice: The step waits for input data .*?)</li>", page.read_text())[1]
    assert "DataLoader(num_workers=2): predicted step time 450.0 µs (397.8 µs to 902.2 µs), -55.0%" in found
    assert (
        "confidence low: the prediction assumes as many free cores as workers; the effect of workers on a step"
    ) in found
    assert found.endswith("; example: examples/strategies/test_async_loading.py")
    assert main(["trace", str(refused(tmp_path / "refused.json")), "--advise", "--html", str(page)]) == 0
    assert "<li>Advice: none, predictions from this trace are unreliable: " in page.read_text()


def test_peaks_are_known_to_the_advice(tmp_path, capsys):
    path = tmp_path / "train.json"
    path.write_bytes(text([event for number in range(3) for event in host_step(number, STEP * number)]))
    assert figures(capsys, path, "--advise")["advice"] == []
    found = figures(capsys, path, "--advise", "--peaks", "float32=1Tflop", "--peaks", "bandwidth=1.25TB")
    assert [advice["finding"] for advice in found["advice"]] == ["optimizer"]


def test_names_from_the_trace_are_text_on_the_page(tmp_path):
    path, page = tmp_path / "evil.json", tmp_path / "evil.html"
    path.write_bytes(text([step(1, 0, 100), x("<script>alert(1)</script>", 10, 50), x("a\u202eb", 70, 5)]))
    assert main(["trace", str(path), "--html", str(page)]) == 0
    html = page.read_text()
    assert "<script>alert" not in html
    assert "\u202e" not in html


@pytest.mark.corpus
def test_several_files_are_ranks(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    files = [corpus_file("nccl_rank0"), corpus_file("nccl_rank1")]
    found = figures(capsys, *files)
    assert [one["rank"] for one in found["traces"]] == [0, 1]
    ranks = found["ranks"]
    assert [one["rank"] for one in ranks["ranks"]] == [0, 1]
    assert (ranks["count"], ranks["straggler"], ranks["waits"]) == (2, None, [[0, 27_100_000], [0, 0]])
    assert ranks["overlap"][0] == pytest.approx(0.14946, abs=5e-6)
    assert main(["trace", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Whether one of the 2 ranks is slower than the others is unknown: they have only 2 steps in common"
    )
    assert re.search(r"^  rank 1 .* 151\.8 ms  .* 19\.9%     4$", out, re.MULTILINE)
    assert "matched across ranks" in out


def test_our_own_recordings(capsys):
    for path in sorted(DATA.glob("*.json.gz")):
        assert figures(capsys, path)["steps"]


def test_json_is_alone_on_stdout_though_a_page_is_written(file, tmp_path, capsys):
    assert main(["trace", str(file), "--json", "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    assert said.err == f"wrote {tmp_path}/page.html\n"


def test_texts_select_rows_of_the_json_too(file, capsys):
    whole, found = figures(capsys, file), figures(capsys, file, "--select", "name~mm")
    assert (
        {row["name"] for row in found["operators"]}
        == {row["name"] for row in whole["operators"] if "mm" in row["name"].lower()}
        != {row["name"] for row in whole["operators"]}
    )


@pytest.mark.parametrize("peaks", ["bandwidth=0B", "fp32=67Tflop"])
def test_a_peak_that_means_nothing_is_refused(peaks, file, capsys):
    assert main(["trace", str(file), "--peaks", peaks, "--peaks", "float32=67Tflop"]) == 2
    assert peaks in capsys.readouterr().err
