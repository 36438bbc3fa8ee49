"""How comparisons stand to what was demanded of blame beforehand, as Markdown tables."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common.tables import table
from planted_change import Plant
from scoring import UNCHANGED, Comparison, Named
from suite import PLANTS

from pytest_perfdl.stats.quantiles import clopper_pearson

SMALL, LARGE, LARGEST = 0.01, 0.03, 0.30
"""Effects of 1 % to 30 % count, those of 3 % and more are held to more."""


@dataclass(frozen=True)
class Demand:
    """Plants of some sort whose first cause must be right in so many comparisons."""

    what: str
    of: Callable[[Plant, float], bool]
    """Whether a plant with this effect is meant."""
    share: float | None
    """Wanted at least; `None` where the figure is only reported."""

    def met(self, hits: int, trials: int) -> str:
        """Whether that many are enough."""
        if self.share is None or not trials:
            return "-"
        return "yes" if hits >= self.share * trials else "no"


DEMANDS = (
    Demand("effect of 3 % to 30 %", lambda _, effect: LARGE <= effect <= LARGEST, 0.95),
    Demand(
        "1 % to 3 %, counts change",
        lambda plant, effect: SMALL <= effect < LARGE and plant.changes == "counts",
        0.80,
    ),
    Demand(
        "1 % to 3 %, duration only",
        lambda plant, effect: SMALL <= effect < LARGE and plant.changes == "duration",
        None,
    ),
    Demand("below 1 % or above 30 %", lambda _, effect: not SMALL <= effect <= LARGEST, None),
)
UNCHANGED_DEMANDED = 1 / 20
"""Share of comparisons of unchanged code that may name any part."""


def effects(found: Sequence[Comparison]) -> Mapping[str, float]:
    """Of each plant that was measured, the median effect on the step without the profiler, or else with it."""
    known: dict[str, list[float]] = {}
    for each in found:
        change = each.timed or each.profiled
        if each.task.plant in PLANTS and change is not None:
            known.setdefault(each.task.plant, []).append(change.effect)
    return {plant: statistics.median(values) for plant, values in known.items()}


DEMANDED = ("effect", "plants", "right as demanded", "95 % interval", "name", "module", "line", "demanded", "met")
SHOWN = (
    *("plant", "model", "what", "changes", "step", "profiled", "right", "name", "module", "line"),
    *("first cause", "coverage", "residual"),
)
STILL = ("model", "comparisons", "name a part", "95 % interval", "demanded", "met", "detectable, median", "what")


def tables(found: Sequence[Comparison]) -> str:
    """Everything as Markdown, by mode; a table without comparisons is left out."""
    lines: list[str] = []
    for mode in ("quick", "end to end"):
        mine = [each for each in found if each.task.mode == mode]
        planted = [each for each in mine if each.task.plant in PLANTS]
        if planted:
            lines += [
                f"## Planted, {mode}",
                "",
                *table(DEMANDED, _demanded(planted)),
                "",
                *table(SHOWN, _plants(planted)),
                "",
            ]
        still = [each for each in mine if each.task.plant == UNCHANGED]
        if still:
            lines += [f"## Unchanged, {mode}", "", *table(STILL, _unchanged(still)), ""]
    return "\n".join(lines) if lines else "no comparisons yet\n"


def _demanded(found: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    size = effects(found)
    for demand in DEMANDS:
        mine = [each for each in found if demand.of(PLANTS[each.task.plant], size.get(each.task.plant, 0.0))]
        hits = sum(each.right is not None and each.right.as_demanded(PLANTS[each.task.plant]) for each in mine)
        yield (
            demand.what,
            str(len({each.task.plant for each in mine})),
            f"{hits} of {len(mine)}",
            "{:.0%} to {:.0%}".format(*clopper_pearson(hits, len(mine))) if mine else "-",
            _share([each.right.name for each in mine if each.right]),
            _share([each.right.module for each in mine if each.right]),
            # Lines are asked for where Python is to blame; elsewhere they are a help and no more.
            _share([bool(each.right.line) for each in mine if each.right and PLANTS[each.task.plant].python]),
            "reported" if demand.share is None else f"at least {demand.share:.0%}",
            demand.met(hits, len(mine)),
        )


def _plants(found: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    size = effects(found)
    for name in sorted({each.task.plant for each in found}, key=list(PLANTS).index):
        plant, mine = PLANTS[name], [each for each in found if each.task.plant == name]
        rights = [each.right for each in mine if each.right]
        profiled = [each.profiled.effect for each in mine if each.profiled]
        lines = [right.line for right in rights if right.line is not None]
        firsts = Counter(_place(each.causes[0]) if each.causes else "nothing" for each in mine)
        yield (
            f"`{name}`",
            plant.model,
            plant.what,
            "Python" if plant.python else plant.changes,
            f"{size[name]:+.1%}" if name in size else "-",
            f"{statistics.median(profiled):+.1%}" if profiled else "-",
            _share([right.as_demanded(plant) for right in rights]),
            _share([right.name for right in rights]),
            _share([right.module for right in rights]),
            _share(lines),
            ", ".join(f"{cause} ({count})" for cause, count in firsts.most_common(2)),
            _least([each.coverage for each in mine]),
            _largest([each.residual_ns for each in mine]),
        )


def _unchanged(found: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    models = sorted({each.task.model for each in found})
    for model in (*models, "all"):
        mine = [each for each in found if model in (each.task.model, "all")]
        alarms = [each for each in mine if each.named or each.certain]
        detectable = [each.detectable for each in mine if each.detectable is not None]
        named = Counter(_place(each.causes[0]) if each.causes else "a part too small to be a cause" for each in alarms)
        yield (
            model,
            str(len(mine)),
            str(len(alarms)),
            "{:.0%} to {:.0%}".format(*clopper_pearson(len(alarms), len(mine))),
            "at most 1 of 20" if model == "all" else "-",
            ("yes" if len(alarms) <= UNCHANGED_DEMANDED * len(mine) else "no") if model == "all" else "-",
            f"{statistics.median(detectable):.2%} of the step" if detectable else "-",
            ", ".join(f"{cause} ({count})" for cause, count in named.most_common(3)) or "-",
        )


def _place(cause: Named) -> str:
    where = " at ".join(filter(None, (cause.module, cause.line)))
    return f"`{cause.name}`" + (f" in `{where}`" if where else "")


def _share(hits: Sequence[bool]) -> str:
    return f"{sum(hits)}/{len(hits)}" if hits else "-"


def _least(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.1%}" if known else "-"


def _largest(values: Sequence[int | None]) -> str:
    known = [abs(value) for value in values if value is not None]
    return f"{max(known)} ns" if known else "-"
