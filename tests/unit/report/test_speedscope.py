"""The file for speedscope: its schema, what speedscope refuses, and what Left Heavy and Sandwich make of it.

Nothing here knows how the file is written: `left_heavy` and `self_times` read it as speedscope does.
"""

import gzip
import json
from collections import Counter
from types import MappingProxyType

import pytest

from pytest_perfdl.model.errors import ChromeTraceError
from pytest_perfdl.report.speedscope import short_frame
from pytest_perfdl.trace import Event, compress, write
from unit.report import runs, steps

NAMES = ["current: one observed step", "baseline: one observed step"]


def written(base, new, *causes):
    """The file as speedscope reads it; it keeps the schema and opens and closes frames properly."""
    file = json.loads(steps.flames(runs.result(blame=causes), "", base, new))
    assert list(schema_errors(file)) == []
    for profile in file["profiles"]:
        stack, last = [], profile["startValue"]
        for event in profile.get("events", ()):
            assert event["at"] >= last, "the events are not in the order of time"
            last = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
            else:
                assert stack.pop() == event["frame"], "a frame closes that is not the innermost"
        assert not stack
        assert last <= profile["endValue"]
    return file


def schema_errors(file):
    """What of the file is against https://www.speedscope.app/file-format-schema.json, of 2024."""

    def check(where, value, required, optional=MappingProxyType({})):
        kinds = {**required, **optional}
        yield from (f"{where}: {name} is missing" for name in required if name not in value)
        for name, each in value.items():
            if name not in kinds:
                yield f"{where}: {name} is not in the schema"
            elif not isinstance(each, kinds[name]) or isinstance(each, bool):
                yield f"{where}.{name}: {each!r}"

    top = {"$schema": str, "shared": dict, "profiles": list}
    yield from check("file", file, top, {"name": str, "exporter": str, "activeProfileIndex": int})
    if file["$schema"] != "https://www.speedscope.app/file-format-schema.json":
        yield f"$schema: {file['$schema']}"
    yield from check("shared", file["shared"], {"frames": list})
    frames = file["shared"]["frames"]
    for frame in frames:
        yield from check("frame", frame, {"name": str}, {"file": str, "line": int, "col": int})
    number = (int, float)
    fields = {"type": str, "name": str, "unit": str, "startValue": number, "endValue": number}
    own = {"evented": {"events": list}, "sampled": {"samples": list, "weights": list}}
    for profile in file["profiles"]:
        yield from check("profile", profile, fields | own[profile["type"]])
        if profile["unit"] != "nanoseconds":
            yield f"profile: in {profile['unit']}"
        for event in profile.get("events", ()):
            yield from check("event", event, {"type": str, "frame": int, "at": number})
            if event["type"] not in ("O", "C") or not 0 <= event["frame"] < len(frames):
                yield f"event: {event}"
        for sample in profile.get("samples", ()):
            if not all(isinstance(frame, int) and 0 <= frame < len(frames) for frame in sample):
                yield f"sample: {sample}"
        if len(profile.get("samples", ())) != len(profile.get("weights", ())):
            yield "profile: not a weight for each sample"


def stacks(file, profile=0):
    """Self time of every stack of frames, as pairs of names and nanoseconds."""
    names = [frame["name"] for frame in file["shared"]["frames"]]
    found, stack, last = Counter(), (), 0
    chosen = file["profiles"][profile]
    for sample, weight in zip(chosen.get("samples", ()), chosen.get("weights", ()), strict=True):
        found[tuple(names[frame] for frame in sample)] += weight
    for event in chosen.get("events", ()):
        found[stack] += event["at"] - last
        last = event["at"]
        stack = (*stack, names[event["frame"]]) if event["type"] == "O" else stack[:-1]
    del found[()]
    return found


def left_heavy(file, profile=0):
    """The leftmost stack of Left Heavy: at every depth the frame with most time in all."""
    own, chosen = stacks(file, profile), ()
    while True:
        below = Counter()
        for stack, ns in own.items():
            if len(stack) > len(chosen) and stack[: len(chosen)] == chosen:
                below[stack[: len(chosen) + 1]] += ns
        if not below:
            return chosen
        chosen = below.most_common(1)[0][0]


