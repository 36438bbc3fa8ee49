import textwrap
from dataclasses import replace

import pytest

from pytest_perfdl.judge.reasons import with_reason
from pytest_perfdl.model.record import Finding
from pytest_perfdl.report.layout import cells_wide
from pytest_perfdl.report.markdown import summary
from pytest_perfdl.report.terminal import TABLE_ROWS, failure_text, summary_lines
from pytest_perfdl.results.run import Exemplars, Suggestion
from unit.report import runs

UNCHANGED = [runs.result("unchanged", f"tests/perf/test_vit.py::test_{number}") for number in range(2)]


def text(run, verbosity=0, width=110, **rest):
    return "\n".join(line.text for line in summary_lines(run, verbosity, width, **rest))


def block(lines):
    return textwrap.dedent(lines).strip("\n")


def typical(folder):
    regressed = runs.result(
        "regressed",
        blame=runs.BLAME,
        context_changes=(("torch", "2.12.0", "2.13.0"),),
        exemplars=(Exemplars("", folder / "base.json.gz", folder / "new.json.gz"),),
    )
    improved = runs.result("improved", "tests/perf/test_vit.py::test_infer")
    missing = runs.result("missing", "tests/perf/test_moe.py::test_step")
    return runs.run(*UNCHANGED, missing, improved, regressed)


def test_the_whole_summary(tmp_path):
    assert text(typical(tmp_path), width=100) == block("""
        machine cpu-amd-epyc-9v74-8c   baseline 3f2c1abf9   10 processes against 5
        context differs: torch 2.12.0 -> 2.13.0 (1 test)
        REGRESSED     tests/perf/test_gpt.py::test_train_step[bf16]
            step_time 41.20 -> 45.08 ms +9.4% [+8.9%, +9.9%], limit 3%; also ops
            cause: scaled_dot_product_flash_attention_backward slower per call (+2.920 of +3.792 ms in th...
        MISSING       tests/perf/test_moe.py::test_step
            no baseline under any key
        IMPROVED      tests/perf/test_vit.py::test_infer
            step_time 9.800 -> 9.190 ms -6.2% [-6.8%, -5.5%], limit 3%
        passed                          step_time  change  detectable
        tests/perf/test_vit.py::test_0   12.36 ms   +0.2%  above 2.1%
        tests/perf/test_vit.py::test_1   12.36 ms   +0.2%  above 2.1%
        detectable: a larger slowdown would be detected with 97.5% probability
        4 compared: 1 regressed, 1 improved, 2 unchanged. 1 missing, 0 incomparable, 0 unmeasured.
        report  perf-report/index.html
        record  pytest --perf-update=new tests/perf/test_moe.py::test_step
        again   pytest --perf 'tests/perf/test_gpt.py::test_train_step[bf16]'
        accept  pytest --perf-update 'tests/perf/test_gpt.py::test_train_step[bf16]' tests/perf/test_vit.py::test_infer
    """)


def test_many_tests_that_pass_are_cut():
    run = runs.run(*(runs.result("unchanged", f"t.py::test_{number}") for number in range(TABLE_ROWS + 5)))
    assert text(run).count("t.py::test_") == TABLE_ROWS
    assert "and 5 more tests (-v)" in text(run)


def test_a_comparison_tells_its_factor():
    found = runs.timed(
        "fused.step_time",
        limit="at least 10% faster",
        verdict="unchanged",
        reason="fused against loop: 1.25x as fast [1.20x, 1.30x]",
    )
    run = runs.run(runs.result("unchanged", metrics=[runs.quiet(), found]))
    assert "fused: fused against loop: 1.25x as fast [1.20x, 1.30x]" in text(run).splitlines()


@pytest.mark.parametrize("verbosity", [-1, -2])
def test_quiet_names_what_fails_and_counts(verbosity, tmp_path):
    assert text(typical(tmp_path), verbosity) == block("""
        REGRESSED     tests/perf/test_gpt.py::test_train_step[bf16]
            step_time is 9.4% slower than its baseline, unpaired
        MISSING       tests/perf/test_moe.py::test_step  no baseline under any key
        4 compared: 1 regressed, 1 improved, 2 unchanged. 1 missing, 0 incomparable, 0 unmeasured.
    """)
    assert text(runs.run(*UNCHANGED), verbosity) == "2 compared: 2 unchanged. 0 missing, 0 incomparable, 0 unmeasured."


