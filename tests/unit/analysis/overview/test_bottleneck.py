"""The sentence that says what bounds a step, and the findings beside it."""

import pytest

from pytest_perfdl.analysis.overview.findings import bottleneck, short, trace_findings
from pytest_perfdl.trace import loads, read
from unit.trace.chrome import corpus_file, each_trace_file, kernel, launch, step, text, trace, x

WAIT = "enumerate(DataLoader)#X.__next__"
HTOD = "Memcpy HtoD (Pageable -> Device)"


def sync(ts, dur):
    return launch(ts, dur, 9000, name="cudaDeviceSynchronize")


def busy(name, cat="kernel", **more):
    """A step of 1000 us in which one event runs from 10 to 990, waited for."""
    return (step(1, 0, 1000), launch(0, 5, 1), kernel(name, 10, 980, 1, cat=cat, **more), sync(8, 992))


@pytest.mark.parametrize(
    ("events", "kind", "share", "sentence"),
    [
        (
            busy("gemm"),
            "compute",
            0.98,
            (
                "Compute-bound: kernels compute in 98.0% of the step (980.0 µs of 1.000 ms); "
                "the longest is gemm with 980.0 µs/step."
            ),
        ),
        (
            busy("ncclDevKernel_AllReduce"),
            "communication",
            0.98,
            (
                "Communication-bound: communication runs without overlapping compute in 98.0% of the step (980.0 µs of "
                "1.000 ms); the longest is ncclDevKernel_AllReduce with 980.0 µs/step."
            ),
        ),
        (
            busy(HTOD, "gpu_memcpy"),
            "copy",
            0.98,
            (
                "Copy-bound: copies run without overlapping compute in 98.0% of the step (980.0 µs of 1.000 ms); "
                f"the longest is {HTOD} with 980.0 µs/step."
            ),
        ),
        (
            (
                step(1, 0, 1000),
                x(WAIT, 0, 600, "user_annotation"),
                launch(610, 5, 1),
                kernel("gemm", 620, 380, 1),
                sync(620, 380),
            ),
            "input",
            0.6,
            "Input-bound: the device waits for input data in 60.0% of the step (600.0 µs of 1.000 ms).",
        ),
        (
            (
                step(1, 0, 1000),
                x("aten::mm", 100, 700),
                launch(790, 5, 1),
                kernel("gemm", 800, 200, 1),
                sync(805, 195),
            ),
            "launch",
            0.8,
            (
                "Launch-bound: the device waits for the host in 80.0% of the step (800.0 µs of 1.000 ms), "
                "69.0% while the host runs operators and runtime calls."
            ),
        ),
        (
            (
                step(1, 0, 1000),
                launch(0, 1, 1),
                launch(2, 1, 2),
                kernel("first", 5, 95, 1),
                kernel("second", 900, 100, 2),
                sync(5, 995),
            ),
            "dependency",
            0.8,
            (
                "Dependency-bound: the device waits in 80.0% of the step (800.0 µs of 1.000 ms), "
                "80.0% for streams, events or other ranks."
            ),
        ),
        (
            (
                step(1, 0, 1000),
                launch(0, 5, 1),
                kernel("k", 10, 390, 1),
                sync(10, 950),
                launch(961, 4, 2),
                kernel("k", 970, 30, 2),
            ),
            "compute",
            0.42,
            (
                "Compute-bound: kernels compute in 42.0% of the step (420.0 µs of 1.000 ms); "
                "the longest is k with 420.0 µs/step."
            ),
        ),
        (
            (step(1, 0, 1000), x("aten::mm", 0, 600), x("aten::add", 700, 100)),
            "compute",
            0.7,
            (
                "Compute-bound: operators run in 70.0% of the step (700.0 µs of 1.000 ms); "
                "the largest is aten::mm with 60.0%."
            ),
        ),
        (
            (step(1, 0, 1000), x("aten::mm", 0, 400), x("MmBackward0", 400, 500)),
            "compute",
            0.9,
            (
                "Compute-bound: operators run in 90.0% of the step (900.0 µs of 1.000 ms); "
                "the largest is MmBackward0 with 50.0%."
            ),
        ),
        (
            (step(1, 0, 1000), x("aten::mm", 0, 300)),
            "python",
            0.7,
            "Python-bound: the CPU runs Python between operators in 70.0% of the step (700.0 µs of 1.000 ms).",
        ),
        (
            (step(1, 0, 1000), x("aten::mm", 0, 750), x(WAIT, 750, 250, "user_annotation")),
            "input",
            0.25,
            (
                "Input-bound: the step waits for input data in 25.0% of the step (250.0 µs of 1.000 ms), "
                "the largest avoidable part."
            ),
        ),
        (
            (step(1, 0, 1000), x("aten::mm", 0, 751), x(WAIT, 751, 249, "user_annotation")),
            "compute",
            0.751,
            (
                "Compute-bound: operators run in 75.1% of the step (751.0 µs of 1.000 ms); "
                "the largest is aten::mm with 75.1%."
            ),
        ),
        (
            (step(1, 0, 1000), x("aten::mm", 0, 100), x("gloo:all_reduce", 90, 910, "user_annotation", tid=7)),
            "communication",
            0.9,
            "Communication-bound: the step waits for collectives in 90.0% of the step (900.0 µs of 1.000 ms).",
        ),
        ((), "none", 0.0, "Unknown: the trace has no operators, calls or kernels."),
        ((step(1, 0, 0),), "none", 0.0, "Unknown: no step of the trace can be used."),
    ],
    ids=[
        "kernels",
        "communication",
        "copies",
        "input",
        "host",
        "dependency",
        "a slow return is less than the kernels",
        "operators",
        "operators of several classes",
        "python",
        "cpu input",
        "cpu input below the threshold",
        "cpu communication",
        "nothing",
        "steps that are left out",
    ],
)
def test_what_bounds_the_step(events, kind, share, sentence):
    found = bottleneck(trace(*events))
    assert (found.kind, round(found.share, 9), found.text) == (kind, share, sentence)


