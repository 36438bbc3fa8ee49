from dataclasses import replace

import pytest

from pytest_perfdl.config.invocation import Invocation
from pytest_perfdl.model.record import INJECTED, TEST_ERROR, Finding
from pytest_perfdl.report import figures, github, html, layout, markdown, words
from pytest_perfdl.report.compared import by_verdict
from pytest_perfdl.report.terminal import summary_lines
from pytest_perfdl.results.run import Sensitivity
from pytest_perfdl.results.run_file import to_json
from pytest_perfdl.results.verdict import VERDICTS, Judgement, OperatorSides, WorkSide
from unit.report import runs


def test_every_verdict_is_counted_once():
    sentence = words.counts_sentence(runs.run(*runs.each_verdict()))
    assert sentence == (
        "7 compared: 1 regressed, 1 waived, 1 suspect, 1 changed, 1 inconclusive, 1 improved, 1 unchanged. "
        "1 invalid, 1 missing, 1 outdated, 1 incomparable, 1 new, 1 unmeasured."
    )


def test_a_slowdown_on_purpose_is_not_to_be_accepted():
    assert words.acceptable(runs.result("regressed"))
    note = Finding("note", INJECTED, "every step was slowed down by 20 % on purpose (--perf-inject)")
    injected = runs.result("regressed", integrity=(note,))
    assert not words.acceptable(injected)
    assert not any("accept" in line.text for line in summary_lines(runs.run(injected), 0, 100))


def test_what_was_not_compared_is_counted_even_when_zero():
    results = [runs.result("unchanged", f"t.py::test_{number}") for number in range(38)]
    assert words.counts_sentence(runs.run(*results)) == (
        "38 compared: 38 unchanged. 0 missing, 0 incomparable, 0 unmeasured."
    )
    assert words.counts_sentence(runs.run()) == "0 compared. 0 missing, 0 incomparable, 0 unmeasured."


def test_written_baselines_are_counted():
    written = replace(runs.result("missing", "t.py::test_a", fails=False), updated=True)
    assert words.counts_sentence(runs.run(written)) == (
        "1 baseline recorded. 0 compared. 0 missing, 0 incomparable, 0 unmeasured."
    )


def test_what_an_update_accepted_needs_no_look():
    accepted = replace(runs.result("suspect", fails=False), updated=True)
    run = runs.run(accepted, runs.result("unchanged", "t.py::b"))
    assert words.headline(run) == "All 2 perf tests pass, recorded 1 baseline"
    assert not words.fails_or_warns(accepted)
    assert words.notable(accepted)


def test_a_run_without_isolation_claims_no_verdict():
    run = runs.run(runs.result("unchanged"), runs.result("unmeasured", "t.py::b"), judged=False)
    assert words.counts_sentence(run) == "1 measured without verdicts. 1 unmeasured."
    assert "their times have no verdicts" in words.headline(run)


@pytest.mark.parametrize(
    "verdicts, sentence",
    [
        ((), "No perf test ran"),
        (("regressed", "unchanged"), "1 of 2 perf tests regressed"),
        (("regressed", "missing", "unchanged"), "2 of 3 perf tests fail: 1 regressed, 1 missing"),
        (("changed", "unchanged"), "All 2 perf tests pass, 1 changed"),
        (("unchanged", "improved"), "All 2 perf tests pass"),
        (("unchanged",), "The perf test passes"),
        (("new", "new"), "All 2 perf tests pass, but nothing was compared: 2 new"),
        (("unmeasured",), "The perf test passes, but nothing was compared: 1 unmeasured"),
    ],
)
def test_headline(verdicts, sentence):
    results = [runs.result(verdict, f"t.py::test_{number}") for number, verdict in enumerate(verdicts)]
    assert words.headline(runs.run(*results)) == sentence


def test_the_order_is_worst_first_by_numbers_not_by_text():
    def regressed(name, times):
        return runs.result("regressed", name, metrics=[runs.timed(times_over=times)])

    results = [
        regressed("t.py::two", 2.0),
        regressed("t.py::nine", 9.0),
        regressed("t.py::ten", 10.0),
        runs.result("unchanged", "t.py::a"),
        runs.result("changed", "t.py::b", fails=True),
        runs.result("suspect", "t.py::c"),
    ]
    assert [result.id for result in words.worst_first(results)] == [
        "t.py::ten",
        "t.py::nine",
        "t.py::two",
        "t.py::b",
        "t.py::c",
        "t.py::a",
    ]