def test_notes_are_read_at_every_verbosity():
    run = runs.run(runs.result("new", fails=False), notes=("nothing was compared",))
    assert all("nothing was compared" in text(run, verbosity) for verbosity in (-2, -1, 0, 1))


def test_against_a_revision_the_header_names_it_and_the_rounds():
    rounds = [runs.timed(verdict="regressed", evidence="paired", rounds=number) for number in (7, 20)]
    results = [
        runs.result("regressed", f"t.py::test_{number}", metrics=[one], against="origin/main")
        for number, one in enumerate(rounds)
    ]
    (line, *_) = text(runs.run(*results)).splitlines()
    assert line == "machine cpu-amd-epyc-9v74-8c   against origin/main at 3f2c1abf9   7 to 20 paired rounds per test"
    (line, *_) = text(runs.run(runs.result("unchanged", against="main"))).splitlines()
    assert line == "machine cpu-amd-epyc-9v74-8c   against main at 3f2c1abf9   counts only"


def test_a_run_that_compared_nothing_is_not_green():
    def markup(*results):
        (line,) = [line for line in summary_lines(runs.run(*results), -1, 100) if " compared" in line.text]
        return line.markup

    assert markup(*UNCHANGED) == {"green": True, "bold": True}
    assert markup(runs.result("new")) == markup(runs.result("unmeasured")) == {"yellow": True, "bold": True}
    written = replace(runs.result("missing", fails=False), updated=True)
    assert markup(written) == {"green": True, "bold": True}


def test_verbose_adds_unchanged_tests_with_what_was_detectable(tmp_path):
    shown = text(typical(tmp_path), 1, 120)
    assert (
        block("""
        UNCHANGED     tests/perf/test_vit.py::test_0
            step_time +0.2%: no slowdown found
                       baseline -> current  change    95% interval  limit  detectable
            step_time    12.34 -> 12.36 ms   +0.2%  [-1.2%, +1.5%]  10%    above 2.1%
    """)
        in shown
    )
    assert "detectable: a larger slowdown would be detected" in " ".join(shown.split())
    assert "UNCHANGED" not in text(typical(tmp_path), 0)


def test_very_verbose_shows_every_cause_and_metric(tmp_path):
    shown = text(typical(tmp_path), 2, 120)
    assert "+ aten::item" in shown
    assert "0 -> 1/step" in shown
    assert "cpu_time" in shown
    assert "more (-vv)" not in shown
    assert "cpu_time" not in text(typical(tmp_path), 1)


def test_failing_tests_come_before_warning_ones_and_the_worst_first():
    words = [line.split()[0] for line in text(runs.run(*runs.each_verdict()), 1).splitlines() if line[:1].isupper()]
    assert words == [
        "INVALID",
        "REGRESSED",
        "MISSING",
        "OUTDATED",
        "WAIVED",
        "SUSPECT",
        "CHANGED",
        "INCONCLUSIVE",
        "INCOMPARABLE",
        "IMPROVED",
        "UNCHANGED",
        "NEW",
        "UNMEASURED",
    ]


def test_each_verdict_leads_to_its_command():
    lines = text(runs.run(*runs.each_verdict())).splitlines()
    accept, record, again = (
        next(line for line in lines if line.startswith(word)) for word in ("accept", "record", "again")
    )
    assert [word for word in ("regressed", "outdated", "changed", "improved") if word in accept] == [
        "outdated",
        "changed",
        "improved",
    ]
    assert runs.GPT in accept
    assert record.endswith("--perf-update=new tests/perf/test_missing.py::test_step")
    assert all(word in again for word in ("invalid", "suspect", "inconclusive", runs.GPT))


