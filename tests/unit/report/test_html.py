import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.report import html, traces, words
from pytest_perfdl.report.details import breakdowns
from pytest_perfdl.report.svg import ticks
from pytest_perfdl.results.run import Suggestion
from pytest_perfdl.results.run_file import dump, read_run, to_json
from pytest_perfdl.results.verdict import FAILS_BY_DEFAULT, OperatorSides, StepBreakdown, WorkSide
from pytest_perfdl.scaling.growth import Beside, IntervalEstimate
from unit.report import runs

VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """A page's elements, visible text and scripts; fails on tags that do not balance."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.text, self.raw, self.open = [], [], {}, []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.raw.setdefault((self.open[-1], len(self.elements)), (self.elements[-1][1], data))
        else:
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", "".join(self.text))

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    def scripts(self):
        return [(attrs, data) for (tag, _), (attrs, data) in self.raw.items() if tag == "script"]


def page(*results, **rest):
    run = runs.run(*results, **rest)
    return Page(html.render(run, traces.collect(run)))


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exemplars")
    results = [
        runs.with_traces(one, folder) if one.judgement.verdict == "regressed" else one for one in runs.each_verdict()
    ]
    return runs.run(*results, runs.hostile(), notes=("no git: unpaired",))


def test_the_verdict_comes_first(everything):
    shown = Page(html.render(everything, traces.collect(everything))).words
    order = [
        "5 of 14 perf tests fail: 1 invalid, 2 regressed, 1 missing, 1 outdated",
        "Machine ID",
        "no git: unpaired",
        "▲ regressed 2",
        "tests/perf/test_invalid.py::test_step",
        "8 compared",
        "What differs from the baselines' environment",
    ]
    places = [shown.index(part) for part in order]
    assert places == sorted(places)


@pytest.mark.parametrize("verdict", runs.REASONS)
def test_each_verdict_has_a_word_and_a_sign(verdict):
    shown = page(runs.result(verdict)).words
    assert f"{html.SYMBOLS[verdict]} {verdict}" in shown
    assert runs.REASONS[verdict] in shown


def test_figures_have_units_intervals_and_limits():
    shown = page(runs.result("regressed", blame=runs.BLAME)).words
    for part in (
        "41.20 ms",
        "45.08 ms",
        "+9.4%",
        "[+8.9%, +9.9%]",
        "2.000 GiB",
        "8.100 → 11.02 ms",
        "+2.920 ms",
        "0 → 48",
        "limit 3%",
        "3f2c1abf9",
        "10 processes against 5",
        "64.10 s",
        "95% interval",
    ):
        assert part in shown


def test_it_needs_no_network_and_runs_only_its_own_script(everything):
    pytest.importorskip("plotly")
    source = html.render(everything, traces.collect(everything))
    parsed = Page(source)
    for tag, attrs in parsed.elements:
        assert not any(name.startswith("on") for name in attrs), tag
        assert "style" not in attrs
        assert tag not in ("img", "iframe", "object", "base", "form")
        assert not re.match(r"\w+:|//", attrs.get("href", "") if attrs.get("href") != "data:," else "")
        assert "src" not in attrs
    (policy,) = [attrs["content"] for attrs in parsed.all("meta") if attrs.get("http-equiv")]
    assert "default-src 'none'" in policy
    # The charts' library writes style attributes; what is executed is named by its hash.
    assert policy.count("unsafe") == 1
    assert "style-src 'unsafe-inline'" in policy
    executable = [data for attrs, data in parsed.scripts() if "type" not in attrs]
    assert len(executable) == 1
    digest = base64.b64encode(hashlib.sha256(executable[0].encode()).digest()).decode()
    (library,) = [data for attrs, data in parsed.scripts() if attrs.get("id") == "perfdl-charts"]
    library = base64.b64encode(hashlib.sha256(gzip.decompress(base64.b64decode(library))).digest()).decode()
    assert f"script-src 'sha256-{digest}' 'sha256-{library}';" in policy


def test_a_page_without_the_library_of_charts_says_so(monkeypatch):
    monkeypatch.setattr(html, "plotting_library", lambda: None)
    parsed = page(runs.result())
    (policy,) = [attrs["content"] for attrs in parsed.all("meta") if attrs.get("http-equiv")]
    assert "unsafe" not in policy
    assert "This page has no charts" in parsed.words
    assert not [attrs for attrs, _ in parsed.scripts() if attrs.get("id") == "perfdl-charts"]


def test_hostile_names_are_text(everything):
    parsed = Page(html.render(everything, traces.collect(everything)))
    assert "</script><img src=x onerror=alert(1)>\"'`|\\u202e{{7*7}} @octocat" in parsed.words
    assert "\u202e" not in parsed.words
    assert "émoji 🚀 \\udcff" in parsed.words
    assert "at::native::" * 850 in parsed.words


def test_tables_and_regions_are_labeled(everything):
    source = html.render(everything, traces.collect(everything))
    parsed = Page(source)
    assert source.count("<table") == source.count("<caption")
    assert all(attrs.get("scope") in ("row", "col") for attrs in parsed.all("th"))
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in parsed.elements:
        assert attrs.get("aria-labelledby", ids[0]) in ids
        assert attrs.get("data-filter", ids[0]) in ids
    links = [attrs["href"][1:] for attrs in parsed.all("a") if attrs["href"].startswith("#")]
    assert links
    assert set(links) <= set(ids)
    assert all(attrs.get("type") == "button" for attrs in parsed.all("button"))


def test_the_shares_of_causes_add_up_and_what_went_away_is_beside_what_came():
    steps = (StepBreakdown("", 40_000_000, 44_000_000, ()),)
    parts = [
        runs.cause("aten::bmm", (0, 0), (4, 5_000_000), 1.25, line="train.py(12): step"),
        runs.cause("aten::flash_attention", (2, 2_000_000), (0, 0), -0.5, line="train.py(12): step"),
        runs.cause("aten::cat", (2, 1_000_000), (2, 1_400_000), 0.1),
        runs.cause("aten::add", (2, 10_000), (2, 11_000), 0.00025),
    ]
    one = runs.result(blame=parts)
    one = replace(one, judgement=replace(one.judgement, breakdowns=steps))
    source = html.render(runs.run(one), {})
    table = source[source.index('<table id="causes-1"') :]
    table = table[: table.index("</section>") if "</section>" in table else None]
    shares = [float(each) for each in re.findall(r'data-label="Share">.*?<span>(-?[\d.]+)%</span>', table)]
    assert shares == [75.0, 10.0, 15.0]
    shown = Page(source).words
    assert "flash_attention replaced by bmm" in shown
    assert "+ aten::bmm 0 → 4 5.000 ms +5.000 ms (new)" in shown
    assert "- aten::flash_attention 2 → 0 2.000 ms -2.000 ms (gone)" in shown
    assert "Smaller or uncertain changes +600.0 µs 15.0%" in shown


def test_the_embedded_run_is_the_run_file(everything):
    parsed = Page(html.render(everything, traces.collect(everything)))
    ((_, text),) = [one for one in parsed.scripts() if one[0].get("id") == "perfdl-run"]
    whole = json.loads(dump(to_json(everything)))
    for test in whole["tests"]:
        del test["record"], test["base_record"], test["operators"], test["breakdowns"], test["memory"]
        del test["base_now"], test["rank_times"]
        for metric in test["metrics"].values():
            del metric["base_values"], metric["new_values"]
    assert json.loads(text) == whole
    assert "<" not in text


def details(parsed, number=1):
    """What the page holds of a test, worst first, with the names of its rows looked up."""
    held = {
        attrs.get("id"): json.loads(data) for attrs, data in parsed.scripts() if attrs.get("type", "").endswith("json")
    }
    found, names = held[f"perfdl-details-{number}"], held["perfdl-names"]
    for row in found["rows"]:
        for place in (0, 1, 2, 7)[: 3 + (len(row) > 7)]:
            row[place] = names[row[place]]
    return found


def test_a_test_is_in_the_page_as_data_with_its_account():
    both = {
        "base": runs.record("t", rows=[runs.Row("operator", "mm", 2, (40_000_000,) * 5)]),
        "new": runs.record("t", rows=[runs.Row("operator", "mm", 3, (60_000_000,) * 5)]),
    }
    found = details(page(runs.result(**both)))
    assert found["rows"][0] == [
        *("", "operator", "mm", 2, 3, 40_000_000, 60_000_000, "exact", 1.0, [20_000_000, 0, 0, 0])
    ]
    assert [row[2] for row in found["rows"][1:]] == ["overlapped"], "what of the profiled step no row is"
    (account,) = found["accounts"]
    assert account["base_ns"] + sum(ns for _, ns in account["bars"]) == account["new_ns"]
    assert [one["source"] for one in found["history"]] == ["baseline", "current"]


def test_operators_are_in_the_page_with_the_roofs_they_are_held_against(tmp_path):
    old = WorkSide(2e6, 1e5, 4, 40_000, {"float32": 1.0}, 0.51234567, "compute")
    sides = OperatorSides("fwd", "aten::mm", "[[8, 8]]", "float32", old, replace(old, roofline=None, bound=""))
    one = runs.result("regressed")
    one = replace(one, judgement=replace(one.judgement, operators=(sides, replace(sides, base=None))))
    peaks = {runs.KEY.slug: Peaks({"float32": 1e11, "int8": 1e12}, 1e10, bandwidths=((1024, 4e10), (4096, 1e10)))}
    run = replace(runs.run(one), peaks=peaks)
    parsed = Page(html.render(run, {}))
    held = {attrs.get("id"): text for attrs, text in parsed.scripts()}
    found, names = (json.loads(held[each]) for each in ("perfdl-details-1", "perfdl-names"))
    first, second = found["roofline"]["rows"]
    assert [names[number] for number in first[:4]] == ["fwd", "aten::mm", "[[8, 8]]", "float32"]
    assert first[4:] == [[40_000, 4, 2_000_000, 100_000, 0.5123, "compute"], [40_000, 4, 2_000_000, 100_000, None, ""]]
    assert second[4] is None
    assert found["roofline"]["flops_per_s"] == {"float32": 1e11}, "only of the types that occur"
    assert found["roofline"]["bandwidths"] == [[1024, 4e10], [4096, 1e10]]
    (tmp_path / "run.json").write_bytes(dump(to_json(run)))
    again = read_run(tmp_path / "run.json", tmp_path)
    assert (again.peaks, again.results[0].judgement.operators) == (peaks, one.judgement.operators)
    assert details(page(runs.result()))["roofline"] == {"rows": [], "left_out": 0, "flops_per_s": {}, "bandwidths": []}


def test_of_many_tests_the_worst_are_open_and_the_folded_are_packed():
    many = [runs.result("regressed", f"t.py::test_{number}") for number in range(html.PLAIN_AT_MOST + 1)]
    parsed = page(*many, runs.result("unchanged", f"t.py::test[{runs.HOSTILE}]"))
    tests = [attrs for attrs in parsed.all("details") if attrs.get("class") == "test"]
    assert ["open" in attrs for attrs in tests] == [number < html.OPEN_AT_MOST for number in range(len(tests))]
    packed = [text for attrs, text in parsed.scripts() if "data-packed" in attrs]
    assert len(packed) == len(tests) - html.OPEN_AT_MOST
    told = json.loads(gzip.decompress(base64.b64decode(packed[-1])))
    assert "</script>" not in told["html"]
    assert "<img" not in told["html"]
    assert "12.34 ms" in Page(told["html"]).words
    assert told["accounts"] == []


def test_a_link_to_a_test_is_the_same_in_every_run():
    first, second = (
        page(*results) for results in ([runs.result()], [runs.result("invalid", "t.py::a"), runs.result()])
    )
    ids = [{attrs["id"] for attrs in one.all("details") if attrs.get("class") == "test"} for one in (first, second)]
    assert html.anchor(runs.GPT) in ids[0] & ids[1]


def test_how_sure_it_is_stands_at_the_top():
    paired = runs.timed(evidence="paired", rounds=12, times_over=3.1)
    shown = page(runs.result(metrics=[paired]), runs.result("changed", "t.py::test_b", metrics=[runs.counted()])).words
    assert "False-positive rate for the whole run: at most 1.0%" in shown
    assert "Counted metrics are deterministic" in shown
    assert "Minimum detectable slowdown" not in shown
    cleared = [runs.result("unchanged", f"t.py::test_{n}", metrics=[runs.quiet(excluded=n / 100)]) for n in (1, 2, 4)]
    shown = page(*cleared, runs.result("regressed", metrics=[runs.timed(excluded=0.9)])).words
    said = "Minimum detectable slowdown of step_time (97.5% probability): 2.0% in half of the tests, 4.0% in all tests."
    assert said in shown
    every = page(
        runs.result("suspect", metrics=[runs.timed(verdict="suspect", evidence="paired", in_every_round=True)])
    )
    assert "A suspect test also fails if it exceeds its limit in every round, after at least 8 rounds" in every.words
    assert "A suspect test also fails" not in shown
    assert (
        "could not be confirmed in paired rounds" in page(runs.result(metrics=[runs.timed(evidence="unpaired")])).words
    )


def test_rounds_and_environment_are_told_beside_the_verdict():
    slower = runs.timed(evidence="unpaired", reason="+20.0% since another torch")
    one = runs.result("regressed")
    one = runs.replace(one, judgement=runs.replace(one.judgement, environment=(slower,), rounds="forked, on one core"))
    shown = page(one).words
    assert "forked, on one core" in shown
    assert "+20.0% since another torch" in shown


def test_recorded_times_are_said_once_beside_what_was_measured_again():
    metric = runs.timed(base=40_000_000, stored=36_000_000, evidence="paired", rounds=9)
    shown = page(runs.result(metrics=[metric])).words
    assert re.search(r"Recorded in [\w/.\[\]-]+: step_time 36.00 ms\. The baseline column was measured again", shown)
    assert shown.count("36.00 ms") == 1
    assert "Recorded in" not in page(runs.result(metrics=[runs.timed()])).words


def test_unchanged_metrics_are_folded_and_those_without_a_limit_named_as_such():
    same = [runs.quiet(f"same_{number}") for number in range(3)]
    exact = runs.counted("ops", 7, 7, verdict=None)
    free = runs.timed("cpu_time", verdict=None, limit=None)
    parsed = page(runs.result(metrics=[runs.timed(), *same, exact, free]))
    assert "Metrics 1 changed, 4 unchanged, 1 without a limit" in parsed.words
    assert "4 unchanged metrics, 1 metric without a limit" in parsed.words
    assert "95% interval: the true change is in this range with 95% probability" in parsed.words


@pytest.mark.parametrize(
    "results, expected",
    [
        ([("regressed", {}), ("unchanged", {}), ("unchanged", {})], "1 of 3 perf tests regressed"),
        ([("regressed", {})], "The perf test regressed"),
        ([("missing", {}), ("missing", {})], "2 of 2 perf tests have no baseline"),
        ([("missing", {}), ("regressed", {})], "2 of 2 perf tests fail: 1 regressed, 1 missing"),
        ([("missing", {"updated": True}), ("missing", {"updated": True})], "Recorded 2 new baselines"),
        ([("missing", {"updated": True}), ("unchanged", {})], "All 2 perf tests pass, recorded 1 new baseline"),
        ([("unchanged", {}), ("improved", {})], "All 2 perf tests pass"),
        ([("unchanged", {}), ("suspect", {})], "All 2 perf tests pass, 1 suspect"),
        ([("unchanged", {})], "The perf test passes"),
        ([("unmeasured", {})], "The perf test passes, but nothing was compared: 1 unmeasured"),
    ],
)
def test_the_headline_says_what_came_of_the_run(results, expected):
    made = [
        replace(
            runs.result(verdict, f"t.py::test_{number}"),
            fails=verdict in FAILS_BY_DEFAULT and not more,
            **more,
        )
        for number, (verdict, more) in enumerate(results)
    ]
    parsed = page(*made)
    assert words.headline(runs.run(*made)) == expected
    assert expected in parsed.words
    if all("updated" in more for _, more in results):
        assert "missing" not in parsed.words.partition("About this run")[0]
        assert "● recorded 2" in parsed.words


def test_chips_count_the_verdicts(everything):
    parsed = Page(html.render(everything, traces.collect(everything)))
    pressed = {attrs["data-chip"]: attrs["aria-pressed"] for attrs in parsed.all("button") if "aria-pressed" in attrs}
    assert pressed[""] == "true"
    assert set(pressed.values()) == {"true", "false"}
    assert dict(html.chips(everything.results))["regressed"] == 2
    assert set(pressed) == {"", *dict(html.chips(everything.results))}


def test_no_section_is_empty():
    bare = replace(runs.result("missing", metrics=[runs.counted()]), new=None, base=None)
    shown = page(bare).words
    assert "Metrics" in shown
    for section in ("History", "Timeline", "Modules", "Operators and kernels", "Memory", "Breakdown"):
        assert section not in shown.partition("About this run")[0], section


def test_traces_are_embedded_and_linked(everything):
    collected = traces.collect(everything)
    parsed = Page(html.render(everything, collected))
    (call,) = collected[runs.GPT]
    ((attrs, text),) = [one for one in parsed.scripts() if "data-trace-file" in one[0]]
    diff = call.files[2]
    assert attrs["data-trace-file"] == diff.name
    assert base64.b64decode(text) == diff.data
    assert json.loads(gzip.decompress(diff.data))["traceEvents"]
    (button,) = [attrs for attrs in parsed.all("button") if "data-perfetto" in attrs]
    assert button["data-perfetto"] == diff.name
    links = {attrs["href"] for attrs in parsed.all("a") if "download" in attrs}
    assert links == {f"traces/{file.name}" for file in call.files}


def test_more_traces_than_the_page_may_hold_are_only_linked(monkeypatch, everything):
    monkeypatch.setattr(html, "EMBEDDED_BYTES", 10)
    source = html.render(everything, traces.collect(everything))
    assert "data-perfetto=" not in source
    assert source.count('href="traces/') == 4


def test_commands_can_be_copied():
    parsed = page(runs.result("regressed", f"t.py::test[{'a b'}]"))
    copied = [attrs["data-copy"] for attrs in parsed.all("button") if "data-copy" in attrs]
    assert copied == ["pytest --perf 't.py::test[a b]'", "pytest --perf-update 't.py::test[a b]'"]


def test_tests_that_need_a_look_are_open_and_others_closed(everything):
    parsed = Page(html.render(everything, traces.collect(everything)))
    tests = [attrs for attrs in parsed.all("details") if attrs.get("class") == "test"]
    assert ["open" in attrs for attrs in tests] == [True] * 10 + [False] * 4


def test_an_empty_run_and_one_without_judgement():
    assert "No perf test ran" in page().words
    plain = page(runs.result("unchanged", metrics=[runs.quiet(verdict=None)]), judged=False)
    assert "1 perf test measured without isolation, so their times have no verdicts" in plain.words
    assert "Copy command" not in plain.words


def test_missing_records_and_odd_numbers_do_not_stop_the_page():
    odd = runs.timed(base=None, effect=float("nan"), ci95=None, excluded=float("inf"), times_over=float("nan"))
    bare = replace(runs.result("missing", metrics=[odd, runs.counted(new=None)]), new=None, base=None)
    assert "45.08 ms" in page(bare).words
    assert "nan" not in page(bare).words.lower()


def test_write_html_is_atomic_and_repeatable(tmp_path, everything):
    html.write_html(everything, tmp_path / "a.html")
    html.write_html(everything, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_operators_of_both_sides_are_joined_and_sorted_by_time():
    def row(name, count, ns):
        return runs.Row("operator", name, count, ns)

    one = runs.result(
        base=runs.record("t", rows=[row("gone", 1, (900,) * 5), row("mm", 2, (10, 20, 30, 40, 50))]),
        new=runs.record("t", rows=[row("mm", 3, (100,) * 5), row("new", 1, (7,) * 5)]),
    )
    (step,) = breakdowns(one, matched=False)
    assert [(r.name, r.base_count, r.new_count, r.base_ns, r.new_ns, r.delta_ns) for r in step.rows] == [
        ("gone", 1, None, 900, None, -900),
        ("mm", 2, 3, 30, 100, 70),
        ("new", None, 1, None, 7, 7),
    ]


@pytest.mark.parametrize(
    "low, high, expected",
    [(40.9, 45.2, [42, 44]), (0, 1, [0, 0.5, 1]), (0, 4, [0, 1, 2, 3, 4]), (1e9, 1.1e9, [1e9, 1.05e9, 1.1e9])],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_the_first_screen_has_the_cause_its_place_and_the_changed_lines():
    changed = replace(runs.SOURCE, line=13)
    one = runs.result(blame=[runs.PLACED], source_diffs=(changed,))
    run = replace(runs.run(one), repository="https://github.com/acme/models")
    source = html.render(run, {})
    shown = Page(source).words
    first = shown[shown.index("step_time +9.4%") :]
    order = [
        "41.20 → 45.08 ms",
        "95% interval +8.9% to +9.9%",
        "Cause mm slower per call",
        "train.py:13 in GPT.blocks.0.mlp",
        "Changed lines in src/train.py: step",
        "Copy command to measure again",
        "Intended?",
        "Causes",
    ]
    places = [first.index(part) for part in order]
    assert places == sorted(places)
    (link,) = {attrs["href"] for attrs in Page(source).all("a") if "github" in attrs.get("href", "")}
    assert link == f"https://github.com/acme/models/blob/{run.commit}/src/train.py#L13"
    assert source[source.index("<pre>") : source.index("</pre>")] == (
        "<pre>\n"
        '<span class="muted">@@ -12,2 +12,3 @@</span>\n'
        '<span class="same"> def step(model):</span>\n'
        '<span class="removed">-    return model &lt;= 1</span>\n'
        '<span class="added">+    loss = model &amp; 1</span>\n'
        '<span class="added">+    return loss</span>\n'
    )
    assert "<pre>" not in html.render(runs.run(runs.result(blame=[runs.PLACED])), {})


def test_a_diff_is_shown_without_the_indentation_of_all_of_its_lines():
    diff = replace(runs.SOURCE, text="@@ -1 +1 @@\n         a\n-        b\n+            c\n+")
    assert words.diff_lines(diff) == ["@@ -1 +1 @@", " a", "-b", "+    c", "+"]


def test_suggestions_have_their_predicted_gain_with_its_interval():
    advice = Suggestion("the optimizer runs one operator a parameter", "use fused=True", 0.123, (0.1, 0.15))
    rough = Suggestion(runs.HOSTILE, "do", 0.02, doubt=runs.HOSTILE, example="examples/strategies/test_amp.py")
    one = replace(runs.result(), suggestions=(advice, rough))
    shown = page(one).words
    assert "example: examples/strategies/test_amp.py" in shown
    assert shown.count("confidence is low: ") == 1
    assert "the optimizer runs one operator a parameter use fused=True 12.3% of the step [10.0%, 15.0%]" in shown
    assert "What would make the step faster" not in page(runs.result()).words


def with_curve(drawn, **judged):
    one = runs.result(metrics=[runs.timed(), runs.timed(drawn.name, limit="10%", **judged)])
    return replace(one, curves=(drawn,))


def test_a_curve_that_grew_in_two_ways_says_so_of_both_figures():
    drawn = runs.curve()
    also = Beside("overhead", 0, IntervalEstimate(1e5, 5e4, 1.5e5))
    shown = page(with_curve(replace(drawn, growth=replace(drawn.growth, beside=also)))).words
    assert "Overhead (also grew) fixed time" in shown
    assert "Complexity (grew most) exponent" in shown


def test_a_curve_has_its_numbers_beneath_its_picture():
    parsed = page(with_curve(runs.curve(), reason="complexity regression: +25.0% at batch 16"))
    for part in (
        "▲ regressed complexity regression: +25.0% at batch 16",
        "batch 16 32.00 ms [31.68 ms, 32.32 ms] 40.00 ms [39.60 ms, 40.40 ms] +25.0% [+22.0%, +28.0%] paired",
        "24.00 ms [23.76 ms, 24.24 ms] 26.00 ms [25.74 ms, 26.26 ms] +8.3% [+5.3%, +11.3%] unpaired",
        "Overhead fixed time",
        "Per sample time per additional sample",
        "1.000 ms [950.0 µs, 1.050 ms] 1.560 ms [1.400 ms, 1.700 ms] +560.0 µs [+400.0 µs, +700.0 µs]",
        "Complexity (grew most) exponent",
        "0.40 [0.38, 0.42] 0.62 [0.58, 0.66] +0.22 [+0.17, +0.27]",
        "hollow points, dashed curve",
    ):
        assert part in parsed.words
    assert "this grew too" not in parsed.words
    (drawn,) = [attrs for attrs in parsed.all("svg") if attrs.get("class") == "plot"]
    assert drawn["role"] == "img"
    assert "Current: 18.12 ms at batch 2," in drawn["aria-label"]
    assert "Baseline: 18.00 ms at batch 2," in drawn["aria-label"]
    shapes = [attrs["class"] for tag, attrs in parsed.elements if tag in ("circle", "polygon", "polyline")]
    kinds = [kind for kind in shapes if not kind.startswith("dot")]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        **dict.fromkeys(("band", "band of-base", "line", "line of-base"), 1),
        **dict.fromkeys(("point", "point of-base"), 4),
    }
    assert "logarithmic" not in parsed.words
    assert "Both axes are logarithmic" in page(with_curve(runs.curve(sizes=(2.0, 4.0, 17.0)))).words


@pytest.mark.parametrize("verdict", ["unchanged", "inconclusive", None])
def test_nothing_is_said_to_have_grown_where_that_is_not_certain(verdict):
    shown = page(with_curve(runs.curve(), verdict=verdict)).words
    assert "40.00 ms" in shown
    assert "what grew" not in shown


def test_a_curve_without_baselines_is_shown_by_itself():
    parsed = page(with_curve(runs.curve(base=False)))
    assert "batch 16 40.00 ms [39.60 ms, 40.40 ms] 40.00 ms [39.60 ms, 40.40 ms]" in parsed.words
    assert "hollow" not in parsed.words
    assert "Baseline's curve" not in parsed.words
    assert not any("of-base" in attrs.get("class", "") for _, attrs in parsed.elements)


def test_a_test_without_a_curve_has_no_picture_of_one():
    parsed = page(runs.result())
    assert "plot" not in [attrs.get("class") for attrs in parsed.all("svg")]
    assert "How it grows" not in parsed.words


def test_a_hostile_axis_is_text():
    source = html.render(runs.run(with_curve(runs.curve(runs.HOSTILE, unit=runs.HOSTILE))), {})
    assert "<img" not in source
    assert "\u202e" not in source
    assert "</script><img src=x onerror=alert(1)>\"'`|\\u202e{{7*7}} @octocat 16" in Page(source).words
