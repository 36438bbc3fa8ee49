"""A table of cases on the terminal and on the page: groups first, then the slowest cases, not sorted by name."""

import math
import random
import re
from dataclasses import replace

import pytest

from pytest_perfdl.machine.rates import Peaks
from pytest_perfdl.machine.utilization import NO_RATES
from pytest_perfdl.model.record import Call, Case, CaseWork
from pytest_perfdl.report import cases, html
from pytest_perfdl.report.terminal import summary_lines
from pytest_perfdl.results.run_file import of_data, to_json
from pytest_perfdl.results.verdict import CaseVerdict, GroupVerdict
from unit.report import runs


def run_of(count):
    """A run with a table of so many cases, the first of which got slower."""
    verdicts = ["regressed", *["unchanged"] * (count - 2), "inconclusive"]
    made = tuple(
        CaseVerdict(
            f"op=add,n={count - number:04}",
            verdict,
            effect=0.3 / (number + 1),
            interval=(0.2 / (number + 1), 0.4 / (number + 1)),
            base_ns=1000.0,
            time_ns=1000.0 * (1 + 0.3 / (number + 1)),
            noise=0.01,
            rounds=3,
            counts={"ops": 1, "kernels": 0},
        )
        for number, verdict in enumerate(verdicts)
    )
    groups = (GroupVerdict({"dtype": "float16"}, 40, 0.12, (0.1, 0.14), "aten::to is new", agreeing=38),)
    one = runs.result("regressed")
    return runs.run(replace(one, judgement=replace(one.judgement, cases=made, groups=groups)))


def lines_of(run, verbosity):
    return [line.text for line in summary_lines(run, verbosity, 120)]


def test_a_terminal_lists_groups_and_the_ten_slowest_cases_with_v():
    lines = lines_of(run_of(30), 1)
    said = next(
        place for place, line in enumerate(lines) if "30 cases: 1 regressed, 1 inconclusive, 28 unchanged" in line
    )
    group = next(place for place, line in enumerate(lines) if "dtype=float16" in line)
    shown = [place for place, line in enumerate(lines) if "op=add" in line]
    assert said < group < min(shown)
    assert len(shown) == cases.SHOWN
    assert "op=add,n=0030" in lines[shown[0]]
    assert re.search(r"\+12\.0%\s+\[\+10\.0%, \+14\.0%\]\s+38\s+regressed", lines[group])
    assert re.search(r"1\.000 µs\s+1\.300 µs\s+\+30\.0%\s+\[\+20\.0%, \+40\.0%\]\s+regressed", lines[shown[0]])
    assert not [line for line in lines_of(run_of(30), 0) if "n=0029" in line]


def test_a_terminal_has_no_table_of_groups_without_groups():
    lines = lines_of(of_cases({"op=add": 0.1, "op=mul": 0.2}), 1)
    place = next(place for place, line in enumerate(lines) if "2 cases: 2 unchanged" in line)
    assert lines[place + 1].strip().startswith("baseline")


def test_a_page_has_all_cases_with_the_slowest_first():
    page = html.render(run_of(30), {}, to_json(run_of(30)))
    ids = re.findall(r'data-value="(op=add,n=\d+)"', page)
    assert ids == [f"op=add,n={number:04}" for number in range(30, 0, -1)]
    assert "aten::to is new" in page


def test_a_page_says_below_the_name_of_a_case_why_it_has_its_verdict():
    (result,) = run_of(3).results
    first, *others = result.judgement.cases
    made = (replace(first, reason="as its group"), *others)
    run = runs.run(replace(result, judgement=replace(result.judgement, cases=made)))
    page = html.render(run, {}, to_json(run))
    assert re.search(r'<code>op=add,n=0003</code>\s*<span class="why">as its group</span></th>', page)
    assert 'data-label="Reason"' not in page