@pytest.mark.parametrize("verbosity", [0, 1, 2])
@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_narrow_terminals_keep_every_number(width, verbosity, tmp_path):
    shown = text(typical(tmp_path), verbosity, width)
    for number in ("41.20 -> 45.08 ms", "[+8.9%, +9.9%]", "3%", *(["77%"] if verbosity else [])):
        assert number in " ".join(shown.split())
    numbers = [line for line in shown.splitlines() if line.startswith("    ") and "traces" not in line]
    if width >= (60 if verbosity else 40):
        assert max(cells_wide(line) for line in numbers) <= width


def test_color_says_nothing_that_words_do_not():
    lines = summary_lines(runs.run(*runs.each_verdict()), 1, 100)
    colored = [line for line in lines if line.markup]
    assert all(line.text.split()[0].lower() in (*runs.REASONS, "7") for line in colored)
    by_word = {line.text.split()[0]: line.markup for line in colored}
    assert by_word["REGRESSED"]["red"]
    assert by_word["CHANGED"]["yellow"]
    assert by_word["IMPROVED"]["green"]
    assert "UNCHANGED" not in by_word


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "latin-1"])
def test_terminals_without_utf8(encoding, tmp_path):
    odd = runs.result("missing", "tests/test_é🚀.py::test_x")
    shown = text(replace(typical(tmp_path), results=(odd, *typical(tmp_path).results)), 1, encoding=encoding)
    shown.encode(encoding)
    assert ("610.0 us" if encoding == "ascii" else "610.0 µs") in shown
    assert "\\U0001f680" in shown


def test_names_cannot_steer_the_terminal():
    run = runs.run(runs.hostile())
    for shown in (text(run, 2, 80), failure_text(run.results[0], run)):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\\u202e" in shown
        shown.encode("utf-8")


def test_a_ten_kilobyte_kernel_name_takes_one_line():
    longest = max(summary_lines(runs.run(runs.hostile()), 0, 100), key=lambda line: len(line.text))
    assert len(longest.text) < 400


def test_a_written_baseline_is_said_instead_of_the_verdict():
    run = runs.run(replace(runs.result("missing", fails=False), updated=True))
    assert "RECORDED      tests/perf/test_gpt.py" in text(run)
    assert "--perf-update" not in text(run)


def test_a_report_that_was_not_written_is_not_named(tmp_path):
    shown = text(typical(tmp_path), report=False)
    assert "perf-report" not in shown
    assert "accept  pytest" in shown


def test_notes_on_tests_that_pass_are_said_once_for_each_kind():
    lost, late = Finding("note", "kernels-lost", "two profiles are incomplete"), Finding("note", "load", "busy")
    first, second, third = (f"tests/perf/test_vit.py::test_{number}" for number in range(3))
    run = runs.run(
        runs.result("unchanged", first, integrity=(lost, late)),
        runs.result("unchanged", second, integrity=(lost, Finding("note", "implausible", "2x the peak"))),
        runs.result("suspect", third, integrity=(lost,)),
    )
    printed = text(run)
    assert printed.count(f"note on {first} and 1 more test: two profiles are incomplete") == 1
    assert f"note on {second}: 2x the peak" in printed
    # What fails or warns has its notes below it, and load makes no certain verdict less so.
    assert printed.count("two profiles are incomplete") == 2
    assert "busy" not in printed
    assert printed.index("passed") < printed.index("note on") < printed.index("3 compared")
    assert f"- note on {second}: 2x the peak" in summary(run).replace("\\", "")
    assert "note on" not in text(run, 1)


def test_why_a_test_is_inconclusive_is_told():
    """Beside an interval below the limit nothing else says what is open."""
    open_one = runs.timed(effect=-0.036, ci95=(-0.064, -0.006), verdict="inconclusive", remark="more rounds are needed")
    one = runs.result("inconclusive", metrics=[replace(open_one, reason="the reason")])
    assert "(more rounds are needed)" in text(runs.run(one))


def test_nothing_ran():
    assert text(runs.run()) == ("machine cpu-amd-epyc-9v74-8c\n0 compared. 0 missing, 0 incomparable, 0 unmeasured.")


