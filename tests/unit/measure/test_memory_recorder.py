"""Whose the memory of small models is, as the recorder and the attributed pass see it.

Held against arithmetic on paper, torch's profiler, and what Python and autograd can reach.
"""

import contextlib
import functools
import gc
import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from pytest_perfdl.analysis.account.peak import GROWING_STEPS, Recorded, Window, peak_account, step_ends
from pytest_perfdl.measure import memory_pass
from pytest_perfdl.measure.commands import Attribute
from pytest_perfdl.measure.memory_pass import BEGIN, END, WARM_UP, MemoryRecorder, mark

SOURCE = """
import math

import torch
from torch import nn
from torch.nn import functional

from torch._C._profiler import _RecordFunctionFast as marked

from pytest_perfdl.trace.annotations import SETUP, WAIT


class RecordedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 128)
        self.outer = nn.Linear(128, 32)

    def forward(self, x):
        hidden = self.inner(x)
        hidden = hidden.relu()
        return self.outer(hidden)


def mlp():
    net = RecordedMlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(256, 64)
    y = torch.randn(256, 32)
    return lambda: functional.mse_loss(net(x), y), optimizer


class RecordedAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        normal = self.norm(x)
        scores = self.query(normal) @ self.key(normal).transpose(1, 2)
        weights = (scores / math.sqrt(x.shape[-1])).softmax(-1)
        return x + self.out(weights @ self.value(normal))


class RecordedGpt(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.block = RecordedAttention(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


def transformer():
    net = RecordedGpt(128, 32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    tokens = torch.randint(128, (8, 16))
    targets = torch.randint(128, (8 * 16,))
    return lambda: functional.cross_entropy(net(tokens).flatten(0, 1), targets), optimizer


class RecordedConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x):
        x = self.norm(self.convolution(x)).relu()
        x = self.drop(x)
        x = functional.max_pool2d(x, 2)
        return self.head(x.flatten(1))


def convolution():
    net = RecordedConvolution()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    images = torch.randn(16, 3, 16, 16)
    labels = torch.randint(10, (16,))
    return lambda: functional.cross_entropy(net(images), labels), optimizer


def training(model):
    forward, optimizer = model()

    def step():
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def keeps_losses():
    net = nn.Linear(256, 128)
    x = torch.randn(64, 256)
    losses = []

    def step():
        hidden = net(x)
        losses.append(hidden.pow(2).mean())

    return step


def caches():
    x = torch.randn(64, 256)
    cache = {}

    def step():
        cache[len(cache)] = x * 2  # cached
        cache["last"] = x + 1  # replaced

    return step


def keeps_the_last():
    x = torch.randn(64, 256)
    kept = {}

    def step():
        kept["last"] = x * 2

    return step


def makes_garbage():
    def step():
        cycle = [torch.empty(1000)]
        cycle.append(cycle)

    return step


class RecordedSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(64, 64))
        self.two = nn.Parameter(torch.ones(64, 64))

    def forward(self, x):
        return ((self.one + self.two) * x).sum()


def shared_gradient():
    net = RecordedSum()
    x = torch.randn(64, 64)

    def step():
        net.zero_grad()
        net(x).backward()
        torch.empty(1024, 1024)  # the peak

    return step


def foreign_gradient():
    import numpy

    net = RecordedSum()
    given = torch.from_numpy(numpy.ones((64, 64), dtype="float32"))
    net.two.grad = torch.zeros(64, 64)

    def step():
        net.one.grad = None
        # The later one is first: what is accumulated into `two` is no allocation of torch's.
        last = net.two + 0.0
        first = net.one * 2.0
        torch.autograd.backward([last, first], [given, torch.ones(64, 64)])
        torch.empty(1024, 1024)  # the peak

    return step


def fetches():
    def step():
        # On one line, as if it were called inside of the range.
        with marked(WAIT): batch = torch.ones(1000)
        with marked(SETUP): noise = torch.ones(2000)
        return (batch + 1).sum() + noise.sum()

    return step


def loops(steps):
    x = torch.ones(1000)
    for _ in steps:
        y = x * 2  # in a loop
        del y


def two_of_a_period():
    count = [0]

    def step():
        count[0] += 1
        size = 1000 if count[0] % 2 else 2000
        return torch.empty(size).fill_(1.0)

    return step


class RecordedSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        doubled = x * 2
        return grad * doubled


def own_function():
    x = torch.randn(100, 100, requires_grad=True)

    def step():
        x.grad = None
        RecordedSquare.apply(x).sum().backward()

    return step
"""
MODULE = "recorded_models"


