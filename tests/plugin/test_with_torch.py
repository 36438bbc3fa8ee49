"""What a worker does with torch itself; each check is a test of a project, run in a process of its own."""

import json

import pytest
from plugin.project import NOT_JUDGED

from pytest_perfdl.model.record import Finding

pytestmark = pytest.mark.long

FLOPS = """
    import sys

    import pytest
    import torch

    from pytest_perfdl.measure.counted_pass import Counter


    def counted(step):
        with Counter() as counter:
            step()
        return counter.total, counter.uncounted


    def test_a_product_is_two_operations_a_multiplication():
        left, right = torch.ones(2, 3), torch.ones(3, 4)
        assert counted(lambda: left @ right) == (2 * 2 * 3 * 4, ())


    def test_products_with_vectors():
        matrix, vector, one = torch.ones(8, 5), torch.ones(5), torch.ones(8)
        assert counted(lambda: matrix @ vector) == counted(lambda: matrix @ vector[:, None]) == (2 * 8 * 5, ())
        assert counted(lambda: torch.addmv(one, matrix, vector)) == (2 * 8 * 5, ())
        assert counted(lambda: vector @ vector) == counted(lambda: torch.vdot(vector, vector)) == (2 * 5, ())
        left, right = torch.ones(3, 8, 5), torch.ones(3, 5, 2)
        assert counted(lambda: torch.addbmm(torch.ones(8, 2), left, right)) == (2 * 3 * 8 * 5 * 2, ())


    def test_attention_on_the_host():
        query = torch.ones(1, 2, 8, 4)
        # Two products of 8 x 8 x 4 for each of two heads.
        attention = torch.nn.functional.scaled_dot_product_attention
        assert counted(lambda: attention(query, query, query)) == (2 * 2 * (8 * 8 * 4) * 2, ())


    def test_attention_backward_on_the_host():
        query = torch.ones(1, 2, 8, 4, requires_grad=True)

        def step():
            torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()

        forward = 2 * 2 * (8 * 8 * 4) * 2
        # Backward computes the scores again and four more products of the same size: 5 for forward's 2.
        assert counted(step) == (forward + forward * 5 // 2, ())


    def test_a_recurrent_layer_without_gradients():
        layer = torch.nn.LSTM(5, 6)
        inputs = torch.ones(3, 2, 5)
        with torch.no_grad():
            # Four gates of 6, from 5 features and 6 states, over 3 times in 2 rows.
            assert counted(lambda: layer(inputs)) == (2 * 3 * 2 * (4 * 6) * (5 + 6), ())


    def test_what_is_not_counted_is_named():
        bilinear = torch.nn.Bilinear(3, 4, 2)
        assert counted(lambda: bilinear(torch.ones(7, 3), torch.ones(7, 4))) == (0, ("aten._trilinear",))


    def test_a_view_of_a_parameter_without_gradients():
        parameter, layer = torch.nn.Parameter(torch.ones(1, 8)), torch.nn.Linear(8, 8)
        with torch.no_grad():
            assert counted(lambda: layer(parameter.expand(4, 8))) == (2 * 4 * 8 * 8, ())


    def test_counting_does_not_import_the_compiler():
        assert "torch._dynamo" not in sys.modules


    def test_a_counter_leaves_no_trace():
        from torch.utils import flop_counter

        wrapped = getattr(flop_counter, "_FlopCounterMode", flop_counter.FlopCounterMode).__torch_dispatch__
        assert not hasattr(getattr(wrapped, "__wrapped__", None), "__dynamo_disable")
        compiled = torch.compile(lambda value: value + 1, backend="eager")
        assert counted(lambda: compiled(torch.ones(2)) @ torch.ones(2, 2))[0] == 2 * 2 * 2


    def test_nested_tensors():
        parts, layer = [torch.ones(3, 16), torch.ones(5, 16)], torch.nn.Linear(16, 16)
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        assert counted(lambda: layer(jagged)) == (2 * (3 + 5) * 16 * 16, ())
        # This kind cannot be taken apart: its product is named, and done.
        assert counted(lambda: layer(torch.nested.nested_tensor(parts))) == (0, ("aten.linear",))
"""

