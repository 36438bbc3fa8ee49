"""Recordings: what several processes wrote into one file is split by process or refused, and never taken for one."""

import gzip
import json

import numpy as np
import pytest

from pytest_perfdl.model.errors import TraceError
from pytest_perfdl.trace import Category, Trace, loads, read
from pytest_perfdl.trace.recordings import recordings
from unit.trace.chrome import corpus_file, each_recording, each_trace_file, memory, step, text, x

HOST = ("cpu_op", "user_annotation", "cuda_runtime", "python_function", "cpu_instant_event")
"""Categories that are filed under the process, not under a device."""


def rank(shift=0, *, pid=100, tid=100, device=0, correlation=1, steps=4, kernels=5, dur=40, late=0):
    """Events of a rank: in each step of 1000 us it launches kernels 100 us apart, each 20 us before it runs."""
    found = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}}]
    for number in range(steps):
        begin = shift + 1000 * number
        found.append(step(number, begin, 900, pid=pid, tid=tid))
        for place in range(kernels):
            at, link = begin + 10 + 100 * place, correlation + number * (kernels + 1) + place
            found += [
                x("aten::mm", at, 50, pid=pid, tid=tid),
                x("cudaLaunchKernel", at + 5, 5, "cuda_runtime", pid=pid, tid=tid, correlation=link),
                x("gemm", at + 25 + late, dur, "kernel", pid=device, tid=7, correlation=link, device=device, stream=7),
            ]
        link = correlation + number * (kernels + 1) + kernels
        found += [
            x("cudaDeviceSynchronize", begin + 850, 10, "cuda_runtime", pid=pid, tid=tid, correlation=link),
            x("Context Sync", begin + 850, 10, "cuda_sync", pid=device, tid=7, correlation=link),
            memory(begin + 20, 512, 1, device, Addr=1) | {"pid": pid, "tid": tid},
        ]
    return found


def by_time(*ranks):
    """Events of several ranks, as a script that sorts them leaves them."""
    return sorted((event for events in ranks for event in events), key=lambda event: event.get("ts", -1))


def host_first(*ranks):
    """Events of several ranks, what they did on the host before what the devices did."""
    return sorted((event for events in ranks for event in events), key=lambda event: event.get("cat", "") not in HOST)


def in_turn(*ranks):
    """Events of several ranks, one rank after the other."""
    return [event for events in ranks for event in events]


each_order = pytest.mark.parametrize("order", [in_turn, by_time, host_first])


def split(events, **top):
    """What is read from a file of these events."""
    return recordings(loads(text(events, **top), "all.json"))


def refused(events):
    """Why a file of these events is not read."""
    with pytest.raises(TraceError) as error:
        split(events)
    (line,) = str(error.value).splitlines()
    assert line.startswith("all.json contains ")
    assert line.endswith("use one file per process")
    return line


def content(trace: Trace):
    """The timed events of a trace in the order of time, without the ids that merging changes."""
    columns = (trace.start, trace.duration, trace.category)
    return sorted(
        (*values, trace.name_of(row), trace.tid[row])
        for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True))
    )


def assert_ranks(found, *alone):
    """Each recording has the events, memory events and links of one file alone."""
    assert len(found) == len(alone)
    for one, events in zip(found, alone, strict=True):
        expected = loads(text(events))
        assert content(one) == content(expected)
        assert one.memory.time.tolist() == expected.memory.time.tolist()
        device = one.device_rows()
        calls = {int(one.correlation[row]): int(one.start[row]) for row in one.launch_rows()}
        assert all(one.start[row] - calls[int(one.correlation[row])] >= 20_000 for row in device)


def lost(events):
    """The events without those of "Context Sync" on devices that several processes share, which nobody launched."""
    return [event for event in events if event["name"] != "Context Sync"]


@each_order
def test_processes_with_devices_of_their_own(order):
    ranks = rank(pid=100), rank(3, pid=200, device=1, correlation=1001)
    found = split(order(*ranks), distributedInfo={"rank": 1, "world_size": 2, "backend": "nccl"})
    assert_ranks(found, *ranks)
    assert [each.source for each in found] == ["all.json: process 100", "all.json: process 200"]
    # Whose the file's number is cannot be known; the rest is of all.
    assert [each.metadata["distributedInfo"] for each in found] == [{"world_size": 2, "backend": "nccl"}] * 2
    assert [each.findings for each in found] == [(), ()]