def at(text, function, *, nth=0):
    """The line of a function that holds a text."""
    numbers = [number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line]
    if sys.version_info < (3, 11):
        function = function.rpartition(".")[2]
    return f"{MODULE}.py({numbers[nth]}): {function}"


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The models, and nothing of other tests' among what Python holds."""
    folder = tmp_path_factory.mktemp("models")
    (folder / f"{MODULE}.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(MODULE, folder / f"{MODULE}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr("pytest_perfdl.measure.memory_pass._SHOWN", {})
        # What a step leaves is young. To collect all that was ever imported takes a part of a second each time.
        patch.setattr(memory_pass, "gc", SimpleNamespace(**{**vars(gc), "collect": lambda: gc.collect(1)}))
        spec.loader.exec_module(module)
        gc.collect()
        found = memory_pass.held_storages
        strays = found()
        patch.setattr(
            memory_pass, "held_storages", lambda: {at: held for at, held in found().items() if at not in strays}
        )
        yield module


@contextlib.contextmanager
def recording():
    """A recorder that has begun; afterwards nothing of it is left."""
    before = sys.gettrace()
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_pass, "_recorder", None)
        memory_pass.begin()
        started = memory_pass._recorder
        try:
            yield started
        finally:
            started.stop()
    assert sys.gettrace() is before
    assert not torch.autograd._profiler_enabled()


@pytest.fixture
def recorder(code):
    with recording() as started:
        yield started


@pytest.fixture(scope="module")
def trained(code):
    """The account of a model's training, which is taken once."""

    @functools.cache
    def account(model):
        with recording():
            return account_of(code.training(getattr(code, model)))

    return account


@contextlib.contextmanager
def phase():
    """A part of a training, as a step of its own."""
    mark(BEGIN)
    yield
    mark(END)


def no_user(function):
    """The function, as if Python had made it up: the package calls steps from code that has no lines."""
    function.__code__ = function.__code__.replace(co_filename="<test>")
    return function


@no_user
def driven(step, steps=1, *, growth=False):
    """The account of a step, and what the pass said of each step that it asked for."""
    running = memory_pass.run(Attribute(steps=steps, growth=growth))
    asked = []
    try:
        asked.append(next(running))
        while True:
            step()
            asked.append(running.send(None))
    except StopIteration as end:
        answer = end.value
    assert answer.account.notes == ()
    assert answer.account.residual == 0
    return answer.account, asked


def account_of(step, **options):
    return driven(step, **options)[0]


def near(expected):
    return pytest.approx(expected, rel=0.05)


def measured_peak(model, training):
    """What torch's own profiler says of a third step: its events from before the model is made, added up."""
    torch.manual_seed(0)
    with torch.autograd.profiler.profile(use_cpu=True, profile_memory=True) as profiler:
        step = training(model)
        for _ in range(2):
            step()
        static = sum(held.bytes for held in memory_pass.held_storages().values())
        with torch.autograd.profiler.record_function("the third step"):
            step()
    events = sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
    (window,) = (event for event in events if event.name() == "the third step")
    memory = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    assert sum(size for time, size in memory if time < window.start_ns()) == static
    now = most = static
    for time, size in memory:
        if window.start_ns() <= time <= window.end_ns():
            now += size
            most = max(most, now)
    return most


# By hand

FLOAT, LONG = 4, 8

LINEAR_1, LINEAR_2 = 64 * 128 + 128, 128 * 32 + 32
HIDDEN = 256 * 128 * FLOAT
MLP = {
    "inputs": 256 * 64 * FLOAT + 256 * 32 * FLOAT,
    "parameters": (LINEAR_1 + LINEAR_2) * FLOAT,
    "optimizer state": (LINEAR_1 + LINEAR_2) * FLOAT,
    # The peak is in the backward pass of ReLU, whose result is saved. The gradient of the loss is gone by then.
    "activations": HIDDEN,
    # The gradients of ReLU's result and of its input; and the loss, which lies where its summands were.
    "temporaries": 2 * HIDDEN + 256 * 32 * FLOAT,
    # Of the outer layer.
    "gradients": LINEAR_2 * FLOAT,
}