def test_notes_and_findings_are_shown():
    note = Finding("note", "load", "another process took 40% of a core")
    run = runs.run(runs.result("regressed", integrity=(note,)), notes=("no git: unpaired",))
    assert "no git: unpaired" in text(run)
    assert "another process" in text(run, 1)
    assert "another process" not in text(run, 0)


def test_why_a_test_was_judged_unpaired_is_always_said():
    """It can be mended, unlike what else a measurement notices about itself."""
    why = Finding(
        "note",
        "unpaired",
        "compared without paired rounds: no commit contains the code that the baseline was recorded with",
    )
    busy = Finding("note", "contended", "other processes used the CPU")
    told = text(runs.run(runs.result("regressed", integrity=(busy, why))))
    assert "    compared without paired rounds: no commit contains the code that the baseline was recorded with" in told
    assert "other processes used the CPU" not in told


def test_a_metric_says_its_own_reason_once():
    own = runs.counted(reason="exact only under equal torch versions")
    repeated = runs.timed(reason="9.4% slower")
    run = runs.run(runs.result(metrics=[own, repeated], reason="step_time is 9.4% slower"))
    assert text(run, 1).count("exact only under equal torch versions") == 1
    assert text(run, 1).count("9.4% slower") == 1


def test_a_reason_that_several_metrics_share_is_said_once():
    slower, why = "the machine itself is 8% slower", "page faults: a mode not seen in the baseline"
    first, second, third = (
        replace(runs.timed(reason=f"{name}: {remark}"), name=name, remark=remark)
        for name, remark in (("step_time", slower), ("block_time", f"{slower}; {why}"), ("data_wait", why))
    )
    run = runs.run(runs.result(metrics=[first, second, third], reason=f"step_time: {slower}"))
    told = " ".join(text(run, 1).split())
    assert told.count(slower) == 1
    assert told.count(f"block_time, data_wait: {why}") == told.count(why) == 1


def test_figures_without_isolation_have_no_commands():
    shown = text(runs.run(runs.result("unchanged", metrics=[runs.quiet(verdict=None)]), judged=False), 1)
    assert "12.34 -> 12.36 ms" in shown
    assert "1 measured without verdicts" in shown
    assert "accept" not in shown


def test_the_text_of_a_regression_is_complete(tmp_path):
    run = typical(tmp_path)
    regressed = run.results[-1]
    assert failure_text(regressed, run) == block("""
        regressed: step_time is 9.4% slower than its baseline, unpaired
                       baseline -> current  change    95% interval  limit
            step_time    41.20 -> 45.08 ms   +9.4%  [+8.9%, +9.9%]  3%
            cause: scaled_dot_product_flash_attention_backward slower per call: +2.920
                  of +3.792 ms in the profiled step, 77.0%
            to do: Revert or rework the code and measure again, or accept the change if
                  it is intended.
        context differs    torch 2.12.0 -> 2.13.0
        baseline           baselines/cpu-amd-epyc-9v74-8c/tests/perf/test_gpt.py/test_train_step[bf16].json (10 processes against 5 at 3f2c1abf9)
        report             perf-report/index.html
        measure again      pytest --perf 'tests/perf/test_gpt.py::test_train_step[bf16]'
        accept the change  pytest --perf-update 'tests/perf/test_gpt.py::test_train_step[bf16]'
    """)  # noqa: E501 - a path is not wrapped


def test_the_text_of_a_failure_names_other_metrics_once(tmp_path):
    first = runs.timed(reason="+9.4% [+8.9%, +9.9%] (95% interval, 10 paired rounds), limit 3%")
    metrics = [first, *(runs.counted(f"count{number}", reason="1 -> 2") for number in range(5))]
    one = runs.result(metrics=metrics, reason=f"step_time {first.reason}; counts changed: count0 1 -> 2 and 4 more")
    (line, more, *_) = failure_text(one, runs.run(one)).splitlines()
    assert line == "regressed: step_time +9.4% [+8.9%, +9.9%] (95% interval, 10 paired rounds),"
    assert more == "    limit 3%; also count0, count1, count2 and 2 more"


