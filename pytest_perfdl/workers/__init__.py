"""Worker processes: run a test in a separate process under pytest's normal protocol.

`channel` transports messages, `process` starts, monitors and ends a worker, `worker` runs inside it, and
`serialization` converts pytest's objects (reports, warnings, marks) to messages and back. Commands and replies of a
measurement pass through unchanged.
"""