BATCH, LENGTH, WIDTH, WORDS = 8, 16, 32, 128
VECTORS = BATCH * LENGTH * WIDTH * FLOAT
LOGITS = BATCH * LENGTH * WORDS * FLOAT
GPT_PARAMETERS = WORDS * WIDTH + 2 * WIDTH + 4 * WIDTH * WIDTH
TRANSFORMER = {
    "inputs": 2 * BATCH * LENGTH * LONG,
    "parameters": GPT_PARAMETERS * FLOAT,
    # Two moments of each, and the count of steps of each of the six.
    "optimizer state": 2 * GPT_PARAMETERS * FLOAT + 6 * FLOAT,
    # The peak is in the backward pass of log_softmax, the second of all. Saved are the input of the norm, its result
    # (for queries, keys and values), its means and deviations, queries, keys, values, the weights, the input of the
    # output layer, that of the head, and the logarithms.
    "activations": 7 * VECTORS + 2 * BATCH * LENGTH * FLOAT + BATCH * LENGTH * LENGTH * FLOAT + LOGITS,
    # The gradients of the logarithms and of the logits.
    "temporaries": 2 * LOGITS,
}

IMAGE = 16 * 8 * 16 * 16 * FLOAT
POOLED = 16 * 8 * 8 * 8
HEAD = 8 * 8 * 8 * 10 + 10
CONVOLUTION_PARAMETERS = 8 * 3 * 3 * 3 + 8 + 2 * 8 + HEAD
CONVOLUTION = {
    "inputs": 16 * 3 * 16 * 16 * FLOAT + 16 * LONG,
    # With the norm's buffers: two running statistics, and the count of batches.
    "parameters": CONVOLUTION_PARAMETERS * FLOAT + 2 * 8 * FLOAT + LONG,
    "optimizer state": 2 * CONVOLUTION_PARAMETERS * FLOAT + 6 * FLOAT,
    # The peak is in the backward pass of max_pool2d. Saved are the input of the norm, the result of ReLU, the noise of
    # dropout, the input of max_pool2d, and where the largest of it are.
    "activations": 4 * IMAGE + POOLED * LONG,
    # The gradients of its result and of its input.
    "temporaries": IMAGE + POOLED * FLOAT,
    # Of the head.
    "gradients": HEAD * FLOAT,
}
MODELS = {"mlp": MLP, "transformer": TRANSFORMER, "convolution": CONVOLUTION}


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_bytes_by_category(trained, model):
    found = trained(model)
    assert found.by_category() == {category: near(size) for category, size in MODELS[model].items()}
    assert found.peak_bytes == near(sum(MODELS[model].values()))
    assert found.notes == ()
    assert (found.moment.phase, found.moment.operator) == {
        "mlp": ("backward", "ReluBackward0"),
        "transformer": ("backward", "LogSoftmaxBackward0"),
        "convolution": ("backward", "MaxPool2DWithIndicesBackward0"),
    }[model]


@pytest.mark.parametrize("model", MODELS)
def test_the_peak_is_the_one_that_torch_s_profiler_has(code, trained, model):
    assert trained(model).peak_bytes == measured_peak(getattr(code, model), code.training)


# Names, modules and lines


def rows_of(account, category):
    return [row for row in account.rows if row.category == category]


def by_name(account, category):
    return {name: row for row in rows_of(account, category) for name in row.parameters}


def test_parameters_have_their_names_and_constructors(trained):
    found = trained("mlp")
    parameters = by_name(found, "parameters")
    assert {name: (row.module, row.line, row.shape) for name, row in parameters.items()} == {
        f"RecordedMlp.{layer}.{name}": (
            f"RecordedMlp.{layer}",
            at(f"self.{layer} = nn.Linear", "RecordedMlp.__init__"),
            shape,
        )
        for layer, name, shape in (
            ("inner", "weight", "[128, 64]"),
            ("inner", "bias", "[128]"),
            ("outer", "weight", "[32, 128]"),
            ("outer", "bias", "[32]"),
        )
    }
    assert all(row.phase == "setup" and row.lives_from < 0 and row.lives_to is None for row in parameters.values())
    constructed, called = at("net = RecordedMlp()", "mlp"), at("model()", "training")
    assert {row.callers[:2] for row in parameters.values()} == {(constructed, called)}