@pytest.mark.long
def test_a_thousand_cases_are_a_small_page():
    """At most 3 MB: the charts' library, rows, and a map of 25 x 40 cells; its data has all cases."""
    draw = random.Random(1)

    def figure(scale):
        return float(f"{draw.uniform(1, 9) * scale:.5e}")

    def rates():
        return {name: figure(1e9) for name in cases.RATES}

    made = tuple(
        CaseVerdict(
            f"op=aten_operator_{op:02},dtype=bfloat16,tokens={64 * tokens}",
            "unchanged",
            *(figure(0.01), (figure(-0.01), figure(0.02)), figure(1e5), figure(1e5), figure(0.01), 9),
            *({"ops": 2, "kernels": 3}, {"ops": 1, "kernels": 2}, rates(), rates()),
        )
        for op in range(25)
        for tokens in range(40)
    )
    (result,) = run_of(2).results
    works = tuple(Case(case.id, (1.0,), 1, 1, 0, work=CaseWork(None, 1.0, 1.0, "float32")) for case in made)
    new = replace(result.new, calls=(Call("", {}, (), (0,), cases=works),))
    run = runs.run(replace(result, new=new, judgement=replace(result.judgement, cases=made)))
    page = html.render(run, {}, to_json(run)).encode()
    assert len(page) < 3_000_000
    (others,) = re.findall(rb'<path class="point" d="([^"]*)"', page)
    assert page.count(b'<circle class="point"') + others.count(b"M") == 1000
    assert len(re.findall(rb'<td class="number[^"]*" title=', page)) == 1000
    assert len(re.findall(rb'data-label="Baseline FLOP/s"', page)) == 300 * 10 // 19


def with_rates(run, **changes):
    """The run with rates of its cases."""
    (result,) = run.results
    made = tuple(
        replace(
            case,
            rates={"flops_per_s": 2e9, "roofline": 0.25},
            base_rates={"flops_per_s": 4e9, "roofline": 0.5},
            counts={"ops": 3, "kernels": 2},
            base_counts={"ops": 1, "kernels": 2},
            **changes,
        )
        for case in result.judgement.cases
    )
    return replace(run, results=(replace(result, judgement=replace(result.judgement, cases=made)),))


def test_rates_of_both_sides_and_what_a_call_runs_are_on_the_page():
    run = with_rates(run_of(3))
    page = html.render(run, {}, to_json(run))
    sheet = page[page.index('-case-list-table"') :]
    row = re.sub(r"\s+", " ", sheet[sheet.index("<tbody>") : sheet.index("</tr>", sheet.index("<tbody>"))])
    cells = dict(re.findall(r'data-label="([^"]*)"[^>]*>([^<]*)<', row))
    assert cells["Baseline FLOP/s"] == "4.000 Gflop/s"
    assert cells["FLOP/s"] == "2.000 Gflop/s"
    assert (cells["Baseline Roofline"], cells["Roofline"]) == ("50.0%", "25.0%")
    assert (cells["Baseline operators"], cells["Operators"], cells["Kernels"]) == ("1", "3", "2")
    assert "Baseline kernels" not in cells, "both sides launch as many"
    assert "Items/s" not in cells, "the test does not state them"


def test_a_terminal_has_the_rates_of_the_current_code():
    lines = lines_of(with_rates(run_of(3)), 1)
    (title,) = [line for line in lines if "FLOP/s" in line]
    assert "baseline FLOP/s" not in title
    assert "roofline" in title
    assert any(re.search(r"op=add,n=0003 .* 2\.000 Gflop/s +25\.0%", line) for line in lines)


@pytest.mark.parametrize(("width", "rates"), [(78, []), (80, ["FLOP/s"]), (140, ["FLOP/s", "roofline"])])
def test_rates_that_do_not_fit_beside_the_times_are_left_out(width, rates):
    lines = [line.text for line in summary_lines(with_rates(run_of(3)), 1, width)]
    title, *rest = lines[next(at for at, line in enumerate(lines) if "baseline   current" in line) :]
    assert [name for name in ("FLOP/s", "roofline") if name in title] == rates
    figures = next(line for line in rest if "+30.0%" in line)
    assert re.search(r"1\.000 µs +1\.300 µs +\+30\.0% +\[\+20\.0%, \+40\.0%\] +regressed", figures), "in one line"
    assert len(figures) <= width


