"""Reads the numbers of a report from each surface that people meet, and names those that contradict each other.

The surfaces are run.json, the page (its tables, its prose and the data that its charts are made from), summary.md, what
the terminal printed, and the traces of both sides. Nothing of the report's own code is used: what is printed is parsed
by its labels and units, and held against run.json up to the printed digits; run.json is held against itself. Where a
number stands does not matter, so that a surface can be laid out anew.

    PYTHONPATH=tests python -m unit.report.consistency FOLDER      # of a report, with terminal.txt in it
"""

from __future__ import annotations

import gzip
import html
import itertools
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unit.report.printed import NUMBER, UNIT, Number, Page, Row, Token, markdown, number, terminal, tokens

Json = dict[str, Any]

_STOP = re.compile(
    r"\b(?:limit|budget|excludes|recorded|stored|environment|predicted|detectable|detects|noise|profiled)\b", re.I
)
"""After these words numbers are of something else than the metric that was named before them."""
_RECORDED = re.compile(r"\b(?:recorded|stored|environment|history)\b", re.I)
_EFFECTS = re.compile(
    r"\b(?:longer|shorter|slower|faster|more|less|fewer|another|different)\b[^,;:]{0,30}?"
    rf"[+\-−]{NUMBER}\s?(?:ns|µs|us|ms|s)\b"
)
"""Why a cause's time changed: parts of its difference, each with words of its own."""
_AMOUNT = re.compile(
    rf"(?P<own>[+\-−]?{NUMBER})(?:\s?(?P<own_unit>ns|µs|ms|s))?"
    rf"(?: of (?P<whole>[+\-−]{NUMBER})\s?(?P<unit>ns|µs|ms|s)(?: in the profiled step)?| in the profiled step)"
    rf"(?:,?\s\(?(?P<share>[+\-−]?{NUMBER})\s?%)?"
)
"""How much of the change a group of causes is, "+12.10 of +12.80 ms in the profiled step, 95%"; or "+0.5 ms in the
profiled step", where shares are not known."""
_PART = re.compile(rf"(?:(?P<share>[+\-−]?{NUMBER})\s?%|all) of the change in the profiled step")
"""The same where the profiled step changed by another amount than the timed one."""
_FRAME = re.compile(r"(?P<path>.+)\((?P<line>\d+)\): (?P<function>.+)")
WINDOW = 240
"""Characters after a name in which numbers are of it."""
GAP = 40
"""Most characters between a metric's name and its first number, and between its numbers."""
_KINDS = {"cpu_op": "operator", "kernel": "kernel", "gpu_memcpy": "kernel", "gpu_memset": "kernel", "idle": "idle"}
TELLING = ("regressed", "suspect", "improved", "changed", "inconclusive")


@dataclass
class Surface:
    """What one surface shows of one test: prose, and rows of tables."""

    name: str
    text: str = ""
    rows: list[Row] = field(default_factory=list)


class Checker:
    """Collects contradictions, and which numbers were met where."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.seen: set[tuple[str, str, str, str]] = set()
        """(surface, test, metric or cause, what of it)."""

    def compare(self, where: str, what: str, shown: Number, expected: float | None, factor: float = 1.0) -> bool:
        """Note a contradiction where a printed number is not run.json's; whether it is."""
        if expected is not None and shown.fits(expected * factor):
            return True
        unit = f" {shown.unit}" if shown.unit else ""
        stated = "nothing" if expected is None else f"{expected * factor:.6g}{unit}"
        self.wrong.append(f"{where}: {what} is {shown.text}, run.json: {what} is {stated}")
        return False

    def same(self, left: str, first: Any, right: str, second: Any) -> bool:
        """Note a contradiction where two numbers that should be equal are not; whether they are."""
        if first != second:
            self.wrong.append(f"{left} is {first}, {right} is {second}")
        return bool(first == second)


def contradictions(folder: Path) -> list[str]:
    """What does not fit together in a report's folder, a line each; both places and both numbers are named."""
    return list(dict.fromkeys(_checked(folder).wrong))


def absences(folder: Path) -> list[str]:
    """The required numbers that a surface lacks, a line each.

    Every metric has both sides, effect and interval on the page. The first metric that has something to say, and the
    first cause, are in the summary and the terminal, too, and the traces have slices with the numbers of causes.
    """
    run = json.loads((folder / "run.json").read_text())
    seen = _checked(folder).seen
    lacking = []
    for test in run["tests"]:
        telling = [name for name, metric in test["metrics"].items() if metric["verdict"] in TELLING[:4]]
        first = min(telling, key=lambda name: (not name.endswith("step_time"), telling.index(name)), default=None)
        for surface in ("index.html", "summary.md", "terminal.txt"):
            for name, metric in test["metrics"].items():
                if surface == "index.html" or name == first:
                    wanted = [("baseline", metric["base"]), ("current", metric["new"])]
                    wanted += [("effect", metric["effect"]), ("interval", metric["ci95"])]
                    lacking += [
                        f"{surface}: {name} of {test['id']} has no {what} ({value})"
                        for what, value in wanted
                        if value is not None and (surface, test["id"], name, what) not in seen
                    ]
            for cause in _times(test)[:1]:
                if not any((surface, test["id"], cause["name"], what) in seen for what in ("times", "group")):
                    lacking.append(f"{surface}: the cause {cause['name']} of {test['id']} has no time")
        drawn = any("diff" in each for each in test["traces"])
        operators = [cause["name"] for cause in _times(test) if cause["kind"] in ("operator", "kernel")]
        if drawn and operators and not any(("traces", test["id"], name, "times") in seen for name in operators):
            lacking.append(f"traces: no slice of {test['id']} has the numbers of a cause, of {', '.join(operators)}")
    return lacking