@each_order
def test_equal_correlations_of_processes_that_are_apart_in_time(order):
    # The kernel of one ends before the other's call with the same correlation begins.
    ranks = rank(pid=100), rank(500, pid=200, device=1, kernels=5)
    assert_ranks(split(order(*ranks)), *ranks)


@each_order
def test_the_calls_of_one_device_tell_whose_the_other_is(order):
    # Whichever process has the calls of device 1, too: those of process 200 already have a kernel each on device 0.
    ranks = rank(pid=100, device=1, steps=3, late=200), rank(1, pid=200, steps=4, late=200)
    assert_ranks(split(order(*ranks)), *ranks)


@each_order
@pytest.mark.parametrize("names", [("rank 1", "rank 0"), ("Rank1", "rank_0: node a"), ("[rank:1] x", "x rank #0")])
def test_text_as_process_ids(order, names):
    ranks = [rank(3 * place, pid=name, device=name, correlation=1) for place, name in enumerate(names)]
    found = split(order(*ranks), distributedInfo={"rank": 0})
    assert_ranks(found, ranks[1], ranks[0])
    assert [each.source for each in found] == ["all.json: rank 0", "all.json: rank 1"]
    assert [each.metadata["distributedInfo"] for each in found] == [{"rank": 0}, {"rank": 1}]


@each_order
def test_text_for_devices_too(order):
    ranks = [rank(3, pid=f"{n} CPU", device=f"{n} GPU", correlation=1 + 1000 * n) for n in range(3)]
    found = split(order(*ranks))
    assert_ranks(found, *ranks)
    assert [each.source for each in found] == [f"all.json: process {n} CPU" for n in range(3)]


@each_order
def test_ranks_as_process_ids(order):
    # Some of their ids are those of devices of others.
    ranks = rank(pid=1, device=0), rank(1, pid=0, device=1, correlation=1001)
    found = split(order(*ranks))
    assert_ranks(found, ranks[1], ranks[0])
    assert [each.metadata["distributedInfo"] for each in found] == [{"rank": 0}, {"rank": 1}]


def test_ranks_in_the_names_of_processes():
    ranks = rank(pid=100), rank(pid=200, device=1, correlation=1001)
    ranks[0][0]["args"]["name"], ranks[1][0]["args"]["name"] = "rank 5: a.json", "rank 3: b.json"
    found = split(in_turn(*ranks))
    assert [each.metadata["distributedInfo"]["rank"] for each in found] == [3, 5]
    assert_ranks(found, ranks[1], ranks[0])


def test_one_after_the_other_on_one_device():
    # Each process sees one device, which is number 0 for it; all else but the times is equal.
    ranks = rank(pid=100), rank(pid=200, late=7)
    assert_ranks(split(in_turn(*ranks)), *ranks)


@pytest.mark.parametrize("order", [by_time, host_first])
def test_one_device_whose_correlations_are_of_one_process_each(order):
    ranks = rank(pid=100), rank(3, pid=200, correlation=1001)
    found = split(order(*ranks))
    assert_ranks(found, *map(lost, ranks))
    assert found[0].findings == ("8 events of none of the 2 processes were left out",)


@pytest.mark.parametrize("order", [by_time, host_first])
@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_kernels_that_may_be_of_two_processes_are_refused(order, devices):
    ranks = [rank(place, pid=pid, device=devices[place], late=200) for place, pid in enumerate((100, 200))]
    said = refused(order(*ranks))
    assert "contains 2 processes (100, 200), and which of them launched the kernels of device 0" in said


def test_one_process_with_two_devices_is_one():
    events = rank()
    for event in events:
        if event.get("cat") == "kernel" and event["args"]["correlation"] % 2:
            event["pid"] = 1
    whole = loads(text(events))
    assert recordings(whole) == (whole,)
    assert set(whole.pid[whole.device_rows()].tolist()) == {0, 1}


