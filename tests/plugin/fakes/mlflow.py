"""Stands in for mlflow: the same signatures as version 3.17, and it refuses the names that that refuses."""

import contextlib
import posixpath
import re
from pathlib import Path

from recorded import record

record("import", module=__name__)
_active = []


def _check_name(key):
    assert re.fullmatch(r"[/\w.\- :]+", key, re.ASCII), key
    assert posixpath.normpath(key) == key, key
    assert not key.startswith(("/", "..")), key
    assert len(key) <= 250, key


def set_experiment(experiment_name=None, experiment_id=None, trace_location=None):
    record("set_experiment", name=experiment_name)


@contextlib.contextmanager
def start_run(
    run_id=None,
    experiment_id=None,
    run_name=None,
    nested=False,
    parent_run_id=None,
    tags=None,
    description=None,
    log_system_metrics=None,
):
    record("start_run", run_name=run_name)
    _active.append(run_name)
    yield
    _active.pop()
    record("end_run")


def set_tags(tags, synchronous=None):
    for key, value in tags.items():
        set_tag(key, value)


def set_tag(key, value, synchronous=None):
    assert _active
    _check_name(key)
    assert len(str(value)) <= 8000
    record("set_tag", key=key, value=str(value))


def log_metric(key, value, step=None, synchronous=None, timestamp=None, run_id=None, model_id=None, dataset=None):
    assert _active
    _check_name(key)
    record("log_metric", key=key, value=float(value), step=step)


def log_artifacts(local_dir, artifact_path=None, run_id=None):
    assert _active
    assert Path(local_dir).is_dir()
    record("log_artifacts", path=artifact_path, files=sorted(path.name for path in Path(local_dir).iterdir()))