def _checked(folder: Path) -> Checker:
    run = json.loads((folder / "run.json").read_text())
    checker = Checker()
    for test in run["tests"]:
        _check_run_file(checker, test)
    source = (folder / "index.html").read_text()
    page = Page(source)
    _check_page_data(checker, page, run)
    _check_pictures(checker, source, run)
    surfaces = [("index.html", *page.shown())]
    surfaces.append(("summary.md", *markdown((folder / "summary.md").read_text())))
    for path in sorted(folder.glob("terminal*.txt")):
        surfaces.append((path.name, *terminal(path.read_text(), run)))
    for name, text, rows in surfaces:
        _check_counts(checker, name, text, run)
        for test, surface in _by_test(name, text, rows, run):
            _check_metrics(checker, surface, test)
            _check_causes(checker, surface, test)
            _check_groups(checker, surface, test)
            _check_sums(checker, surface, test)
            _check_peak(checker, surface, test)
            _check_passed(checker, surface, test)
            _check_recorded(checker, surface, test)
    for test in run["tests"]:
        _check_traces(checker, folder, test)
    if (folder / "diff.txt").is_file():
        _check_diff(checker, (folder / "diff.txt").read_text(), run)
    return checker


# run.json against itself


def _check_run_file(checker: Checker, test: Json) -> None:
    of = f"of {test['id']}"
    for name, metric in test["metrics"].items():
        if metric["evidence"] == "paired" and metric["of_step"] and metric["base_values"]:
            _check_rounds(checker, f"run.json: {name} {of}", metric)
        if metric["evidence"] == "paired" and metric["ci95"]:
            _check_interval(checker, f"run.json: {name} {of}", metric)
    steps = {each["call"]: each for each in test["breakdowns"]}
    _check_work(checker, f"run.json: {of}", test)
    _check_memory(checker, f"run.json: {of}", test)
    for call, step in steps.items():
        _check_breakdown(checker, f"run.json: the breakdown of {call or 'the step'} {of}", step)
    for cause in _times(test):
        where = f"run.json: the cause {cause['name']} {of}"
        checker.same(f"{where}: delta_ns", cause["delta_ns"], "new_ns - base_ns", cause["new_ns"] - cause["base_ns"])
        if cause["call"] not in steps:
            continue
        step = steps[cause["call"]]
        rows = [row for row in step["rows"] if (row["kind"], row["name"]) == (cause["kind"], cause["name"])]
        mine, theirs = _sides(cause), [_sides(row) for row in rows]
        if mine not in theirs:
            checker.wrong.append(f"{where}: it is {_shown_sides(mine)}, its breakdown: {_all_sides(theirs)}")
        whole = step["new_ns"] - step["base_ns"]
        if cause["share"] is not None and not math.isclose(cause["share"] * whole, cause["delta_ns"], abs_tol=2):
            checker.wrong.append(
                f"{where}: its share is {cause['share']:.4f}, its {cause['delta_ns']} ns of the breakdown's {whole} ns "
                f"are {cause['delta_ns'] / whole if whole else math.nan:.4f}"
            )


def _check_rounds(checker: Checker, where: str, metric: Json) -> None:
    base, new, effect = metric["base_values"], metric["new_values"], metric["effect"]
    if len(base) != len(new) or len(base) != metric["rounds"]:
        checker.wrong.append(f"{where}: {metric['rounds']} rounds, and {len(base)} and {len(new)} values of them")
        return
    # The baseline's side is what the current one was before the estimated change, which discounts disturbed rounds.
    middle = statistics.median(new)
    for side, value, what in (
        ("base", middle / (1 + effect), "the current value without its effect"),
        ("new", middle, "the median of its new_values"),
    ):
        if not math.isclose(metric[side], value, rel_tol=1e-6, abs_tol=1):
            checker.wrong.append(f"{where}: {side} is {metric[side]}, {what} is {value:.6g}")
    ratios = [after / before - 1 for before, after in zip(base, new, strict=True)]
    if not min(ratios) - 1e-6 <= effect <= max(ratios) + 1e-6:
        checker.wrong.append(
            f"{where}: effect is {effect:+.4f}, the rounds' ratios are from {min(ratios):+.4f} to {max(ratios):+.4f}"
        )


def _check_interval(checker: Checker, where: str, metric: Json) -> None:
    """A change lies in its interval, and so does that which a reader works out from both sides."""
    low, high = metric["ci95"]
    for what, value in (("effect", metric["effect"]), ("new / base - 1", metric["new"] / metric["base"] - 1)):
        if not low - 1e-6 <= value <= high + 1e-6:
            checker.wrong.append(f"{where}: {what} is {value:+.4f}, outside of its interval [{low:+.4f}, {high:+.4f}]")


def _check_work(checker: Checker, where: str, test: Json) -> None:
    """Whether a slower step does more arithmetic is said as the count of its FLOPs says it."""
    for work in test["work"]:
        metric = test["metrics"].get(f"{work['call']}.flops".lstrip("."))
        if metric is None or not metric["base"] or metric["new"] is None:
            continue
        mine = work["base_step"]["flops"], work["new_step"]["flops"]
        counted = f"the metric flops is {metric['base']:.6g} -> {metric['new']:.6g}"
        if work["kind"] == "more work":
            if any(abs(one - two) > 1e-3 * two for one, two in zip(mine, (metric["base"], metric["new"]), strict=True)):
                checker.wrong.append(f"{where}: 'more work' is {mine[0]:.6g} -> {mine[1]:.6g} flop, {counted}")
        elif abs(metric["new"] / metric["base"] - 1) > 1e-3:
            checker.wrong.append(f"{where}: '{work['kind']}' is the same arithmetic, {counted}")


def _check_breakdown(checker: Checker, where: str, step: Json) -> None:
    for side in ("base", "new"):
        whole, rows = step[f"{side}_ns"], [row[f"{side}_ns"] or 0 for row in step["rows"]]
        if abs(sum(rows) - whole) > len(rows):
            checker.wrong.append(f"{where}: {side}_ns is {whole}, its rows add up to {sum(rows)}")
        for part in (step, *step["rows"]):
            rounds, mean = part[f"{side}_rounds"], part[f"{side}_ns"] or 0
            if rounds and not min(rounds) - 1 <= mean <= max(rounds) + 1:
                name = part.get("name", "the step")
                checker.wrong.append(
                    f"{where}: {side}_ns of {name} is {mean}, its rounds are from {min(rounds)} to {max(rounds)}"
                )


