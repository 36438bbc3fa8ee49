"""The first suggestion of a test in one line, which the terminal and the summary share; the page lists all of them."""

from __future__ import annotations

from pytest_perfdl.model.units import format_percent
from pytest_perfdl.results.run import Result


def first_suggestion(result: Result) -> tuple[str, str] | None:
    """What to do, and what that is predicted to gain with its interval; `None` where nothing is suggested.

    "DataLoader(num_workers=2)", "predicted gain 34.5% of the step [33.9%, 35.1%]"
    """
    if not result.suggestions:
        return None
    found = result.suggestions[0]
    ends = ", ".join(format_percent(end, signed=False) for end in found.interval or ())
    gain = f"predicted gain {format_percent(found.gain, signed=False)} of the step"
    doubt = ", low confidence" if found.doubt else ""
    return found.how, (f"{gain} [{ends}]" if ends else gain) + doubt
