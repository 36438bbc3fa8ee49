"""Launch-bound, kernel-bound or neither: by hand, from the trace's events to the words."""

import numpy as np
import pytest

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.diff import causes, diff, regions, side_of_call, side_of_traces
from pytest_perfdl.diff.side import Side
from pytest_perfdl.judge.blame import find_causes
from pytest_perfdl.model.record import Call, Row
from pytest_perfdl.model.step_part import Part
from pytest_perfdl.report.diff import terminal
from pytest_perfdl.report.diff.json import to_json
from pytest_perfdl.trace import read
from unit.trace.chrome import corpus_file, kernel, launch, step, trace, x


def side(*parts):
    """A side of one step; each part is (kind, class, module, ns) or has a name of its own as well."""
    made = [
        (Part(kind, name[0] if name else f"{place}.{module}", module=module), place, ns)
        for kind, place, module, ns, *name in parts
    ]
    ns = np.array([[float(each[2])] for each in made])
    count = np.array([[0.0 if part.kind == "idle" else 1.0] for part, *_ in made])
    classes = tuple(name for _, name, _ in made)
    return Side("a", "run", tuple(part for part, *_ in made), classes, ns.sum(axis=0), ns, ns, count)


@pytest.mark.parametrize(
    "late, kernels, other, expected",
    [
        (19, 81, 0, "kernel"),
        (20, 80, 0, "launch"),
        (100, 0, 0, "launch"),
        (0, 100, 0, "kernel"),
        (0, 100, 100, "kernel"),
        (0, 100, 101, ""),
        (60, 40, 101, ""),
    ],
    ids=["below", "at the share", "no kernels", "never late", "half told", "less than half", "input above all"],
)
def test_where_the_line_is(late, kernels, other, expected):
    whole = side(("kernel", "compute", "", kernels), ("idle", "launch latency", "", late), ("idle", "input", "", other))
    assert regions(whole).bound() == expected
    assert regions(whole).launch_share() == late / (late + kernels)


@pytest.mark.parametrize("name", ["launch latency", "operator overhead", "Python and host"])
def test_what_the_device_waits_for_with_an_empty_queue(name):
    assert regions(side(("kernel", "compute", "", 50), ("idle", name, "", 50))).bound() == "launch"


@pytest.mark.parametrize("name", ["device wait", "unattributed", "synchronization", "input"])
def test_what_is_no_waiting_for_launches(name):
    found = regions(side(("kernel", "compute", "", 50), ("idle", name, "", 50)))
    assert (found.bound(), found.launch_share()) == ("kernel", 0)


def test_copies_and_communication_are_kernels_here():
    whole = side(
        ("kernel", "exposed copies", "", 45),
        ("kernel", "exposed communication", "", 45),
        ("idle", "launch latency", "", 10),
    )
    assert regions(whole).launch_share() == 0.1


def test_without_a_device_nothing_is_said_of_the_step():
    host = regions(side(("operator", "forward", "", 10), ("idle", "Python and host", "", 90)))
    assert (host.on_device, host.bound(), host.launch_share()) == (False, "", None)
    nothing = regions(side(("kernel", "compute", "", 0)))
    assert (nothing.bound(), nothing.launch_share()) == ("", None)


MODEL = (
    ("kernel", "compute", "Net.attn", 1000, "softmax"),
    ("kernel", "compute", "Net.attn.proj", 9000, "gemm"),
    ("idle", "launch latency", "Net.attn.proj", 1000),
    ("kernel", "compute", "Net.attn2", 100, "tiny"),
    ("idle", "launch latency", "Net.attn2", 900),
    ("kernel", "compute", "", 100, "adam"),
    ("idle", "input", "", 100),
)


def test_a_region_is_a_module_with_those_inside_it():
    found = regions(side(*MODEL))
    assert found.inside("Net.attn") == ["Net.attn", "Net.attn.proj"]
    assert found.launch_share(found.inside("Net.attn")) == pytest.approx(1000 / 11_000)
    assert found.bound(found.inside("Net.attn")) == "kernel"
    assert found.bound(found.inside("Net.attn2")) == "launch"
    assert found.bound([""]) == "kernel"
    assert found.inside("") == ["Net.attn", "Net.attn.proj", "Net.attn2", ""]


def named(base, new):
    return {cause.name: cause.bound for cause in causes(diff(base, new))}