def test_what_the_host_hides_behind_does_not_bind():
    # The device computes 90 % of the time, but the host, which never waits for it, takes the whole step: kernels
    # that took nothing would gain nothing, a host that took nothing 10 %.
    events = [step(1, 0, 1000)]
    for number in range(10):
        events += [x("aten::mm", number * 100, 100), launch(number * 100, 5, number + 1)]
        events.append(kernel("gemm", number * 100 + 10, 90, number + 1))
    found = bottleneck(trace(*events))
    assert found.kind == "launch"
    assert found.evidence == (
        "1 step of 1.000 ms (mean)",
        "step time: compute 90.0%, launch latency 10.0%",
        "critical path: operator 95.0%, runtime call 5.0%",
    )


def test_nothing_that_binds_alone():
    events = [step(1, 0, 1000)]
    for number in range(10):
        events += [x("aten::mm", number * 100, 100), launch(number * 100, 5, number + 1)]
        events.append(kernel("gemm", number * 100 + 9, 91, number + 1))
    found = bottleneck(trace(*events))
    assert found.kind == "mixed"
    assert found.text == "No single bottleneck: compute 91.0%, launch latency 9.0% of the step."


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("resnet50_workers0", "input"),
        ("resnet50_workers4", "launch"),
        ("nccl_rank0", "launch"),
        ("nccl_rank1", "launch"),
        ("triton_compile", "compute"),
        ("cpu_only", "communication"),
        ("h100_bert_small", "launch"),
    ],
)
def test_public_traces(name, kind):
    assert bottleneck(read(corpus_file(name))).kind == kind


@pytest.mark.corpus
def test_the_sentence_about_resnet50_without_workers():
    found = bottleneck(read(corpus_file("resnet50_workers0")))
    assert found.text == (
        "Input-bound: the device waits for input data in 33.1% of the step (58.73 ms of 177.6 ms), the largest "
        "avoidable part."
    )


@each_trace_file
def test_sentences_hold_what_they_must(path):
    made = read(path)
    found = bottleneck(made)
    assert found.text.endswith(".")
    assert "\n" not in found.text
    assert 0 < found.share <= 1
    findings = trace_findings(made, found.kind)
    assert [each.share for each in findings] == sorted((each.share for each in findings), reverse=True)
    timed = [each for each in findings if each.kind not in ("doubled operators", "software")]
    assert all("\n" not in each.text for each in findings)
    assert all(each.share > 0 for each in timed)
    assert found.kind not in {each.kind for each in findings}


