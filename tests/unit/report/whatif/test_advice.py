"""Advice in words: with the trust, and with the memory where it changes."""

from pytest_perfdl.report.advice import advice_lines, sentences
from pytest_perfdl.report.whatif import Answers
from pytest_perfdl.whatif.advice import Advice
from pytest_perfdl.whatif.predict import Base, Prediction
from unit.whatif.training import context, host_training

PREDICTED = Prediction("checkpointing", 1e6, 1.2e6, (1.1e6, 1.3e6), "low", "held\u202e", peak_bytes=2**30)


def advice(**changes):
    prediction = Prediction(**{name: getattr(PREDICTED, name) for name in PREDICTED.__slots__} | changes)
    return Advice("memory", "The peak is 1 GiB.", "checkpointing", "checkpoint(layer)", prediction, "examples/one.py")


def test_memory_is_told_where_it_changes():
    assert sentences(advice(predicted_peak_bytes=3 * 2**28, fits=True)) == (
        "The peak is 1 GiB.",
        "checkpoint(layer): predicted step time 1.200 ms (1.100 ms to 1.300 ms), +20.0%, confidence low: held\\u202e",
        "predicted peak memory 768.0 MiB (-25.0%), fits",
        "example: examples/one.py",
    )
    assert len(sentences(advice())) == 3


def test_trust_is_told_without_a_reason():
    assert sentences(advice(trust="ok", reason=""))[1].endswith("(1.100 ms to 1.300 ms), +20.0%, confidence ok")


def test_lines_keep_to_the_width():
    made = context(host_training())
    answers = Answers("a.json", made.graph, Base.of(made.graph), advice=(advice(), advice()))
    lines = list(advice_lines(answers, 60))
    assert lines[0] == "Advice, largest predicted gain first"
    assert sum(line.startswith("  - ") for line in lines) == 2
    assert max(map(len, lines)) <= 60