def test_every_verdict_has_an_order_for_its_metrics():
    metrics = [replace(runs.timed(str(number)), verdict=verdict) for number, verdict in enumerate(reversed(VERDICTS))]
    shown = runs.timed("shown", verdict=None)
    assert [metric.verdict for metric in words.metrics_worst_first([shown, *metrics])] == [*VERDICTS, None]


@pytest.mark.parametrize(
    "verdict, starts",
    [
        ("regressed", ["pytest --perf ", "pytest --perf-update "]),
        ("outdated", ["pytest --perf-update ", "pytest --perf "]),
        ("missing", ["pytest --perf-update=new ", "pytest --perf "]),
        ("suspect", ["pytest --perf ", "pytest --perf-update "]),
        ("invalid", ["pytest --perf "]),
        ("unchanged", ["pytest --perf "]),
        ("unmeasured", []),
    ],
)
def test_each_verdict_has_its_commands(verdict, starts):
    found = [command for _, command in words.commands(runs.result(verdict), Invocation())]
    assert len(found) == len(starts)
    assert all(command.startswith(start) for command, start in zip(found, starts, strict=True))


def test_a_command_for_many_tests_names_their_files():
    def accept(number):
        tests = [runs.result("regressed", f"tests/{'ab'[index % 2]}.py::test_{index}") for index in range(number)]
        return dict(words.run_commands(runs.run(*tests)))["accept"]

    assert accept(10).count("::") == 10
    assert accept(11) == "pytest --perf-update tests/a.py tests/b.py"


def failed_itself(**rest):
    finding = Finding("invalid", TEST_ERROR, "the test failed, so its measurement was not used")
    return runs.result("invalid", reason=finding.message, metrics=(), integrity=(finding,), **rest)


def test_a_test_that_failed_itself_is_no_invalid_measurement_and_nothing_measures_it_again():
    run = runs.run(failed_itself(), runs.result("unchanged", "t.py::test_b"))
    terminal = [line.text for line in summary_lines(run, 0, 110)]

    assert words.commands(run.results[0], run.invocation) == []
    assert words.run_commands(run) == []
    assert terminal[1].split() == ["TEST", "ERROR", *runs.GPT.split()]
    assert terminal[2].strip() == "the test failed, so its measurement was not used"
    assert words.counts_sentence(run).endswith(" 1 test error, 0 missing, 0 incomparable, 0 unmeasured.")
    assert words.headline(run) == "1 of 2 perf tests failed before it was measured"
    assert by_verdict([failed_itself()] * 2) == "2 test errors"
    shown = (
        "\n".join(terminal),
        markdown.summary(run, 10**6),
        html.render(run, {}),
        *github.workflow_commands(run, {}),
    )
    for text in shown:
        assert "test error" in text.lower()
        assert "invalid:" not in text.lower()
    assert "invalid</span>" not in html.render(run, {})
    (test, _) = to_json(run)["tests"]
    assert test["verdict"] == "invalid", "what machines read stays"


def test_a_measurement_that_broke_is_still_invalid():
    run = runs.run(runs.result("invalid"))
    assert "INVALID" in summary_lines(run, 0, 110)[1].text
    assert [label for label, _ in words.run_commands(run)] == ["again"]


NOISY = Sensitivity("step_time", 0.152, 0.371, 10, 4, 0.03)
QUIET = Sensitivity("step_time", 0.012, 0.118, 10, 4, 0.03)


def recorded(*known, commit="abc"):
    results = [
        replace(runs.result("missing", f"t.py::test_{number}"), updated=True, fails=False, sensitivity=each)
        for number, each in enumerate(known)
    ]
    return runs.run(*results, commit=commit)


