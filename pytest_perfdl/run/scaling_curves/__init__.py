"""Tests that differ in a size only, judged as one curve once the last of them is measured.

Which tests: those whose marker names the sizes (`scaling=`), and those that call `perf.assert_scaling(...)` with a
parameter of theirs. The curve of this run is held against that of the baselines (`scaling.growth`): what was
added, of which kind, with an interval; and against the bounds that the test itself states. Its verdict is part of the
last test's.

Each size was judged by itself before. So the curve's evidence is what that gave: ratios of paired rounds where there
were some, else fresh repeats against stored ones, with what the machine may have changed meanwhile (`OCCASION_SD`,
which all sizes share). A curve that grew is regressed where a size was found regressed by itself, where all sizes were
measured in pairs, or where further repeats show the same again.

- `judging` is the story: `Curves` is told of every test that was measured.
- `sizes` says which tests are the sizes of one curve, `points` what was measured of each.
- `compared` holds both sides of a curve against each other, `verdicts` says what follows from it.
- `shown` makes of it what reports show.
"""

from pytest_perfdl.run.scaling_curves.judging import Curves

__all__ = ["Curves"]