AUXILIARIES = """
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    import pytest_perfdl.analysis
    import pytest_perfdl.trace
    from pytest_perfdl.machine import reference_load
    from pytest_perfdl.measure import counted_pass


    class Named(torch.nn.Module):
        def named_modules(self, *_, **__):
            raise KeyError("its modules are not told")

        def forward(self, value):
            return value + 1


    def fail(*_, **__):
        raise OSError("broken on purpose")


    def test_step(perf, monkeypatch):
        monkeypatch.setattr(pytest_perfdl.trace, "exemplar", fail)
        monkeypatch.setattr(pytest_perfdl.analysis, "memory_figures", fail)
        monkeypatch.setattr(reference_load, "reference_ns", fail)
        monkeypatch.setattr(counted_pass, "_static_bytes", fail)
        module, done = Named(), 0
        for value in perf.steps([torch.ones(3)]):
            # As torch.compile(fullgraph=True) does, in a loop that nobody can run again.
            if _get_current_dispatch_mode() is not None:
                raise RuntimeError("not beside a dispatch mode")
            module(value)
            done += 1
        assert done > 10
"""

CALLS = """
    import sys

    import pytest


    def pytest_configure():
        assert "torch" not in sys.modules


    @pytest.fixture
    def layer():
        import torch

        return torch.nn.Linear(4, 4), torch.ones(2, 4)


    def test_exact_metrics(perf, layer):
        module, inputs = layer
        perf(module, inputs, name="forward")
        for number in perf.steps([1, 2]):
            assert number


    def test_types_of_torch_do_not_travel(perf, layer, record_property):
        import torch

        record_property("loss", torch.ones(1))
        perf(int, items=torch.tensor(4.0))
        perf.metric("loss", torch.tensor(2.5))


    def test_warnings_of_torch_do_not_travel(perf):
        import warnings

        import torch

        warnings.warn("converted", torch.jit.TracerWarning, stacklevel=1)
        perf(int)


    def test_errors_of_torch_do_not_travel(perf, request):
        import torch

        request.applymarker(pytest.mark.xfail(raises=torch.OutOfMemoryError))
        perf(int)


    def test_not_a_perf_test():
        assert "torch" not in sys.modules
"""


def test_counting_operations(project):
    project.write("test_it.py", FLOPS)
    finished = project.run("-p", "no:randomly")

    assert finished.code == 0, finished.output
    assert finished.summary().startswith("10 passed")


def test_what_a_verdict_can_do_without_is_left_out_with_a_note(project):
    project.write("test_it.py", AUXILIARIES)
    finished = project.run("--perf", *NOT_JUDGED, "--perf-json=run.json")
    (test,) = json.loads((project.root / "run.json").read_text())["tests"]

    assert finished.code == 0, finished.output
    assert test["verdict"] == "missing"
    assert {"step_p50", "block_time", "ops"} <= test["metrics"].keys()
    assert not {"flops", "peak_memory", "static_memory"} & test["metrics"].keys()
    findings = [finding for finding in test["integrity"] if not Finding(**finding).meaning.disturbs]
    assert {finding["code"]: finding["level"] for finding in findings} == dict.fromkeys(
        ["no-flops", "no-memory", "no-static-memory", "no-exemplar", "no-modules", "no-reference", "absent"], "note"
    )
    (why,) = [finding["message"] for finding in test["integrity"] if finding["code"] == "no-flops"]
    assert why.startswith(
        "FLOPs could not be measured (RuntimeError: not beside a dispatch mode); other metrics are not affected"
    )


