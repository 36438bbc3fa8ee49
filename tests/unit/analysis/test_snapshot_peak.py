"""What a device's memory consists of at its peak: accounts of small snapshots, worked out by hand."""

import random
from pathlib import Path

import pytest

from pytest_perfdl.analysis.account.snapshot_peak import CURVE_POINTS, snapshot_accounts
from unit.trace.test_memory_snapshot import block, event, read, segment, snapshot

PACKAGES = "/opt/lib/python3.11/site-packages"
HOME = Path("/home/me/project")
K = 1024


def frames(*texts):
    """Frames from "path:line:function", the innermost first."""
    found = []
    for text in texts:
        path, line, name = text.split(":", 2)
        found.append({"filename": path.replace("torch/", f"{PACKAGES}/torch/", 1), "line": int(line), "name": name})
    return found


MAIN = f"{HOME}/train.py:9:main"
FORWARD = frames("torch/nn/modules/linear.py:125:forward", f"{HOME}/model.py:41:forward", MAIN)
LOSS = frames(f"{HOME}/train.py:12:loss", MAIN)
BACKWARD = frames("torch/autograd/graph.py:824:_engine_run_backward", f"{HOME}/train.py:14:main")
STEP = frames("torch/optim/adam.py:300:_multi_tensor_adam", "torch/optim/adam.py:200:step", f"{HOME}/train.py:15:main")
STATE = frames("torch/optim/adam.py:150:_init_group", "torch/optim/adam.py:200:step", f"{HOME}/train.py:15:main")
ZERO_GRAD = frames("torch/optim/optimizer.py:900:zero_grad", f"{HOME}/train.py:16:main")
INIT = frames("torch/nn/modules/linear.py:105:__init__", f"{HOME}/model.py:20:__init__", MAIN)


def history(*events, start=1_000_000):
    """Events of (action, address, size, stack), a microsecond apart; "free" is requested and completed at once."""
    found = []
    for action, address, size, stack in events:
        # Of memory that ran out, the address is what the device had free.
        extra = {"device_free": address} if action == "oom" else {}
        actions = ("free_requested", "free_completed") if action == "freed" else (action,)
        for each in actions:
            found.append(event(each, address, size, frames=stack, time_us=start + len(found), **extra))
    return found


def accounts(folder, data):
    found = snapshot_accounts(read(folder, data), folder=HOME)
    for account in found:
        assert account.residual == 0
        assert [row.bytes for row in account.rows] == sorted((row.bytes for row in account.rows), reverse=True)
        assert max(size for _, size in account.curve) == account.peak_bytes
        assert len(account.curve) <= CURVE_POINTS
    return found


def account(folder, *segments, trace=()):
    (found,) = accounts(folder, snapshot(*segments, traces=[list(trace)]))
    return found


def rows(found):
    return [(row.category, row.line, row.phase, row.tensors, row.bytes) for row in found.rows]


def test_a_training_step(tmp_path):
    """The peak is in the optimizer: its state and a temporary, above parameters, gradients and the batch."""
    found = account(
        tmp_path,
        segment(
            block(4 * K, address=0, requested_size=4 * K, frames=INIT),
            block(8 * K, address=20 * K, requested_size=8 * K, frames=STATE),
        ),
        trace=history(
            ("alloc", 4 * K, K, frames("torch/utils/data/_utils/pin_memory.py:98:pin_memory", MAIN)),
            ("alloc", 5 * K, 2 * K, FORWARD),
            ("alloc", 7 * K, K, FORWARD),
            ("freed", 7 * K, K, FORWARD),
            ("alloc", 8 * K, 512, LOSS),
            ("alloc", 9 * K, 3 * K, BACKWARD),
            ("alloc", 12 * K, K, BACKWARD),
            ("freed", 12 * K, K, BACKWARD),
            ("freed", 5 * K, 2 * K, BACKWARD),
            ("freed", 8 * K, 512, BACKWARD),
            ("alloc", 20 * K, 8 * K, STATE),
            ("alloc", 30 * K, 2 * K, STEP),
            ("freed", 30 * K, 2 * K, STEP),
            ("freed", 9 * K, 3 * K, ZERO_GRAD),
            ("freed", 4 * K, K, frames(MAIN)),
        ),
    )
    assert rows(found) == [
        ("optimizer state", "train.py(15): main", "optimizer", 1, 8 * K),
        ("parameters", "model.py(20): __init__", "setup", 1, 4 * K),
        ("gradients", "train.py(14): main", "backward", 1, 3 * K),
        ("temporaries", "train.py(15): main", "optimizer", 1, 2 * K),
        ("inputs", "train.py(9): main", "input", 1, K),
    ]
    assert (found.device, found.peak_bytes) == ("cuda:0", 18 * K)
    assert (found.at_ns, found.step_ns) == (15_000, 21_000)
    assert [(row.lives_from, row.lives_to) for row in found.rows] == [
        *((14_000, None), (-1, None), (6_000, 18_000)),
        *((15_000, 16_000), (0, 20_000)),
    ]
    assert found.rows[1].callers == ("train.py(9): main",)
    assert found.moment == found.rows[3]


