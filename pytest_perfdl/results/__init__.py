"""What a run found, as plain values: `judge` and `run` make them, `report` reads them.

`verdict` has the words: a `MetricVerdict` for each metric, a `Cause` for each thing that is blamed, and the
`Judgement` of a test that holds them. `run` has a test's `Result` and the whole `Run`. `curve` is a test's time over
sizes, `suggestion` a piece of advice with its predicted gain.
"""