@pytest.mark.parametrize(
    "verdict, said",
    [
        ("missing", ["does not exist for machine", "record a baseline  pytest --perf-update=new "]),
        ("outdated", ["source changed", "accept the change  pytest --perf-update "]),
        ("invalid", ["the steps of the repeats differ", "measure again  pytest --perf "]),
    ],
)
def test_the_text_of_other_failures_stands_alone(verdict, said):
    one = runs.result(verdict)
    shown = failure_text(one, runs.run(one))
    assert shown.startswith(f"{verdict}: ")
    assert all(part in shown for part in [*said, "perf-report/index.html"])


def test_a_broken_budget_names_the_line_to_change():
    one = runs.result(
        metrics=[runs.timed(limit="<= 44ms", times_over=1.1), runs.counted(new=1699, verdict="unchanged")]
    )
    run = runs.run(one)
    for shown in (failure_text(one, run), text(run, 1, width=200)):
        assert "<= 44ms" in shown
        assert "a new baseline does not change the budget <= 44ms on step_time:" in " ".join(shown.split())
        assert "tests/perf/test_gpt.py:12" in shown
        assert "--perf-update" not in shown
    both = runs.result(metrics=[runs.timed(limit="<= 44ms"), runs.timed("cpu_time")])
    assert "--perf-update" in failure_text(both, runs.run(both))


def test_a_finding_that_is_the_reason_is_said_once():
    finding = Finding("invalid", "sequences", runs.REASONS["invalid"])
    one = runs.result("invalid", integrity=(finding,))
    assert failure_text(one, runs.run(one)).count("steps of the repeats differ") == 1


@pytest.mark.parametrize("remark", ["", "a mode not seen in the baseline"])
def test_of_a_reason_with_figures_the_remark_is_told(remark):
    metric = with_reason(runs.counted(), "1699 -> 1701 (+2)", remark)
    assert metric.reason == f"1699 -> 1701 (+2){': ' if remark else ''}{remark}"
    run = runs.run(runs.result(metrics=[runs.timed(), metric]))
    assert "(+2)" not in text(run, 1)
    assert text(run, 1).count("ops: a mode") == bool(remark)


def test_where_a_cause_is_and_what_changed_there():
    one = runs.result(metrics=[runs.timed()], blame=[runs.PLACED], source_diffs=(runs.SOURCE,))
    told = block("""
            cause: mm slower per call in GPT.blocks.0.mlp at src/train.py:13: +2.920 of
                  +3.792 ms in the profiled step, 77.0%
            src/train.py: step
              @@ -12,2 +12,3 @@
               def step(model):
              -    return model <= 1
              +    loss = model & 1
              +    return loss
    """)
    for shown in (text(runs.run(one), 1, 80), failure_text(one, runs.run(one))):
        assert textwrap.indent(told, "    ") in shown
    brief = text(runs.run(one), 0, 120)
    assert "    cause: src/train.py:13: mm slower per call (+2.920 of +3.792 ms in the profiled step, 77.0%)" in brief


def test_many_changed_lines_are_cut_and_long_ones_go_on_below():
    long = replace(runs.SOURCE, text="@@ -1,2 +1,20 @@\n" + "\n".join(f"+{'x' * 300}{i}" for i in range(9)))
    other, third = replace(runs.SOURCE, function="other"), replace(long, function="third")
    one = runs.result(blame=[runs.PLACED], source_diffs=(long, other, third))
    shown, verbose = failure_text(one, runs.run(one)), text(runs.run(one), 1, width=80)
    assert shown.count("src/train.py: ") == 1, "that of the first function"
    assert "and 2 more lines (-v)" in shown  # of 10
    assert verbose.count("src/train.py: ") == 3
    assert "more lines" not in verbose
    for lines, where in ((7, shown), (9 + 9, verbose)):
        code = [line for line in where.splitlines() if line.lstrip(" +").startswith("xxx")]
        assert len(code) == 3 * lines
        assert max(map(len, code)) <= 80
        assert sum(line.endswith("...") for line in code) == lines, "three lines of a terminal are the most"