def test_activations_are_what_the_backward_pass_finds(tmp_path):
    found = account(
        tmp_path,
        trace=history(
            ("alloc", 0, 2 * K, FORWARD),
            ("alloc", 8 * K, 512, FORWARD),
            ("alloc", 9 * K, K, LOSS),
            ("alloc", 10 * K, 4 * K, LOSS),
            ("freed", 8 * K, 512, FORWARD),
            ("freed", 0, 2 * K, BACKWARD),
            ("freed", 9 * K, K, BACKWARD),
            ("freed", 10 * K, 4 * K, LOSS),
        ),
    )
    assert rows(found) == [
        ("temporaries", "train.py(12): loss", "", 1, 4 * K),
        ("activations", "model.py(41): forward", "forward", 1, 2 * K),
        ("activations", "train.py(12): loss", "forward", 1, K),
        ("temporaries", "model.py(41): forward", "forward", 1, 512),
    ]


def test_a_recomputation_is_part_of_the_backward_pass(tmp_path):
    recomputing = [*FORWARD[:2], *frames("torch/utils/checkpoint.py:1100:unpack_hook"), *BACKWARD]
    found = account(tmp_path, trace=history(("alloc", 0, K, recomputing), ("freed", 0, K, BACKWARD)))
    assert rows(found) == [("temporaries", "model.py(41): forward", "backward", 1, K)]


def test_a_closure_is_no_part_of_the_optimizer(tmp_path):
    found = account(tmp_path, trace=history(("alloc", 0, K, [*FORWARD, *STEP]), ("freed", 0, K, [*BACKWARD, *STEP])))
    assert rows(found) == [("activations", "model.py(41): forward", "forward", 1, K)]


def test_alike_is_one_row_and_other_callers_are_another(tmp_path):
    other = [*FORWARD[:2], *frames(f"{HOME}/train.py:30:evaluate")]
    stacks = (FORWARD, FORWARD, other)
    found = account(tmp_path, trace=history(*(("alloc", place * K, K, stack) for place, stack in enumerate(stacks))))
    assert [(row.callers, row.tensors, row.bytes) for row in found.rows] == [
        (("train.py(9): main",), 2, 2 * K),
        (("train.py(30): evaluate",), 1, K),
    ]


# Boundaries.


def test_without_history(tmp_path):
    found = account(tmp_path, segment(block(K, frames=INIT), block(512), {"size": 4 * K, "state": "inactive"}))
    assert rows(found) == [
        ("parameters", "model.py(20): __init__", "setup", 1, K),
        ("other", "", "", 1, 512),
    ]
    assert (found.peak_bytes, found.at_ns, found.step_ns) == (K + 512, 0, 0)
    assert (found.curve, found.reserved_bytes, found.moment) == (((0, K + 512),), 2**20, None)
    assert found.notes[0].startswith("No memory history was recorded")


def test_the_peak_where_the_history_begins(tmp_path):
    """What was allocated before and is freed is of a size, but of no line."""
    found = account(
        tmp_path,
        segment(block(K, address=0, requested_size=K, frames=FORWARD)),
        trace=history(("freed", 8 * K, 3 * K, BACKWARD), ("alloc", 8 * K, K, STEP), ("freed", 8 * K, K, STEP)),
    )
    assert rows(found) == [
        ("other", "", "", 1, 3 * K),
        ("activations", "model.py(41): forward", "forward", 1, K),
    ]
    assert (found.peak_bytes, found.at_ns, found.moment) == (4 * K, 0, None)
    assert found.curve[0] == (0, 4 * K)
    assert [(row.lives_from, row.lives_to) for row in found.rows] == [(-1, 0), (-1, None)]
    assert found.notes[0].startswith("The highest memory use is at the start of the recorded history")
    assert found.notes[1] == "No source line is known for 1 allocation made before the recorded history"


