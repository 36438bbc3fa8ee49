"""Jobs whose steps are known, to be damaged in tests: microseconds."""

from pytest_perfdl.analysis.events.steps import steps_of
from unit.trace.chrome import kernel, launch, step, trace, x


def steady(steps=5, *, first=1, at=0, count=10):
    """Steps of 1000 us: every 100 us an operator of 50 us, whose kernel of 50 us begins 10 us after its launch.

    The last kernel of a step ends 70 us after its last operator began, so that windows are annotations.
    """
    events = []
    for place in range(steps):
        begin, number = at + 1000 * place, first + place
        events.append(step(number, begin, 1000))
        for each in range(count):
            call = begin + 100 * each
            events += [
                x("aten::mm", call, 50),
                launch(call + 10, 5, 100 * number + each + 1),
                kernel("gemm", call + 20, 50, 100 * number + each + 1),
            ]
    return events


def pipelined(steps=3, *, first=10, carried=30, called=False):
    """Steps of 100 us on the host and 1000 us on the device, which is 100 us a kernel behind `carried` others.

    These were launched before the profiler began or, `called`, before the first step.
    """
    events = [kernel("gemm", 100 * each, 100, 10_000 + each) for each in range(carried)]
    if called:
        events += [launch(each, 1, 10_000 + each) for each in range(carried)]
    start = carried if called else 0
    for place in range(steps):
        begin = start + 100 * place
        events.append(step(first + place, begin, 100))
        for each in range(10):
            correlation = 100 * (first + place) + each + 1
            events += [
                launch(begin + 10 * each, 5, correlation),
                kernel("gemm", 100 * (carried + 10 * place + each), 100, correlation),
            ]
    return events


def without(events, *dropped):
    """All events but the kernels with these correlations."""
    return [one for one in events if one["cat"] != "kernel" or one["args"]["correlation"] not in dropped]


def steps_in(*events, **top):
    """What is known of the steps of these events."""
    found = trace(*events, **top)
    return steps_of(found)


def lengths(found):
    """Number and microseconds of each step's window."""
    return {window.number: window.window_ns / 1000 for window in found.windows}


def said(found):
    """Code and message of each finding."""
    return {finding.code: finding.message for finding in found.findings}
