"""OpenMetrics: a run as text that Prometheus, its Pushgateway, node exporter and GitLab read.

OpenMetrics 1.0, with gauges alone and no timestamps: what only reads Prometheus' older text format, as Pushgateway and
the textfile collector do, reads it too.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_perfdl.model.metrics import METRICS, general
from pytest_perfdl.report.words import visible
from pytest_perfdl.results.numbers import RATIO, BaseUnit, base_unit, safe_name, with_unit
from pytest_perfdl.results.run import Run

_PREFIX = "perfdl"
_PLAIN = BaseUnit("")
_RATIO = BaseUnit(RATIO)
_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric family: samples with one name, unit and help."""

    name: str
    unit: BaseUnit
    help: str
    samples: dict[_Labels, float] = field(default_factory=dict)
    """By their labels, as they are shown: no two samples may have the same."""

    def add(self, labels: _Labels, value: float | None) -> None:
        """Add a sample, unless its value is not known or not finite."""
        if value is not None and math.isfinite(value):
            self.samples[tuple((name, visible(text)) for name, text in labels)] = float(value)

    def lines(self) -> Iterator[str]:
        """The family as text; nothing where it has no samples."""
        if not self.samples:
            return
        yield f"# TYPE {self.name} gauge"
        if self.unit.word:
            yield f"# UNIT {self.name} {self.unit.word}"
        yield f"# HELP {self.name} {_help(self.help)}"
        for labels, value in self.samples.items():
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            yield f"{self.name}{{{shown}}} {value!r}"


def to_openmetrics(run: Run) -> str:
    """The run as OpenMetrics text, in seconds, bytes and ratios, with `# EOF` at the end.

    Each metric is a family, such as `perfdl_step_time_seconds`, with labels `test`, `machine`, `side` (`baseline` or
    `current`) and, of a named call, `call`. A metric of `perf.metric` whose name has other characters than letters,
    digits and underscores has a digest in it, so that no two have the same.
    """
    fixed = _fixed()
    families = {each.name: each for each in fixed.values()}
    names = _names_of_others(run, set(families))
    fixed["run"].add((("machine", run.machine_id), ("commit", run.commit or ""), ("date", run.date)), 1)
    fixed["time"].add((("machine", run.machine_id),), _seconds(run.date))
    for result in run.results:
        labels = (
            ("test", result.id),
            ("machine", run.machine_id if result.new is None else result.new.key.slug),
        )
        fixed["verdict"].add((*labels, ("verdict", result.verdict)), 1)
        fixed["fails"].add(labels, int(result.fails))
        for metric in result.metrics:
            low, high = metric.ci95 or (None, None)
            for key, ratio in (("change", metric.effect), ("low", low), ("high", high)):
                fixed[key].add((*labels, ("metric", metric.name)), ratio)
            if metric.waiver is not None:
                of_metric = (*labels, ("metric", metric.name))
                waiver = metric.waiver
                said = (("limit", waiver.limit), ("until", waiver.until), ("who", waiver.who), ("why", waiver.why))
                fixed["waiver"].add((*of_metric, *said), 1)
            if not metric.of_step:
                continue
            call, unit = metric.name.rpartition(".")[0], base_unit(metric.unit)
            family = _family_of(general(metric.name), unit, names)
            family = families.setdefault(family.name, family)
            of_call = (*labels, ("call", call)) if call else labels
            for side, value in (("baseline", metric.base), ("current", metric.new)):
                family.add((*of_call, ("side", side)), None if value is None else unit.convert(value))
    return "".join(f"{line}\n" for family in families.values() for line in family.lines()) + "# EOF\n"


def _fixed() -> dict[str, _Family]:
    """The families that every run has."""
    interval = "end of the 95% interval of the change"
    return {
        "run": _Family(
            f"{_PREFIX}_run_info", _PLAIN, "Machine, commit and date of the run as labels; the value is always 1"
        ),
        "time": _Family(f"{_PREFIX}_run_timestamp_seconds", BaseUnit("seconds"), "When the run started, in Unix time"),
        "verdict": _Family(f"{_PREFIX}_verdict", _PLAIN, "Verdict of the test as a label; the value is always 1"),
        "fails": _Family(f"{_PREFIX}_test_fails", _PLAIN, "1 if the test fails because of its verdict, otherwise 0"),
        "waiver": _Family(
            f"{_PREFIX}_waiver_info",
            _PLAIN,
            "Waiver because of which a metric does not fail its test, as labels; the value is always 1",
        ),
        "change": _Family(
            f"{_PREFIX}_change_ratio", _RATIO, "Relative change of a metric from its baseline (0.1: 10% more)"
        ),
        "low": _Family(f"{_PREFIX}_change_ci95_low_ratio", _RATIO, f"Lower {interval}"),
        "high": _Family(f"{_PREFIX}_change_ci95_high_ratio", _RATIO, f"Upper {interval}"),
    }


def _names_of_others(run: Run, taken: set[str]) -> dict[tuple[str, str], str]:
    """A name for each metric that is not built in, by its name and its unit's word.

    It is distinct from all names of ours. It depends on the other metrics of the run only where two of them agree once
    the unit is behind the name.
    """
    taken |= {with_unit(f"{_PREFIX}_{name}", base_unit(each.unit)) for name, each in METRICS.items()}
    others = dict.fromkeys(
        (general(metric.name), base_unit(metric.unit))
        for result in run.results
        for metric in result.metrics
        if metric.of_step and general(metric.name) not in METRICS
    )
    full = {(name, unit.word): with_unit(f"{_PREFIX}_{safe_name(name)}", unit) for name, unit in others}
    uses = Counter(full.values())
    return {
        (name, word): safe_name(name)
        if uses[chosen] == 1 and chosen not in taken
        else safe_name(name, of=f"{name}\0{word}")
        for (name, word), chosen in full.items()
    }


def _family_of(name: str, unit: BaseUnit, names: Mapping[tuple[str, str], str]) -> _Family:
    known = METRICS.get(name)
    what = f"{known.what[:1].upper()}{known.what[1:]}" if known else f"Custom metric {name}"
    return _Family(with_unit(f"{_PREFIX}_{names.get((name, unit.word), name)}", unit), unit, what)


def _seconds(date: str) -> float | None:
    """Unix time; `None` of a text that is no time, as a run file of someone else's may have."""
    try:
        return datetime.datetime.strptime(date, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        return None


def _help(text: str) -> str:
    """On one line; with no quotation mark, which the two formats write differently there."""
    return visible(text).replace("\\", r"\\").replace('"', "'")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")