def self_times(file, profile=0):
    """Sandwich's self times."""
    found = Counter()
    for stack, ns in stacks(file, profile).items():
        found[stack[-1]] += ns
    return found


def test_the_wait_for_input_is_on_top():
    cause = runs.cause("input", (0, 80_000), (0, 12_000_000), 0.95, kind="idle")
    file = written(steps.training(), steps.training(wait=12_000), cause)
    assert [profile["name"] for profile in file["profiles"]][:2] == NAMES
    assert left_heavy(file) == ("step", "perfdl.data_wait", steps.LOADER, "waiting for input")
    assert self_times(file).most_common(1) == [("waiting for input", 12_000_000)]
    assert left_heavy(file, 1)[1] != "perfdl.data_wait"


def test_a_slower_operator_and_slower_python_are_on_top():
    file = written(steps.training(), steps.training(softmax=5_000))
    assert left_heavy(file) == ("step", "GPT", "GPT.h.1", "aten::softmax", "aten::_softmax")
    file = written(steps.training(), steps.training(host=5_000))
    assert left_heavy(file) == ("step", steps.ADAMW, "Python and host")


def test_the_largest_cause_is_on_top_of_the_changes_with_the_pages_numbers():
    causes = [
        runs.cause("aten::softmax", (1, 1_000), (1, 401_000), 0.5, module="GPT.h.1"),
        runs.cause("aten::copy_", (1, 1_000), (1, 301_000), 0.4, module="GPT.h.1", line="gpt.py(43): attention"),
        runs.cause("input", (0, 10_000), (0, 60_000), 0.1, kind="idle"),
        runs.cause("gpt.py(9): forward", (0, 10_000), (0, 50_000), 0.1, kind="idle"),
        runs.cause("aten::flash", (1, 90_000), (0, 0), -0.1),
        runs.cause("aten::mm", call="forward"),
    ]
    file = written(steps.training(), steps.training(), *causes)
    assert file["profiles"][2]["name"] == "causes that became slower: measured change per step"
    assert left_heavy(file, 2) == ("GPT", "GPT.h", "GPT.h.1", "aten::softmax")
    assert self_times(file, 2) == {
        "aten::softmax": 400_000,
        "aten::copy_": 300_000,
        "waiting for input": 50_000,
        "forward": 40_000,
    }
    assert {"name": "aten::copy_", "file": "gpt.py", "line": 43} in file["shared"]["frames"]
    assert {"name": "forward", "file": "gpt.py", "line": 9} in file["shared"]["frames"]


def test_equal_work_is_one_frame():
    file = written(steps.training(), steps.training())
    names = [frame["name"] for frame in file["shared"]["frames"]]
    assert len(names) == len(set(names))
    # Five multiplications of one step, wherever they are.
    assert self_times(file)[steps.MM] == 1_100_000
    assert self_times(file, 0) == self_times(file, 1)


def test_all_time_of_the_step_is_in_a_frame():
    file = written(steps.training(), steps.training(wait=900))
    for number, profile in enumerate(file["profiles"]):
        assert profile["name"] == NAMES[number]
        assert sum(self_times(file, number).values()) == profile["endValue"] - profile["startValue"]
        assert self_times(file, number)["step"] == 0


def test_a_slice_that_outlasts_the_one_around_it_is_cut():
    times = {steps.STEP: (0, 100), "aten::a": (10, 40), "aten::b": (30, 50)}
    events = [
        {"ph": "X", "name": name, "cat": "cpu_op", "pid": 1, "tid": 1, "ts": start, "dur": duration}
        for name, (start, duration) in times.items()
    ]
    data = gzip.compress(json.dumps({"traceEvents": events}).encode())
    file = written(data, data)
    assert self_times(file) == {"step": 60_000, "aten::a": 20_000, "aten::b": 20_000}


def test_slices_without_time_and_of_equal_times_nest():
    slices = [
        steps.annotation(steps.STEP, 0, 100),
        steps.operator("aten::a", 10, 20),
        steps.operator("aten::b", 10, 20),
        steps.operator("aten::c", 20, 20),
        steps.operator("aten::d", 20, 30),
    ]
    file = written(steps.exemplar(*slices), steps.exemplar(*slices))
    assert self_times(file)["aten::d"] == 10_000


