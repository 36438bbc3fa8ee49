"""Which kernels got slower: all of a test's at once, by exchanging the sides of whole rounds.

Westfall and Young's step-down max-T (1993) with sign flips: under the null, exchanging the sides of a round
changes nothing, for all its kernels together, so the largest statistic over the kernels is compared with what
it becomes under flips of whole rounds. Kernels that move together then cost one hypothesis, not a hundred.

Statistic of a kernel: the sum over rounds of clip((d - log(1 + delta)) / scale, -3, 3), where d is the log ratio
of its time, head to base. A round that a spike hit counts no more than 3.

- The scale is the kernel's own noise, from how the mean of *both* sides changes from round to round. Exchanging
  sides leaves it as it is, so the flips stay exact; the spread of d would not do, since a scale that flips leave
  alone must come from |d|, and there an effect that is the same in all rounds hides itself.
- A process' common factor is not removed: when most kernels got faster, the rest would be blamed. Rounds already
  cancel the machine's drift, which is what removing it serves in the screen.
- The family is fixed by the kernels' share of the step, from the screen's or from both sides' times.

Scores are rounded to multiples of 2**-14, so that sums are exact (in float32, up to 300 rounds) and ties are ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pytest_perfdl.judge import futility, signedrank, timed
from pytest_perfdl.judge.sequential import LOOKS, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_perfdl.judge.rounds import Round

    Floats = NDArray[np.float64]
    Scores = NDArray[np.float32]

DELTA = 0.05
"""How much slower a kernel may be: below that is noise."""
LEAST_SHARE = 0.005
"""Kernels with a smaller part of the step are not tested."""
CLIP = 3.0
LEAST_SCALE = 0.005
"""Floor of a kernel's noise: a few equal readings of a coarse clock are no certainty."""
LEAST_FLIPS = 10_000
FLIPS_A_LEVEL = 10
"""At least this many times 1 / level flips are counted, so that a p-value can be well below the level."""
_GRAIN = 2.0**14
_FIRST_CHUNK, _LARGEST_CHUNK = 32, 8192
"""Flips counted at once: twice as many as before, as long as the answer is open."""
_MIX = 0x9E3779B1
_SEED = 20260301


@dataclass(frozen=True, slots=True)
class SlowKernel:
    """A kernel that is slower by more than `DELTA`, with the family's chance of a false alarm kept."""

    name: str
    base_ns: float
    head_ns: float
    """Geometric means over the rounds, per step."""
    effect: float
    """Hodges-Lehmann estimate of head / base - 1."""
    ci95: tuple[float, float] | None
    """Repeated confidence interval of the effect: those of all looks hold together. `None` after too few rounds."""
    p: float
    """Adjusted for the family, not for the looks."""
    rounds: int
    """After which it was found."""


