"""Each cause of pure Python is called by its own function and line, where a stack pass has them."""

import pytest

from pytest_perfdl.analysis.account.parts import step_parts
from pytest_perfdl.judge.blame import locate_causes
from pytest_perfdl.results.verdict import Cause
from unit.trace.chrome import step, trace, x

TRAIN = "train.py(10): train_step"
BACKWARD = "torch/_tensor.py(566): backward"


def frame(name, ts, dur):
    return x(name, ts, dur, "python_function")


def region(name, ts, dur):
    return x(name, ts, dur, "user_annotation")


def stacks(count=20, log=20, update=20, clip=20):
    """A step that counts and logs, and updates its parameters in an annotation, where it clips, too."""
    at, events = 10, []
    for function, length in (("counting.py(3): pairs", count), ("logging/__init__.py(1500): info", log)):
        events.append(frame(function, at, length))
        at += length + 5
    begins = at
    for function, length in (("torch/optim/sgd.py(80): step", update), ("torch/nn/utils/clip_grad.py(40): clip", clip)):
        events.append(frame(function, at + 1, length))
        at += length + 5
    events.append(region("Optimizer.step#SGD.step", begins, at - begins))
    return {"call": step_parts(trace(step(0, 0, at + 20), frame(TRAIN, 0, at + 10), x("aten::mm", 1, 5), *events))}


def cause(name, delta=30_000, **more):
    return Cause("idle", name, "call", 0, 0, 20_000, 20_000 + delta, 0.5, **more)


def named(blame, *sides):
    return [(each.name, each.line) for each in locate_causes(blame, *sides)]


PYTHON, UPDATE = cause("Python and host"), cause("Optimizer.step#SGD.step")


@pytest.mark.parametrize("blame", [(PYTHON, UPDATE), (UPDATE, PYTHON)], ids=["outside first", "inside first"])
def test_each_cause_has_its_own_function(blame):
    found = named(blame, stacks(), stacks(count=60, clip=50))
    assert dict(zip((each.name for each in blame), found, strict=True)) == {
        "Python and host": ("Python and host", "counting.py(3): pairs"),
        "Optimizer.step#SGD.step": ("torch/nn/utils/clip_grad.py(40): clip", TRAIN),
    }


def test_what_is_in_an_annotation_is_not_what_is_outside_of_it():
    """Most was gained in the annotation, but the cause is not there."""
    found = named((PYTHON, UPDATE), stacks(), stacks(log=40, update=90))
    assert found == [("logging/__init__.py(1500): info", TRAIN), ("torch/optim/sgd.py(80): step", TRAIN)]


def test_an_annotation_that_is_no_cause_may_hold_the_function():
    assert named((PYTHON,), stacks(), stacks(update=90)) == [("torch/optim/sgd.py(80): step", TRAIN)]


def test_what_got_faster_is_no_cause_of_what_got_slower():
    assert named((PYTHON, UPDATE), stacks(count=60), stacks()) == [("Python and host", ""), (UPDATE.name, "")]
    assert named((cause("Python and host", -30_000),), stacks(), stacks(count=60))[0][0] == "Python and host"


def test_no_function_is_named_twice():
    twice = (PYTHON, cause("Python and host", 10_000))
    names = named(twice, stacks(), stacks(count=60, log=30))
    assert names == [("Python and host", "counting.py(3): pairs"), ("logging/__init__.py(1500): info", TRAIN)]


def test_waiting_of_the_device_and_causes_that_have_a_line_stay_as_they_are():
    blame = (cause("launch latency"), cause("slow.py(1): own", line="train.py(99): other"))
    assert locate_causes(blame, stacks(), stacks(count=90)) == blame


def test_the_function_in_the_modules_cause_comes_first():
    def within(module):
        def parts(length):
            events = [frame(f"nn.Module: {module}_0", 30, 10 + length), frame("model.py(5): forward", 31, 5 + length)]
            return {
                "call": step_parts(
                    trace(step(0, 0, 300), frame(TRAIN, 0, 290), frame("a.py(1): loop", 150, 2 * length), *events)
                )
            }

        return parts

    made = within("Net")
    inside = cause("Python and host", module="Net_0")
    assert named((inside,), made(10), made(60)) == [("Python and host", "model.py(5): forward")]
    assert named((PYTHON,), made(10), made(60)) == [("Python and host", "a.py(1): loop")]


def in_modules(outside, inside):
    """A step that logs outside of all modules, and checks its input inside each of two."""
    at, events = 10, [frame("logging/__init__.py(1500): info", 10, outside)]
    at += outside + 5
    begins = at
    for block in ("Block_0", "Block_1"):
        events += [
            frame(f"nn.Module: {block}", at, inside + 20),
            frame("net.py(5): forward", at + 1, inside + 15),
            frame("checking.py(7): check", at + 2, inside),
            x("aten::relu", at + inside + 4, 5),
        ]
        at += inside + 30
    events.append(frame("nn.Module: Net_0", begins - 1, at - begins))
    return {"call": step_parts(trace(step(0, 0, at + 20), frame(TRAIN, 0, at + 10), *events))}


def test_what_is_in_no_module_is_not_what_grew_in_several():
    """Recording frames made what modules do slower by more than the logging that was added."""
    sides = in_modules(20, 20), in_modules(50, 300)
    assert named((PYTHON,), *sides) == [("logging/__init__.py(1500): info", TRAIN)]
    assert named((cause("Python and host", module="Net_0"),), *sides)[0] != ("logging/__init__.py(1500): info", TRAIN)


def test_outside_too_little_grew_to_be_it():
    sides = in_modules(20, 20), in_modules(22, 300)
    assert named((PYTHON,), *sides)[0][0] != "logging/__init__.py(1500): info"
