"""What became of some causes of a change, in words: "fused attention replaced by bmm, softmax in float64".

Only the words of a group of causes: `story.cause_groups` says which causes belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_perfdl.analysis.events.origins import FRAME
from pytest_perfdl.diff.account import PYTHON
from pytest_perfdl.judge.blame import OF_THE_DEVICE
from pytest_perfdl.judge.ranks import COMMUNICATION
from pytest_perfdl.model.kernel_names import short_name
from pytest_perfdl.model.units import format_quantity
from pytest_perfdl.model.visible import visible
from pytest_perfdl.report.figures import INPUT, cause_status, name_words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_perfdl.results.curve import RankComparison, RankSide
    from pytest_perfdl.results.verdict import Cause, Judgement

NAMED = 3
"""Most operators that a sentence names for one thing that became of them."""
LEAST = 0.05
"""Part of a group's change that an operator must have to be named."""
PYTHONS = 0.25
"""Part of a group's change that time outside of operators must have to be named beside operators."""
LEAST_OVERLAP = 0.05
"""Change of the share of communication that overlaps with computing that is told."""
BESIDE = 0.2
"""Part of the largest operator that went away which another must have had to be named beside it."""


def select_telling(causes: Sequence[Cause]) -> list[Cause]:
    """The causes that hold most of a group's change, and those that came or went."""
    most = sum(abs(cause.delta_ns) for cause in causes)
    return [cause for cause in causes if abs(cause.delta_ns) >= LEAST * most]


def sentence(causes: Sequence[Cause], judgement: Judgement) -> str:
    """What became of the parts of a group, in words, and on which rank if it is one rank's."""
    compared = next((each for each in judgement.ranks if each.call == causes[0].call), None)
    if compared is not None and causes[0].name == COMMUNICATION:
        return communication(causes[0], compared)
    rank = causes[0].rank
    said = _sentence(causes, judgement)
    return said if rank is None or compared is None else f"rank {rank} of {len(compared.new.ranks)}: {said}"


def communication(cause: Cause, ranks: RankComparison) -> str:
    """Why communication takes longer or shorter, in words."""
    way = "longer" if cause.delta_ns > 0 else "shorter"
    base, new = ranks.base, ranks.new
    why = []
    if base is not None:
        if base.collectives != new.collectives:
            before, now = (format_quantity(side.collectives / len(side.ranks), "1") for side in (base, new))
            why.append(f"{now} collectives per step and rank instead of {before}")
        sizes = base.collective_bytes, new.collective_bytes
        if None not in sizes and sizes[0] != sizes[1]:
            before, now = (format_quantity((size or 0.0) / len(new.ranks), "B") for size in sizes)
            why.append(f"{now} per step and rank instead of {before}")
        shares = [_overlap(side) for side in (base, new)]
        if None not in shares and abs((shares[1] or 0.0) - (shares[0] or 0.0)) >= LEAST_OVERLAP:
            before, now = (f"{share or 0.0:.0%}" for share in shares)
            why.append(f"{now} of the communication overlaps with computing instead of {before}")
        if not why:
            why.append("the same collectives take longer" if cause.delta_ns > 0 else "the same collectives are faster")
    said = f"{way} communication and waiting in all ranks"
    return f"{said}: {'; '.join(why)}" if why else said


def _overlap(side: RankSide) -> float | None:
    """Mean over the ranks."""
    known = [rank.overlap for rank in side.ranks if rank.overlap is not None]
    return sum(known) / len(known) if known else None


