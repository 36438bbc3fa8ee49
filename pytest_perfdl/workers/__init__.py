"""Worker processes: how a test is run in a process of its own under pytest's normal protocol.

`channel` carries messages, `process` starts, watches and ends a worker, `worker` is what runs inside it, and
`serialization` turns pytest's own objects (reports, warnings, marks) into messages and back. What the messages ask
for and answer is not this package's business: commands and replies pass through as they are.
"""
