"""Stands in for wandb: the same signatures as version 0.31, and it refuses what that refuses."""

from pathlib import Path

from recorded import record

record("import", module=__name__)


class Artifact:
    def __init__(
        self,
        name,
        type,  # noqa: A002
        description=None,
        metadata=None,
        incremental=False,
        use_as=None,
        storage_region=None,
        digest_algorithm="MD5",
    ):
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        self.name, self.type, self.files = name, type, []

    def add_dir(self, local_path, name=None, skip_cache=False, policy="mutable", merge=False):
        assert Path(local_path).is_dir()
        self.files += sorted(path.name for path in Path(local_path).iterdir())


class Run:
    def __init__(self):
        self.summary, self.finished = {}, False

    def log(self, data, step=None, commit=None):
        assert not self.finished
        assert all(isinstance(name, str) for name in data)
        record("log", data=data, step=step)

    def log_artifact(self, artifact_or_path, name=None, type=None, aliases=None, tags=None):  # noqa: A002
        assert not self.finished
        record("log_artifact", name=artifact_or_path.name, type=artifact_or_path.type, files=artifact_or_path.files)

    def finish(self, exit_code=None):
        self.finished = True
        record("finish", summary=self.summary, exit_code=exit_code)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.finish(0 if kind is None else 1)


def init(
    entity=None,
    project=None,
    dir=None,  # noqa: A002
    id=None,  # noqa: A002
    name=None,
    notes=None,
    tags=None,
    config=None,
    config_exclude_keys=None,
    config_include_keys=None,
    allow_val_change=None,
    group=None,
    job_type=None,
    mode=None,
    force=None,
    reinit=None,
    resume=None,
    resume_from=None,
    fork_from=None,
    save_code=None,
    tensorboard=None,
    sync_tensorboard=None,
    monitor_gym=None,
    settings=None,
):
    record("init", project=project, job_type=job_type, config=config)
    return Run()
