"""What changed between two sides, each a set of profiled steps: the breakdown of the change, and its causes.

    found = diff(side_of_traces("before", runs), side_of_traces("after", others))
    causes(found)               # which kernels, operators and Python functions, where, and why
    places(found, "module")     # which modules
    regions(found.new).bound()  # whether its launches or its kernels take the step's time

`side` joins the runs of a side and has the types of what is found (`side.Change`, `side.DiffCause`). `matching` matches
the parts of two sides (`model.step_part.Part`), `account` subtracts them without a remainder and splits each change
into count, duration, mix and overlap (`account.effects`). `causes` names what did, and tells launch-bound from
kernel-bound regions (`causes.regions`). `shapley` divides a change where work overlaps, for `whatif.counterfactual`;
`memory` subtracts accounts of peak memory.
"""

from pytest_perfdl.diff.account import AccountLine, Diff, diff
from pytest_perfdl.diff.causes import Regions, causes, likeliest, places, regions, remainder
from pytest_perfdl.diff.side import (
    DiffCause,
    Origin,
    Side,
    damaged_side,
    side_of_breakdown,
    side_of_call,
    side_of_traces,
)

__all__ = [
    "AccountLine",
    "Diff",
    "DiffCause",
    "Origin",
    "Regions",
    "Side",
    "causes",
    "damaged_side",
    "diff",
    "likeliest",
    "places",
    "regions",
    "remainder",
    "side_of_breakdown",
    "side_of_call",
    "side_of_traces",
]