@pytest.mark.parametrize(
    "run, sentence",
    [
        (
            recorded(NOISY),
            (
                "step_time varies by 15 % between processes (standard deviation): without "
                "paired rounds only slowdowns above 37 % can be detected. Paired rounds (the default in a git "
                "repository) detect smaller ones."
            ),
        ),
        (
            recorded(QUIET, NOISY, commit=None),
            (
                "step_time of t.py::test_1 varies by 15 % between processes (standard "
                "deviation): without paired rounds only slowdowns above 37 % can be detected."
            ),
        ),
        (
            recorded(QUIET),
            "Without paired rounds, slowdowns of step_time above 12 % can be detected.",
        ),
        (
            recorded(NOISY, replace(QUIET, detectable=None, processes=1), commit=None),
            (
                "Without paired rounds, 1 process cannot detect a slowdown of step_time of t.py::test_1: "
                "4 are needed (--perf-repeats)."
            ),
        ),
        (recorded(None), ""),
        (runs.run(runs.result("unchanged")), ""),
    ],
)
def test_a_recording_says_what_it_will_be_able_to_detect(run, sentence):
    assert words.recording_sentence(run) == sentence
    terminal = [line.text for line in summary_lines(run, 0, 1000)]
    assert terminal[-1] == sentence or not sentence


def test_context_changes_count_the_tests_they_hold_for():
    torch, driver = ("torch", "2.12", "2.13"), ("driver", "550", "560")
    results = [
        runs.result("unchanged", "t.py::a", context_changes=(torch,)),
        runs.result("unchanged", "t.py::b", context_changes=(torch, driver)),
    ]
    assert words.context_changes(runs.run(*results)) == [(*torch, 2), (*driver, 1)]


def test_control_characters_and_direction_marks_are_spelled_out():
    assert words.visible("a\x1b[31m\r\n\u202eb\u2028\udcff") == r"a\x1b[31m\r\n\u202eb\u2028\udcff"
    assert words.visible("é µ 🚀 日本 👩‍🔬") == "é µ 🚀 日本 👩‍🔬"


@pytest.mark.parametrize(
    "base, new, unit, text",
    [
        (41_200_000, 45_080_000, "ns", "41.20 -> 45.08 ms"),
        (998_000, 1_020_000, "ns", "998.0 µs -> 1.020 ms"),
        (0, 2**30, "B", "0 B -> 1.000 GiB"),
        (3, 4, "1", "3 -> 4"),
        (3, 4, "tokens", "3 -> 4 tokens"),
        (None, 45_080_000, "ns", "45.08 ms"),
        (41_200_000, None, "ns", "41.20 ms"),
        (None, None, "ns", ""),
    ],
)
def test_both_sides_of_a_metric(base, new, unit, text):
    assert figures.change(runs.timed(base=base, new=new, unit=unit, effect=None)) == text


def test_known_counts_are_a_step_and_others_are_not():
    assert figures.change(runs.counted("forward.ops", 1, 2)) == "1 -> 2/step"
    assert figures.change(runs.counted("accuracy", 1, 2)) == "1 -> 2"
    assert figures.change(runs.counted("peak_memory", 1024, 2048, unit="B")) == "1.000 -> 2.000 KiB"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_what_is_not_a_number_is_not_shown(value):
    metric = runs.timed(effect=value, excluded=value, ci95=value if value is None else (value, 1.0))
    assert figures.effect(metric) == figures.interval(metric) == figures.excluded(metric) == ""
    assert figures.cause_share(runs.cause("a", share=value)) == ""


def test_causes_say_what_appeared_and_what_went():
    new, gone, idle = runs.BLAME[1], runs.BLAME[3], runs.BLAME[4]
    assert (figures.cause_sign(new), figures.cause_count(new), figures.cause_effect(new)) == (
        "+",
        "0 -> 48/step",
        "new",
    )
    assert (figures.cause_sign(gone), figures.cause_count(gone), figures.cause_effect(gone)) == (
        "-",
        "12 -> 0/step",
        "gone",
    )
    assert (figures.cause_sign(idle), figures.cause_count(idle), figures.cause_effect(idle)) == (" ", "", "+22.2%")
    assert figures.cause_time(new) == "610.0 µs"
    assert figures.cause_time(gone) == "310.0 µs"


@pytest.mark.parametrize(
    "share, text", [(0.77, "77%"), (-0.08, "-8%"), (0.0095, "1%"), (0.0094, "0.9%"), (1.2, "120%")]
)
def test_small_shares_do_not_become_zero(share, text):
    assert figures.cause_share(runs.cause("a", share=share)) == text


def test_shortened_names_keep_both_ends_and_fit():
    assert layout.shorten("abcdefghij", 10) == "abcdefghij"
    assert layout.shorten("abcdefghijk", 10) == "abcd...ijk"
    assert layout.cells_wide(layout.shorten("日本語のカーネル名" * 3, 20)) <= 20


