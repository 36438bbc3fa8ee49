"""Steps to draw: exemplars written as nested slices, in microseconds."""

from pytest_perfdl.report import speedscope
from pytest_perfdl.report.step_trace import drawn_sides, regression_trace
from pytest_perfdl.trace import Event, compress, write

STEP = "ProfilerStep#3"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
ADAMW = "Optimizer.step#AdamW.step"
MM = "aten::mm"


def annotation(name, start, end):
    return name, start, end, "user_annotation"


def module(path, start, end):
    return annotation(f"perfdl.module: {path}", start, end)


def operator(name, start, end):
    return name, start, end, "cpu_op"


def exemplar(*slices, pid=7):
    """A gzip-compressed exemplar with one thread."""
    events = [Event.thread_name(pid, pid, "step")]
    for name, start, end, category in slices:
        events.append(Event("X", name, pid, pid, start * 1000, (end - start) * 1000, category))
    return compress(write(None, events))


def training(wait=100, softmax=100, host=100, fused=False):
    """A step that waits for its input, runs a model of two blocks forward and backward, and the optimizer."""
    at = 20
    slices = [annotation("perfdl.data_wait", at, at + wait), annotation(LOADER, at + 2, at + wait - 2)]
    at += wait + 30
    start = at
    for block in (0, 1):
        inner = at + 10
        slices.append(operator(MM, inner, inner + 200))
        end = inner + 200
        if block and fused:
            slices.append(operator("aten::flash", end + 5, end + 105))
            end += 105
        elif block:
            slices.append(operator("aten::softmax", end + 5, end + 15 + softmax))
            slices.append(operator("aten::_softmax", end + 10, end + 10 + softmax))
            end += 15 + softmax
        slices.append(module(f"GPT.h.{block}", at, end + 10))
        at = end + 20
    slices.append(module("GPT", start - 5, at))
    at += 40
    for _ in range(2):
        slices.append(operator("autograd::engine::evaluate_function: MmBackward0", at, at + 320))
        slices.append(operator(MM, at + 10, at + 310))
        at += 325
    slices.append(annotation(ADAMW, at + 10, at + 130 + host))
    slices.append(operator(MM, at + 20, at + 120))
    at += 140 + host
    return exemplar(annotation(STEP, 0, at), *sorted(slices, key=lambda one: (one[1], -one[2])))


def drawn(result, call, base, new):
    """Both exemplars in one Chrome trace."""
    return regression_trace(result, call, drawn_sides(base, new, result.id), result.judgement.blame)


def flames(result, call, base, new):
    """Both exemplars in one file for speedscope."""
    return speedscope.speedscope(result, call, drawn_sides(base, new, result.id))