def changed(**times):
    return [
        (kind, place, module, times.get(*name, ns) if name else ns, *name) for kind, place, module, ns, *name in MODEL
    ]


def test_each_cause_has_that_of_its_region():
    grown = [(*part[:3], 2000) if part[:2] == ("idle", "input") else part for part in changed(gemm=12_000, tiny=190)]
    assert named(side(*MODEL), side(*grown)) == {"gemm": "kernel", "tiny": "launch", "input.": ""}


def test_idle_time_is_its_own_region():
    later = [(*part[:3], 3000) if part[2] == "Net.attn.proj" and part[0] == "idle" else part for part in MODEL]
    assert named(side(*MODEL), side(*later)) == {"launch latency.Net.attn.proj": "launch"}


def test_what_is_gone_has_the_bound_that_it_had():
    left = [part for part in MODEL if part[3:] != (100, "tiny")]
    (first,) = causes(diff(side(*MODEL), side(*left)))
    assert (first.name, first.status, first.bound) == ("tiny", "gone", "launch")


def test_a_cause_of_several_modules_has_theirs_together():
    scattered = (
        ("kernel", "compute", "A", 100, "gemm"),
        ("idle", "launch latency", "A", 100),
        ("kernel", "compute", "B", 1000, "gemm"),
        ("kernel", "compute", "C", 1000, "other"),
    )
    slower = [(*part[:3], part[3] + 300, *part[4:]) if part[4:] == ("gemm",) else part for part in scattered]
    (cause,) = causes(diff(side(*scattered), side(*slower)))
    # In A alone 100 of 500 ns are late; in A and B 100 of 1,800.
    assert (cause.name, cause.module, cause.bound) == ("gemm", "", "kernel")


def test_pythons_time_is_the_hosts_where_there_is_no_device():
    def host(python, mm):
        return side(("operator", "forward", "", mm, "mm"), ("idle", "Python and host", "", python))

    assert named(host(1000, 1000), host(2000, 2000)) == {"mm": "", "Python and host.": "host"}


def steps(gap, times):
    """A launch every `gap` microseconds, each of a kernel of 10."""
    events = []
    for number in range(2):
        start = number * 1000
        events.append(step(number, start, 40 + max(gap, 10) * times))
        for index in range(times):
            at, correlation = start + 20 + gap * index, 100 * number + index + 1
            events += [x("aten::mm", at, 5), launch(at + 1, 3, correlation)]
            events.append(kernel("gemm", max(at + 5, start + 25 + 10 * index), 10, correlation))
    return step_parts(trace(*events))


def test_of_a_trace_by_its_launches():
    slow = regions(side_of_traces("a", [steps(gap=40, times=15)]))
    fast = regions(side_of_traces("a", [steps(gap=8, times=15)]))
    assert slow.bound() == "launch"
    assert slow.launch_share() > 0.7
    # Up to the step's first kernel the device waits in both.
    assert fast.launch_share() < slow.launch_share() - 0.2


def test_a_recorded_call_has_no_modules():
    rows = (
        Row("operator", "aten::mm", 2.0, (600, 620)),
        Row("idle", "launch latency", 0, (700, 700)),
        Row("kernel", "gemm", 2.0, (300, 300)),
    )
    one = side_of_call("gpu", Call("", {}, rows, (1000, 1000)))
    assert regions(one).bound() == "launch"
    assert list(regions(one).by_module) == [""]


def test_the_words_and_the_data():
    found = diff(side(*MODEL), side(*changed(gemm=12_000)))
    text = terminal.report("", found, 0.03, 10, 100)
    # 1,900 ns late and 13,200 of kernels; before, 10,200.
    sentence = "12.6% of its kernel and launch-wait time is spent waiting for launches (baseline: 15.7%)."
    assert f"The current step is kernel-bound: {sentence}" in " ".join(text.split())
    data = to_json([("", found)], 0.03)
    assert data["step"]["bound"] == "kernel"
    assert data["step"]["launch_share"] == pytest.approx(1900 / 15_100)
    assert [each["bound"] for each in data["blame"]] == ["kernel"]
    assert [cause.bound for cause in find_causes({"": found})] == ["kernel"]


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name, expected", [("h100_bert_small", "launch"), ("triton_compile", "kernel"), ("cpu_only", "")]
)
def test_public_traces(name, expected):
    assert regions(side_of_traces(name, [step_parts(read(corpus_file(name)))])).bound() == expected