def test_a_history_that_begins_between_request_and_completion(tmp_path):
    """The memory whose free had been requested before is not allocated any more."""
    found = account(
        tmp_path,
        trace=history(
            ("free_completed", 0, 64 * K, BACKWARD),
            ("alloc", 0, K, FORWARD),
            ("freed", 0, K, FORWARD),
        ),
    )
    assert found.peak_bytes == K


def test_memory_that_another_stream_still_uses_is_free(tmp_path):
    """As in `torch.cuda.max_memory_allocated`."""
    found = account(
        tmp_path,
        segment({"size": K, "state": "active_pending_free", "address": 0}),
        trace=history(("alloc", 0, K, FORWARD), ("free_requested", 0, K, FORWARD), ("alloc", 8 * K, 512, FORWARD)),
    )
    assert (found.peak_bytes, found.at_ns) == (K, 0)


def test_expandable_segments(tmp_path):
    """What was mapped after the peak was not held at it, and what was unmapped was."""
    found = account(
        tmp_path,
        segment(block(512, address=0, requested_size=512, frames=FORWARD), total=20 * K, is_expandable=True),
        trace=history(
            ("segment_map", 0, 8 * K, []),
            ("alloc", 0, 512, FORWARD),
            ("alloc", K, 4 * K, FORWARD),
            ("freed", K, 4 * K, FORWARD),
            ("segment_unmap", 4 * K, 4 * K, []),
            ("segment_alloc", 64 * K, 16 * K, []),
        ),
    )
    assert (found.peak_bytes, found.reserved_bytes) == (4 * K + 512, 8 * K)


def test_a_history_without_segments_does_not_know_what_was_held(tmp_path):
    found = account(tmp_path, trace=history(("alloc", 0, K, FORWARD), ("freed", 0, K, FORWARD)))
    assert found.reserved_bytes is None
    assert any("reserved memory at the peak is unknown" in note for note in found.notes)


def test_devices(tmp_path):
    """Those on which nothing was allocated are left out."""
    found = accounts(
        tmp_path,
        snapshot(
            segment({"size": K, "state": "inactive"}, device=0),
            segment(block(K), device=3),
            traces=[[], history(("alloc", 0, 512, FORWARD)), history(("oom", 0, K, []))],
        ),
    )
    assert [(each.device, each.peak_bytes) for each in found] == [("cuda:1", 512), ("cuda:3", K)]
    assert accounts(tmp_path, snapshot()) == ()


def test_an_early_version(tmp_path):
    """Of 1.13: segments only, blocks without address, and what was requested in their history."""
    old = segment(block(K, history=[{"addr": 4096, "real_size": 1000, "frames": INIT}]), block(512))
    (found,) = accounts(tmp_path, [old])
    assert rows(found) == [
        ("parameters", "model.py(20): __init__", "setup", 1, 1000),
        ("other", "", "", 1, 512),
        ("allocator", "", "", 1, 24),
    ]


def test_events_without_times_are_counted(tmp_path):
    events = [event("alloc", 0, K, frames=FORWARD), event("alloc", K, K, frames=FORWARD), event("free", K, K)]
    found = account(tmp_path, trace=events)
    assert (found.at_ns, found.step_ns, found.curve) == (1, 2, ((0, 0), (0, K), (1, 2 * K), (2, K)))
    assert "The snapshot has no timestamps: times are shown as numbers of events" in found.notes


# Rounding.


def test_rounding_is_one_row(tmp_path):
    """A block of the snapshot says what it has; of what was freed, multiples of 512 bytes are assumed."""
    found = account(
        tmp_path,
        segment(block(2 * K, address=0, requested_size=1500, frames=FORWARD)),
        trace=history(
            ("alloc", 0, 1500, FORWARD),
            ("alloc", 4 * K, 1, LOSS),
            ("alloc", 8 * K, 512, LOSS),
            ("freed", 4 * K, 1, LOSS),
            ("freed", 8 * K, 512, LOSS),
        ),
    )
    assert rows(found) == [
        ("temporaries", "model.py(41): forward", "forward", 1, 1500),
        ("allocator", "", "", 2, 548 + 511),
        ("temporaries", "train.py(12): loss", "", 2, 513),
    ]
    assert any("For 2 allocations freed after the peak" in note for note in found.notes)


