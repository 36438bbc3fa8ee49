"""Records a trace of torch's profiler, as users record them, of one kind of step on a device.

python -m tests.gpu.traces KIND FILE
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from tests.gpu.test_cuda import MODEL, STEPS  # noqa: E402

KINDS = {
    **STEPS,
    "streams": """
        net, batch, side = model(), torch.randn(64, WIDTH, device="cuda"), torch.cuda.Stream()

        def step():
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.no_grad(), torch.cuda.stream(side):
                first = net(batch)
            with torch.no_grad():
                second = net(batch)
            main.wait_stream(side)
            return first + second

        perf(step)
    """,
}
"""Steps as in `STEPS`, by kind; of an eager one memory is recorded as well."""
STEPS_RECORDED = 3


def main(kind: str, file: Path) -> None:
    """Write the trace, and print how much this package reads of it, as JSON."""
    if os.environ.get("PERFDL_STAND_IN"):
        from stand_in import stand_in_gpu

        stand_in_gpu.install()
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    def record(step: Callable[..., Any], *arguments: object, **_: object) -> None:
        for _ in range(STEPS_RECORDED):
            step(*arguments)
        torch.cuda.synchronize()
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            record_shapes=True,
            profile_memory=kind == "eager",
            experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True),
        ) as profiler:
            for _ in range(STEPS_RECORDED):
                step(*arguments)
                torch.cuda.synchronize()
                profiler.step()
        profiler.export_chrome_trace(str(file))

    names: dict[str, Any] = {"perf": record}
    exec(MODEL + textwrap.dedent(KINDS[kind]), names)

    from pytest_perfdl.trace import read

    found = read(file)
    print(json.dumps({"events": len(found), "device events": len(found.device_rows()), "bytes": file.stat().st_size}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
