"""Exact intervals of a proportion (Clopper and Pearson).

C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
Biometrika 26 (1934): the ends are quantiles of beta distributions. They hold for independent trials; runs on one
machine are correlated, so many runs in a short time are less certain than the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `of` trials."""

    count: int
    of: int

    @property
    def share(self) -> float | None:
        """The share itself; `None` without a trial."""
        return self.count / self.of if self.of else None

    @property
    def upper(self) -> float:
        """One-sided bound: the true share is above it with at most 5 %.

        >>> f"{Rate(0, 300).upper:.4f}"
        '0.0099'
        """
        return _upper(self.count, self.of, 1 - CONFIDENCE)

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided 95 % interval.

        >>> "{:.3f} {:.3f}".format(*Rate(8, 10).interval)
        '0.444 0.975'
        """
        return clopper_pearson(self.count, self.of)


def clopper_pearson(count: int, of: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact two-sided interval of a share; its upper end at 90 % is the one-sided bound at 95 %."""
    tail = (1 - confidence) / 2
    return 1 - _upper(of - count, of, tail), _upper(count, of, tail)


def _upper(count: int, of: int, tail: float) -> float:
    """The share under which `count` or fewer of `of` have probability `tail`."""
    if count == of:
        return 1.0
    from scipy.stats import beta

    return float(beta.ppf(1 - tail, count + 1, of - count))