def test_equals_are_decided_by_name_not_by_the_order_of_the_file():
    events = [
        step(1, 0, 1000),
        launch(0, 5, 1),
        launch(5, 5, 2),
        kernel("b", 20, 400, 1),
        kernel("a", 420, 400, 2),
        sync(10, 815),
    ]
    found = [bottleneck(loads(text(order))) for order in (events, events[::-1])]
    assert found[0] == found[1]
    assert "the longest is a with" in found[0].text


def test_long_names_are_cut():
    assert short("k" * 60) == "k" * 60
    assert short("k" * 61) == "k" * 57 + "..."
    assert short("void at::native::reduce_kernel<512, 1>(float*, int)") == "reduce_kernel<512, 1>"


def kinds(*events, **more):
    return {each.kind: each for each in trace_findings(trace(*events), **more)}


@pytest.mark.parametrize(("length", "found"), [(10, True), (9, False)], ids=["1 %", "below"])
def test_pageable_copies(length, found):
    events = (step(1, 0, 1000), launch(0, 5, 1), kernel(HTOD, 10, length, 1, cat="gpu_memcpy"))
    finding = kinds(*events).get("pageable")
    assert (finding is not None) == found
    if finding:
        assert finding.share == length / 1000
        assert finding.text.startswith("copies of pageable CPU memory (1/step) take 1.0% of the step (10.00 µs of")
    assert "pageable" not in kinds(*busy("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"))


def test_calls_that_block_or_manage_memory():
    found = kinds(
        step(1, 0, 500),
        launch(0, 50, 1, name="cudaMalloc"),
        launch(60, 5, 2),
        kernel("k", 70, 300, 2),
        sync(300, 100),
        step(2, 500, 500),
        launch(600, 10, 3, name="cudaFree"),
    )
    assert found["memory calls"].share == 60 / 1000
    assert found["memory calls"].text == (
        "calls that allocate or free device or pinned memory: 1/step, 30.00 µs, 6.0% of the step's CPU time"
    )
    assert found["synchronization calls"].share == 0.1


def test_small_kernels_matter_when_the_device_waits_for_the_host():
    events = [step(1, 0, 1000)]
    for number in range(10):
        events += [launch(number * 100, 5, number + 1), kernel("k", number * 100 + 50, 9 + number % 2, number + 1)]
    assert kinds(*events)["small kernels"].text == (
        "50.0% of 10 kernels are shorter than 10.00 µs, "
        "while the device waits for the host in 90.5% of the step (905.0 µs of 1.000 ms)"
    )
    assert "small kernels" not in kinds(*busy("gemm"))


def test_overhead_and_classes_of_the_account():
    found = kinds(*busy("gemm"), x("Activity Buffer Request", 100, 200, "overhead", pid=-1, tid=0))
    assert found["overhead"].text == "profiler overhead takes 20.0% of the step (200.0 µs of 1.000 ms)"
    half = (step(1, 0, 1000), launch(500, 5, 1), kernel("k", 510, 490, 1), sync(505, 495))
    assert kinds(*half)["launch"].text == (
        "the device waits while the host runs Python in 50.0% of the step (500.0 µs of 1.000 ms)"
    )
    assert "launch" not in kinds(*half, known="launch")


def test_a_path_that_is_not_explained_is_said():
    events = (step(1, 0, 1000), launch(0, 1, 1), kernel("first", 5, 95, 1), launch(10, 1, 2))
    found = kinds(*events, kernel("second", 900, 100, 2), sync(12, 988))
    assert found["unexplained"].share > 0.7
    assert found["unexplained"].text.endswith(
        "is waiting that the trace does not explain, so parts of the path may be wrong"
    )


def test_nothing_to_find():
    assert trace_findings(trace()) == ()
    assert trace_findings(trace(step(1, 0, 100), x("aten::mm", 0, 100))) == ()
