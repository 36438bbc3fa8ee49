"""The faces of the `perf` fixture.

Without `--perf` a step runs once (`smoke`). In a worker process, and under `--perf-isolate=none`, `Measured` runs the
step as often as commands ask for (`measured`); where the commands come from is the `Host`'s business (`host`).
`lifecycle` is what pytest's hooks do with a face, `checks` refuse what an author cannot have meant, `calling` is how a
step is called.
"""

from pytest_perfdl.faces.host import Host
from pytest_perfdl.faces.lifecycle import close, measuring
from pytest_perfdl.faces.measured import Measured
from pytest_perfdl.faces.smoke import Smoke

__all__ = ["Host", "Measured", "Smoke", "close", "measuring"]