def test_a_block_that_asks_for_more_than_it_has(tmp_path):
    found = account(tmp_path, segment(block(512, requested_size=4096)))
    assert found.by_category() == {"other": 512}


# Histories with gaps.


def test_frees_that_were_not_recorded(tmp_path):
    """An allocation ends at the latest where another takes its address."""
    found = account(
        tmp_path,
        segment(block(K, address=0, requested_size=K, frames=FORWARD)),
        trace=history(("alloc", 0, 2 * K, LOSS), ("alloc", 0, K, FORWARD), ("alloc", 8 * K, 512, LOSS)),
    )
    assert (found.peak_bytes, found.at_ns) == (2 * K, 0)
    assert found.curve[-1] == (2_000, K + 512)
    assert "The recorded history does not show when 2 allocations began or ended" in found.notes


@pytest.mark.parametrize("kept", ["free_requested", "free_completed"])
def test_one_kind_of_free_is_enough(tmp_path, kept):
    found = account(tmp_path, trace=history(("alloc", 0, K, LOSS), (kept, 0, K, LOSS), ("alloc", 0, 512, LOSS)))
    assert [size for _, size in found.curve] == [0, K, 0, 512]


def test_allocations_that_were_not_recorded(tmp_path):
    """They begin at the earliest after the last event of their address."""
    found = account(
        tmp_path,
        segment(block(2 * K, address=0, requested_size=2 * K, frames=LOSS)),
        trace=history(("freed", 0, K, LOSS), ("freed", 0, 512, LOSS)),
    )
    assert [size for _, size in found.curve] == [K, 512, 512, 2 * K, 2 * K]
    assert rows(found) == [("temporaries", "train.py(12): loss", "", 1, 2 * K)]


# Out of memory.


def test_memory_that_ran_out_in_the_forward_pass(tmp_path):
    """What it holds waits for the backward pass that does not come."""
    found = account(
        tmp_path,
        segment(block(K, address=0, requested_size=K, frames=FORWARD)),
        trace=history(("alloc", 0, K, FORWARD), ("oom", 2**20, 2**31, FORWARD)),
    )
    assert rows(found) == [("activations", "model.py(41): forward", "forward", 1, K)]
    assert found.notes == (
        "The device ran out of memory: an allocation needed 2.000 GiB, but only 1.000 MiB were free",
    )


def test_memory_that_ran_out_in_the_optimizer(tmp_path):
    """Only what it makes for each parameter is state: the rest it might have freed at its end."""
    found = account(
        tmp_path,
        segment(
            block(K, address=0, requested_size=K, frames=STATE),
            block(512, address=K, requested_size=512, frames=STEP),
        ),
        trace=history(("alloc", 0, K, STATE), ("alloc", K, 512, STEP), ("oom", 0, K, STEP)),
    )
    assert found.by_category() == {"optimizer state": K, "temporaries": 512}


# What stacks tell.


@pytest.mark.parametrize(
    "stack, expected",
    [
        ([f"{HOME}/model.py:20:GPT.__init__", MAIN], ("parameters", "setup")),
        (
            ["torch/nn/modules/module.py:900:_apply", MAIN],
            ("parameters", "setup"),
        ),
        (["torch/nn/parallel/distributed.py:1200:_ddp_init_helper", MAIN], ("gradients", "setup")),
        ([f"{PACKAGES}/transformers/modeling_utils.py:4000:from_pretrained", MAIN], ("parameters", "setup")),
        ([f"{HOME}/data.py:5:move_to_device", MAIN], ("inputs", "input")),
        (["??:0:torch::autograd::THPVariable_to(_object*, _object*)", MAIN], ("inputs", "input")),
        (["a.cpp:0:THPVariable_to(_object*)", "torch/nn/modules/module.py:9:_call_impl"], ("temporaries", "forward")),
        (["Engine.cpp:0:torch::autograd::Engine::evaluate_function(x)"], ("gradients", "backward")),
        (["torch/autograd/__init__.py:500:grad", MAIN], ("gradients", "backward")),
        ([f"{HOME}/optimizers.py:70:Muon.step", MAIN], ("optimizer state", "optimizer")),
        ([f"{HOME}/scheduler.py:70:step", MAIN], ("temporaries", "")),
        (["torch/nn/functional.py:3000:cross_entropy", MAIN], ("temporaries", "forward")),
        ([MAIN], ("temporaries", "")),
    ],
)
def test_phase_and_category(tmp_path, stack, expected):
    found = account(
        tmp_path,
        segment(block(512, address=0, requested_size=512, frames=frames(*stack))),
        trace=history(("alloc", 0, 512, frames(*stack))),
    )
    assert [(row.category, row.phase) for row in found.rows] == [expected]