def test_optimizer_states_have_their_parameters_names(trained):
    found = trained("transformer")
    names = {"embedding.weight", "block.norm.weight", "block.norm.bias"}
    names |= {f"block.{layer}.weight" for layer in ("query", "key", "value", "out")}
    states = by_name(found, "optimizer state")
    assert states.keys() == {f"RecordedGpt.{name}" for name in names}
    assert by_name(found, "parameters").keys() - states.keys() == {"RecordedGpt.head.weight"}, "the other name"
    for name, row in states.items():
        assert (row.module, row.phase) == (name.rpartition(".")[0], "optimizer")
        assert row.line == at("optimizer.step()", "step")
    moments = [row for row in rows_of(found, "optimizer state") if row.shape == "[128, 32]"]
    assert sum(row.bytes for row in moments) == 2 * WORDS * WIDTH * FLOAT


def test_a_tied_parameter_is_one_and_has_both_names(trained):
    found = trained("transformer")
    tied = [row for row in rows_of(found, "parameters") if row.shape == "[128, 32]"]
    assert [(row.parameters, row.tensors) for row in tied] == [
        (("RecordedGpt.embedding.weight", "RecordedGpt.head.weight"), 1)
    ]
    assert tied[0].module == "RecordedGpt.embedding"
    assert tied[0].line == at("nn.Embedding", "RecordedGpt.__init__")


def test_activations_have_the_lines_and_modules_of_the_forward_pass(trained):
    found = trained("convolution")
    rows = {row.line: [] for row in rows_of(found, "activations")}
    for row in rows_of(found, "activations"):
        rows[row.line].append(row)
    forward = "RecordedConvolution.forward"
    norm, drop = at("self.norm(self.conv", forward), at("self.drop(x)", forward)
    pool = at("max_pool2d(x", forward)
    sizes = {line: sum(row.bytes for row in found) for line, found in rows.items()}
    assert sizes[norm] == near(2 * IMAGE)
    assert sizes[drop] == near(2 * IMAGE)
    assert sizes[pool] == near(POOLED * LONG)
    large = {(row.line, row.module, row.shape) for found in rows.values() for row in found if row.bytes >= IMAGE}
    image = "[16, 8, 16, 16]"
    assert large == {
        (norm, "RecordedConvolution.convolution", image),
        (norm, "RecordedConvolution", image),
        (drop, "RecordedConvolution.drop", image),
    }
    assert {(row.phase, row.kept, row.lives_from > 0) for found in rows.values() for row in found} == {
        ("forward", False, True)
    }
    # The loss is the caller's.
    called = at("loss = forward()", "step")
    inside = [row for found in rows.values() for row in found if row.line != at("loss.backward()", "step")]
    assert all(called in (row.line, *row.callers) for row in inside)


def test_gradients_that_are_alive_at_the_peak_have_their_parameters_names(trained):
    found = trained("mlp")
    gradients = by_name(found, "gradients")
    assert {name: (row.bytes, row.phase) for name, row in gradients.items()} == {
        "RecordedMlp.outer.weight": (32 * 128 * FLOAT, "backward"),
        "RecordedMlp.outer.bias": (32 * FLOAT, "backward"),
    }
    for row in gradients.values():
        assert row.module == "RecordedMlp.outer"
        assert row.line == at("loss.backward()", "step")
        assert at("self.outer(hidden)", "RecordedMlp.forward") in row.callers


def test_what_a_node_allocates_has_the_line_of_its_forward_operator(trained):
    found = trained("mlp")
    temporaries = {
        (row.operator, row.line, row.bytes) for row in rows_of(found, "temporaries") if row.phase == "backward"
    }
    assert temporaries == {
        ("AddmmBackward0", at("self.outer(hidden)", "RecordedMlp.forward"), HIDDEN),
        ("ReluBackward0", at("hidden.relu()", "RecordedMlp.forward"), HIDDEN),
    }


@pytest.mark.long
def test_what_python_of_a_node_allocates_has_its_own_line(code, recorder):
    found = account_of(code.own_function())
    lines = {row.line for row in (*found.rows, *found.passed)}
    assert at("doubled = x * 2", "RecordedSquare.backward") in lines


@pytest.mark.long
def test_a_gradient_that_is_copied_is_a_gradient(code, recorder):
    """Two parameters get the same tensor: one of them keeps it, and the other one a copy."""
    found = account_of(code.shared_gradient())
    assert found.moment.line == at("# the peak", "step")
    gradients = by_name(found, "gradients")
    assert gradients.keys() == {"RecordedSum.one", "RecordedSum.two"}
    assert sum(row.bytes for row in rows_of(found, "gradients")) == 2 * 64 * 64 * FLOAT
    assert [row.bytes for row in rows_of(found, "temporaries") if row.bytes > 100] == [1024 * 1024 * FLOAT]