def test_nothing_makes_the_orchestrating_process_import_torch(project):
    import json

    project.write("test_it.py", CALLS)
    finished = project.run("--perf", *NOT_JUDGED, "--perf-json=run.json", "--junitxml=junit.xml", "-rX", cold=True)
    tests = {
        test["id"].rpartition("::")[2]: test for test in json.loads((project.root / "run.json").read_text())["tests"]
    }

    assert finished.code == 0, finished.output
    assert "4 passed, 1 xpassed" in finished.summary()
    assert "TracerWarning: converted" in finished.output
    metrics = tests["test_exact_metrics"]["metrics"]
    # A linear layer of four outputs from four inputs on two rows, 2 FLOP a multiplication; no step of numbers has any.
    assert metrics["forward.flops"]["new"] == 2 * 2 * 4 * 4
    assert metrics["flops"]["new"] == 0
    # Weights of 4 x 4, a bias of 4 and inputs of 2 x 4, each number in 4 bytes.
    assert metrics["forward.static_memory"]["new"] == (16 + 4 + 8) * 4
    assert tests["test_types_of_torch_do_not_travel"]["metrics"]["loss"]["new"] == 2.5
    assert "tensor" in project.cases()["test_types_of_torch_do_not_travel"].properties["loss"]


TRAINED = """
    import pytest
    import torch

    @pytest.mark.perf(repeats=1)
    def test_train(perf):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(16, 64)

        def step():
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        perf(step)
"""


def test_the_exemplar_holds_the_memory_that_the_counted_pass_saw(project):
    """And names its modules: their ranges are no operators, though torch's fast ranges are written as such."""
    from pytest_perfdl.analysis.events.origins import module_paths
    from pytest_perfdl.analysis.overview.memory_timeline import memory_timeline
    from pytest_perfdl.baseline.text import parse
    from pytest_perfdl.trace import Category, read

    project.write("test_it.py", TRAINED)
    finished = project.run("--perf-update", *NOT_JUDGED)
    assert finished.code == 0, finished.output

    (stored,) = project.root.glob("baselines/**/*.trace.json.gz")
    (record,) = (path for path in project.root.glob("baselines/**/*.json"))
    metrics = parse(record.read_bytes()).metrics()
    trace = read(stored)
    (host,) = memory_timeline(trace)
    assert host.peak_allocated_bytes == metrics["peak_memory"].values[0]
    assert host.base_bytes == metrics["static_memory"].values[0]
    grown = trace.memory.bytes[trace.memory.bytes > 0]
    assert (len(grown), grown.sum()) == (metrics["allocations"].values[0], metrics["alloc_bytes"].values[0])
    assert set(module_paths(trace)[1]) == {f"Sequential{layer}" for layer in ("", ".0", ".1", ".2")}
    operators = [trace.name_of(row) for row in trace.rows(Category.CPU_OP).tolist()]
    assert metrics["ops"].values[0] == len(operators)
    assert not [name for name in operators if name.startswith("perfdl")]


