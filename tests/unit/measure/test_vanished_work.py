"""Speed-ups as people make them, and steps that only look faster: which of them is said to have lost its work.

No time is asserted: the weights are those of the profiled steps, and every case is far from the thresholds.
"""

import concurrent.futures
import functools

import pytest

from pytest_perfdl.fixture.calling import run
from pytest_perfdl.judge.work import find_vanished
from pytest_perfdl.measure.commands import CallInfo, first_and_later
from pytest_perfdl.measure.program import Program
from pytest_perfdl.model.record import Key, MeasurementPlan

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.long

SIZE = 64
F = torch.nn.functional


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Memory is recorded in other ways once a process has compiled: not so in the tests that come after."""
    yield
    torch._dynamo.utils.clear_compilation_metrics()


class Script:
    """Gives a program the commands of a script."""

    def __init__(self, script):
        self._script = script
        self._command = next(script)
        self.result = None

    def command(self):
        return self._command

    def answer(self, reply):
        try:
            self._command = self._script.send(reply)
        except StopIteration as stop:
            self.result = stop.value

    def step_done(self):
        pass


def looked_at(make, folder):
    """What the first and the later steps of what `make` makes do, with the same input in every step."""
    torch.manual_seed(0)
    step = make()
    torch.manual_seed(0)
    x = torch.randn(4, SIZE, SIZE)
    info = CallInfo("", "function", 1, None, Key("cpu", {}), {})
    script = Script(first_and_later(MeasurementPlan(warmup=2, steps=8), info, str(folder)))
    run(Program(script), step, (x,), {})
    return script.result


def rows(profiled):
    found = (row for row in profiled.rows if row.kind == "operator")
    return {row.name: (row.count / len(profiled.step_ns), row.ns / len(profiled.step_ns)) for row in found}


def said(base, head, folder):
    """What is said of a head against a base."""
    base, head = looked_at(base, folder), looked_at(head, folder)
    assert not base.pending
    return head.pending or find_vanished(rows(base.later), rows(head.first), rows(head.later))


# Steps as they are at first, each made anew for a process


def attention(fused):
    def make():
        def slow(x):
            return (x @ x.transpose(1, 2) / SIZE**0.5).softmax(-1) @ x

        return (lambda x: F.scaled_dot_product_attention(x, x, x)) if fused else slow

    return make


def rotary(cached):
    def make():
        def table(length, width):
            angle = torch.outer(torch.arange(length), 10_000 ** -(torch.arange(0, width, 2) / width))
            return angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

        tables = functools.cache(table) if cached else table
        project = torch.nn.Linear(SIZE, SIZE)

        def step(x):
            cos, sin = tables(SIZE, SIZE)
            turned = torch.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), -1)
            return project(x * cos + turned * sin)

        return step

    return make


def mask(cached):
    def make():
        made = {}

        def causal(length):
            found = torch.ones(8 * length, 8 * length).tril().log()[:length, :length]
            return made.setdefault(length, found) if cached else found

        def step(x):
            bias = made[SIZE] if SIZE in made else causal(SIZE)
            return ((x @ x.transpose(1, 2)) + bias).softmax(-1) @ x

        return step

    return make


def training(**options):
    def make():
        model = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.GELU(), torch.nn.Linear(SIZE, SIZE))
        none = options.pop("set_to_none", True)
        optimizer = torch.optim.AdamW(model.parameters(), **options)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=none)
            return loss

        return step

    return make


def grads(context):
    def make():
        model = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(4)))

        def step(x):
            with context():
                return model(x)

        return step

    return make


def chain(call):
    def make():
        def step(x):
            for _ in range(10):
                x = torch.relu(x * 1.01 + 0.1)
            return x

        return call(step)

    return make


def in_place(x):
    x = x * 1.01
    for _ in range(10):
        x.mul_(1.01).add_(0.1).relu_()
    return x


def chunks(size):
    def make():
        weight = torch.randn(SIZE, SIZE)
        return lambda x: torch.cat([part @ weight for part in x.split(size)])

    return make


def loader(batched):
    def make():
        data = torch.randn(64, SIZE)

        def step(x):
            picked = data[:32] if batched else torch.stack([data[index] for index in range(32)])
            return picked @ x[0]

        return step

    return make


def convolution(layout):
    def make():
        model = torch.nn.Conv2d(4, 8, 3).to(memory_format=layout)
        return lambda x: model(x[None].to(memory_format=layout))

    return make


def copies(number):
    def make():
        def step(x):
            for _ in range(number):
                x = x.clone().contiguous()
            return x @ x

        return step

    return make


def of(step):
    return lambda: step


def merged(cached):
    """Weights of two low ranks: added to the weight at the first step, or multiplied in each."""

    def make():
        weight, down, up = torch.randn(SIZE, SIZE), torch.randn(SIZE, 8), torch.randn(8, SIZE)
        made = []

        def step(x):
            if not cached:
                return x @ weight + x @ down @ up
            if not made:
                made.append(weight + down @ up)
            return x @ made[0]

        return step

    return make


def tuned():
    """Tries both implementations in its first step and keeps one."""
    chosen = []
    ways = [attention(fused=False)(), attention(fused=True)()]

    def step(x):
        if not chosen:
            for way in ways:
                way(x)
            chosen.append(ways[1])
        return chosen[0](x)

    return step


def quantized(cached):
    def make():
        stored, scale = torch.randint(-127, 127, (SIZE, SIZE), dtype=torch.int8), torch.rand(SIZE)
        made = []

        def step(x):
            if cached and made:
                return x @ made[0]
            weight = stored.float() * scale
            made.append(weight)
            return x @ weight

        return step

    return make


HONEST = {
    "fused attention": (attention(fused=False), attention(fused=True)),
    "a kernel that is tuned in the first step": (attention(fused=False), tuned),
    "compiled": (chain(lambda step: step), chain(functools.partial(torch.compile, backend="aot_eager"))),
    "rotary tables of the first step": (rotary(cached=False), rotary(cached=True)),
    "a mask of the first step": (mask(cached=False), mask(cached=True)),
    "fused optimizer": (training(foreach=False), training(fused=True)),
    "optimizer of lists": (training(foreach=False), training(foreach=True)),
    "gradients set to none": (training(set_to_none=False), training(set_to_none=True)),
    "inference mode": (grads(torch.enable_grad), grads(torch.inference_mode)),
    "no gradients": (grads(torch.enable_grad), grads(torch.no_grad)),
    "in place": (chain(lambda step: step), of(in_place)),
    "larger chunks": (chunks(1), chunks(4)),
    "batches from a loader at once": (loader(batched=False), loader(batched=True)),
    "channels last": (convolution(torch.contiguous_format), convolution(torch.channels_last)),
    "fewer copies": (copies(20), copies(1)),
    "batched multiplication": (of(lambda x: torch.stack([a @ a for a in x])), of(lambda x: torch.bmm(x, x))),
    "merged weights": (merged(cached=False), merged(cached=True)),
    "weights dequantized once": (quantized(cached=False), quantized(cached=True)),
    "less precision": (of(lambda x: (x.double() @ x.double()).float()), of(lambda x: x @ x)),
    "another formula": (of(lambda x: (x * x).sum(-1).sqrt()), of(lambda x: torch.linalg.vector_norm(x, dim=-1))),
    "expanded instead of repeated": (of(lambda x: x + x[:1].repeat(4, 1, 1)), of(lambda x: x + x[:1])),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_speed_up_is_not_accused(name, tmp_path):
    assert said(*HONEST[name], tmp_path) == ""


def kept(key):
    """A memo of the last input."""

    def make():
        inner, last = attention(fused=False)(), []

        def step(x):
            if not last or not key(last[0], x):
                last[:] = [x, inner(x)]
            return last[1].clone()

        return step

    return make


def first_only():
    inner, done = attention(fused=False)(), []

    def step(x):
        if not done:
            done.append(inner(x))
        return done[0]

    return step


def while_warming_up():
    inner, done = attention(fused=False)(), []

    def step(x):
        if len(done) < 2:
            done.append(inner(x))
        return done[-1]

    return step


@pytest.mark.parametrize(
    "head",
    [kept(lambda a, b: a is b), kept(torch.equal), first_only, while_warming_up],
    ids=["identity", "content", "first call", "while warming up"],
)
def test_work_that_only_the_first_step_does_is_said(head, tmp_path):
    why = said(attention(fused=False), head, tmp_path)
    assert why.startswith("only the first step does ")
    assert "aten::bmm" in why


class Lazy:
    def __init__(self, make):
        self._make = make


class Slotted:
    __slots__ = ("make",)

    def __init__(self, make):
        self.make = make


class Unrealized(torch.Tensor):
    def realize(self):
        return self @ self


def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return x @ x


def submitted(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.matmul, x, x)


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (lambda x: Lazy(lambda: x @ x), "a function that is still to be called"),
        (lambda x: [{"out": Slotted(functools.partial(torch.matmul, x))}], "a function that is still to be called"),
        (lambda x: x.as_subclass(Unrealized), "a Unrealized that is not computed yet"),
        (lambda x: x.to("meta") @ x.to("meta"), "a tensor of the device 'meta'"),
        (fake, "FakeTensor"),
        (submitted, "a future"),
        (lambda x: torch.futures.Future(), "a future"),
        (lambda x: map(torch.relu, x), "a map object"),
    ],
    ids=["lazy", "in slots", "subclass", "meta", "fake", "future", "torch future", "map"],
)
def test_a_result_that_is_not_computed_is_said(step, what, tmp_path):
    assert what in looked_at(of(step), tmp_path).pending


# Made in the test: a parameter that lives on would be one of a later test's process.
COMPUTED = {
    "none": lambda: None,
    "number": lambda: 1.0,
    "text": lambda: "text",
    "tensor": lambda: torch.ones(2),
    "module": lambda: torch.nn.Linear(2, 2),
    "list": lambda: [torch.ones(1)],
    "nested": lambda: {"a": (1, torch.nn.Parameter())},
    "range": lambda: range(3),
}


@pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
def test_a_result_that_is_computed_is_not(make, tmp_path):
    assert looked_at(of(lambda x: make()), tmp_path).pending == ""


def test_what_counts_by_hand():
    base = {"mm": (10.0, 800.0), "relu": (10.0, 200.0)}
    # A tenth of the calls may be left, and a quarter of the time and of the FLOPs.
    assert find_vanished(base, base, {"mm": (2.0, 160.0)})
    assert not find_vanished(base, base, {"mm": (2.1, 168.0)})
    uneven = {"mm": (1.0, 260.0), "relu": (19.0, 740.0)}
    assert not find_vanished(uneven, uneven, {"mm": (1.0, 260.0)})
    assert find_vanished(uneven, uneven, {"relu": (1.0, 39.0)})
    assert find_vanished(base, base, {"mm": (1.0, 300.0)}, 0.25)
    assert not find_vanished(base, base, {"mm": (1.0, 300.0)}, 0.26)
    assert not find_vanished(base, base, {"mm": (0.0, 0.0), "relu": (6.0, 120.0)})
    # The first step never did it.
    assert not find_vanished(base, {}, {})
    assert not find_vanished(base, {"mm": (6.0, 480.0)}, {})
    assert find_vanished(base, {"mm": (7.0, 560.0)}, {})
    # Something else takes the time, but no comparison or copy.
    assert not find_vanished(base, base, {"fused": (1.0, 90.0)})
    assert find_vanished(base, base, {"fused": (1.0, 40.0)})
    assert find_vanished(base, base, {"aten::equal": (1.0, 90.0), "aten::clone": (1.0, 50.0)})
    assert not find_vanished(base, base, {"Torch-Compiled Region: 0/0": (1.0, 1.0)})
    assert not find_vanished({}, base, {})
