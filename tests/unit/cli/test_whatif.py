"""`perfdl whatif`: the contract of its JSON, its words, and how it refuses."""

import json
import re

import pytest

from pytest_perfdl.cli import main
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, kernel, launch, step, text, x


def events(steps=3, gemm=400):
    """Steps whose host takes 1 ms and whose kernel runs meanwhile."""
    found = []
    for number in range(steps):
        start = 1000 * number
        found += [
            step(number, start, 1000),
            x("aten::mm", start + 100, 300, **{"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]}),
            launch(start + 200, 50, number + 1),
            kernel("sgemm_128", start + 300, gemm, number + 1),
        ]
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.json"
    path.write_bytes(text(events()))
    return path


def figures(capsys, *arguments):
    assert main(["whatif", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_json_contract(file, capsys):
    found = figures(capsys, file, "--scale", "name~gemm:0.5", "--remove", "operator=aten::mm")
    assert set(found["replay"]) >= {
        *("measured_ns", "const_error", "pinned_error", "unexplained_share", "inferred_share", "trust"),
    }
    assert (found["replay"]["measured_ns"], found["replay"]["pinned_error"]) == (3_000_000, 0)
    path = found["critical_path"]
    assert path["span_ns"] == path["length_ns"] == sum(path["by_class"].values()) == 3_000_000
    scaled, removed, both = found["whatif"]
    assert set(scaled) >= {"name", "step_ns", "predicted_step_ns", "interval_ns", "gain", "trust"}
    # The kernel is no part of the critical path.
    assert (scaled["step_ns"], scaled["predicted_step_ns"], scaled["gain"]) == (1_000_000, 1_000_000, 0)
    assert scaled["interval_ns"] == [995_000, 1_005_000]
    assert removed["predicted_step_ns"] == both["predicted_step_ns"] == 700_000
    assert removed["gain"] == pytest.approx(0.3)
    assert found["advice"] == [] or found["advice"][0]["gain"] > 0.02


def test_how_well_the_predicted_step_uses_the_machine(file, tmp_path, capsys):
    # A product of 4 x 8 x 2: 128 FLOPs in steps of 1 ms; 700 µs without what the operator takes on the host.
    machine = ["--machine", "float32=0.001Gflop"]
    found = figures(capsys, file, "--remove", "operator=aten::mm", *machine)
    assert found["utilization"] == pytest.approx({"achieved_flops": 128e3, "flops_utilization": 0.128})
    (removed,) = found["whatif"]
    assert removed["utilization"] == pytest.approx({"achieved_flops": 128 / 7e-4, "flops_utilization": 0.128 / 0.7})
    # Without the profiler the step takes about half of that.
    found = figures(capsys, file, "--remove", "operator=aten::mm", "--step-time", "500us", *machine)
    assert found["utilization"]["flops_utilization"] == pytest.approx(0.256, rel=0.1)
    unknown = figures(capsys, file, "--apply", "pin_memory")
    assert list(unknown["utilization"]) == ["achieved_flops"]
    assert unknown["whatif"][0]["utilization"] == {}
    main(["whatif", str(file), "--remove", "operator=aten::mm", *machine])
    shown = capsys.readouterr().out
    assert "12.8% of the peak FLOP/s" in shown
    assert re.search(r"^  remove operator=aten::mm +700.*18\.3% ", shown, re.MULTILINE)
    bare = tmp_path / "bare.json"
    bare.write_bytes(text([step(0, 0, 100), x("aten::sort", 10, 50)]))
    assert figures(capsys, bare, "--remove", "operator=aten::sort")["utilization"] == {}
    main(["whatif", str(bare), "--remove", "operator=aten::sort"])
    assert "FLOP/s" not in capsys.readouterr().out


def test_what_cannot_be_predicted_says_why(file, capsys):
    [found] = figures(capsys, file, "--apply", "pin_memory")["whatif"]
    assert (found["predicted_step_ns"], found["interval_ns"], found["gain"], found["trust"]) == (
        None,
        None,
        None,
        "refuse",
    )
    assert found["reason"] == "no pageable memory is copied to the device"
    assert main(["whatif", str(file), "--apply", "pin_memory"]) == 0
    assert "pin_memory: no prediction: no pageable memory is copied" in capsys.readouterr().out


def test_the_report(file, capsys):
    assert main(["whatif", str(file), "--apply", "cuda_graph", "--scale", "kind=kernel:2"]) == 0
    out = capsys.readouterr().out
    assert "train.json: 3 steps of 1.000 ms (mean)" in out
    assert "The simulation reproduces the trace within" in out
    assert "cuda_graph" in out
    assert "all together" in out


def test_the_timelines(file, tmp_path, capsys):
    out = tmp_path / "both.json.gz"
    assert main(["whatif", str(file), "--scale", "name~gemm:3", "--trace", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    made = read(out)
    durations = sorted(made.duration[made.name == made.names.index("sgemm_128")].tolist())
    assert durations == [400_000] * 3 + [1_200_000] * 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scale", "name~gemm"], "expected SELECT:FACTOR"),
        (["--scale", "name~gemm:-1"], "a factor of 0 or more"),
        (["--scale", "name~nothing:0.5"], "'name~nothing' matches nothing in the trace"),
        (["--scale", "color=red:0.5"], "is not a valid selection"),
        (["--scale", "name~(:0.5"], "is not a regular expression"),
        (["--remove", "kind=fish"], "unknown kind 'fish'"),
        (["--remove", "phase=lunch"], "unknown phase 'lunch'"),
        (["--apply", "magic"], "--apply 'magic': there is no optimization 'magic'; known optimizations: amp, "),
        (["--apply", "cuda_grahp"], "--apply 'cuda_grahp': there is no optimization 'cuda_grahp'; did you mean cuda_"),
        (["--apply", "fused"], "there is no optimization 'fused'; did you mean fused_optimizer?"),
        (["--apply", "amp:speed=2"], "--apply 'amp:speed=2': amp has no parameter 'speed'"),
        (["--apply", "batch:to=four,now=2"], "expected a whole number"),
        (["--apply", "batch:to=4"], "batch needs a parameter: write batch:now="),
        (["--apply", "amp:dtype=int4"], "expected bfloat16 or float16"),
        (["--apply", "amp:float16"], "expected NAME:KEY=VALUE"),
        (["--machine", "warp=9"], "unknown machine property 'warp'"),
        (["--machine", "cores=-1"], "above 0"),
        (["--machine", "no/such/file.json"], "cannot be read"),
        (["--trace", "out.json"], "--trace needs a change to predict"),
        (["--devices", "-1"], "--devices must be at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_questions_are_one_line_and_exit_code_2(file, arguments, says, capsys):
    assert main(["whatif", str(file), *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_bad_files(tmp_path, capsys):
    assert main(["whatif", str(tmp_path / "absent.json")]) == 2
    empty = tmp_path / "empty.json"
    empty.write_bytes(text([]))
    assert main(["whatif", str(empty)]) == 2
    assert main(["whatif"]) == 2
    assert "no trace given" in capsys.readouterr().err


def rank(number, gemm):
    """A rank whose collective ends at 700 us of each of three steps of 1 ms; its gemm decides when it comes."""
    found = []
    for index in range(3):
        start = 1000 * index
        found += [
            step(index, start, 1000),
            x("aten::mm", start, 900),
            launch(start + 5, 5, 2 * index),
            launch(start + 15, 5, 2 * index + 1),
            kernel("sgemm_128", start + 100, gemm, 2 * index),
            kernel("ncclDevKernel_AllReduce()", start + 101 + gemm, 599 - gemm, 2 * index + 1),
        ]
    return text(found, distributedInfo={"rank": number, "world_size": 2})


@pytest.fixture
def ranks(tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "b.json").write_bytes(rank(0, 50))
    (folder / "a.json").write_bytes(rank(1, 250))
    return folder


def test_ranks_of_one_job(ranks, capsys):
    found = figures(
        capsys, ranks / "a.json", ranks / "b.json", "--scale", "rank=1,name~gemm:0.2", "--scale", "name~gemm:0"
    )
    assert found["source"] == "ranks 0 and 1"
    assert [(each["rank"], each["clock_offset_ns"], each["last"]) for each in found["ranks"]] == [(0, 0, 0), (1, 0, 3)]
    assert [each["source"].rpartition("/")[2] for each in found["ranks"]] == ["b.json", "a.json"]
    assert [each["waiting_ns"] for each in found["ranks"]] == [600_000, 0]
    assert (found["meetings"], found["straggler"], found["steps"]) == (3, 1, 3)
    # The host takes 1 ms a step, whatever the device does: only the last step ends with it.
    assert found["whatif"][0]["step_ns"] == 1_000_000
    assert found["replay"]["trust"] == "ok"
    [slower] = figures(capsys, ranks, "--scale", "rank=0,name~gemm:40")["whatif"]
    # 2 ms of gemm and 349 us of transfer, each 1 us behind the other, from the first kernel on at 100 us.
    assert slower["predicted_step_ns"] == round((100 + 3 * (2000 + 1 + 349) + 2) * 1000 / 3)
    again = figures(capsys, ranks, "--scale", "rank=1,name~gemm:0.2", "--scale", "name~gemm:0")
    assert again == found


def test_changes_of_a_whole_job(ranks, capsys):
    # Rank 1's gemm of 250 us takes what rank 0's takes, 50 us: as if it were scaled to a fifth.
    scaled, gone, _ = figures(capsys, ranks, "--apply", "straggler_removed", "--scale", "rank=1,name~gemm:0.2")[
        "whatif"
    ]
    assert gone["name"] == "straggler_removed"
    assert gone["predicted_step_ns"] == pytest.approx(scaled["predicted_step_ns"], rel=0.01)
    faster, more, buckets, _ = figures(
        capsys, ranks, *("--apply", "bandwidth:factor=2", "--apply", "ranks:n=64", "--apply", "bucket_size:cap_mb=1")
    )["whatif"]
    # The host decides how long a step takes; only the last one ends with the device.
    assert faster["predicted_step_ns"] == faster["step_ns"]
    assert faster["notes"] == [
        "all collectives have about one size, so their latency is not known, and the range covers all of it"
    ]
    assert "64 ranks are extrapolated from 2" in more["notes"]
    assert "do not add up to the gradients" in buckets["reason"]


def test_a_change_of_a_job_without_one(file, ranks, capsys):
    for name in ("straggler_removed", "ranks:n=4", "bucket_size:cap_mb=1"):
        [found] = figures(capsys, file, "--apply", name)["whatif"]
        assert found["predicted_step_ns"] is None
        assert found["reason"] == "the ranks of a job can only be changed together: pass the traces of several ranks"
    assert main(["whatif", str(ranks), "--apply", "straggler_removed:rank=5"]) == 2
    assert capsys.readouterr().err.strip().endswith("straggler_removed:rank=5: the traces are of ranks 0, 1")
    assert main(["whatif", str(ranks), "--apply", "bandwidth"]) == 2
    assert "expected either a factor or bytes_per_s above 0" in capsys.readouterr().err


def test_the_step_time_of_a_job(ranks, capsys):
    [found] = figures(capsys, ranks, "--step-time", "0.9ms", "--apply", "straggler_removed")["whatif"]
    assert found["step_ns"] == pytest.approx(900_000, rel=0.002)
    assert found["predicted_step_ns"] == found["step_ns"]


def test_the_report_on_ranks(ranks, capsys):
    assert main(["whatif", str(ranks), "--scale", "rank=1,name~gemm:0.2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ranks 0 and 1: 3 steps of 1.000 ms (mean)" in out
    assert "step times are for ranks 0 and 1 together: they wait for each other 3 times" in out
    assert "rank 1 most often starts last; rank 0 waits longest for others, 600.0" in out
    assert "needs the trace of a single rank" in out


def test_questions_that_ranks_cannot_answer(ranks, tmp_path, capsys):
    for arguments, says in (
        (["--scale", "rank=2,name~gemm:0.5"], "'rank=2,name~gemm' matches nothing"),
        (["--scale", "rank=x:0.5"], "rank must be a number"),
        (["--devices", "2"], "the trace of a single rank"),
    ):
        assert main(["whatif", str(ranks), *arguments]) == 2
        assert says in capsys.readouterr().err
    assert main(["whatif", str(ranks / "a.json"), "--scale", "rank=1:0.5"]) == 2
    assert "matches nothing" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main(["whatif", str(tmp_path / "none")]) == 2
    assert "contains no traces: it has no files" in capsys.readouterr().err


def test_the_timelines_of_ranks(ranks, tmp_path, capsys):
    out = tmp_path / "both.json"
    assert main(["whatif", str(ranks), "--scale", "rank=0,name~gemm:3", "--trace", str(out)]) == 0
    assert "wrote" in capsys.readouterr().out
    names = set(read(out).thread_names.values())
    assert {"rank 0: stream 7", "rank 1: stream 7", "rank 0: thread 100", "rank 1: thread 100"} <= names
    assert all(name.startswith(("rank 0: ", "rank 1: ", "all ranks: ")) for name in names)


def test_the_list(capsys):
    assert main(["whatif", "--list"]) == 0
    out = capsys.readouterr().out
    assert "amp:dtype=bfloat16\n    Autocast" in out
    assert "data_parallel" in out
    assert max(map(len, out.splitlines())) <= 100


def test_constants_come_from_the_command_line_and_from_a_file(tmp_path, file, capsys):
    machine = tmp_path / "machine.json"
    machine.write_text(
        '{"network_bytes_per_s": 1e9, "ratios": {"bfloat16": {"aten::mm [[4, 8], [8, 2]]": [0.2, 0.25, 0.3]}}}'
    )
    [found] = figures(capsys, file, "--machine", machine, "--apply", "amp")["whatif"]
    assert found["trust"] == "ok"
    peaks = ("--machine", "memory_bytes_per_s=1TB", "--machine", "float32=10Tflop")
    [found] = figures(capsys, file, *peaks, "--apply", "amp")["whatif"]
    assert "bfloat16 is unknown" in found["reason"]
    [found] = figures(capsys, file, *peaks, "--machine", "bfloat16=40Tflop", "--apply", "amp")["whatif"]
    assert (found["trust"], found["gain"]) == ("low", 0)


def test_untrusted_traces_say_so(tmp_path, capsys):
    # Nothing explains why the kernel begins 900 us after its launch, behind 10 us of another.
    path = tmp_path / "lost.json"
    path.write_bytes(text([launch(0, 5, 1), kernel("a", 10, 10, 1), launch(15, 5, 2), kernel("b", 900, 10, 2)]))
    assert main(["whatif", str(path), "--scale", "name=b:0.5"]) == 0
    out = capsys.readouterr().out
    assert "Predictions from this trace are unreliable" in out


@pytest.mark.corpus
def test_a_public_trace(capsys):
    found = figures(capsys, corpus_file("resnet50_workers0"), "--apply", "cuda_graph")
    assert found["replay"]["trust"] == "ok"
    assert abs(found["replay"]["const_error"]) <= 0.005
    assert found["advice"][0]["finding"] == "input"
    assert found["whatif"][0]["gain"] > 0.1


@pytest.mark.parametrize("command", ["whatif", "trace"])
def test_a_trace_of_both_sides_is_no_run(tmp_path, command, capsys):
    path = tmp_path / "test_step.diff.json"
    path.write_bytes(text(events(), perfdl={"test": "test_step", "call": "", "verdict": "regressed"}))
    assert main([command, str(path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "contains two runs (baseline and current): use the file with .base or .new" in told


def test_no_devices(file, capsys):
    assert main(["whatif", str(file), "--devices", "0"]) == 2
    assert "--devices must be at least 1" in capsys.readouterr().err