REPLAYED = """
    import json

    import torch
    from torch.profiler import ProfilerActivity, profile

    from pytest_perfdl.cli import main
    from pytest_perfdl.measure import calibration
    from pytest_perfdl.model.errors import ConstantsError


    def test_constants(tmp_path, capsys, monkeypatch):
        # Whatever else the machine does meanwhile.
        monkeypatch.setattr(calibration, "DISTURBED", float("inf"))
        left, right, query = torch.ones(256, 256), torch.ones(256, 256), torch.ones(1, 2, 64, 16, requires_grad=True)
        path, out = tmp_path / "trace.json", tmp_path / "machine.json"
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for _ in range(20):
                torch.mm(left, right).add_(1).sum(0)
                torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
        profiler.export_chrome_trace(str(path))

        asked = ["constants", str(path), "--form", "bfloat16", "-o", str(out)]
        assert main(asked) == 0
        told = capsys.readouterr()
        assert "wrote" in told.out and "operators in bfloat16" in told.out
        found = json.loads(out.read_text())
        ratios = found["ratios"]["bfloat16"]
        assert ratios["aten::mm [[256, 256], [256, 256]]"][1] > 0
        # Arguments by name only, and statistics that stay in float32.
        assert any(key.startswith("aten::_scaled_dot_product_flash_attention_for_cpu_backward") for key in ratios)
        assert all(0 < low <= middle <= high for low, middle, high in ratios.values())
        assert found["memory_bytes_per_s"] > 1e8 and found["contention"] >= 1 and found["hand_over_ns"] > 0
        assert f"torch {torch.__version__}" in found["key"]

        ratios["aten::mm [[256, 256], [256, 256]]"] = [7, 8, 9]
        out.write_text(json.dumps(found))
        assert main(asked) == 0
        assert json.loads(out.read_text()) == found, "what is known is kept"
        assert "aten::mm" not in capsys.readouterr().err

        # Under a neighbor there are no limits, and the replays stand.
        def disturb(*_, **__):
            raise ConstantsError("other processes used 0.50 CPUs during the measurement")

        monkeypatch.setattr(calibration, "calibrate", disturb)
        other = tmp_path / "other.json"
        assert main([*asked[:-1], str(other)]) == 0
        assert "the peak rates of this machine could not be measured: other processes used" in capsys.readouterr().err
        without = json.loads(other.read_text())
        assert without["ratios"]["bfloat16"].keys() == ratios.keys() and "bandwidths" not in without
        assert main(["constants", str(path), "-o", str(tmp_path / "none.json")]) == 2
        assert "other processes used" in capsys.readouterr().err and not (tmp_path / "none.json").exists()

        assert main([*asked, "--threads", "2"]) == 2
        assert "write to another file" in capsys.readouterr().err
        assert main(["constants", str(path), "--threads", "0"]) == 2
        assert main(["constants", str(tmp_path / "absent.json")]) == 2
        assert "cannot be read" in capsys.readouterr().err


    def test_a_trace_without_shapes(tmp_path, capsys):
        path = tmp_path / "trace.json"
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            torch.ones(4, 4) @ torch.ones(4, 4)
        profiler.export_chrome_trace(str(path))
        assert main(["constants", str(path), "--form", "bfloat16", "-o", str(tmp_path / "machine.json")]) == 2
        assert "record_shapes=True" in capsys.readouterr().err
        assert not (tmp_path / "machine.json").exists()


    def test_arguments_as_they_were():
        call = calibration.Recorded("aten::mul", [[2, 3], []], ["float", "Scalar"], [[1, 2], []], ["", "0.5"])
        matrix, factor = calibration._arguments(call, "cpu")
        assert (tuple(matrix.shape), matrix.stride(), factor) == ((2, 3), (1, 2), 0.5)
        for shape, strides in (([2**20, 2**20], [2**20, 1]), ([10**30], [1]), ([2], [10**12])):
            call = calibration.Recorded("aten::relu", [shape], ["float"], [strides], [""])
            assert calibration._arguments(call, "cpu") is None
        unknown = calibration.Recorded("aten::cat", [[], []], ["TensorList", "Scalar"], [[], []], ["", "0"])
        assert calibration._arguments(unknown, "cpu") is None


    def test_nothing_is_replayed_that_makes_too_much_of_little():
        column, row = torch.ones(10**6, 1), torch.ones(1, 10**6)
        assert calibration._ratio("aten::mm", [column, row], "bfloat16", "cpu") is None
        assert calibration._ratio("aten::arange", [10**12], "bfloat16", "cpu") is None
        assert calibration._ratio("aten::relu", [torch.ones(4).expand(2**40, 4)], "bfloat16", "cpu") is None
        assert calibration._fits(torch.ops.aten.mm, [row, column])
        assert calibration._fits(torch.ops.aten.nonzero, [row])
"""


def test_replaying_operators(project):
    project.write("test_it.py", REPLAYED)
    finished = project.run("-p", "no:randomly")

    assert finished.code == 0, finished.output
    assert finished.summary() == "4 passed"
