"""Traces drawn at random for property tests: small, but with every kind of device event, link and overlap."""

from hypothesis import strategies as st

from pytest_perfdl.analysis.events.steps import steps_of
from unit.trace.chrome import kernel, launch, trace, x

NAMES = (
    ("gemm", "kernel"),
    ("norm", "kernel"),
    ("ncclDevKernel_AllReduce", "kernel"),
    ("deep_ep::internode_ll::dispatch<3>", "kernel"),
    ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
    ("Memset (Device)", "gpu_memset"),
)

moments = st.integers(0, 60)
lengths = st.integers(0, 10)
"""An event that outlasts a later one of its stream by more would be cut."""


@st.composite
def device_events(draw):
    """A device event, and before it perhaps the call that launched it; correlations are drawn with repetition."""
    name, category = draw(st.sampled_from(NAMES))
    correlation = draw(st.integers(1, 12))
    start, stream = draw(moments), draw(st.integers(7, 9))
    event = kernel(name, start, draw(lengths), correlation, stream=stream, cat=category)
    call = launch(draw(moments), draw(lengths), correlation, tid=draw(st.integers(100, 101)))
    return [call, event] if draw(st.booleans()) else [event]


host_events = st.builds(
    x,
    st.sampled_from(("aten::mm", "aten::item", "c10d::allreduce_")),
    moments,
    lengths,
    tid=st.integers(100, 101),
) | st.builds(x, st.just("enumerate(DataLoader)#X.__next__"), moments, lengths, st.just("user_annotation"))


@st.composite
def steps(draw):
    """Annotations one behind the other, with gaps."""
    found, now = [], 0
    for number in range(draw(st.integers(0, 3))):
        now += draw(st.integers(0, 5))
        length = draw(st.integers(1, 25))
        found.append(x(f"ProfilerStep#{number}", now, length, "user_annotation"))
        now += length
    return found


@st.composite
def event_lists(draw):
    """Events of a whole trace."""
    device = draw(st.lists(device_events(), min_size=1, max_size=12))
    host = draw(st.lists(host_events, max_size=8))
    found = [*draw(steps()), *host, *(event for events in device for event in events)]
    # Device events that are twice in a file are read once.
    return [event for place, event in enumerate(found) if event not in found[:place]]


def traces():
    """Read traces of `event_lists`."""
    return event_lists().map(lambda events: trace(*events))


def usable(found):
    """Whether damage leaves a trace something to make a graph of."""
    steps = steps_of(found)
    return bool(steps.windows) or not steps.left_out


def usable_traces():
    """Those traces of `event_lists` that are `usable`."""
    return traces().filter(usable)
