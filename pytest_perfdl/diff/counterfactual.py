"""What a simulation says of a change where work overlaps: the words; `pytest_perfdl.whatif.counterfactual` finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_perfdl.diff.causes import Cause


@dataclass(frozen=True, slots=True)
class Share:
    """What one cause costs the step, though other work may hide some of it."""

    cause: Cause
    """`base.ns` and `new.ns` are all of its work, hidden or not; nanoseconds per step."""
    share_ns: int
    """Of the step's change (`shapley`)."""
    without_ns: int
    """The step, had this alone not changed."""
    latent: bool
    """It takes longer for certain, and the step does not: other work hides it."""
    slack_ns: int | None = None
    """Of what is latent: how much longer it can take before the step pays for a tenth of that; `None` for more than
    a step."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The step's change shared out: `shares`, `others_ns` and `beyond_ns` add up to it."""

    shares: tuple[Share, ...] = ()
    """The largest first."""
    others_ns: int = 0
    """Of all work whose change is not named."""
    beyond_ns: int = 0
    """What other durations of the same tasks do not explain: another order, lags of launches, other runs."""
    exact: bool = True
    """Whether shares are over all orders, not some."""
    refused: str = ""
    """Why nothing is simulated; then the account's shares are all there is."""

    @property
    def latent(self) -> tuple[Share, ...]:
        """What is slower at no cost yet."""
        return tuple(share for share in self.shares if share.latent)