@dataclass(frozen=True, slots=True)
class KernelTest:
    """The sequential test of one test's kernels; looks as in `sequential`, at `alpha` over all of them.

    Raises
    ------
    ValueError
        When there is no kernel, or the level is no probability.
    """

    kernels: tuple[str, ...]
    """The family. A kernel that a round lacks on either side is left out: that it came or went is a count."""
    alpha: float
    most_rounds: int = LOOKS[-1]
    delta: float | tuple[float, ...] = DELTA
    """How much slower each may be; one for all, or one for each."""
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("no kernel to test")
        object.__setattr__(self, "plan", Plan.of(self.alpha, 1, self.most_rounds))

    def look(self, rounds: Sequence[Round], *, ended: bool = False) -> tuple[SlowKernel, ...]:
        """The kernels found slower at any look that these rounds have passed, largest effect first."""
        found: dict[str, SlowKernel] = {}
        for look in self.plan.until(min(len(rounds), self.most_rounds), ended=ended):
            if look.rejects:
                for kernel in self._slower(rounds[: look.rounds]):
                    found.setdefault(kernel.name, kernel)
        return tuple(sorted(found.values(), key=lambda kernel: (-kernel.effect, kernel.name)))

    def undecided(
        self, rounds: Sequence[Round], awaited: Iterable[str], found: Iterable[SlowKernel]
    ) -> tuple[str, ...]:
        """Those of these kernels that are neither among those found nor surely slower by no more than their delta.

        The latter by the signed-rank test at the level of `sequential.UNCHANGED_ALPHA`. Stopping for that only
        removes alarms: it is free.
        """
        slower = {kernel.name for kernel in found}
        return tuple(name for name in awaited if name not in slower and not self._within(name, rounds))

    def next_look(self, rounds: Sequence[Round]) -> int | None:
        """How many rounds the next look takes that may find a kernel; `None` after the last."""
        return next((look for look in self.plan.rejecting if look > len(rounds)), None)

    def hopeless(self, rounds: Sequence[Round], awaited: Iterable[str]) -> bool:
        """Whether none of these kernels, all undecided, is on course to be found slower (see `futility`)."""
        names = [name for name in awaited if all(_on_both(each, name) for each in rounds)]
        if not rounds or not names:
            return not names
        base, head = _logs(rounds, names)
        past = (head - base - self._past(names)).T
        return not bool(futility.hopeful(past, self.plan.rejecting, self.plan.level).any())

    def _within(self, name: str, rounds: Sequence[Round]) -> bool:
        """Whether a kernel is surely not slower by more than its delta, or came or went: a count."""
        if not rounds:
            return False
        if not all(_on_both(each, name) for each in rounds):
            return True
        base, head = _logs(rounds, [name])
        below = self._past([name]) - (head - base)[:, 0]
        return bool(signedrank.p_above(below) <= self.plan.clearing_level)

    def _past(self, names: Sequence[str]) -> Floats:
        """Log of the factor by which each of these kernels may be slower."""
        if not isinstance(self.delta, tuple):
            return np.full(len(names), math.log1p(self.delta))
        known = dict(zip(self.kernels, self.delta, strict=True))
        return np.log1p([known[name] for name in names])

    def _slower(self, rounds: Sequence[Round]) -> list[SlowKernel]:
        names = [name for name in self.kernels if all(_on_both(each, name) for each in rounds)]
        if not names:
            return []
        base, head = _logs(rounds, names)
        p = step_down(scores(base, head, self._past(names)), self.plan.level)
        return [
            self._found(names[place], base[:, place], head[:, place], float(p[place]))
            for place in np.flatnonzero(p <= self.plan.level).tolist()
        ]

    def _found(self, name: str, base: Floats, head: Floats, p: float) -> SlowKernel:
        averages = signedrank.averages(head - base)
        ends = signedrank.interval(averages, self.plan.confidence)
        return SlowKernel(
            name=name,
            base_ns=float(np.exp(base.mean())),
            head_ns=float(np.exp(head.mean())),
            effect=timed.as_ratio(float(signedrank.center(averages))),
            ci95=None if ends is None else (timed.as_ratio(float(ends[0])), timed.as_ratio(float(ends[1]))),
            p=p,
            rounds=len(base),
        )


def family(shares: Mapping[str, float]) -> tuple[str, ...]:
    """The kernels worth testing, from their shares of the step.

    The shares must not depend on which side is which: from the screen's record, or from both sides together.
    """
    return tuple(name for name, share in shares.items() if share >= LEAST_SHARE)


def scores(base: Floats, head: Floats, past: float | Floats) -> Scores:
    """Scores of log times, both of shape (rounds, ..., kernels), which is that of the result.

    `past` is the log of the factor by which the head may be slower, of all kernels or of each.

    The scale is 1.4826 * sqrt(2) * the median absolute change of (base + head) / 2 from one round to the next:
    for independent processes the standard deviation of head - base, larger where the machine drifts.
    """
    changes = np.abs(np.diff((base + head) / 2, axis=0))
    middle = np.median(changes, axis=0) if len(changes) else np.zeros(base.shape[1:])
    scale = np.maximum(1.4826 * math.sqrt(2) * middle, LEAST_SCALE)
    clipped = np.clip((head - base - past) / scale, -CLIP, CLIP)
    return np.asarray(np.rint(clipped * _GRAIN) / _GRAIN, np.float32)