@pytest.mark.parametrize("width", [80, 90, 112, 140])
def test_a_terminal_cuts_no_id_of_a_case(width):
    """What differs is in the middle of ids, too."""
    ids = [f"op=add,dtype={dtype},tokens=4096" for dtype in ("float32", "bfloat16")]
    run = with_rates(of_cases(dict.fromkeys(ids, 0.1)))
    lines = [line.text for line in summary_lines(run, 1, width)]
    assert [re.match(r" +(op=[^ ]*)", line)[1] for line in lines if line.strip().startswith("op=")] == ids


def test_why_the_roofline_is_unknown_is_said_once():
    run = with_rates(run_of(3), no_roofline=NO_RATES)
    said = "The roofline is unknown: peak rates of this machine are unknown, run perfdl constants to measure them"
    assert sum(said in line for line in lines_of(run, 1)) == 1
    assert f"{said} (3 cases)." in html.render(run, {}, to_json(run))
    assert cases.unknown_rooflines(run_of(3).results[0].judgement) == ""


def of_cases(effects, verdicts=None):
    """A run with a table of these changes by id."""
    one = runs.result("regressed")
    made = tuple(
        CaseVerdict(
            case, (verdicts or {}).get(case, "unchanged"), effect, (0.0, 0.1), 1000.0, 1000.0 * (1 + (effect or 0))
        )
        for case, effect in effects.items()
    )
    return runs.run(replace(one, judgement=replace(one.judgement, cases=made)))


def map_of(run):
    return cases.heat_map(run.results[0].judgement)


def test_a_heat_map_is_over_the_two_axes_with_the_most_values_in_their_order():
    effects = {
        f"op={op},dtype={dtype},n={n},all=1": 0.0
        for op in ("add", "mul")
        for dtype in ("float16", "bfloat16", "float32")
        for n in (8, 64, 16, 128)
    }
    found = map_of(of_cases(effects))
    assert (found.rows, found.columns) == ("n", "dtype")
    assert [value for value, _ in found.lines] == ["8", "16", "64", "128"], "as numbers"
    assert found.titles == ("bfloat16", "float16", "float32")
    shapes = map_of(
        of_cases({f"op={op},shape={shape}": 0.0 for op in "ab" for shape in ("64x8", "8x64", "128x1", "x")})
    )
    assert [value for value, _ in shapes.lines] == ["8x64", "64x8", "128x1", "x"]


def test_a_cell_of_the_heat_map_is_typical_of_its_cases_and_marked_if_one_of_them_got_slower():
    effects = {
        "op=add,n=1,m=0": 0.04,
        "op=add,n=1,m=1": 2.0,
        "op=mul,n=1,m=0": -0.06,
        "op=neg,n=2,m=0": 0.0,
        "op=add,n=3,m=0": None,
        "op=add,n=4,m=1": 0.3,
        "no axes": 0.9,
    }
    found = map_of(of_cases(effects, {"op=add,n=1,m=1": "regressed"}))
    assert (found.rows, found.columns, found.titles) == ("n", "op", ("add", "mul", "neg"))
    texts = [(value, [cell and (cell.text, cell.shade) for cell in cells]) for value, cells in found.lines]
    # By hand: the median of 4 and 200 % is 102 %. n=3 was not compared.
    assert texts == [
        ("1", [("▲ +102%", 5), ("-6.0%", -3), None]),
        ("2", [None, None, ("+0.0%", 0)]),
        ("4", [("+30.0%", 5), None, None]),
    ]


@pytest.mark.parametrize(
    "effect, shade",
    [(0.0, 0), (0.0099, 0), (0.01, 1), (0.02, 2), (0.05, 3), (0.1, 4), (0.2, 5), (9.0, 5), (-0.01, -1), (-0.3, -5)],
)
def test_shades_of_the_heat_map_have_fixed_bounds(effect, shade):
    found = map_of(of_cases({"op=a,n=1": effect, "op=a,n=2": 0.0, "op=b,n=1": 0.0}))
    assert (found.rows, found.columns) == ("n", "op")
    assert found.lines[0][1][0].shade == shade
    assert found.lines[1][1][1] is None


