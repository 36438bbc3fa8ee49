"""`perfdl diff`: what may be compared, the contract of its JSON, its words, and how it refuses."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import subprocess
from dataclasses import replace

import pytest
from making import TEST, counted, record, timed

from pytest_perfdl.baseline.files import Store
from pytest_perfdl.cli import main
from pytest_perfdl.model.record import Row
from pytest_perfdl.model.record_json import to_json
from pytest_perfdl.report import write_all
from pytest_perfdl.results import run_file
from unit.report import runs
from unit.report.trace.jobs import write_job
from unit.trace.chrome import kernel, launch, memory, step, text, x


def events(gemm=4000, *, steps=3, name="gemm_128"):
    """Steps of a kernel and 0.6 ms more."""
    found = []
    start = 0
    for number in range(steps):
        found += [
            step(number, start, 550),
            x("aten::mm", start + 100, 400, **{"Input Dims": [[4, 8], [8, 2]]}),
            launch(start + 200, 50, number + 1),
            # Steps differ a little, or nothing could be said of how certain a change is.
            kernel(name, start + 400, gemm + 10 * number, number + 1),
        ]
        start += gemm + 600
    return found


def rows(mm):
    return (
        Row("operator", "aten::mm", 4, tuple(mm)),
        Row("idle", "Python and host", 0, (1_000_000,) * len(mm)),
    )


OPS = {"ops": counted(*[1] * 5)}
BEFORE = (8_000_000, 8_020_000, 7_990_000, 8_010_000, 8_000_000)
AFTER = (9_600_000, 9_630_000, 9_590_000, 9_610_000, 9_600_000)


@pytest.fixture
def files(tmp_path):
    """Two traces, `before.json` and `after.json.gz`: the kernel takes 4 ms, then 6."""
    before, after = tmp_path / "before.json", tmp_path / "after.json.gz"
    before.write_bytes(text(events()))
    after.write_bytes(gzip.compress(text(events(6000))))
    return before, after


def figures(capsys, *arguments, code=0):
    assert main(["diff", *map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_json_contract(files, capsys):
    found = figures(capsys, *files)
    assert found["verdict"] == "regressed"
    # The window of the first step begins with it, those of the others where the kernel before them ends.
    assert found["step"]["delta_ns"] == found["step"]["new_ns"] - found["step"]["base_ns"] == 2_000_000
    assert sum(line["delta_ns"] for line in found["account"]) == found["step"]["delta_ns"]
    assert set(found["account"][0]) == {"class", "base_ns", "new_ns", "delta_ns", "share"}
    assert found["residual_ns"] == 0
    first = found["blame"][0]
    assert set(first) >= {"kind", "name", "module", "line", "delta_ns", "share", "effects", "bound"}
    assert (found["step"]["bound"], first["bound"]) == ("kernel", "kernel")
    assert set(first["effects"]) == {"count", "duration", "mix", "exposure"}
    assert (first["kind"], first["name"], first["delta_ns"]) == ("kernel", "gemm_128", 2_000_000)
    assert first["effects"] == {"count": 0, "duration": 2_000_000, "mix": 0, "exposure": 0}
    assert set(found["matching"]) >= {"coverage", "unmatched"}
    assert found["matching"]["coverage"] == 1
    assert set(found["drift"]) >= {"factor", "ns"}
    assert found["tests"] == []


def test_names_are_matched_after_renaming(tmp_path, capsys):
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_bytes(text(events(name="fast_alpha")))
    after.write_bytes(text(events(6000, name="odd_omega")))
    assert set(figures(capsys, before, after)["matching"]["by"]) == {"operator"}
    rules = ("--rename", r"^(?=fast)\w+_alpha$=x", "--rename", "odd_=", "--rename", "omega=x")
    found = figures(capsys, before, after, *rules)
    assert set(found["matching"]["by"]) == {"name"}
    assert found["blame"][0]["status"] == "changed"


def test_the_words(files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["diff", *map(str, files)]) == 0
    out = capsys.readouterr().out
    assert "before.json (3 steps) ->" in out
    assert re.search(r"^regressed: step time 4\.\d+ ms -> 6\.\d+ ms, \+\d+\.\d% \[", out, re.MULTILINE)
    assert "(95% interval over steps)" in out
    assert "Breakdown of the profiled step" in out
    assert re.search(r"^ +baseline +current +change +share$", out, re.MULTILINE)
    assert re.search(r"^  compute +4\.010 ms +6\.010 ms +\+2\.000 ms +100%$", out, re.MULTILINE)
    assert re.search(r"^  total +4\.\d+ ms +6\.\d+ ms +\+2\.000 ms +100%$", out, re.MULTILINE)
    assert "  share: percentage of the profiled step's change\n" in out
    assert re.search(r"^Causes, largest first\n +change +share +baseline +current +calls$", out, re.MULTILINE)
    assert re.search(r"^  gemm_128 +\+2\.000 ms +100% +4\.010 ms +6\.010 ms +1$", out, re.MULTILINE)
    assert "Matched: 100% of the kernel and operator time of baseline and current" in out
    assert "confidence" not in out


def test_causes_add_up_and_both_directions_are_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_bytes(text(training(copy=("Pageable", 450))))
    after.write_bytes(text(training(each=800)))
    assert main(["diff", str(before), str(after)]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 80 and " " in line.strip()] == []
    table = out.partition("\nCauses, largest first\n")[2].partition("  Minimum detectable")[0]
    shares = [
        float(found[1])
        for line in table.splitlines()
        if (found := re.search(r" [+-][\d.]+ (?:ns|µs|ms) +(-?[\d.]+)%", line)) and not line.startswith("  total")
    ]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "  In the opposite direction:\n" in table
    assert re.search(r"^  total .* 100%$", table, re.MULTILINE)


def breakdown(rounds):
    """Of a step of 8 ms that takes 1.6 ms more, in paired rounds of which each is a little slower on both sides."""
    drift = [1000 * number for number in range(rounds)]

    def row(kind, name, base, new, count):
        return {
            "kind": kind,
            "name": name,
            "base_count": count,
            "new_count": count,
            "base_ns": base + sum(drift) // rounds,
            "new_ns": new + sum(drift) // rounds,
            "base_rounds": [base + more for more in drift],
            "new_rounds": [new + more for more in drift],
        }

    rows = [row("operator", "aten::mm", 7_000_000, 8_600_000, 4.0), row("idle", "Python and host", 10**6, 10**6, 0.0)]
    sums = {
        side: [sum(each) for each in zip(*(row[side] for row in rows), strict=True)]
        for side in ("base_rounds", "new_rounds")
    }
    whole = {f"{side}_ns": sum(sums[f"{side}_rounds"]) // rounds for side in ("base", "new")}
    return {"call": "", **whole, "rows": rows, **sums}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of one test whose paired rounds regressed, though both records are equal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    report = write_all(
        runs.run(
            runs.result("regressed", TEST, new=record(OPS, rows=rows(BEFORE)), base=record(OPS, rows=rows(BEFORE)))
        )
    )
    path = report.json
    data = json.loads(path.read_text())
    (one,) = data["tests"]
    one["breakdowns"] = [breakdown(10)]
    one["metrics"] = {
        "step_time": one["metrics"]["step_time"]
        | {
            "kind": "timed",
            "unit": "ns",
            "better": "lower",
            "base": 7_500_000,
            "new": 9_000_000,
            "effect": 0.2,
            "ci95": [0.19, 0.21],
            "limit": "3%",
            "verdict": "regressed",
            "evidence": "paired",
            "rounds": 10,
        }
    }
    path.write_text(json.dumps(data))
    return path


def test_a_run_alone_is_compared_with_its_own_baseline_side(run, capsys):
    for source in (run, run.parent):
        assert main(["diff", str(source)]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{TEST}\nbaseline (10 runs) -> current (10 runs)\n")
        head = " ".join(out.partition("\n\n")[0].split())
        assert head.endswith(
            "regressed: step time 7.500 ms -> 9.000 ms, +20.0% [+19.0%, +21.0%] "
            "(95% interval, 10 paired rounds), limit 3%"
        )
        assert re.search(r"^  aten::mm +\+1\.600 ms +100% +7\.00\d ms +8\.60\d ms +4$", out, re.MULTILINE)
        assert "Profiler overhead differs by +100.0 µs between baseline and current" in " ".join(out.split())
    found = figures(capsys, run, "--fail-on", "regressed", code=1)
    assert (found["id"], found["verdict"], found["step"]["timed"]["effect"]) == (TEST, "regressed", 0.2)
    assert found["base"] == {"label": "baseline", "columns": 10, "unit": "run"}
    assert found["blame"][0]["name"] == "aten::mm"


def test_a_run_without_paired_rounds_is_compared_by_its_records(run, capsys):
    data = json.loads(run.read_text())
    data["tests"][0]["breakdowns"] = []
    data["tests"][0]["base_record"] = to_json(record(OPS, rows=rows(AFTER)))
    data["tests"][0]["metrics"] = {}
    run.write_text(json.dumps(data))
    found = figures(capsys, run)
    assert (found["verdict"], found["base"]["label"], found["step"]["timed"]) == ("improved", "recorded baseline", None)


def test_unchanged_tests_are_one_line_each(run, capsys):
    data = json.loads(run.read_text())
    other = json.loads(json.dumps(data["tests"][0]).replace(TEST, f"{TEST}_more"))
    other["metrics"]["step_time"] |= {"verdict": "unchanged"}
    data["tests"].append(other)
    run.write_text(json.dumps(data))
    assert main(["diff", str(run)]) == 0
    assert capsys.readouterr().out.endswith(f"\n\nunchanged: 1 test (use -k TEXT to show one of them)\n  {TEST}_more\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["before.json"],
            "before.json is not a run.json file: pass the run.json file of a report, or two inputs to compare",
        ),
        (["nowhere"], "nowhere is not a run.json file: "),
        (["{run}", "--limit", "5%"], "--limit needs two inputs: "),
    ],
)
def test_one_source_that_is_no_run_is_one_line(run, tmp_path, capsys, arguments, message):
    (tmp_path / "before.json").write_bytes(text(events()))
    assert main(["diff", *(word.format(run=run) for word in arguments)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_run_without_such_a_test(run, capsys):
    assert main(["diff", str(run), "-k", "other"]) == 3
    assert (
        capsys.readouterr().out
        == f"{run} has no test whose id contains 'other' with both a baseline and a current measurement\n"
    )


def overlapping(hidden):
    """Steps of two kernels on two streams, of which the shorter is hidden."""
    found, free = [], [0, 0]
    for number in range(4):
        start = 600 * number
        found += [step(number, start, 550), x("aten::mm", start + 50, 300)]
        for stream, length in enumerate((5000, hidden)):
            begins = max(start + 100, free[stream])
            free[stream] = begins + length + number
            found += [
                launch(start + 60 + 10 * stream, 5, 2 * number + stream + 1),
                kernel(("gemm", "adam")[stream], begins, length + number, 2 * number + stream + 1, stream=7 + stream),
            ]
    return text(found)


def test_what_overlaps_is_simulated_and_what_is_hidden_is_warned_of(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    before, after, page = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "page.html"
    before.write_bytes(overlapping(1000))
    after.write_bytes(overlapping(3000))
    found = figures(capsys, before, after, "--fail-on", "regressed")
    assert found["verdict"] == "unchanged"
    told = found["counterfactual"]
    (share,) = told["shares"]
    assert share["share_ns"] + told["others_ns"] + told["beyond_ns"] == found["step"]["delta_ns"]
    assert (share["name"], share["latent"], share["work_delta_ns"]) == ("adam", True, 2_000_000)
    assert 1_500_000 < share["slack_ns"] < 2_500_000
    assert main(["diff", str(before), str(after)]) == 0
    out = capsys.readouterr().out
    assert "\nStep time without each change (simulated)\n" in out
    assert "Shapley values over all orders" in out
    assert re.search(
        r"warning: adam is slower by \+2\.000 ms, but other work hides the difference\. .* takes 2\.\d+ ms longer", out
    )
    assert main(["diff", str(before), str(after), "--html", str(page)]) == 0
    assert "Step time without each change (simulated)" in page.read_text()
    assert "warning: adam is slower by" in page.read_text()


def test_a_folder_of_runs_is_simulated_by_the_run_in_the_middle(tmp_path, capsys):
    for side, hidden in (("a", 1000), ("b", 3000)):
        (tmp_path / side).mkdir()
        for run in range(3):
            (tmp_path / side / f"run{run}.json").write_bytes(overlapping(hidden + 10 * run))
    told = figures(capsys, tmp_path / "a", tmp_path / "b")["counterfactual"]
    assert [(share["name"], share["latent"]) for share in told["shares"]] == [("adam", True)]


def test_a_folder_holds_runs(tmp_path, capsys):
    for side, gemm in (("a", 4000), ("b", 6000)):
        for run in range(3):
            path = tmp_path / side / f"run{run}.json.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(text(events(gemm + 5 * run))))
    found = figures(capsys, tmp_path / "a", tmp_path / "b")
    assert found["base"] == {"label": str(tmp_path / "a"), "columns": 3, "unit": "run"}
    assert (found["step"]["intervals_over"], found["verdict"]) == ("run", "regressed")


def test_run_files_and_baselines_hold_tests(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Store(tmp_path, "baselines").save(record(OPS, rows=rows(BEFORE)), {})
    measured = replace(runs.result(test=TEST), new=record(OPS, rows=rows(AFTER)))
    run = run_file.to_json(runs.run(measured, replace(runs.result(test="skipped"), new=None)))
    (tmp_path / "perf-report").mkdir()
    (tmp_path / "perf-report" / "run.json").write_text(json.dumps(run))
    for source in ("perf-report", "perf-report/run.json"):
        found = figures(capsys, "baselines", source)
        assert (found["id"], found["verdict"], found["blame"][0]["name"]) == (TEST, "regressed", "aten::mm")
        assert [each["id"] for each in found["tests"]] == [TEST]
    (only,) = (tmp_path / "baselines").rglob("*.json")
    assert figures(capsys, only, "baselines")["verdict"] == "unchanged"
    assert main(["diff", "baselines", "perf-report", "-k", "other"]) == 3
    assert "have no test in common" in capsys.readouterr().out


def test_baselines_are_compared_by_their_timed_steps(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, factor in (("one", 1.0), ("two", 1.5)):
        series = {"step_time": timed(*(factor * each for each in (1.00e6, 1.01e6, 0.99e6, 1.02e6, 0.98e6)))}
        Store(tmp_path, folder).save(record(series, rows=rows(BEFORE)), {"": gzip.compress(text(events(4000)))})
    assert list((tmp_path / "one").rglob("*.trace.json.gz"))
    assert main(["diff", "one", "two", "--fail-on", "regressed"]) == 1
    printed = capsys.readouterr()
    # The traces beside baselines are no files of others.
    assert printed.err == ""
    assert re.search(r"regressed: step time 999\.9 .s -> 1\.500 ms, \+50\.0% \[", printed.out)
    assert "interval over runs)" in printed.out


def test_git_revisions_mean_their_baselines(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init", "--quiet")
    for message, times in (("one", BEFORE), ("two", AFTER)):
        Store(tmp_path, "baselines").save(record(OPS, rows=rows(times)), {})
        git("add", "--all")
        git("commit", "--quiet", "-m", message)
    found = figures(capsys, "HEAD~1", "HEAD")
    assert (found["verdict"], found["base"]["label"], found["blame"][0]["name"]) == ("regressed", "HEAD~1", "aten::mm")
    assert figures(capsys, "HEAD", "baselines")["verdict"] == "unchanged"
    assert main(["diff", "HEAD", "HEAD", "--dir", "elsewhere"]) == 2
    assert capsys.readouterr().err == "perfdl diff: git revision HEAD has no baselines in elsewhere\n"


@pytest.mark.parametrize(
    "fail_on, code", [("", 0), ("regressed", 1), ("improved,inconclusive", 0)], ids=["never", "regressed", "others"]
)
def test_the_exit_code(files, capsys, fail_on, code):
    arguments = ["--fail-on", fail_on] if fail_on else []
    assert main(["diff", *map(str, files), *arguments]) == code


def test_the_limit(files, capsys):
    assert figures(capsys, *files, "--limit", "60%")["verdict"] == "unchanged"


def training(*, gemm="ampere_sgemm_128", each=400, dtype="float", copy=("Pinned", 50), gap=5, hidden=True, parts=1):
    """Three steps: a copy from the host, two products of 512 x 512, each in some parts, and a collective."""
    found = []
    at, correlation = 0, 0

    def one(operator, name, where, start, ns, cat="kernel", stream=7, **args):
        nonlocal correlation
        correlation += 1
        found.extend(
            [
                x(operator, where, 4, **args),
                launch(where + 1, 2, correlation, "cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernel"),
                kernel(name, start, ns, correlation, cat=cat, stream=stream),
            ]
        )
        return start + ns

    for number in range(3):
        first = at
        kind, took = copy
        at = one("aten::copy_", f"Memcpy HtoD ({kind} -> Device)", at, at + 10, took, "gpu_memcpy") + gap
        args = {"Input Dims": [[512, 512], [512, 512 // parts]], "Input type": [dtype, dtype]}
        for _ in range(2 * parts):
            began, at = at, one("aten::mm", gemm, at - 4, at, each // parts + number, **args) + gap
        if not hidden:
            began, at = at, at + 300
        one("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", began - 8, began, 300, stream=20)
        at += 10
        found.append(step(number, first, at - first))
    return found


OUTSIDE = "same FLOPs in operators, but slower: the additional time is outside of operators (Python, waiting)"
ALL_OF_IT = ", with all of the additional operator time in aten::mm"
PLANTED = {
    "float32 instead of TF32": (
        {"gemm": "ampere_s1688gemm_tf32_128"},
        {"gemm": "ampere_sgemm_128", "each": 800},
        f"same FLOPs in operators, slower data type: float32 instead of tf32{ALL_OF_IT}",
    ),
    "float32 instead of bfloat16": (
        {"gemm": "ampere_bf16_s16816gemm", "dtype": "c10::BFloat16"},
        {"gemm": "ampere_sgemm_128", "each": 800},
        f"same FLOPs in operators, slower data type: float32 instead of bfloat16{ALL_OF_IT}",
    ),
    "pageable copies": (
        {},
        {"copy": ("Pageable", 450)},
        "same FLOPs in operators, but slower: aten::copy_ 50.00 µs -> 450.0 µs per step",
    ),
    "lost overlap": (
        {},
        {"hidden": False},
        OUTSIDE,
    ),
    "late launches": (
        {},
        {"gap": 150},
        OUTSIDE,
    ),
    "in four parts": (
        {},
        {"parts": 4, "each": 600},
        (
            "same FLOPs in operators, but more memory traffic or operator calls per step: 6.000 MiB -> 12.00 MiB read "
            "and written, 4 -> 10 operator calls"
        ),
    ),
    "a slower kernel": (
        {},
        {"each": 800},
        "same FLOPs in operators, but slower: aten::mm 3.4% -> 1.7% of its roofline",
    ),
}
FELL = {"lost overlap": "overlap", "a slower kernel": "roofline"}
ROSE = {"pageable copies": "exposed_copies", "late launches": "launch_gap", "lost overlap": "exposed_communication"}
A100 = ["--peaks", "float32=19.5Tflop", "--peaks", "tf32=156Tflop", "--peaks", "bfloat16=312Tflop"]


@pytest.mark.parametrize("name", PLANTED)
def test_more_work_or_the_same_work_done_worse(name, tmp_path, capsys, monkeypatch):
    base, new, said = PLANTED[name]
    paths = [tmp_path / "base.json", tmp_path / "new.json"]
    for path, what in zip(paths, (base, new), strict=True):
        path.write_bytes(text(training(**what)))
    arguments = [*paths, *A100, "--peaks", "bandwidth=1555GB"]
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["diff", *map(str, arguments)]) == 0
    shown = capsys.readouterr().out
    assert said in " ".join(shown.split())
    use = figures(capsys, *arguments)["utilization"]
    before, after = use["base"]["values"], use["new"]["values"]
    assert name not in FELL or after[FELL[name]] < before[FELL[name]]
    assert name not in ROSE or after[ROSE[name]] > before[ROSE[name]]
    # Two products of 512 x 512 x 512.
    assert sum(row["base"]["flops"] for row in use["operators"] if row["base"]) == 2 * 2 * 512**3
    main(["diff", *map(str, paths), "--html", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert said.partition(":")[0] in page
    assert "share of time with a busy device" in page
    capsys.readouterr()


def test_where_nothing_got_slower_nothing_is_said_of_the_work(tmp_path, capsys):
    paths = [tmp_path / "base.json", tmp_path / "new.json"]
    for path, each in zip(paths, (800, 400), strict=True):
        path.write_bytes(text(training(each=each)))
    assert figures(capsys, *paths)["utilization"]["work"] is None
    main(["diff", *map(str, paths)])
    assert "same FLOPs in operators" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{before}", "nowhere"], "nowhere is not a file, a folder or a git revision"),
        (["{before}", "{empty}"], "{empty} contains no measured or profiled step to compare"),
        (["{before}", "{text}"], "{text} is not a trace, a run.json file or a baseline: "),
        (["{before}", "{other}"], "{other} is not a pytest-perfdl record: it has no schema number"),
        (["{before}", "{cut}"], "{cut}"),
        (["{before}", "{before}", "--top", "0"], "--top must be at least 1"),
        (["{before}", "{before}", "--limit", "5us"], "--limit '5us': expected a percentage such as 3%"),
        (["{before}", "{before}", "--fail-on", "slow"], "'slow' is not a verdict that can fail a test"),
        (["{before}", "{before}", "--rename", "gemm"], "--rename 'gemm': expected PATTERN=REPLACEMENT"),
        (["{before}", "{before}", "--rename", "(=x"], "'(' -> 'x' is not a valid rewrite rule: missing )"),
        (["{before}", "{before}", "--html", "{empty}/no/where.html"], "{empty}/no/where.html"),
    ],
    ids=[
        "nothing",
        "empty folder",
        "no json",
        "other json",
        "a list",
        "top",
        "limit",
        "verdict",
        "no rule",
        "bad rule",
        "page",
    ],
)
def test_wrong_usage_is_one_line(files, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    names = {"before": files[0], "empty": tmp_path / "empty", "text": tmp_path / "text", "other": tmp_path / "other"}
    names["cut"] = tmp_path / "cut"
    names["empty"].mkdir()
    names["text"].write_text('{"half')
    names["other"].write_text('{"a": 1}')
    names["cut"].write_text("hello")
    if message.endswith("where.html"):
        (names["empty"] / "no").write_text("a file, no folder")
    code = main(["diff", *(argument.format_map(names) for argument in arguments)])
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1
    assert message.format_map(names) in err


def test_the_page(files, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["diff", *map(str, files), "--html", str(page)]) == 0
    html = page.read_text()
    assert f"wrote {page}" in capsys.readouterr().out
    assert "gemm_128" in html
    assert 'class="badge regressed"' in html
    data = json.loads(re.search(r'<script type="application/json" id="diff-json">(.*?)</script>', html, re.DOTALL)[1])
    assert data["residual_ns"] == 0
    assert not re.search(r'(?:src|href)="(?!data:|#)', html)


def test_what_is_odd_about_a_trace_is_said(files, tmp_path, capsys):
    cut = tmp_path / "cut.json"
    cut.write_bytes(files[0].read_bytes()[:-200])
    assert main(["diff", str(files[0]), str(cut)]) == 0
    err = capsys.readouterr().err
    assert re.search(r"^perfdl diff: .*cut\.json: the trace is truncated", err)


def test_steps_with_and_without_a_device_are_not_the_same_thing(files, tmp_path, capsys):
    host = tmp_path / "host.json"
    host.write_bytes(text([step(0, 0, 500), x("aten::mm", 0, 400)]))
    sides = ("baseline", "current side")
    for pair, (has, lacks) in (((files[0], host), sides), ((host, files[0]), sides[::-1])):
        assert main(["diff", *map(str, pair)]) == 3
        said = " ".join(capsys.readouterr().out.split())
        assert f"not comparable: the {has} has device events and the {lacks} has none" in said


def test_names_are_text_on_the_page(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>"
    before, page = tmp_path / "a.json", tmp_path / "page.html"
    before.write_bytes(text(events(name=hostile)))
    after = tmp_path / "b.json"
    after.write_bytes(text(events(6000, name=hostile)))
    assert main(["diff", str(before), str(after), "--html", str(page)]) == 0
    assert "<img" not in page.read_text()
    assert page.stat().st_size < 200_000


def test_a_test_that_one_side_lacks_is_named_and_may_fail(tmp_path, capsys):
    base, new = (Store(tmp_path, name) for name in ("a", "b"))
    for side, names in ((base, ("same", "gone")), (new, ("same",))):
        for name in names:
            side.save(record(OPS, test=f"t.py::test_{name}", rows=rows(BEFORE)), {})
    sides = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["diff", *sides, "--fail-on=regressed"]) == 0
    assert f"perfdl diff: t.py::test_gone is only in {sides[0]}\n" in capsys.readouterr().err
    assert main(["diff", *sides, "--fail-on=missing"]) == 1
    assert main(["diff", *sides[::-1], "--fail-on=missing"]) == 0
    assert main(["diff", *sides[::-1], "--fail-on=new"]) == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "--fail-on=outdated",
            "--fail-on: outdated is not a verdict of perfdl diff; choose from improved, incomparable, inconclusive, ",
        ),
        ("--limit=3%+20us", "--limit '3%+20us': expected a percentage such as 3%"),
    ],
)
def test_what_could_have_no_effect_is_refused(option, said, files, capsys):
    assert main(["diff", *map(str, files), option]) == 2
    assert said in capsys.readouterr().err


def test_a_trace_that_shows_both_sides_is_no_side(tmp_path, files, capsys):
    both = tmp_path / "both.json"
    both.write_bytes(text(events(), perfdl={"verdict": "regressed"}))
    assert main(["diff", str(files[0]), str(both)]) == 2
    assert "contains two runs (baseline and current)" in capsys.readouterr().err


def allocated(*sizes):
    """A step that allocates so many bytes, one after the other."""
    total, found = 0, [step(0, 0, 550), x("aten::mm", 10, 400)]
    for number, size in enumerate(sizes, 1):
        total += size
        found.append(memory(20 + number, size, 0, -1, Addr=number, **{"Total Allocated": total, "Total Reserved": 0}))
    return text(found)


@pytest.fixture
def peaks(tmp_path):
    """Two traces with memory, and one without."""
    (tmp_path / "small.json").write_bytes(allocated(1000, 500))
    (tmp_path / "large.json").write_bytes(allocated(1000, 2500))
    (tmp_path / "none.json").write_bytes(text(events()))
    return tmp_path


def test_peaks_of_traces_are_subtracted(peaks, capsys):
    assert main(["diff", "--memory", "--json", str(peaks / "small.json"), str(peaks / "large.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    (change,) = found["memory"]
    assert (change["base"]["peak_bytes"], change["new"]["peak_bytes"]) == (1500, 3500)
    assert (change["base"]["residual"], change["new"]["residual"]) == (0, 0)
    (cause,) = found["blame"]
    assert (cause["kind"], cause["bytes"], cause["operator"]) == ("memory", 2000, "aten::mm")
    assert main(["diff", "--memory", str(peaks / "small.json"), str(peaks / "large.json")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("cpu: the peak went from 1.465 KiB to 3.418 KiB")
    assert re.search(r"^  temporaries +1\.465 KiB +-> +3\.418 KiB +\+1\.953 KiB$", said, re.MULTILINE)


def test_peaks_of_snapshots_are_subtracted(tmp_path, capsys):
    for name, size in (("before", 512), ("after", 2048)):
        frames = [{"filename": "/repo/train.py", "line": 7, "name": "step"}]
        trace = [{"action": "alloc", "addr": 4096, "size": size, "stream": 0, "time_us": 1, "frames": frames}]
        block = {"size": size, "requested_size": size, "address": 4096, "state": "active_allocated", "frames": frames}
        segment = {"device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small"}
        segment |= {"allocated_size": size, "active_size": size, "blocks": [block]}
        (tmp_path / f"{name}.pickle").write_bytes(
            pickle.dumps({"segments": [segment], "device_traces": [trace], "allocator_settings": {}})
        )
    assert main(["diff", "--memory", "--json", str(tmp_path / "before.pickle"), str(tmp_path / "after.pickle")]) == 0
    (change,) = json.loads(capsys.readouterr().out)["memory"]
    assert (change["call"], change["base"]["peak_bytes"], change["new"]["peak_bytes"]) == ("cuda:0", 512, 2048)
    (cause,) = change["causes"]
    assert cause["changes"][0]["new"]["line"].endswith("train.py(7): step")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json", "large.json"], "none.json has no memory events with addresses: record the trace with"),
        (["absent.json", "large.json"], "absent.json cannot be read: No such file or directory"),
        (["absent.pickle", "large.json"], "absent.pickle"),
        (
            ["small.json", "large.json", "--html", "page.html"],
            "--memory can be combined only with --json, -k and --top: remove other options",
        ),
        (
            ["small.json", "large.json", "--fail-on", "regressed"],
            "--memory can be combined only with --json, -k and --top: remove other options",
        ),
    ],
)
def test_peaks_that_are_not_there_are_one_line(peaks, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(peaks)
    assert main(["diff", "--memory", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (peaks / "page.html").exists()


def test_the_processes_of_a_file_are_runs_of_a_side(files, tmp_path, capsys):
    folder = tmp_path / "ranks"
    folder.mkdir()
    ranks = [events(4000 + 100 * number) for number in range(3)]
    for number, one in enumerate(ranks):
        (folder / f"{number}.json").write_bytes(text(one))
    merged = tmp_path / "all.json"
    merged.write_bytes(text([event | {"pid": f"rank {number}"} for number, one in enumerate(ranks) for event in one]))
    apart, together = figures(capsys, folder, files[1]), figures(capsys, merged, files[1])
    assert together["step"] == apart["step"]
    assert together["blame"] == apart["blame"]
    assert main(["diff", str(merged), str(files[1])]) == 0
    assert f"{merged} contains 3 processes (rank 0, rank 1, rank 2): read as ranks" in capsys.readouterr().err


def test_ranks_of_a_job_are_compared_each_for_itself(tmp_path, capsys, monkeypatch):
    """What others wait for is no cause on them, and a mean over all ranks has neither."""
    monkeypatch.setenv("COLUMNS", "120")
    for name, slow in (("base", None), ("new", 1)):
        write_job(tmp_path / name, slow=slow)
    assert main(["diff", str(tmp_path / "base"), str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    ranks, report = out.split("\n\n\n")
    assert re.findall(r"^  (rank \d)", ranks, re.MULTILINE) == ["rank 1", "rank 0", "rank 2"]
    assert "  rank 1  1.000 ms  1.000 ms  410.0 µs  710.0 µs" in ranks
    assert "  rank 2  1.000 ms  1.000 ms  410.0 µs  410.0 µs" in ranks
    assert report.startswith("rank 1\n")
    assert re.search(r"^  compute +300\.0 µs +600\.0 µs +\+300\.0 µs", report, re.MULTILINE)
    assert main(["diff", str(tmp_path / "base"), str(tmp_path / "new"), "-k", "rank 2"]) == 0
    other = capsys.readouterr().out
    assert other.startswith("rank 2\n")
    assert re.search(r"^  compute +300\.0 µs +300\.0 µs +0 ns", other, re.MULTILINE)
    assert main(["diff", str(next((tmp_path / "base").iterdir())), str(tmp_path / "new")]) == 3
    assert "no rank in common" in capsys.readouterr().out


def test_memory_of_several_processes_is_not_compared(tmp_path, capsys):
    merged = tmp_path / "all.json"
    merged.write_bytes(text([event | {"pid": f"rank {number}"} for number in range(2) for event in events()]))
    assert main(["diff", str(merged), str(merged), "--memory"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{merged} contains 2 processes (rank 0, rank 1), where the trace of one is needed: use one file" in line
