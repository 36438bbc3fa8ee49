"""Advice: what wastes time on a trace's critical path, what would change it, and by how much as predicted.

`advise` asks each rule of `rules` for its finding, predicts the transform that the finding leads to, and keeps what is
worth doing. `notes` says how waits are to be read that no transform takes away. `run.blamed_advice`
limits it to what a judgement blames.
"""

from pytest_perfdl.whatif.advice.advice import Advice, Note, advise, notes

__all__ = ["Advice", "Note", "advise", "notes"]