def flips(rounds: int, level: float) -> tuple[int, bool]:
    """How many flips a test of this level takes, and whether these are all there are.

    All are gone through where they are no more than would be drawn: always up to 13 rounds.
    """
    number = max(LEAST_FLIPS, math.ceil(FLIPS_A_LEVEL / level))
    return (2**rounds, True) if 2**rounds <= number else (number, False)


def least_p(scored: Scores, level: float) -> Floats:
    """The smallest adjusted p-value of each of many families, of scores of shape (rounds, families, kernels).

    Counting stops for a family as soon as its p-value is sure to be above the level; what is then given is
    above the level too, and otherwise of no meaning.
    """
    rounds, families, kernels = scored.shape
    number, exact = flips(rounds, level)
    observed = scored.sum(axis=0).max(axis=-1)
    by_kernel = np.ascontiguousarray(np.swapaxes(scored, 1, 2))
    past = np.zeros(families, np.int64)
    hopeful = np.arange(families)
    most = math.floor(level * number) if exact else math.floor(level * (number + 1)) - 1
    for signs in _signs(rounds, number, exact=exact):
        flipped = signs @ by_kernel[..., hopeful].reshape(rounds, -1)
        largest = flipped.reshape(len(signs), kernels, -1).max(axis=1)
        past[hopeful] += np.count_nonzero(largest >= observed[hopeful], axis=0)
        hopeful = hopeful[past[hopeful] <= most]
        if not hopeful.size:
            break
    p = _p(past, number, exact=exact)
    return np.where(past <= most, p, np.maximum(p, math.nextafter(level, 1.0)))


def step_down(scored: Scores, level: float) -> Floats:
    """Adjusted p-values of one family, from scores of shape (rounds, kernels); 1 for all when none is below."""
    rounds, kernels = scored.shape
    if least_p(scored[:, None], level)[0] > level:
        return np.ones(kernels)
    number, exact = flips(rounds, level)
    observed = scored.sum(axis=0)
    upwards = np.argsort(observed, kind="stable")
    past = np.zeros(kernels, np.int64)
    by_kernel = np.ascontiguousarray(scored[:, upwards].T)
    for signs in _signs(rounds, number, exact=exact):
        largest_so_far = np.maximum.accumulate(by_kernel @ signs.T, axis=0)
        past += np.count_nonzero(largest_so_far >= observed[upwards, None], axis=1)
    p = np.empty(kernels)
    p[upwards] = np.maximum.accumulate(_p(past, number, exact=exact)[::-1])[::-1]
    return p


def _signs(rounds: int, number: int, *, exact: bool) -> Iterator[Scores]:
    """Flips in chunks of shape (flips, rounds); drawn ones are the same in every call, and blind to the data."""
    coin = np.random.default_rng(_SEED)
    done, chunk = 0, _FIRST_CHUNK
    while done < number:
        size = min(chunk, number - done)
        if exact:
            # An odd factor only changes the order: the first chunks then flip more than the first rounds.
            flip = np.arange(done, done + size) * _MIX % 2**rounds
            bits = flip[:, None] >> np.arange(rounds) & 1
        else:
            drawn = coin.integers(0, 256, (size, -(-rounds // 8)), np.uint8)
            bits = np.unpackbits(drawn, axis=1, count=rounds)
        yield 1 - 2 * bits.astype(np.float32)
        done, chunk = done + size, min(2 * chunk, _LARGEST_CHUNK)


def _p(past: NDArray[np.int64], number: int, *, exact: bool) -> Floats:
    """All flips hold the observed signs; of drawn ones these are counted besides (Phipson and Smyth 2010)."""
    return past / number if exact else (past + 1) / (number + 1)


def _logs(rounds: Sequence[Round], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Log times of these kernels on both sides, (base, head), each of shape (rounds, kernels)."""
    return (
        np.log([[each.kernels_base[name] for name in names] for each in rounds]),
        np.log([[each.kernels_head[name] for name in names] for each in rounds]),
    )


def _on_both(each: Round, name: str) -> bool:
    return each.kernels_base.get(name, 0) > 0 and each.kernels_head.get(name, 0) > 0