@pytest.mark.parametrize("around, left", [(3, ""), (4, "and 6 more lines (-v)")])
def test_unchanged_lines_are_the_first_to_be_left_out(around, left):
    before = "\n".join(f" before = {number}" for number in range(around))
    text = f"@@ -1,9 +1,9 @@\n{before}\n-loss.backward()\n between = 1\n \n+total.backward()\n+return total"
    shown = failure_text(
        one := runs.result(blame=[runs.PLACED], source_diffs=(replace(runs.SOURCE, text=text),)), runs.run(one)
    )
    assert "      -loss.backward()\n" in shown
    assert "      +total.backward()\n      +return total\n" in shown
    assert shown.count("before = ") == (0 if left else around)
    assert shown.count("between = 1") == (not left)
    assert ("more lines" in shown) == bool(left)
    assert left in shown


def test_changed_lines_are_shown_without_their_common_indentation():
    deep = replace(
        runs.SOURCE, text="@@ -1,2 +1,2 @@\n         x = 1\n-        y = 2\n+        if x:\n+            y = 3"
    )
    one = runs.result(blame=[runs.PLACED], source_diffs=(deep,))
    assert "\n       x = 1\n      -y = 2\n      +if x:\n      +    y = 3\n" in failure_text(one, runs.run(one))


def test_the_first_suggestion_is_one_line():
    advised = (
        Suggestion("it is slow", "Adam(fused=True)\x1b", 0.123, (0.1, 0.15)),
        Suggestion("also", "another", 0.05),
    )
    one = replace(runs.result("regressed", blame=runs.BLAME), suggestions=advised)
    line = "advice: Adam(fused=True)\\x1b, predicted gain 12.3% of the step [10.0%, 15.0%]"
    for shown in (text(runs.run(one), 1), failure_text(one, runs.run(one))):
        assert line in " ".join(shown.split())
        assert "another" not in shown
    without = replace(one, suggestions=(Suggestion("a", "b", 0.02),))
    assert "advice: b, predicted gain 2.0% of the step\n" in text(runs.run(without), 1)


def test_what_the_environment_did_to_the_baselines_own_code_is_apart():
    slower = runs.timed(evidence="unpaired", reason="+20.0% [+18.0%, +22.0%] (95% interval, unpaired), limit 10%")
    alike = runs.quiet("block_time", reason="+0.1%")
    one = runs.result("regressed", metrics=[runs.quiet()])
    one = replace(one, judgement=replace(one.judgement, environment=(slower, alike)))
    line = (
        "the environment changed, not the code (the baseline commit was measured again now): step_time +20.0% "
        "[+18.0%, +22.0%]"
    )
    assert line in " ".join(failure_text(one, runs.run(one)).split())
    assert "measured now): block_time" not in failure_text(one, runs.run(one))
    said = "the environment (the baseline commit was measured again now): block_time +0.1%"
    assert said in text(runs.run(one), 1, 120)


def test_how_rounds_were_run_is_told_to_those_who_ask():
    one = runs.result("regressed", metrics=[runs.timed(evidence="paired", rounds=9)])
    one = replace(one, judgement=replace(one.judgement, rounds="started anew: a coverage tool is active"))
    assert "started anew" not in text(runs.run(one))
    assert "    started anew: a coverage tool is active" in text(runs.run(one), 1)


@pytest.mark.parametrize("verbosity", [0, 1])
def test_memory_that_grows_is_told_once_in_a_failure_and_in_the_summary(verbosity):
    grows = runs.counted("growth", None, 4096, unit="B", verdict="regressed", reason="each step keeps memory")
    one = runs.result(metrics=[grows])
    for shown in (failure_text(one, runs.run(one)), text(runs.run(one), verbosity)):
        assert " ".join(shown.split()).count("memory grows: each step keeps 4.000 KiB") == 1


def test_a_failure_shows_the_note_of_its_baseline():
    result = runs.result()
    noted = replace(result, base=replace(result.base, note="slower, but exact\x1b[31m"))

    facts = [line.split(maxsplit=1) for line in failure_text(noted, runs.run(noted)).splitlines() if line]
    assert ["note", r"slower, but exact\x1b[31m"] in facts
    assert "\nnote " not in failure_text(result, runs.run(result))
