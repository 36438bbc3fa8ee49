"""What changed between two sides, each a set of profiled steps: the breakdown of the change, and its causes.

    found = diff(of_traces("before", runs), of_traces("after", others))
    causes(found)               # which kernels, operators and Python functions, where, and why
    places(found, "module")     # which modules
    regions(found.new).bound()  # whether its launches or its kernels take the step's time

`side` joins the runs of a side, `account` subtracts them without a remainder, `effects` says why a part changed,
`causes` names what did, `bound` tells launch-bound from kernel-bound regions, `shapley` is for what a simulation says
where work overlaps. What they find is in `changes`. Parts are matched by `diff.matching`.
"""

from pytest_perfdl.diff.account import AccountLine, Diff, diff
from pytest_perfdl.diff.causes import Regions, causes, likeliest, places, regions, remainder
from pytest_perfdl.diff.side import DiffCause, Origin, Side, of_breakdown, of_call, of_damage, of_traces

__all__ = [
    "AccountLine",
    "Diff",
    "DiffCause",
    "Origin",
    "Regions",
    "Side",
    "causes",
    "diff",
    "likeliest",
    "of_breakdown",
    "of_call",
    "of_damage",
    "of_traces",
    "places",
    "regions",
    "remainder",
]
