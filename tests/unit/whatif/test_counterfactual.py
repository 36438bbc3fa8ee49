"""What a simulation says of a change: who pays for it where work overlaps, what is latent, and when it says nothing."""

import pytest

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.diff import diff, side_of_traces
from pytest_perfdl.trace import read
from pytest_perfdl.whatif import counterfactual as module
from pytest_perfdl.whatif.counterfactual import counterfactual
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x

STEPS = 5


def streams(**kernels):
    """Steps of 0.6 ms on the host whose kernels, microseconds by name, run on a stream each, as fast as they can."""
    events, free = [], dict.fromkeys(kernels, 0)
    for number in range(STEPS):
        start = 600 * number
        events += [step(number, start, 550), x("aten::mm", start + 50, 300)]
        for place, (name, length) in enumerate(kernels.items()):
            correlation = 10 * number + place + 1
            called = start + 60 + 10 * place
            begins = max(called + 20, free[name] + 1)
            # Steps differ a little, or nothing could be said of how certain a change is.
            free[name] = begins + length + number
            events += [
                launch(called, 5, correlation),
                kernel(name, begins, length + number, correlation, stream=7 + place),
            ]
    return trace(*events)


def change(base, new):
    return diff(*(side_of_traces(name, [step_parts(side)]) for name, side in (("base", base), ("new", new))))


def compared(base, new):
    found = change(base, new)
    told = counterfactual(found, base, new)
    if told is not None and not told.refused:
        assert sum(share.share_ns for share in told.shares) + told.others_ns + told.beyond_ns == found.delta_ns
    return told


def by_name(told):
    return {share.cause.name: share for share in told.shares}


def test_what_is_on_the_path_pays_and_what_is_hidden_is_latent():
    base, new = streams(long=4000, hidden=1000), streams(long=4500, hidden=2500)
    told = compared(base, new)
    shares = by_name(told)
    assert set(shares) == {"long", "hidden"}
    step_ns = change(base, new).new_ns
    assert shares["long"].share_ns == pytest.approx(500_000, rel=0.02)
    assert shares["long"].without_ns == pytest.approx(step_ns - 500_000, rel=0.001)
    assert not shares["long"].latent
    hidden = shares["hidden"]
    assert hidden.cause.delta_ns == pytest.approx(1_500_000, rel=0.01)
    assert hidden.latent
    assert abs(hidden.share_ns) < 20_000
    assert hidden.without_ns == pytest.approx(step_ns, rel=0.005)
    # Two milliseconds are left, and a tenth of what it grows by may cost the step.
    assert hidden.slack_ns == pytest.approx(2_000_000 / 0.9, rel=0.1)
    assert told.latent == (hidden,)
    assert told.exact


def test_two_that_hide_each_other_share_what_neither_alone_would_cost():
    told = compared(streams(one=4000, other=4000), streams(one=5000, other=5000))
    shares = by_name(told)
    step_ns = 5_000_000
    for name in ("one", "other"):
        assert shares[name].share_ns == pytest.approx(500_000, rel=0.05)
        assert shares[name].without_ns == pytest.approx(step_ns, rel=0.01)
        assert not shares[name].latent


def test_what_is_gone_is_taken_out_of_the_step_as_it_was():
    told = compared(streams(long=3000, extra=4000), streams(long=3000))
    assert by_name(told)["extra"].share_ns == pytest.approx(-1_000_000, rel=0.05)
    told = compared(streams(long=3000), streams(long=3000, extra=4000))
    assert by_name(told)["extra"].share_ns == pytest.approx(1_000_000, rel=0.05)
    assert by_name(told)["extra"].without_ns == pytest.approx(3_000_000, rel=0.01)


def test_many_causes_are_sampled_and_the_rest_is_one_of_them(monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(module, "MOST_SIMULATIONS", 10)
    monkeypatch.setattr(module, "FEWEST_SIMULATIONS", 10)
    before = {f"k{number}": 1000 + 500 * number for number in range(6)}
    told = compared(streams(**before), streams(**{name: length + 400 for name, length in before.items()}))
    assert not told.exact
    assert len(told.shares) == 3
    total = sum(share.share_ns for share in told.shares) + told.others_ns
    assert total == pytest.approx(400_000, rel=0.05)


def test_nothing_is_said_where_nothing_overlaps_or_nothing_changed():
    host = [
        trace(*(event for n in range(3) for event in (step(n, 1000 * n, 900), x("aten::mm", 1000 * n, length + n))))
        for length in (500, 700)
    ]
    assert change(*host).delta_ns == 0
    assert compared(*host) is None
    same = streams(long=4000, hidden=1000)
    assert compared(same, same) is None


@pytest.mark.parametrize(
    "length, gap, reason",
    [
        (1200, 98, "+96.00 µs of the change unexplained"),
        (600, 98, "of the trace's time is waiting without a known cause"),
    ],
    ids=["of the change", "of the trace"],
)
def test_what_durations_do_not_explain_is_refused(length, gap, reason):
    """The kernel takes 2 % longer, but what the step pays for is a new gap between one and the next.

    Longer gaps, each behind a launch of long ago, would be those of a clock that is behind.
    """
    base = streams(k=length)
    events, free = [], 0
    longer = length + length // 50
    for number in range(STEPS):
        start = 600 * number
        free += gap
        events += [step(number, start, 550), x("aten::mm", start + 50, 300), launch(start + 60, 5, number + 1)]
        events.append(kernel("k", start + 80 + free, longer + number, number + 1))
        free += longer - 600
    told = compared(base, trace(*events))
    assert reason in told.refused
    assert (told.shares, told.latent) == ((), ())


PAIRS = (("resnet50_workers0", "resnet50_workers4"), ("h100_bert_small", "mi300_bert_small"))


@pytest.mark.corpus
@pytest.mark.parametrize("names", PAIRS, ids=["input", "vendors"])
def test_shares_of_real_changes_add_up(names):
    told = compared(*(read(corpus_file(name)) for name in names))
    assert not told.refused
    assert told.shares
    if names[0].startswith("resnet"):
        assert told.shares[0].cause.name == "input"
        assert told.shares[0].share_ns < -30_000_000
