"""What was demanded of the decisions beforehand, and how the trials stand to it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.tables import table

from pytest_perfdl.stats.quantiles import clopper_pearson

if TYPE_CHECKING:
    from trials import Trial

OPERATOR = "aten::cumsum"
"""What the trials of one operator make slower."""
LEAST_OPERATOR_SHARE = 0.005


@dataclass(frozen=True)
class Demand:
    """Trials of some kinds of which so many must, or may at most, have something in common."""

    what: str
    kinds: tuple[str, ...]
    hit: Callable[[Trial], bool]
    share: float
    at_least: bool
    text: str
    """The figure as it was agreed on."""

    def met(self, hits: int, trials: int) -> str:
        """Whether the share found is within what is demanded; a rate of false alarms needs its upper bound there."""
        if not trials:
            return "-"
        if self.at_least:
            return "yes" if hits >= self.share * trials else "no"
        bound = clopper_pearson(hits, trials, 0.90)[1]
        if bound <= self.share:
            return "yes"
        return "more trials" if hits <= self.share * trials else "no"


def regressed(trial: Trial) -> bool:
    """The test fails because it got slower."""
    return trial.verdict == "regressed"


def positive(trial: Trial) -> bool:
    """The test ends with a statement that it did not get slower."""
    return trial.verdict in ("unchanged", "improved")


def cleared(trial: Trial) -> bool:
    """What is slower was called unchanged."""
    return trial.verdict == "unchanged"


def named(trial: Trial) -> bool:
    """The test fails and names the operator that was slowed first; which is large enough to be found."""
    large = trial.operator_share is not None and trial.operator_share >= LEAST_OPERATOR_SHARE
    return large and regressed(trial) and OPERATOR in (*trial.named, "")[0]


DEMANDS = (
    Demand(
        "unchanged, false alarms",
        ("gate-aa", "ab-aa", "examples"),
        regressed,
        0.01,
        False,
        "0 of 300, 1 of 473, 2 of 628",
    ),
    Demand("unchanged, said so", ("gate-aa", "ab-aa"), positive, 36 / 40, True, "36 of 40"),
    Demand("examples unchanged, said so", ("examples",), positive, 36 / 40, True, "36 of 40"),
    Demand("README's step, one forward pass more", ("forward",), regressed, 1.0, True, "10 of 10"),
    Demand("+3 %, limit 2 %", ("ab+3",), regressed, 24 / 40, True, "24 of 40"),
    Demand("+5 %", ("gate+5",), regressed, 17 / 20, True, "17 of 20"),
    Demand("+10 %", ("gate+10",), regressed, 19 / 20, True, "19 of 20"),
    Demand("one operator +50 %, named", ("operator",), named, 14 / 20, True, "14 of 20"),
    Demand(
        "slower, called unchanged",
        ("ab+3", "gate+5", "gate+10", "every-2nd", "every-3rd", "loader"),
        cleared,
        0.05,
        False,
        "5 %",
    ),
    Demand("+25 %, on every 2nd step", ("every-2nd",), regressed, 38 / 40, True, "38 of 40, as +20 %"),
    Demand("+33 %, on every 3rd step", ("every-3rd",), regressed, 38 / 40, True, "38 of 40, as +20 %"),
    Demand("loader's transform +20 %", ("loader",), regressed, 24 / 40, True, "24 of 40, as +10 %"),
)


DEMANDED = ("what", "found", "95 % interval", "demanded", "met")
KINDS = ("kind", "side load", "trials", "verdicts", "paired", "median effect", "median seconds")


def tables(trials: Sequence[Trial]) -> str:
    """Both tables as Markdown: what is demanded, and what each kind of trial gave."""
    if not trials:
        return "no trials yet"
    lines = [
        "## Demanded",
        "",
        *table(DEMANDED, _demanded(trials)),
        "",
        "## Trials",
        "",
        *table(KINDS, _kinds(trials)),
        "",
    ]
    occasions = {trial.occasion for trial in trials}
    days = {trial.date[:10] for trial in trials}
    lines.append(f"{len(trials)} trials on {len(days)} day(s), with baselines of {len(occasions)} occasion(s).")
    return "\n".join(lines)


def _demanded(trials: Sequence[Trial]) -> Iterator[Sequence[str]]:
    for demand in DEMANDS:
        mine = [trial for trial in trials if trial.kind in demand.kinds]
        hits = sum(map(demand.hit, mine))
        interval = "-"
        if mine and demand.at_least:
            interval = "{:.1%} to {:.1%}".format(*clopper_pearson(hits, len(mine)))
        elif mine:
            interval = f"up to {clopper_pearson(hits, len(mine), 0.90)[1]:.2%}"
        how = f"{'at least' if demand.at_least else 'at most'} {demand.text}"
        yield (demand.what, f"{hits} of {len(mine)}", interval, how, demand.met(hits, len(mine)))


def _kinds(trials: Sequence[Trial]) -> Iterator[Sequence[str]]:
    for kind, load in sorted({(trial.kind, trial.load) for trial in trials}):
        mine = [trial for trial in trials if (trial.kind, trial.load) == (kind, load)]
        counts = Counter(trial.verdict for trial in mine).most_common()
        effects = sorted(trial.effect for trial in mine if trial.effect is not None)
        seconds = sorted(trial.seconds for trial in mine)
        yield (
            kind,
            f"{load:.0%}",
            str(len(mine)),
            ", ".join(f"{verdict} {count}" for verdict, count in counts),
            str(sum(trial.basis == "paired" for trial in mine)),
            f"{effects[len(effects) // 2]:+.1%}" if effects else "-",
            f"{seconds[len(seconds) // 2]:.0f}",
        )
