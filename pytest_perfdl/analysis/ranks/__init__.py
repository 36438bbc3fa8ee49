"""The processes of one job compared: who starts collectives late, who waits for whom, and what it costs.

`activity` reduces one rank's trace to a compact value (`RankActivity`), in whichever process; `compare` aligns the
clocks of all ranks, matches their collectives and finds the straggler (`RankFigures`). `ranks` is both for traces that
are in memory. The types of results are in `figures`, those of one rank in `activity` and `calls`.
"""

from pytest_perfdl.analysis.ranks.activity import RankActivity, StepTimes, Traffic, activity
from pytest_perfdl.analysis.ranks.calls import Calls
from pytest_perfdl.analysis.ranks.compare import compare, rank_numbers, ranks
from pytest_perfdl.analysis.ranks.figures import Bucket, Cause, Collective, Rank, RankFigures, Straggler, bus_bandwidth

__all__ = [
    "Bucket",
    "Calls",
    "Cause",
    "Collective",
    "Rank",
    "RankActivity",
    "RankFigures",
    "StepTimes",
    "Straggler",
    "Traffic",
    "activity",
    "bus_bandwidth",
    "compare",
    "rank_numbers",
    "ranks",
]