def _times(test: Json) -> list[Json]:
    """The causes of a test's time."""
    return [cause for cause in test["blame"] if "base_ns" in cause]


# The page's data


def _check_page_data(checker: Checker, page: Page, run: Json) -> None:
    embedded = page.json("perfdl-run")
    for path, first, second in _differences(embedded, run):
        checker.wrong.append(f"index.html #perfdl-run: {path} is {first}, run.json: it is {second}")
    names = page.json("perfdl-names")
    tests = {test["id"]: test for test in run["tests"]}
    for script, test_id in page.details(list(tests)):
        data, test = page.json(script), tests[test_id]
        where = f"index.html #{script} of {test_id}"
        _check_page_rows(checker, where, data, test, names)
        for account in data["accounts"]:
            _check_waterfall(checker, where, account, test)


def _differences(part: Any, whole: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where what the page has of the run file is not as it is there."""
    if isinstance(part, dict) and isinstance(whole, dict):
        for name, value in part.items():
            yield from _differences(value, whole.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        for place, (first, second) in enumerate(zip(part, whole, strict=True)):
            label = first.get("id") or first.get("name") or place if isinstance(first, dict) else place
            yield from _differences(first, second, f"{path}[{label}]")
    elif part != whole:
        yield path, part, whole


def _check_page_rows(checker: Checker, where: str, data: Json, test: Json, names: Sequence[str]) -> None:
    rows: dict[tuple[str, str, str], list[Sides]] = defaultdict(list)
    for call, kind, name, *sides in data["rows"]:
        rows[names[call], names[kind], names[name]].append(tuple(value or 0 for value in sides[:4]))
    wanted = [(each["call"], row, "its breakdown") for each in test["breakdowns"] for row in each["rows"]]
    wanted += [(cause["call"], cause, "the cause") for cause in _times(test) if test["breakdowns"]]
    for call, row, of in wanted:
        shown = rows[call, row["kind"], row["name"]]
        if _sides(row) not in shown:
            checker.wrong.append(
                f"{where}, operator table: {row['name']} is {_all_sides(shown)}, "
                f"run.json: {of} is {_shown_sides(_sides(row))}"
            )


Sides = tuple[float, ...]


def _sides(row: Json) -> Sides:
    """Counts and times of both sides; what is not there is 0."""
    return tuple(row[key] or 0 for key in ("base_count", "new_count", "base_ns", "new_ns"))


def _shown_sides(sides: Sides) -> str:
    return "{:g} -> {:g}/step, {} -> {} ns".format(*sides)


def _all_sides(rows: Sequence[Sides]) -> str:
    return " and ".join(map(_shown_sides, rows)) or "absent"


_PICTURE = re.compile(
    r'<svg class="evidence" role="img" aria-label="(.*?), change from baseline(.*?)".*?</svg>', re.DOTALL
)
_ROUND = re.compile(r"<title>round \d+: (.*?)</title>")


def _check_pictures(checker: Checker, source: str, run: Json) -> None:
    """The paired rounds that the page draws are those of the run file, and so is their interval."""
    tests = {test["id"]: test for test in run["tests"]}
    for card in source.split('<details class="test"')[1:]:
        named = re.search(r'<span class="id">(.*?)</span>', card)
        test = tests.get(html.unescape(named[1])) if named else None
        for picture in _PICTURE.finditer(card) if test else ():
            metric = test["metrics"].get(html.unescape(picture[1]))
            if metric is None:
                continue
            where = f"index.html, picture of {picture[1]} of {test['id']}"
            rounds = [list(tokens(said)) for said in _ROUND.findall(picture[0])]
            # Sides of unequal length are a contradiction of the run file, which is found there.
            pairs = zip(metric["base_values"], metric["new_values"], strict=False)
            wanted = [(base, new) for base, new in pairs if base]
            if rounds and checker.same(f"{where}: rounds", len(rounds), "run.json", len(wanted)):
                for (sides, change), values in zip(rounds, wanted, strict=True):
                    for shown, value in zip(sides.numbers, values, strict=True):
                        checker.compare(where, "a round", shown, value)
                    checker.compare(where, "a round's change", change.numbers[0], values[1] / values[0] - 1, 100)
            if metric["ci95"]:
                (interval,) = (
                    token for token in tokens(picture[2].partition("interval")[2]) if token.kind == "interval"
                )
                for shown, value in zip(interval.numbers, metric["ci95"], strict=True):
                    checker.compare(where, "the interval", shown, value, 100)


def _check_waterfall(checker: Checker, where: str, account: Json, test: Json) -> None:
    call = account["call"]
    where = f"{where}, waterfall{f' of {call}' if call else ''}"
    total, ends = sum(ns for _, ns in account["bars"]), account["new_ns"] - account["base_ns"]
    checker.same(f"{where}: the sum of its bars", total, "the difference of its ends", ends)
    if account["timed"]:
        prefix = f"{call}." if call else ""
        metrics = [test["metrics"].get(f"{prefix}{name}") for name in ("block_time", "step_time")]
        known = [(metric["base"], metric["new"]) for metric in metrics if metric and metric["base"] and metric["new"]]
        if (account["base_ns"], account["new_ns"]) not in known:
            drawn = f"{account['base_ns']} -> {account['new_ns']}"
            checker.wrong.append(f"{where}: its ends are {drawn}, run.json: {known}")
    else:
        for step in test["breakdowns"]:
            if step["call"] == call:
                for side in ("base_ns", "new_ns"):
                    checker.same(f"{where}: {side}", account[side], f"run.json: {side} of the breakdown", step[side])
    for step in test["breakdowns"]:
        if step["call"] != call:
            continue
        rows: dict[str, list[int]] = defaultdict(list)
        for row in step["rows"]:
            rows[row["name"]].append((row["new_ns"] or 0) - (row["base_ns"] or 0))
        for name, ns in account["bars"]:
            if name in rows and ns not in rows[name]:
                checker.wrong.append(f"{where}: the bar {name} is {ns}, run.json: its row changed by {rows[name]}")


# Metrics in tables and prose


def _check_metrics(checker: Checker, surface: Surface, test: Json) -> None:
    metrics = test["metrics"]
    for row in surface.rows:
        name = _subject(row.cells[0], metrics) or next((cell for cell in row.cells if cell in metrics), None)
        if name is not None and row.cell(r"baseline|recorded") is not None:
            _check_metric_row(checker, surface, test, name, row)
        else:
            _check_metric_prose(checker, surface.name, " | ".join(row.cells), test)
    _check_metric_prose(checker, surface.name, surface.text, test)


def _subject(cell: str, names: Sequence[str] | Json) -> str | None:
    """The name that a row is of: what its first cell begins with."""
    for name in sorted(names, key=len, reverse=True):
        if cell == name or cell.startswith(f"{name} "):
            return name
    return None


def _check_metric_row(checker: Checker, surface: Surface, test: Json, name: str, row: Row) -> None:
    metric, where = test["metrics"][name], f"{surface.name}, table, {name} of {test['id']}"
    columns: tuple[tuple[str, str, str], ...] = (
        ("baseline", r"^baseline", "base"),
        ("current", r"^(?:current|this run)", "new"),
        ("effect", r"^(?:change|effect)", "effect"),
        ("interval", r"interval", "ci95"),
    )
    for what, heading, key in columns:
        cell = row.cell(heading)
        if not cell:
            continue
        own, recorded, rest = _before_recorded(cell)
        found = next(tokens(own), None)
        right = own.strip() == "=" and metric["effect"] == 0
        if found is not None:
            right = _check_number(checker, where, what, found, metric[key], metric["unit"])
        if right:
            checker.seen.add((surface.name, test["id"], name, what))
        for token in tokens(rest) if recorded else ():
            checker.compare(where, "the recorded value", token.numbers[0], metric["stored"])


def _before_recorded(cell: str) -> tuple[str, bool, str]:
    match = _RECORDED.search(cell)
    return (cell, False, "") if match is None else (cell[: match.start()], True, cell[match.end() :])


def _check_number(checker: Checker, where: str, what: str, token: Token, expected: Any, unit: str) -> bool:
    if what == "interval":
        if token.kind != "interval":
            return False
        ends = expected or (None, None)
        return all(
            checker.compare(where, f"the {side} end of its interval", shown, end, 100)
            for side, shown, end in zip(("lower", "upper"), token.numbers, ends, strict=True)
        )
    factor = 100 if what == "effect" else 1
    if what != "effect" and token.unit != _shown_unit(unit):
        return False
    return checker.compare(where, what, token.numbers[0], expected, factor)


def _shown_unit(unit: str) -> str:
    return "" if unit in ("1", "") else unit


def _check_metric_prose(checker: Checker, surface: str, text: str, test: Json) -> None:
    """Numbers behind the name of a metric: a pair of sides, a change in percent, an interval, a difference."""
    metrics = test["metrics"]
    others = [cause["name"] for cause in _times(test)]
    for name, rest in _mentions(_restored(text, others), metrics, others):
        metric, where = metrics[name], f"{surface}, {name} of {test['id']}"
        unit = _shown_unit(metric["unit"])
        met: set[str] = set()

        def once(what: str, fits: Callable[[], bool], met: set[str] = met, name: str = name) -> None:
            if what not in met:
                met.add(what)
                if fits():
                    checker.seen.add((surface, test["id"], name, what))

        def shown(
            what: str, found: Number, key: str, factor: float = 1.0, where: str = where, metric: Json = metric
        ) -> Callable[[], bool]:
            return lambda: checker.compare(where, what, found, metric[key], factor)

        for token in _near(rest):
            first = token.numbers[0]
            if token.kind == "pair" and token.unit == unit:
                once("baseline", shown("baseline", first, "base"))
                once("current", shown("current", token.numbers[1], "new"))
            elif token.kind == "interval":
                once(
                    "interval",
                    lambda t=token, w=where, m=metric: _check_number(checker, w, "interval", t, m["ci95"], ""),
                )
            elif token.kind == "one" and token.unit == "%" and first.signed:
                once("effect", shown("effect", first, "effect", 100))
            elif token.kind == "one" and first.signed and token.unit == unit and {"baseline"} & met:
                delta = metric["new"] - metric["base"]
                once("difference", lambda f=first, w=where, d=delta: checker.compare(w, "the difference", f, d))


def _near(text: str) -> Iterator[Token]:
    """The numbers that follow closely on each other and on the start of a text: one pair, and one interval at most."""
    end = 0
    met = set()
    for token in tokens(text):
        if token.place - end > GAP or token.kind in met - {"one"}:
            return
        end = token.end
        met.add(token.kind)
        yield token


def _mentions(text: str, names: Sequence[str] | Json, others: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each name in a text with the text that tells of it: up to the next name, a word that stops it, or a new line."""
    known = {name: name in names for name in (*others, *names)}
    for _, name, rest in _windows(text, known):
        if known[name]:
            yield name, rest


def _windows(text: str, names: Sequence[str] | Json) -> Iterator[tuple[int, str, str]]:
    if not names:
        return
    either = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    found = list(re.finditer(rf"(?<![\w.:])(?:{either})(?!\w|\.\w|::)", text))
    for match, following in itertools.zip_longest(found, found[1:]):
        end = min(match.end() + WINDOW, following.start() if following else len(text))
        rest = text[match.end() : end]
        for stop in filter(None, (_STOP.search(rest), _AMOUNT.search(rest))):
            rest = rest[: stop.start()]
        # What the environment did to the baseline's own code is said of the same metrics, behind that word.
        if not re.search(r"environment[^.;]{0,80}$", text[max(0, match.start() - 100) : match.start()], re.I):
            yield match.start(), match[0], rest


# Causes in tables and prose


def _check_causes(checker: Checker, surface: Surface, test: Json) -> None:
    causes = _times(test)
    if not causes:
        return
    by_name: dict[str, list[Json]] = defaultdict(list)
    for cause in causes:
        by_name[cause["name"]].append(cause)
    for row in surface.rows:
        title = row.cells[0]
        named = _named(title, by_name, causes)
        if _subject(title, test["metrics"]) is not None:
            continue
        if named is not None and any(re.search(r"share|time|difference|baseline", each, re.I) for each in row.headings):
            _check_cause(checker, surface.name, test, by_name[named], " | ".join(row.cells[1:]), row)
    text = _restored(surface.text, by_name)
    for _, name, rest in _windows(text, {**by_name, **dict.fromkeys(test["metrics"])}):
        if name in by_name:
            _check_cause(checker, surface.name, test, by_name[name], rest, None)
    for name, own in by_name.items():
        plain = re.escape(_plain(name))
        pattern = rf"(?<![\w:]){plain} \((?P<base>{NUMBER}) (?:->|→) (?P<new>{NUMBER}) ?(?:/step|a step)\)"
        for match in re.finditer(pattern, surface.text):
            sides = (number(match["base"], None), number(match["new"], None))
            _any(checker, surface.name, test, own, [("count", sides, ("base_count", "new_count"), 1.0)])


def _plain(name: str) -> str:
    return name.removeprefix("aten::").lstrip("_").replace("_for_cpu", "")


def _named(title: str, names: Sequence[str] | Json, causes: Sequence[Json]) -> str | None:
    """The cause that a row is of: its title begins with the name, behind a sign or the call.

    A function of Python is shown as "forward (model.py:42)", and is "model.py(42): forward" in run.json.
    """
    shown = re.sub(r"(\S+) \(([^()\s]+):(\d+)\)", r"\2(\3): \1", title)
    text = _restored(shown if any(name in shown for name in names) else title, names)
    for start, name, _ in _windows(text, names):
        before = text[:start].strip(" +-−").removesuffix(":")
        return name if before in {"", *(cause["call"] for cause in causes)} else None
    return None


def _restored(text: str, names: Sequence[str] | Json) -> str:
    """The text with shortened names written out, "aten::nat...backward"."""

    def whole(match: re.Match[str]) -> str:
        start, end = match["start"], match["end"]
        fitting = [name for name in names if name.startswith(start) and name.endswith(end) and len(start) > 3]
        return fitting[0] if len(fitting) == 1 else match[0]

    return re.sub(r"(?P<start>[\w:<>]+)(?:\.\.\.|…)(?P<end>[\w:<>]*)", whole, text)


def _check_cause(
    checker: Checker, surface: str, test: Json, causes: Sequence[Json], text: str, row: Row | None
) -> None:
    """Numbers of a cause: counts and times of both sides, their difference in time and in percent, its share."""
    text = _EFFECTS.sub(" ", text)
    found: list[tuple[str, tuple[Number, ...], tuple[str, ...], float]] = []
    met: set[str] = set()

    def add(what: str, numbers: tuple[Number, ...], keys: tuple[str, ...], factor: float = 1.0) -> None:
        if what not in met:
            met.add(what)
            found.append((what, numbers, keys, factor))

    sides = {"base_ns": row and row.cell(r"^baseline"), "new_ns": row and row.cell(r"^(?:current|this run)")}
    for key, cell in sides.items():
        token = next(tokens(cell or ""), None)
        if token is not None and token.unit == "ns":
            add(f"time ({key})", token.numbers[:1], (key,))
    end = 0
    for token in tokens(text):
        if row is None and token.place - end > GAP:
            break
        end = token.end
        first = token.numbers[0]
        if token.kind == "pair" and token.unit == "ns":
            add("time", token.numbers, ("base_ns", "new_ns"))
        elif token.kind == "pair" and not token.unit:
            add("count", token.numbers, ("base_count", "new_count"))
        elif token.kind == "one" and token.per_step and not token.unit:
            add("count", (first, first), ("base_count", "new_count"))
        elif token.kind == "one" and token.unit == "ns" and first.signed:
            add("difference", (first,), ("delta_ns",))
        elif token.kind == "one" and token.unit == "ns" and not any(sides.values()):
            add("time", (first,), ("only_ns",))
        elif token.kind == "one" and token.unit == "%" and row is None:
            # What came or went has no change in percent.
            exchanged = re.search(r"\b(?:new|gone)\b", text[: token.place])
            if exchanged or "change" in met or re.match(r"\W{0,3}of the change", text[token.end :]):
                add("share", (first,), ("share",), 100)
            elif first.signed:
                add("change", (first,), ("ratio",), 100)
    if row is not None:
        for what, heading, key in (("change", r"^change$", "ratio"), ("share", r"^share", "share")):
            token = next(tokens(row.cell(heading) or ""), None)
            if token is not None and token.unit == "%":
                met.discard(what)
                found[:] = [each for each in found if each[0] != what]
                add(what, token.numbers, (key,), 100)
    if found:
        _any(checker, surface, test, causes, found)


def _any(
    checker: Checker,
    surface: str,
    test: Json,
    causes: Sequence[Json],
    found: Sequence[tuple[str, tuple[Number, ...], tuple[str, ...], float]],
) -> None:
    """Note what contradicts the cause, of several of one name the one with the fewest contradictions."""
    tried = []
    for cause in causes:
        trial = Checker()
        where = f"{surface}, cause {cause['name']} of {test['id']}"
        for what, numbers, keys, factor in found:
            expected = [_of_cause(cause, key) for key in keys]
            right = [
                trial.compare(where, what, shown, value, factor) for shown, value in zip(numbers, expected, strict=True)
            ]
            if all(right):
                trial.seen.add((surface, test["id"], cause["name"], what.replace("time", "times").partition(" ")[0]))
        tried.append(trial)
    best = min(tried, key=lambda trial: len(trial.wrong))
    checker.wrong += best.wrong
    checker.seen |= best.seen


def _of_cause(cause: Json, key: str) -> float | None:
    if key == "ratio":
        return cause["delta_ns"] / cause["base_ns"] if cause["base_ns"] else None
    if key == "only_ns":
        # Of what came or went there is one side; of the rest either side may be said alone.
        return cause["new_ns"] if not cause["base_ns"] or cause["new_ns"] else cause["base_ns"]
    value: float | None = cause[key]
    return value


def _check_groups(checker: Checker, surface: Surface, test: Json) -> None:
    """Amounts of groups of causes, "+12.10 of +12.80 ms in the profiled step, 95%"."""
    steps = {each["call"]: each["new_ns"] - each["base_ns"] for each in test["breakdowns"]}
    if not steps:
        return
    for row in surface.rows:
        for token in tokens(row.cell(r"^change per step") or ""):
            totals = sorted({total for call in steps for total in _totals(test, call)})
            if not any(token.numbers[0].fits(total) for total in totals):
                checker.wrong.append(
                    f"{surface.name}, table of {test['id']}: '{row.cells[0]}' changed by {token.numbers[0].text}, "
                    f"run.json: by one of {totals} ns"
                )
    text = " | ".join([surface.text, *(" | ".join(row.cells) for row in surface.rows)])
    for match in _AMOUNT.finditer(text):
        where = f"{surface.name}, '{match[0]}' of {test['id']}"
        own = number(match["own"], match["own_unit"] or match["unit"])
        whole = number(match["whole"], match["unit"]) if match["whole"] else None
        calls = [call for call, delta in steps.items() if whole is None or whole.fits(delta)]
        if whole is not None and not calls:
            checker.wrong.append(
                f"{where}: the profiled step changed by {whole.text}, run.json: by {sorted(steps.values())} ns"
            )
            continue
        fitting = [(call, total) for call in calls for total in _totals(test, call) if own.fits(total)]
        if not fitting:
            totals = sorted({total for call in calls for total in _totals(test, call)})
            checker.wrong.append(f"{where}: its causes changed by {own.text}, run.json: by one of {totals} ns")
            continue
        for cause in _times(test):
            checker.seen.add((surface.name, test["id"], cause["name"], "group"))
        if match["share"]:
            share = number(match["share"], "%")
            shares = [total / steps[call] * 100 for call, total in fitting]
            if not any(share.fits(each) for each in shares):
                checker.wrong.append(f"{where}: its share is {share.text}, run.json: {shares[0]:.2f} %")
    for match in _PART.finditer(text):
        shares = [total / steps[call] * 100 for call in steps if steps[call] for total in _totals(test, call)]
        known = any(number(match["share"], "%").fits(each) for each in shares) if match["share"] else max(shares) > 99
        if not known:
            where = f"{surface.name}, '{match[0]}' of {test['id']}"
            checker.wrong.append(f"{where}: its share is {match['share']}, run.json: one of {shares}")
        for cause in _times(test):
            checker.seen.add((surface.name, test["id"], cause["name"], "group"))


_REST = re.compile(
    rf"\brest: (?P<own>[+\-−]{NUMBER})\s?(?P<unit>ns|µs|ms|s) in smaller (?:or uncertain )?changes, "
    rf"(?P<share>[+\-−]?{NUMBER})\s?%"
)
_REST_ROW = re.compile(r"^(?:smaller (?:or uncertain )?changes|everything else|rest)\b", re.I)


def _check_memory(checker: Checker, where: str, test: Json) -> None:
    """The causes of another peak add up to its difference, which is that of the metric."""
    for change in test["memory"]:
        prefix = f"{change['call']}." if change["call"] else ""
        metric = test["metrics"].get(f"{prefix}peak_memory")
        if not change["base"] or not change["causes"]:
            continue
        peaks = change["base"]["peak_bytes"], change["new"]["peak_bytes"]
        if metric is not None and (metric["base"], metric["new"]) != peaks:
            checker.wrong.append(
                f"{where}: the peak is {peaks[0]:.0f} -> {peaks[1]:.0f} B, "
                f"the metric peak_memory {metric['base']:.0f} -> {metric['new']:.0f} B"
            )
        own = [cause for cause in test["blame"] if cause["kind"] == "memory" and cause["call"] == change["call"]]
        total = sum(cause["bytes"] for cause in own)
        if total != peaks[1] - peaks[0]:
            checker.wrong.append(f"{where}: the peak changed by {peaks[1] - peaks[0]:.0f} B, its causes by {total} B")


def _check_peak(checker: Checker, surface: Surface, test: Json) -> None:
    """What is said of the peak's causes, "peak memory, +1.969 of +2.670 MiB: 28 tensors", is of one of them."""
    sizes = [cause["bytes"] for cause in test["blame"] if cause["kind"] == "memory"]
    for match in re.finditer(
        rf"peak memory, (?P<own>[+\-−]{NUMBER}) (?P<unit>B|KiB|MiB|GiB)(?: of [^:]+)?: ", surface.text
    ):
        own = number(match["own"], match["unit"])
        if not any(own.fits(size) for size in sizes):
            checker.wrong.append(f"{surface.name}, '{match[0]}' of {test['id']}, run.json: its causes are {sizes} B")


def _check_sums(checker: Checker, surface: Surface, test: Json) -> None:
    """The causes of the change and the rest beside them add up to all of it: in tables with a rest, and in prose."""
    steps = [each["new_ns"] - each["base_ns"] for each in test["breakdowns"]]
    tables: dict[int, list[Row]] = defaultdict(list)
    for row in surface.rows:
        tables[row.table].append(row)
    for rows in tables.values():
        rests = sum(bool(_REST_ROW.match(row.cells[0])) for row in rows)
        shares = [token.numbers[0] for row in rows for token in tokens(row.cell(r"^share") or "")]
        if rests and shares:
            _check_sum(checker, f"{surface.name} of {test['id']}, table", "its shares", shares, [100.0 * rests])
        changes = [token.numbers[0] for row in rows for token in tokens(row.cell(r"^change per step") or "")]
        if rests and changes:
            _check_sum(checker, f"{surface.name} of {test['id']}, table", "its changes", changes, [*steps, sum(steps)])
    start = 0
    for match in _REST.finditer(surface.text):
        before = surface.text[start : match.start()]
        groups = [each for each in _AMOUNT.finditer(before) if each["whole"]]
        parts = list(_PART.finditer(before))
        start = match.end()
        where = f"{surface.name} of {test['id']}, '{match[0]}' and the causes before it"
        if not parts:
            owns = [number(each["own"], each["own_unit"] or each["unit"]) for each in groups]
            _check_sum(checker, where, "their changes", [*owns, number(match["own"], match["unit"])], steps)
        # A cause of more than the change is shown as all of it.
        if all(each["share"] for each in (*groups, *parts)):
            shares = [number(each["share"], "%") for each in (*groups, *parts, match)]
            _check_sum(checker, where, "their shares", shares, [100.0])


def _check_sum(checker: Checker, where: str, what: str, parts: Sequence[Number], expected: Sequence[float]) -> None:
    total, half = sum(part.value for part in parts), sum(part.half for part in parts)
    if not any(abs(total - each) <= half * 1.01 + 1 for each in expected):
        shown = " and ".join(part.text for part in parts)
        checker.wrong.append(f"{where}: {what}, {shown}, add up to {total:.6g}, not to {expected[0]:.6g}")


def _check_passed(checker: Checker, surface: Surface, test: Json) -> None:
    """The line of a test in the table of those that pass: its time and change are those of one of its metrics."""
    line = rf"{re.escape(test['id'])} +(?P<time>{NUMBER}) (?P<unit>{UNIT}) +(?P<change>[+\-−]{NUMBER})%"
    for match in re.finditer(line, surface.text):
        time, change = number(match["time"], match["unit"]), number(match["change"], "%")
        fitting = [
            name
            for name, metric in test["metrics"].items()
            if metric["new"] is not None and time.fits(metric["new"]) and change.fits((metric["effect"] or 0) * 100)
        ]
        if not fitting:
            known = {name: (metric["new"], metric["effect"]) for name, metric in test["metrics"].items()}
            checker.wrong.append(f"{surface.name}, passed: '{match[0]}', run.json: {known}")


def _check_counts(checker: Checker, surface: str, text: str, run: Json) -> None:
    """How many tests have a verdict, "2 compared: 1 regressed, 1 unchanged."."""
    for match in re.finditer(r"\d+ compared: (?P<verdicts>[^.]*)\.", text):
        for count, verdict in re.findall(r"(\d+) ([a-z]+)", match["verdicts"]):
            known = run["counts"].get(verdict, 0)
            if int(count) != known:
                checker.wrong.append(f"{surface}: '{match[0]}', run.json: counts are {known} {verdict}")


def _totals(test: Json, call: str) -> set[int]:
    """How much the causes of one place changed: of a function, of a module, alone; and the rest beside such places."""
    whole = next(each["new_ns"] - each["base_ns"] for each in test["breakdowns"] if each["call"] == call)
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for cause in _times(test):
        if cause["call"] != call:
            continue
        frame = _FRAME.fullmatch(cause["line"])
        if frame:
            sums["function", frame["path"], frame["function"]] += cause["delta_ns"]
        elif cause["module"]:
            sums["module", cause["module"]] += cause["delta_ns"]
        else:
            sums["cause", cause["kind"], cause["name"]] += cause["delta_ns"]
    groups = sorted(sums.values(), key=lambda ns: -abs(ns))[:8]
    rests = {whole}
    for ns in groups:
        rests |= {rest - ns for rest in rests}
    return {*sums.values(), *rests}


# Recorded times


def _check_recorded(checker: Checker, surface: Surface, test: Json) -> None:
    """A recorded time where there were paired rounds is never shown without the word."""
    known = [metric[key] for metric in test["metrics"].values() for key in ("base", "new") if metric[key]]
    known += [cause[key] for cause in _times(test) for key in ("base_ns", "new_ns", "delta_ns")]
    # Rounds are listed one by one: one of them may be what is recorded.
    for metric in test["metrics"].values():
        if metric["evidence"] == "paired":
            known += [*metric["base_values"], *metric["new_values"]]
    text = " | ".join([surface.text, *(" | ".join(row.cells) for row in surface.rows)])
    for name, metric in test["metrics"].items():
        if metric["unit"] != "ns" or metric["stored"] is None or metric["evidence"] != "paired":
            continue
        for token in tokens(text):
            for shown in token.numbers:
                telling = shown.unit == "ns" and len(re.sub(r"\D", "", shown.text)) >= 4
                if not telling or not shown.fits(metric["stored"]) or any(shown.fits(value) for value in known):
                    continue
                # The label is in the same sentence, or behind it in the same cell.
                before = re.split(r"\. |\|", text[max(0, token.place - 400) : token.place])[-1]
                after = text[token.place : token.end + 25]
                if not _RECORDED.search(before) and not re.search(r"\b(?:recorded|stored)\b", after, re.I):
                    around = text[max(0, token.place - 30) : token.place + 30]
                    checker.wrong.append(
                        f"{surface.name} of {test['id']}: {shown.text} in '{around}' is the recorded {name}, "
                        f"run.json: stored is {metric['stored']}, and nothing says so"
                    )


# Traces


def _check_traces(checker: Checker, folder: Path, test: Json) -> None:
    for drawn in test["traces"]:
        if "diff" not in drawn:
            continue
        path = folder / drawn["diff"]
        where = f"{drawn['diff']} of {test['id']}"
        if not path.is_file():
            checker.wrong.append(f"run.json names {drawn['diff']} of {test['id']}, and there is no such file")
            continue
        steps = {each["call"]: each["new_ns"] - each["base_ns"] for each in test["breakdowns"]}
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        causes = {(cause["kind"], cause["name"]): cause for cause in _times(test) if cause["call"] == drawn["call"]}
        for event in events:
            if event.get("ph") == "X":
                _check_slice(checker, where, event, causes, steps.get(drawn["call"]), test)


_SUFFIX = re.compile(rf" \((?P<word>(?:new|gone)(?:, )?)?(?:(?P<delta>[+\-−]{NUMBER}) (?P<unit>ns|µs|ms|s)/step)?\)$")


def _check_slice(
    checker: Checker, where: str, event: Json, causes: dict[tuple[str, str], Json], step: int | None, test: Json
) -> None:
    args = event.get("args") or {}
    title = _SUFFIX.search(event["name"])
    name = args.get("cause") or _SUFFIX.sub("", event["name"])
    kind = _KINDS.get(event.get("cat", ""), "")
    cause = causes.get((kind, name)) or next((each for (_, known), each in causes.items() if known == name), None)
    where = f"{where}: slice {event['name']}"
    if "base_ns" in args and cause is None:
        checker.wrong.append(
            f"{where} changed from {args['base_ns']} to {args['new_ns']} ns, and is no cause of the page"
        )
    if "base_ns" in args and cause is not None:
        _check_marked(checker, where, args, title, cause)
        checker.seen.add(("traces", test["id"], cause["name"], "times"))
    if "causes_delta_ns" in args:
        listed = args["causes"].split(", ")
        # A name may itself have a comma: then the sum is not known from here.
        own = [each["delta_ns"] for (_, known), each in causes.items() if known in listed]
        if len(own) == len(listed) and sum(own) != args["causes_delta_ns"]:
            checker.wrong.append(
                f"{where}: its causes changed by {args['causes_delta_ns']}, run.json: by {sum(own)} ns"
            )
    ratio = next((args[key] for key in args if key.endswith("ratio")), None)
    delta = next((args[key] for key in args if key.endswith("slice_delta_ns") or key == "observed_delta_ns"), None)
    # One observed step is not the mean, but what took half as long again, and a tenth of the change, did change.
    telling = step and delta and ratio and abs(delta) >= 0.1 * abs(step) and not 1 / 1.5 < ratio < 1.5
    if telling and args.get("verdict") == "unchanged":
        checker.wrong.append(f"{where} is unchanged, and beside that its ratio is {ratio} ({delta} ns)")


def _check_marked(checker: Checker, where: str, args: Json, title: re.Match[str] | None, cause: Json) -> None:
    for key in ("base_ns", "new_ns", "delta_ns", "share"):
        if key in args:
            checker.same(f"{where}: {key}", args[key], f"run.json: {key} of the cause", cause[key])
    if title is not None and title["delta"]:
        checker.compare(where, "the change in its name", number(title["delta"], title["unit"]), cause["delta_ns"])
    verdict = args.get("verdict")
    wrong_way = {"slower": cause["delta_ns"] < 0, "faster": cause["delta_ns"] > 0}
    if verdict == "unchanged" or wrong_way.get(verdict or ""):
        checker.wrong.append(f"{where} is {verdict}, run.json: the cause changed by {cause['delta_ns']} ns")


# What `perfdl diff run.json` prints


def _check_diff(checker: Checker, text: str, run: Json) -> None:
    """The step's two sides, change and interval, and every line that begins with the name of a cause."""
    tests = {test["id"]: test for test in run["tests"]}
    test = next(iter(tests.values()), None)
    for line in text.splitlines():
        test = tests.get(line.strip(), test)
        if test is None:
            return
        where = f"diff.txt, '{' '.join(line.split())}' of {test['id']}"
        if "step time" in line:
            _check_diff_step(checker, where, line, test)
        cause = next((each for each in _times(test) if re.match(rf"\s+{re.escape(each['name'])}\s\s", line)), None)
        if cause is not None:
            step = next((each for each in test["breakdowns"] if each["call"] == cause["call"]), None)
            rows = [row for row in step["rows"] if row["name"] == cause["name"]] if step else []
            for token in tokens(line.replace(cause["name"], "", 1)):
                shown, values = token.numbers[0], _diff_values(token.unit, [cause, *rows], step)
                # Summed there before it is rounded.
                slack = SUMMED_NS if token.unit == "ns" else 0.0
                near = (abs(shown.value - value) <= shown.half * 1.01 + slack for value in values)
                if token.kind == "one" and token.unit in ("ns", "%") and not any(near):
                    checker.wrong.append(f"{where}: {shown.text}, run.json: the cause has {values}")


SUMMED_NS = 5


def _diff_values(unit: str, parts: Sequence[Json], step: Json | None) -> list[float]:
    """What may be said of a cause in a unit: its times, or its changes in percent."""
    whole = step["new_ns"] - step["base_ns"] if step else 0
    found: list[float] = []
    for part in parts:
        base, new = part["base_ns"] or 0, part["new_ns"] or 0
        if unit == "ns":
            found += [base, new, new - base]
        else:
            found += [100 * (new - base) / of for of in (base, whole) if of]
    return found


def _check_diff_step(checker: Checker, where: str, line: str, test: Json) -> None:
    """The step's numbers are those of the metric of the step, whose name they do not say."""
    trials = []
    for name in ("step_time", "block_time"):
        if (metric := test["metrics"].get(name)) is not None and metric["effect"] is not None:
            trial = Checker()
            for token in _near(line.partition("step time")[2]):
                if token.unit == "ns":
                    for shown, key in zip(token.numbers, ("base", "new"), strict=False):
                        trial.compare(where, f"{key} of {name}", shown, metric[key])
                elif token.kind == "interval":
                    _check_number(trial, where, "interval", token, metric["ci95"], "")
                elif token.numbers[0].signed:
                    trial.compare(where, f"effect of {name}", token.numbers[0], metric["effect"], 100)
            trials.append(trial.wrong)
    checker.wrong += min(trials, key=len, default=[])


# What surfaces show


def _by_test(name: str, text: str, rows: Sequence[tuple[int, Row]], run: Json) -> Iterator[tuple[Json, Surface]]:
    """A surface's text and rows by the test that they are of: the last one named; in a run of one test all are its."""
    tests = {test["id"]: test for test in run["tests"]}
    if len(tests) == 1:
        (only,) = tests.values()
        yield only, Surface(name, text, [row for _, row in rows])
        return
    either = "|".join(sorted(map(re.escape, tests), key=len, reverse=True))
    places = [(match.start(), match[0]) for match in re.finditer(either, text)]
    for number_, (start, test_id) in enumerate(places):
        end = places[number_ + 1][0] if number_ + 1 < len(places) else len(text)
        own = [row for place, row in rows if start <= place < end and not re.search(either, " ".join(row.cells))]
        yield tests[test_id], Surface(name, text[start:end], own)
    for _, row in rows:
        for test_id in re.findall(either, " ".join(row.cells)):
            yield tests[test_id], Surface(name, "", [row])


if __name__ == "__main__":
    lines = [line for folder in sys.argv[1:] for line in contradictions(Path(folder))]
    print("\n".join(lines) or "no contradiction")
    sys.exit(bool(lines))
