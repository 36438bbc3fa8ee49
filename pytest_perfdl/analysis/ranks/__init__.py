"""The processes of one job compared: who starts collectives late, who waits for whom, and what it costs.

`calls` lists the communication of one rank, `activity` reduces its trace to a compact value (`RankActivity`), in
whichever process. Of all ranks together, `clocks` matches their calls and aligns their clocks, and `meetings` computes
who waited for whom and what each rank did when. `compare.compare` joins that and finds the straggler; `compare.ranks`
does all of it for traces that are in memory. `figures` has the types of the result (`RankFigures`).
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