def test_axes_with_one_value_or_too_many_make_no_heat_map():
    many = cases.MOST_VALUES + 1
    assert map_of(of_cases({f"op=add,n={n}": 0.0 for n in range(5)})) is None
    assert map_of(of_cases({f"op={n % 2},n={n}": 0.0 for n in range(many)})) is None
    whole = map_of(of_cases({f"op={n % 2},n={n}": 0.0 for n in range(many - 1)}))
    assert (len(whole.lines), whole.titles) == (cases.MOST_VALUES, ("0", "1"))
    assert map_of(of_cases({"first": 0.1, "second": 0.2})) is None


def test_the_heat_map_says_in_numbers_what_it_shows_in_colors():
    effects = {
        "op=a,n=1,k=1": 0.5,
        "op=a,n=1,k=2": 0.01,
        "op=b,n=1,k=1": -0.12,
        "op=b,n=2,k=1": 0.0,
        "op=c,n=3,k=1": 0.0,
    }
    run = of_cases(effects, {"op=a,n=1,k=1": "regressed"})
    page = html.render(run, {}, to_json(run))
    section = page[page.index("-case-heat") :].partition("</section>")[0]
    cells = re.findall(r'<td class="number ?(\S*)" title="([^"]*)">([^<]*)</td>', section)
    # By hand: the median of 50 and 1 % is 25.5 %.
    assert cells == [
        ("slower-5", "2 cases, largest change +50.0%, 1 regressed", "▲ +25.5%"),
        ("faster-4", "1.000 µs -&gt; 880 ns", "-12.0%"),
        ("", "1.000 -&gt; 1.000 µs", "+0.0%"),
        ("", "1.000 -&gt; 1.000 µs", "+0.0%"),
    ]
    assert re.findall(r'<th scope="row">([^<]*)</th>', section) == ["1", "2", "3"]
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', section) == ["n / op", "a", "b", "c"]
    assert "<caption" in section
    assert "▲ marks cells with a regressed case" in section


PEAKS = Peaks({"float32": 1e12, "float64": 1.0}, 1e11, bandwidths=((2**10, 4e11), (2**30, 1e11)))


def of_work(sides, *, cold=False):
    """A run with cases of this work, and the times of a call before and now: FLOPs, bytes, baseline, current."""
    one = runs.result("regressed")
    works = [CaseWork(None, flops, moved, "float32", cold) for flops, moved, *_ in sides]
    ids = [f"n={number}" for number in range(len(sides))]

    def rates(work, ns):
        return {} if ns is None else {"flops_per_s": work.flops / ns * 1e9, "bytes_per_s": work.bytes / ns * 1e9}

    judged = tuple(
        CaseVerdict(case, "unchanged", base_rates=rates(work, base), rates=rates(work, now) | {"roofline": 0.25})
        for case, work, (*_, base, now) in zip(ids, works, sides, strict=True)
    )
    recorded = tuple(Case(case, (1.0,), 1, 1, 0, work=work) for case, work in zip(ids, works, strict=True))
    new = replace(one.new, calls=(Call("", {}, (), (0,), cases=recorded),))
    return replace(one, new=new, judgement=replace(one.judgement, cases=judged))


def roofs_of(result, peaks=PEAKS):
    return cases.roofline(result, {result.new.key.slug: peaks} if peaks else {})


def lines_in(picture):
    """The roofs as places, by class."""
    found = re.findall(r'<polyline class="([^"]*)" points="([^"]*)"', picture)
    return [(kind, [tuple(map(float, place.split(","))) for place in points.split()]) for kind, points in found]


def test_the_roofline_has_both_sides_of_a_case_above_each_other():
    picture = roofs_of(of_work([(4000, 1000, 500, 2000), (1000, 1000, None, 1000)]), None)
    # By hand: 4000 FLOPs in 500 ns are 8 Gflop/s.
    changed = "n=0: 8.000 Gflop/s → 2.000 Gflop/s, 25.0% of its roofline"
    assert re.findall(r"<title>([^<]*)</title>", picture) == ["n=1: 1.000 Gflop/s, 25.0% of its roofline", changed]
    points = re.findall(r'<circle class="point" cx="([^"]*)" cy="([^"]*)"', picture)
    (other_x, other_y), (x, y) = [tuple(map(float, point)) for point in points]
    (way,) = re.findall(r'<path class="whisker of-base" d="([^"]*)"', picture)
    left, top, end = map(float, re.fullmatch(r"M(.*),(.*)h8m-4,0V(.*)", way).groups())
    assert (left + 4, end) == (pytest.approx(x), y)
    # From 8 Gflop/s to 2 it is twice as far down as from 2 to 1, and 4 FLOPs a byte are right of 1.
    assert end - top == pytest.approx(2 * (other_y - y), abs=0.3)
    assert other_x < x
    assert "2 cases" in picture
    assert not lines_in(picture), "the rates of the machine are unknown"


