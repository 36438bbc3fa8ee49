"""Worker processes: run a test in a separate process under pytest's normal protocol.

- Before it starts: `definition` reads what a test measures by its source; `checkout` provides the other side's code and
  keeps it between runs, `interpreter` provides another Python, which runs `environment_script`.
- In the orchestrating process: `process` starts, monitors and ends a worker and says how it died, `forks` forks it from
  `fork_server`, a process that has imported third-party modules. A test with ranks is a `job`, whose ranks `launcher`
  starts, each a `rank_process`.
- Between the processes: `channel` has the messages and transports them, with pytest's objects (reports, warnings,
  marks) in them. Commands and replies of a measurement pass through unchanged. A worker says nothing at its start: its
  machine and software go with each call (`measure.environment`), the rest at the end (`channel.Shown`).
- In the worker: `worker` runs the test, `rank` is a worker that connects back, `files_read` observes what is read.
- Back in the orchestrating process: `remote_test` passes reports to pytest, `origins` checks whose code was loaded.
"""