def test_a_cause_has_its_line():
    cause = runs.cause("aten::_softmax", line="models/gpt.py(43): causal_attention")
    other = runs.cause(steps.MM, call="forward", line="models/other.py(1): f")
    file = written(steps.training(), steps.training(), cause, other)
    frames = {frame["name"]: frame for frame in file["shared"]["frames"]}
    assert frames["aten::_softmax"] == {"name": "aten::_softmax", "file": "models/gpt.py", "line": 43}
    assert frames[steps.MM] == {"name": steps.MM}


def test_functions_of_python_have_their_own_line():
    frame = ("train.py(12): step", 1, 90, "python_function")
    data = steps.exemplar(steps.annotation(steps.STEP, 0, 100), frame, steps.operator(steps.MM, 10, 40))
    file = written(data, data)
    assert {"name": "step", "file": "train.py", "line": 12} in file["shared"]["frames"]
    assert self_times(file)["step"] == 59_000


def test_streams_of_a_device_are_profiles_with_its_idle_time():
    def side(kernel):
        at = 1_000
        events = [
            Event.thread_name(1, 1, "step"),
            Event.thread_name(0, 7, "stream 7"),
            Event.thread_name(0, 9, "stream 9"),
            Event("X", steps.STEP, 1, 1, at, 500_000, "user_annotation"),
            Event("X", "cudaLaunchKernel", 1, 1, at + 10_000, 5_000, "cuda_runtime", {"correlation": 1}),
            Event(
                "X", "void at::native::gemm<128, true>(int*)", 0, 7, at + 50_000, kernel, "kernel", {"correlation": 1}
            ),
            Event("X", "Memcpy DtoD (Device -> Device)", 0, 9, at + 60_000, 1_000, "gpu_memcpy", {"correlation": 1}),
        ]
        return compress(write(None, events))

    file = written(side(100_000), side(300_000))
    names = [profile["name"] for profile in file["profiles"]]
    assert names[:2] == NAMES
    assert sorted(names[2:]) == [
        f"{side}: one observed step, process 0: stream {number}"
        for side in ("baseline", "current")
        for number in (7, 9)
    ]
    current = names.index("current: one observed step, process 0: stream 7")
    assert self_times(file, current).most_common(1) == [("at::native::gemm<128, true>", 300_000)]
    idle = {name: ns for name, ns in self_times(file, current).items() if name.startswith("idle: ")}
    assert sum(idle.values()) == 200_000


def test_a_step_of_a_device_and_one_of_many_threads_without_a_step(tmp_path):
    exemplar = runs.exemplar(tmp_path / "one.json.gz").read_bytes()
    bare = compress(write(None, [Event("X", "a", 1, 1, 0, 5, "cpu_op"), Event("X", "b", 1, 2, 0, 9, "cpu_op")]))
    assert [profile["name"] for profile in written(exemplar, bare)["profiles"]][:2] == NAMES


def test_equal_input_gives_equal_bytes():
    base, new = steps.training(), steps.training(softmax=500)
    assert steps.flames(runs.result(), "", base, new) == steps.flames(runs.result(), "", base, new)


def test_a_damaged_exemplar_is_one_line_for_people():
    with pytest.raises(ChromeTraceError, match="the recorded baseline trace is damaged") as error:
        steps.flames(runs.result(), "", b"not gzip", steps.training())
    assert "\n" not in str(error.value)


def test_hostile_names_are_names():
    data = steps.exemplar(steps.annotation(steps.STEP, 0, 100), steps.operator(runs.HOSTILE, 10, 40))
    file = json.loads(steps.flames(runs.hostile(), runs.HOSTILE, data, data))
    assert "\u202e" not in json.dumps(file, ensure_ascii=False)


@pytest.mark.parametrize(
    "name, short",
    [
        ("autograd::engine::evaluate_function: BmmBackward0", "autograd: BmmBackward0"),
        ("aten::mm", "aten::mm"),
        ("void ns::a<(int)4>(ns::B<int, (bool)1>, void (*)(int))", "ns::a<(int)4>"),
        ("void ns::(anonymous namespace)::a<int>(int*)", "ns::(anonymous namespace)::a<int>"),
        ("void ns::broken)", "ns::broken)"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", "cutlass_80_simt_sgemm_128x64_8x5_nn_align1"),
    ],
)
def test_short_names(name, short):
    assert short_frame(name) == short