@pytest.mark.long
def test_what_is_accumulated_and_was_not_seen_names_no_other_gradient(code, recorder):
    found = account_of(code.foreign_gradient())
    assert found.moment.line == at("# the peak", "step", nth=1)
    gradients = {row.parameters: row.bytes for row in rows_of(found, "gradients")}
    size = 64 * 64 * FLOAT
    assert gradients == {("RecordedSum.one",): size, ("RecordedSum.two",): size}


@pytest.mark.long
def test_what_is_fetched_or_set_up_is_input(code, recorder):
    found = account_of(code.fetches())
    inputs = {row.bytes: (row.phase, row.kept, row.line) for row in rows_of(found, "inputs")}
    assert inputs == {
        4000: ("input", False, at("batch = torch.ones", "step")),
        8000: ("input", False, at("noise = torch.ones", "step")),
    }


@pytest.mark.long
def test_a_loop_of_the_user_s_has_phases_too(code, recorder):
    """The step begins in one line of the loop, and goes on in the others."""
    answers = []

    @no_user
    def steps():
        answers.append((yield from memory_pass.run(Attribute(steps=1, growth=False))))

    code.loops(steps())
    found = answers[0].account
    rows = [row for row in found.rows if row.line == at("# in a loop", "loops")]
    assert rows[0].bytes == 4000
    assert {(row.phase, row.category) for row in rows} == {("forward", "temporaries")}


# The steps that a pass runs


@pytest.mark.long
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("growth, periods", [(False, WARM_UP + 1), (True, GROWING_STEPS + 2)])
def test_as_many_steps_as_it_takes(code, recorder, steps, growth, periods):
    found, asked = driven(code.keeps_the_last(), steps, growth=growth)
    assert asked == [False] * (periods * steps - 1) + [True]
    assert len(found.step_ends) == periods
    assert len(recorder.steps) == periods * steps


@pytest.mark.long
def test_a_period_of_two_steps_has_one_peak(code, recorder):
    """The second step of each has twice as much, beside nothing of the first."""
    found = account_of(code.two_of_a_period(), steps=2)
    assert found.by_category() == {"temporaries": 8000}
    assert found.step_ends == (0, 0, 0)


@pytest.mark.long
def test_recording_ends_with_the_call(code, recorder):
    """A second one begins anew: what was there before is known by what Python can reach."""
    first = code.keeps_the_last()
    account_of(first)
    assert memory_pass._recorder is None
    assert not torch.autograd._profiler_enabled()
    found = account_of(code.fetches())
    assert len(found.step_ends) == WARM_UP + 1
    assert found.residual == 0
    assert {row.bytes for row in found.rows} >= {4000, 8000}


# Against another way to count


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_recount_at_the_end_of_each_phase(code, monkeypatch, model):
    """What is alive: all that Python can reach, and all that autograd has been given to save."""
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def reachable():
        gc.collect(1)
        return {address: held.bytes for address, held in memory_pass.held_storages().items()}

    forward, optimizer = getattr(code, model)()
    counted = []
    for _ in range(2):
        optimizer.zero_grad()
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = forward()
        counted = [sum((saved | reachable()).values())]
        loss.backward()
        counted.append(sum(reachable().values()))
        optimizer.step()
        counted.append(sum(reachable().values()))
    del forward, optimizer, loss
    gc.collect(1)

    before = sys.gettrace()
    recorder = MemoryRecorder()
    recorder.start()
    try:
        forward, optimizer = getattr(code, model)()
        for _ in range(2):
            optimizer.zero_grad()
            with phase():
                loss = forward()
            with phase():
                loss.backward()
            with phase():
                optimizer.step()
    finally:
        recorder.stop()
    assert sys.gettrace() is before
    windows = [Window(*each) for each in recorder.steps]
    ends = step_ends(Recorded(recorder.allocations, (), windows, recorder.lines))
    assert len(ends) == 6
    assert ends[3:] == tuple(pytest.approx(each, rel=0.01) for each in counted)
    assert ends[3] > ends[4], "what is saved is gone after the backward pass"


# What grows


@pytest.mark.long
def test_losses_that_are_kept_with_their_graphs(code, recorder):
    found = account_of(code.keeps_losses(), growth=True)
    # The result of the layer is saved to be squared; the loss is one number.
    hidden, loss = 64 * 128 * FLOAT, FLOAT
    assert [(row.line, row.bytes, row.tensors) for row in found.growing] == [
        (at("hidden = net(x)", "step"), hidden, 1),
        (at("losses.append", "step"), loss, 1),
    ]
    assert found.growing[0].category == "activations"
    assert found.growing[0].module == "Linear"
    steps = {after - before for before, after in zip(found.step_ends, found.step_ends[1:], strict=False)}
    assert steps == {hidden + loss}