@pytest.mark.parametrize("pid", [4711, "loader"])
def test_a_worker_that_only_annotates_is_no_process(pid):
    worker = [x("load", 100 * number, 80, "user_annotation", pid=pid, tid=1) for number in range(30)]
    frames = [x("loader.py(3): get", 100 * number, 80, "python_function", pid=pid, tid=1) for number in range(30)]
    whole = loads(text([*worker, *rank(), *frames]))
    assert recordings(whole) == (whole,)


def test_what_no_process_has_is_counted():
    ranks = rank(pid=100), rank(1, pid=200, device=1, correlation=1001)
    worker = [x("load", 100 * number, 80, "user_annotation", pid=4711, tid=1) for number in range(3)]
    span = x("PyTorch Profiler (0)", 0, 4000, "Trace", pid="Spans", tid="PyTorch Profiler")
    found = split(by_time(*ranks, worker, [span]))
    assert_ranks(found, *ranks)
    assert [each.findings for each in found] == [("3 events of none of the 2 processes were left out",)] * 2


@pytest.mark.parametrize("of", ["100", 10**30, 7])
def test_metadata_that_we_did_not_write_says_nothing(of):
    ranks = rank(pid=100), rank(pid=200, device=1)
    about = {"metadata": {}, "process_names": [], "thread_names": []}
    told = [about | {"rank": place, "pid": pid, "threads": [[of, 1, 1]]} for place, pid in enumerate((100, 300))]
    assert_ranks(split(in_turn(*ranks), merged=told), *ranks)
    told[1]["pid"] = 200
    if of != 7:
        assert_ranks(split(in_turn(*ranks), merged=told), *ranks)


def test_annotations_and_steps_alone_are_processes():
    notes = [[step(number, 100 * number, 90, pid=pid) for number in range(3)] for pid in (100, 200)]
    found = split(by_time(*notes))
    assert [len(each) for each in found] == [3, 3]


@each_order
@pytest.mark.parametrize("tid", [100, 300])
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("correlation", [1, 11])
def test_two_containers_with_process_1(order, tid, device, correlation):
    # A step and 13 us later: calls of one time that have the same correlation.
    said = refused(order(rank(pid=1), rank(1013, pid=1, tid=tid, device=device, correlation=correlation)))
    assert "contains events of several processes with one process id: " in said
    assert "correlations, such as " in said


def cpu(shift=0, tid=100, names=("aten::mm", "aten::add")):
    """Events of a rank without a device, all of process 1."""
    found = []
    for number in range(4):
        begin = shift + 1000 * number
        found.append(step(number, begin, 900, pid=1, tid=tid))
        found += [x(names[n % len(names)], begin + 10 + 80 * n, 70, pid=1, tid=tid) for n in range(10)]
    return found


@each_order
def test_two_containers_with_one_thread_and_no_device(order):
    assert "76 of the 80 operators of thread 100 overlap without nesting" in refused(order(cpu(), cpu(37)))


@each_order
def test_two_containers_with_threads_of_their_own_and_no_device(order):
    said = refused(order(cpu(), cpu(37, tid=300)))
    assert "the threads 100, 300 do the same work in ProfilerStep#0 at one time" in said


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(cpu(37, tid=300, names=("backward", "aten::add_")), id="a thread that does other work"),
        pytest.param([one for one in cpu(37, tid=300) if "Step" in one["name"]], id="a thread that does nothing"),
        pytest.param(cpu(5000), id="a later cycle"),
        pytest.param(cpu(5000, tid=300), id="a later cycle on another thread"),
        pytest.param(cpu(), id="the same events twice"),
        pytest.param([x("aten::mm", 1000 * n + 40, 70, pid=1, tid=100) for n in range(4)], id="a few that overlap"),
    ],
)
def test_what_one_process_may_look_like(events):
    whole = loads(text(in_turn(cpu(), events)))
    assert recordings(whole) == (whole,)


def test_later_cycles_may_count_from_1_again():
    cycles = [rank(10_000 * number, correlation=1 + 3 * number) for number in range(4)]
    whole = loads(text(in_turn(*cycles)))
    assert recordings(whole) == (whole,)


def test_a_driver_call_has_the_correlation_of_the_runtime_call_around_it():
    events = rank()
    inside = [
        x("cuLaunchKernel", one["ts"] + 1, 3, "cuda_driver", correlation=one["args"]["correlation"])
        for one in events
        if one.get("cat") == "cuda_runtime"
    ]
    whole = loads(text(by_time(events, inside)))
    assert recordings(whole) == (whole,)


