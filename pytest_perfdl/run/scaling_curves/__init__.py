"""Tests that differ only in size, compared as one curve when the last of them is measured.

These are tests whose marker lists sizes (`scaling=`), and tests that call `perf.assert_scaling(...)`. The current curve
is compared with the baselines' curve (`scaling.growth`: kind and amount of the added time, with an interval) and with
the bounds of the test. Its verdict is part of the last test's result.

All sizes were compared before, so the curve uses their results: ratios of paired rounds if there are any, otherwise
fresh repeats against recorded ones, with a common uncertainty for changes of the machine (`OCCASION_SD`). A slower
curve is a regression if one of its sizes regressed, if all sizes were measured in paired rounds, or if further repeats
confirm it.

- `judging` is the flow: `Curves` receives every measured test.
- `sizes` selects the tests of one curve, `points` their measurements.
- `compared` compares both sides of a curve, `verdicts` derives the verdict.
- `shown` converts the result for reports.
"""

from pytest_perfdl.run.scaling_curves.judging import Curves

__all__ = ["Curves"]