@pytest.mark.long
def test_a_cache_that_grows(code, recorder):
    found = account_of(code.caches(), growth=True)
    size = 64 * 256 * FLOAT
    assert [(row.line, row.bytes, row.operator) for row in found.growing] == [
        (at("# cached", "step"), size, "aten::mul")
    ]
    assert {after - before for before, after in zip(found.step_ends, found.step_ends[1:], strict=False)} == {size}
    kept = [row for row in found.rows if row.kept and row.line == at("# cached", "step")]
    assert [(row.tensors, row.bytes) for row in kept] == [(GROWING_STEPS + 1, (GROWING_STEPS + 1) * size)]


@pytest.mark.long
@pytest.mark.parametrize("model", ["keeps_the_last", "makes_garbage"])
def test_what_does_not_grow(code, recorder, model):
    found = account_of(getattr(code, model)(), growth=True)
    assert found.growing == ()
    assert len(set(found.step_ends[1:])) == 1


@pytest.mark.long
def test_a_training_does_not_grow(code, recorder):
    found = account_of(code.training(code.mlp), growth=True)
    assert found.growing == ()
    assert len(set(found.step_ends[1:])) == 1


# The recorder by itself


def event(time, address, size, device="cpu"):
    fields = SimpleNamespace(ptr=address, alloc_size=size, device=device, total_reserved=0)
    return SimpleNamespace(start_time_ns=time, extra_fields=fields)


def taken(*events):
    from pytest_perfdl.measure.memory_pass import _Context

    recorder = MemoryRecorder()
    for each in events:
        recorder._take_memory(each, _Context())
    return recorder


def test_each_moment_is_its_own():
    recorder = taken(event(10, 1, 8), event(10, 2, 8), event(10, 1, -8), event(9, 1, 16))
    first, second, third = recorder.allocations
    assert (first.begin, second.begin, first.end, third.begin) == (10, 11, 12, 13)
    assert third.end is None


def test_what_one_device_frees_is_not_another_s():
    """Freed on the host, and allocated before the recording."""
    recorder = taken(event(20, 1, 8, "cuda:0"), event(30, 1, -1000, "cpu"), event(40, 2, 4, "cpu"))
    assert recorder.foreign == {"cpu": [(30, 1, 1000)]}
    for device, found in (("cuda:0", {"temporaries": 8}), ("cpu", {"other": 1000})):
        foreign = recorder.foreign.get(device, ())
        recorded = Recorded(recorder.allocations, foreign, [Window(10, 100)], recorder.lines)
        assert peak_account(recorded, {}, device).by_category() == found


def test_begin_begins_once(code, recorder):
    memory_pass.begin()
    assert memory_pass._recorder is recorder


@pytest.mark.long
def test_hooks_are_taken_away(code, recorder):
    weight = torch.ones(4, requires_grad=True)
    recorder.watch()
    recorder.unwatch()
    assert not weight._post_accumulate_grad_hooks
    (weight * 2).sum().backward()
    recorder.stop()
    assert recorder.allocations
    assert not any(each.saved or each.parameter for each in recorder.allocations)


def test_watching_keeps_no_graph_alive(code, recorder):
    """A node that saves its own result is freed with its graph, and not when garbage is collected."""
    weight = torch.ones(1000, requires_grad=True)
    recorder.watch()
    gc.disable()
    try:
        loss = (weight * 2).exp().relu().sum()
        del loss
    finally:
        gc.enable()
    recorder.stop()
    made = [
        each for each in recorder.allocations if each.bytes == 4000 and each.operator in ("aten::exp", "aten::relu")
    ]
    assert len(made) == 2
    assert all(each.saved and each.end is not None for each in made)


def test_watching_changes_no_gradient(code, recorder):
    """Also of a gradient's gradient, which needs the graph of what was saved."""

    def gradients():
        weight = torch.linspace(0.1, 1, 10, requires_grad=True)
        (first,) = torch.autograd.grad((weight * weight).exp().sum(), weight, create_graph=True)
        return first.detach(), *torch.autograd.grad(first.square().sum(), weight)

    without = gradients()
    recorder.watch()
    watched = gradients()
    assert all(map(torch.equal, without, watched))
