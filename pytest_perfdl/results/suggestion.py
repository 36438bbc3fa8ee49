"""The first suggestion of a test in one line, for terminal and summary; the page lists all suggestions."""

from __future__ import annotations

from pytest_perfdl.model.units import format_percent
from pytest_perfdl.results.run import Result


def first_suggestion(result: Result) -> tuple[str, str] | None:
    """The change, and its predicted gain with interval; `None` if there is no suggestion.

    "DataLoader(num_workers=2)", "predicted gain 34.5% of the step [33.9%, 35.1%]"
    """
    if not result.suggestions:
        return None
    found = result.suggestions[0]
    ends = ", ".join(format_percent(end, signed=False) for end in found.interval or ())
    gain = f"predicted gain {format_percent(found.gain, signed=False)} of the step"
    doubt = ", low confidence" if found.doubt else ""
    return found.how, (f"{gain} [{ends}]" if ends else gain) + doubt