def test_without_python_it_is_autograd_that_allocates(tmp_path):
    """Its threads run no Python, where frames of Python alone were recorded."""
    trace = history(
        ("alloc", 0, K, FORWARD),
        ("alloc", K, 512, []),
        ("freed", 0, K, []),
        ("alloc", 8 * K, 2 * K, []),
        ("freed", 8 * K, 2 * K, []),
        ("freed", K, 512, ZERO_GRAD),
    )
    found = account(tmp_path, trace=trace)
    assert rows(found) == [
        ("temporaries", "", "backward", 1, 2 * K),
        ("gradients", "", "backward", 1, 512),
    ]
    cpp = frames("a.cpp:3:at::empty", MAIN)
    (found, _) = accounts(tmp_path, snapshot(traces=[trace, history(("alloc", 0, 512, cpp))]))
    assert rows(found)[0] == ("other", "", "", 2, 2 * K + 512)


def test_without_any_frame_it_is_other(tmp_path):
    found = account(tmp_path, trace=history(("alloc", 0, K, []), ("freed", 0, K, [])))
    assert rows(found) == [("other", "", "", 1, K)]


def test_lines(tmp_path):
    """Of the user's code alone: below the folder relative to it, others by their last two parts."""
    stack = frames(
        "??:0:at::empty(long)",
        "/pytorch/c10/core/CPUAllocator.cpp:9:alloc",
        "torch/_ops.py:1158:__call__",
        "/tmp/torchinductor_me/ab/cabc.py:70:call",
        "<string>:1:made",
        f"{HOME}/layers/attention.py:5:attend",
        f"{PACKAGES}/einops/einops.py:7:rearrange",
        "/srv/shared/code/models/gpt.py:6:run",
        "script.py:8:<module>",
    )
    (row,) = account(tmp_path, trace=history(("alloc", 0, 512, stack))).rows
    assert row.line == "layers/attention.py(5): attend"
    assert row.callers == ("models/gpt.py(6): run", "script.py(8): <module>")


def test_the_nearest_callers_are_kept(tmp_path):
    stack = frames(*(f"{HOME}/a.py:{line}:f" for line in range(100)))
    (row,) = account(tmp_path, trace=history(("alloc", 0, 512, stack))).rows
    assert row.callers == tuple(f"a.py({line}): f" for line in range(1, 7))


# Long histories.


def test_a_long_curve_keeps_peak_and_ends(tmp_path):
    events = []
    for place in range(3000):
        size = K if place == 1777 else 512
        events += [("alloc", place * 64 * K, size, LOSS), ("freed", place * 64 * K, size, LOSS)]
    found = account(tmp_path, trace=history(*events))
    assert found.curve[0] == (0, 0)
    assert (found.at_ns, K) in found.curve
    assert found.at_ns == 1777 * 3 * 1000
    assert found.curve[-1] == (8999 * 1000, 0)


def test_random_histories_cut_anywhere(tmp_path):
    """Whatever the ring buffer kept, the bytes after each event that it holds are the same, and so is their peak."""
    source, segments, traces, expected = random.Random(7), [], [], []
    for device in range(40):
        events, live, levels = [], {}, []
        for _ in range(120):
            if live and source.random() < 0.45:
                address = source.choice(list(live))
                events.append(("freed", address, live.pop(address), LOSS))
            else:
                address = source.choice([place * 64 * K for place in range(60) if place * 64 * K not in live])
                live[address] = 512 * source.randint(1, 100)
                events.append(("alloc", address, live[address], source.choice((FORWARD, BACKWARD, STEP, []))))
            levels.append(sum(live.values()))
        cut = source.choice((0, 1, 60, 119, 120))
        blocks = [block(size, address=address, requested_size=size) for address, size in live.items()]
        segments.append(segment(*blocks, device=device, total=2**30))
        traces.append(history(*events[cut:]))
        expected.append(max([levels[cut - 1] if cut else 0, *levels[cut:]]))
    assert [each.peak_bytes for each in accounts(tmp_path, snapshot(*segments, traces=traces))] == list(
        filter(None, expected)
    )