def test_a_correlation_that_says_nothing_is_no_sign():
    calls = [
        x("cudaLaunchKernel", n, 0.5, "cuda_runtime", correlation=link) for n in range(50) for link in (0, 2**32 - 1)
    ]
    whole = loads(text(calls))
    assert recordings(whole) == (whole,)


@each_trace_file
def test_every_device_trace_is_one_recording(path):
    whole = read(path)
    assert recordings(whole)[0] is whole


@each_recording
def test_our_own_recordings_are_one_each(path):
    whole = read(path)
    assert recordings(whole)[0] is whole


@pytest.mark.corpus
@pytest.mark.parametrize("order", [in_turn, by_time])
def test_public_ranks_merged_by_hand(order):
    files = [corpus_file("nccl_rank0"), corpus_file("nccl_rank1")]
    documents = [json.loads(gzip.decompress(path.read_bytes())) for path in files]
    events = [document["traceEvents"] for document in documents]
    for place, (own, pid) in enumerate(zip(events, (4037, 4045), strict=True)):
        for event in own:
            event["pid"] = f"rank {place}" if event.get("pid") == pid else event.get("pid", 0)
    for one, path in zip(split(order(*events)), files, strict=True):
        alone = read(path)
        spans = [each.category == each.categories.index("Trace") for each in (one, alone)]
        assert np.sort(one.start[~spans[0]]).tolist() == np.sort(alone.start[~spans[1]]).tolist()
        device = [each.device_rows() for each in (one, alone)]
        assert one.correlation[device[0]].tolist() == alone.correlation[device[1]].tolist()
        assert one.duration[device[0]].tolist() == alone.duration[device[1]].tolist()
        assert len(one.rows(Category.CPU_OP)) == len(alone.rows(Category.CPU_OP))
        assert one.findings == ()


@pytest.mark.parametrize("slice_bytes", [200, 5000, 2**20])
@pytest.mark.parametrize("between", [b"", b"\n", b" \n\n"])
@pytest.mark.parametrize("bare", [False, True])
def test_two_documents_are_refused(slice_bytes, between, bare):
    one, other = (json.dumps(rank(pid=pid)).encode() if bare else text(rank(pid=pid), b=1) for pid in (100, 200))
    with pytest.raises(TraceError) as error:
        loads(one + between + other, "all.json", slice_bytes=slice_bytes)
    said = str(error.value)
    assert said.startswith("all.json contains several JSON documents, one after the other: a further list of events")
    assert said.endswith("write each document to a file of its own")
    place = int(said.split("at byte ")[1].split(";")[0])
    assert len(one) - 5 <= place <= len(one) + 60


def test_gzip_members_that_are_documents_are_refused_and_parts_of_one_are_not():
    one = text(rank())
    with pytest.raises(TraceError, match="several JSON documents"):
        loads(gzip.compress(one) + gzip.compress(one))
    assert len(loads(gzip.compress(one[:1000]) + gzip.compress(one[1000:]))) == len(loads(one))


@pytest.mark.parametrize("piece", [100, 1000, 3000])
def test_interleaved_documents_are_refused(piece):
    texts = [text(rank(pid=pid)) for pid in (100, 200, 300, 400)]
    pieces = [one[at : at + piece] for at in range(0, len(texts[0]), piece) for one in texts]
    for data in (b"".join(pieces), b"".join(map(gzip.compress, pieces))):
        with pytest.raises(TraceError, match="several JSON documents"):
            loads(data, slice_bytes=2000)


def test_interleaved_gzip_streams_are_read_up_to_the_damage():
    streams = [gzip.compress(text(rank(pid=pid, steps=50))) for pid in (100, 200, 300, 400)]
    data = b"".join(stream[at : at + 2000] for at in range(0, 8000, 2000) for stream in streams)
    found = loads(data)
    assert set(found.pid[found.rows(Category.CPU_OP)].tolist()) == {100}
    assert found.findings[0].startswith("the file is damaged: ")
    assert found.findings[0].endswith("the part before it is used")
