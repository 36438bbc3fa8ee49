"""Advice: what wastes time on a trace's critical path, which optimization helps, and its predicted gain.

`advise` collects the findings of each rule in `rules`, predicts the optimization that each finding suggests, and keeps
those with a certain gain. `notes` explains waits that no optimization removes. `run.blamed_advice` restricts the advice
to the causes of a regression.
"""

from pytest_perfdl.whatif.advice.advice import Advice, Note, advise, notes

__all__ = ["Advice", "Note", "advise", "notes"]