def test_rows_align_where_they_fit_and_wrap_where_they_do_not():
    table = [("first", "1 ms", "+1%"), ("second one", "10 ms", "")]
    assert layout.rows(table, "lrr", 2, 40) == ["  first        1 ms  +1%", "  second one  10 ms"]
    assert layout.rows(table, "lrr", 2, 12) == ["  first", "    1 ms", "    +1%", "  second one", "    10 ms"]


@pytest.mark.parametrize("known, said", [(800, 0), (799, 1)])
def test_figures_that_rest_on_less_than_four_fifths_of_the_time_say_so(known, said):
    def side(time_ns):
        return WorkSide(1, 1, 1, time_ns, {}, None)

    operators = (
        OperatorSides("fwd", "aten::mm", "[[2, 2], [2, 2]]", "float32", side(1000), side(known)),
        OperatorSides("fwd", "aten::sort", "", "", None, side(1000 - known)),
        OperatorSides("", "aten::mm", "[[2, 2], [2, 2]]", "float32", None, side(5)),
    )
    judgement = Judgement("t", "unchanged", "", operators=operators)
    notes = words.coverage_notes(judgement)
    assert len(notes) == said
    assert not said or notes[0].startswith("fwd: Only 79.9% of the operators' time")
    shown = runs.result("regressed", metrics=[runs.timed("roofline", unit="%", better="higher")])
    shown = replace(shown, judgement=replace(shown.judgement, operators=operators))
    text = " ".join(" ".join(line.text for line in summary_lines(runs.run(shown), 1, 200)).split())
    assert ("nly 79.9% of the operators' time" in text) is bool(said)


def test_what_does_not_matter_beside_a_regression_is_named_apart():
    tiny = runs.counted("alloc_bytes", 100_000, 100_001, unit="B", effect=1e-5)
    fewer = runs.counted("ops", 1983, 1806, effect=-0.089)
    more = runs.counted("allocations", 10, 20, effect=1.0)
    operator = runs.timed("operator aten::mm", verdict="suspect", of_step=False)
    judgement = runs.result(metrics=[runs.timed(), tiny, fewer, more, operator]).judgement
    assert [each.name for each in judgement.metrics if words.matters(each, judgement)] == ["step_time", "allocations"]
    said = "Not listed, because they hardly changed or became better: alloc_bytes +0.0%, ops -8.9%"
    assert words.unimportant_sentence(judgement) == said
    changed = runs.result("changed", metrics=[fewer]).judgement
    assert words.matters(fewer, changed)
    assert words.unimportant_sentence(changed) == ""


def test_notes_are_told_where_they_affect_the_verdict():
    noise = Finding("note", "machine-changed", "the machine's speed changed by 13%")
    broken = Finding("invalid", "rounds", "no value")
    certain = runs.result(metrics=[runs.timed(evidence="paired")], integrity=(noise, broken)).judgement
    assert words.telling_notes(certain) == ["the measurement is invalid: no value"]
    unsure = runs.result("suspect", metrics=[runs.timed(verdict="suspect")], integrity=(noise,)).judgement
    assert words.telling_notes(unsure) == ["the verdict is less certain: the machine's speed changed by 13%"]
    unpaired = runs.result(metrics=[runs.timed(evidence="unpaired")], integrity=(noise,)).judgement
    assert words.telling_notes(unpaired) == words.telling_notes(unsure)


def test_metrics_are_explained_once_and_an_author_s_own_are_not():
    metrics = [runs.timed(), runs.timed("fwd.step_time"), runs.timed("tokens"), runs.timed("kernel k", of_step=False)]
    assert words.metrics_explained(metrics) == "step_time: lower quartile of step times"
    assert [words.metric_words(each) for each in metrics[2:]] == ["", "time of this kernel per step"]


def test_of_many_changes_of_the_context_those_that_matter_first_are_listed():
    packages = {f"nvidia-{number:02d}": f"nvidia-{number:02d} 1 -> 2" for number in range(30)}
    said = words.context_list({"alpha": "alpha 1 -> 2", **packages, "torch": "torch 2.4.1 -> 2.15.0"})

    assert said[:3] == ["torch 2.4.1 -> 2.15.0", "alpha 1 -> 2", "nvidia-00 1 -> 2"]
    assert said[8:] == ["24 more (see run.json)"]
    assert len(words.context_list(dict(list(packages.items())[:9]))) == 9, "one more takes no more room than saying so"