def test_roofs_are_those_of_the_element_types_and_bandwidths():
    picture = roofs_of(of_work([(1000, 1000, 1000, 1000)]))
    (memory, slope), (cache, steeper), (level, ceiling) = lines_in(picture)
    assert (memory, cache, level) == ("roof memory", "roof cache", "roof")
    assert {y for _, y in ceiling} == {slope[1][1]} == {steeper[1][1]}, "slopes end at the ceiling"
    # By hand: 1 Tflop/s over 400 GB/s is 2.5 FLOPs a byte, over 100 GB/s it is 10; the axis goes from 0.5 to 20.
    width = math.log(20 / 0.5)
    left, right = 96, 720 - 24
    assert steeper[1][0] == ceiling[0][0] == pytest.approx(left + (right - left) * math.log(2.5 / 0.5) / width, abs=0.1)
    assert slope[1][0] == pytest.approx(left + (right - left) * math.log(10 / 0.5) / width, abs=0.1)
    assert re.findall(r'text-anchor="end">(memory|cache|float\d+)<', picture) == ["memory", "cache", "float32"]
    cold = roofs_of(of_work([(1000, 1000, 1000, 1000)], cold=True))
    assert [kind for kind, _ in lines_in(cold)] == ["roof memory", "roof"], "caches are empty"


def test_cases_without_flops_or_bytes_have_no_roofline():
    assert roofs_of(of_work([(0, 1000, 1000, 1000)])) is None
    assert cases.roofline(run_of(3).results[0], {}) is None
    assert "0 cases" not in roofs_of(of_work([(0, 1000, 1000, 1000), (1000, 1000, 1000, 1000)]))


@pytest.mark.parametrize("verdict, kind", [("regressed", "slower"), ("improved", "faster"), ("suspect", "")])
@pytest.mark.parametrize("count", [1, 101])
def test_points_have_the_color_of_their_verdict(verdict, kind, count):
    made = of_work([(4000, 1000, 500, 2000)] * count)
    *others, last = made.judgement.cases
    judged = (*others, replace(last, verdict=verdict))
    picture = roofs_of(replace(made, judgement=replace(made.judgement, cases=judged)))
    element = "circle" if count == 1 else "path"
    assert re.findall(rf'<{element} class="(point[^"]*)"', picture) == [f"point {kind}".strip()]


def test_a_page_has_the_roofline_before_the_cases():
    run = runs.run(of_work([(4000, 1000, 500, 2000)]), peaks={runs.KEY.slug: PEAKS})
    page = html.render(run, {}, to_json(run))
    assert page.index('class="plot roofline"') < page.index('-case-list-table"')
    assert 'class="plot roofline"' not in html.render(run_of(3), {}, to_json(run_of(3)))


def test_cases_of_alternatives_say_which_they_are():
    (result,) = run_of(3).results
    made = tuple(replace(case, alternatives="eager -> fused") for case in result.judgement.cases)
    run = runs.run(replace(result, judgement=replace(result.judgement, cases=made)))
    assert sum("eager -> fused" in line for line in lines_of(run, 1)) == 3
    assert html.render(run, {}, to_json(run)).count('data-label="Alternatives">eager') == 3
    assert not any("alternatives" in line for line in lines_of(run_of(3), 1))


def test_run_files_hold_cases_and_groups(tmp_path):
    run = with_rates(run_of(3), no_roofline=NO_RATES)
    (read,) = of_data(to_json(run), tmp_path / "run.json").results
    (written,) = run.results
    assert read.judgement.cases == written.judgement.cases
    assert read.judgement.groups == written.judgement.groups