def _sentence(causes: Sequence[Cause], judgement: Judgement) -> str:
    told = select_telling(causes)
    operators = [cause for cause in told if cause.kind != "idle"]
    # Autograd's own nodes come and go with the operators that they call.
    parts = [cause for cause in operators if not _is_node(cause)] or operators
    came = [cause for cause in parts if cause_status(cause) == "new"]
    went = _weighty([cause for cause in causes if cause.kind != "idle" and cause_status(cause) == "gone"])
    stayed = [cause for cause in parts if cause_status(cause) == "changed"]
    counted = [cause for cause in stayed if cause.new_count != cause.base_count]
    longer = [cause for cause in stayed if cause.new_count == cause.base_count]
    clauses = []
    types = _other_types(came + counted, judgement)
    if came and went:
        clauses.append(f"{_names(went)} replaced by {_names(came)}{types}")
    elif came:
        clauses.append(f"{_names(came)} added{types}")
    elif went and not counted:
        clauses.append(f"{_names(went)} removed")
    if counted:
        way = "more" if sum(cause.new_count - cause.base_count for cause in counted) > 0 else "fewer"
        clauses.append(f"{way} calls of {_names(counted, counts=True)}{'' if came else types}")
    if longer and not clauses:
        way = "slower" if sum(cause.delta_ns for cause in longer) > 0 else "faster"
        grew = way == "slower" and any(
            work.kind == "more work" and work.call == longer[0].call for work in judgement.work
        )
        clauses.append(f"{_names(longer)} {way} per call{' on larger inputs' if grew else ''}")
    whole = sum(abs(cause.delta_ns) for cause in causes)
    delta = sum(cause.delta_ns for cause in causes)
    idle = sorted((cause for cause in told if cause.kind == "idle"), key=lambda cause: -abs(cause.delta_ns))
    if not clauses:
        clauses = [_idle(cause) for cause in idle[:1]]
    elif idle and idle[0].delta_ns * delta > 0 and abs(idle[0].delta_ns) >= PYTHONS * whole:
        # What came explains why Python takes longer; beside operators that only take longer the larger one is first.
        clauses.insert(len(clauses) if came or went or counted else 0, _idle(idle[0]))
    return "; ".join(clauses) or name_words(causes[0].name)


def _is_node(cause: Cause) -> bool:
    return cause.name.startswith(("autograd::", "torch::autograd::")) or cause.name.rstrip("0123456789").endswith(
        "Backward"
    )


def _weighty(causes: Sequence[Cause]) -> list[Cause]:
    """Without what is small beside the largest: wrappers come and go with the operator that they call."""
    most = max((abs(cause.delta_ns) for cause in causes), default=0)
    return [cause for cause in causes if abs(cause.delta_ns) >= BESIDE * most]


def _other_types(causes: Sequence[Cause], judgement: Judgement) -> str:
    """The element types that these operators compute in and that the baseline's step does not know."""
    names = {name for cause in causes for name in (cause.name, *cause.members)}
    calls = {cause.call for cause in causes}
    own = [each for each in judgement.operators if each.call in calls and each.dtype]
    before = {each.dtype for each in own if each.base is not None}
    types = {each.dtype for each in own if each.new is not None and each.operator in names} - before
    numbers = sorted(each for each in types if any(char.isdigit() for char in each))
    return f" in {' and '.join(numbers)}" if numbers and before else ""


def _names(causes: Sequence[Cause], *, counts: bool = False) -> str:
    """The operators of some causes, the largest first; a backward operator is left out where its forward one is named.

    >>> _names([])
    ''
    """
    shown: dict[str, str] = {}
    for cause in sorted(causes, key=lambda cause: -abs(cause.delta_ns)):
        name = plain_name(cause.name)
        number = ""
        if counts:
            before, after = (format_quantity(count, "1") for count in (cause.base_count, cause.new_count))
            number = f" ({before} -> {after}/step)"
        shown.setdefault(name, f"{name}{number}")
    kept = [text for name, text in shown.items() if not _is_backward_of_one(name, shown)]
    more = f" and {len(kept) - NAMED} more" if len(kept) > NAMED else ""
    return ", ".join(kept[:NAMED]) + more


def _is_backward_of_one(name: str, names: Collection[str]) -> bool:
    stem = name.removesuffix("_data").removesuffix("_backward")
    return stem != name and stem in names


def plain_name(name: str) -> str:
    """An operator as people call it.

    >>> plain_name("aten::_scaled_dot_product_flash_attention_for_cpu"), plain_name("aten::copy_")
    ('scaled_dot_product_flash_attention', 'copy_')
    >>> plain_name("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    'scaled_dot_product_flash_attention_backward'
    >>> plain_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float*)")
    'vectorized_elementwise_kernel<4, FillFunctor<float>>'
    """
    shown = visible(short_name(name))
    if not shown.startswith("aten::") or "," in shown or " " in shown:
        return shown
    return shown.removeprefix("aten::").lstrip("_").replace("_for_cpu", "")


def _idle(cause: Cause) -> str:
    """What the step waits for, or does outside of operators."""
    way = "longer" if cause.delta_ns > 0 else "shorter"
    if cause.name == INPUT:
        return f"{way} wait for the next batch"
    if cause.name == PYTHON:
        return f"{way} time in Python between operators"
    if FRAME.fullmatch(cause.name):
        return f"{way} time in Python: {name_words(cause.name)}"
    if cause.name in OF_THE_DEVICE:
        return f"{way} idle time of the device ({cause.name})"
    return f"{way} time in Python in {visible(cause.name)}"
