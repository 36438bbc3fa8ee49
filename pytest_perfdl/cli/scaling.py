"""Model step time as a function of size, and predict other sizes.

`perfdl scaling fit POINTS.csv` fits several models and chooses one, `perfdl scaling predict MODEL.json --at batch=64`
predicts with it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_perfdl.cli.common import Parser, say, say_json, width
from pytest_perfdl.model.errors import CommandError, OtherSchemaError, ScalingError
from pytest_perfdl.model.visible import visible

if TYPE_CHECKING:
    from pytest_perfdl.scaling.choose import Choice, Fit
    from pytest_perfdl.scaling.planning import SpeedUp
    from pytest_perfdl.scaling.points import Points
    from pytest_perfdl.scaling.saved import Parts


_LIMIT = 2**24
"""Bytes that a model file may have."""


class _Parser(Parser):
    """Also takes `--batch 64`, where batch is no option, for `--at batch=64`: factors are named by their points."""

    takes_factors = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Put what looks like factors apart, and parse the rest."""
        if not self.takes_factors:
            return super().parse_known_args(args, namespace)
        rest: list[str] = []
        factors: list[str] = []
        given = list(sys.argv[1:] if args is None else args)
        while given:
            text = given.pop(0)
            name, sign, value = text.removeprefix("--").partition("=")
            if not text.startswith("--") or f"--{name}" in self._option_string_actions or not name:
                rest.append(text)
            elif sign:
                factors.append(f"{name}={value}")
            elif given and _is_number(given[0]):
                factors.append(f"{name}={given.pop(0)}")
            else:
                rest.append(text)
        parsed, unknown = super().parse_known_args(rest, namespace)
        parsed.factors = factors
        return parsed, unknown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    fit = actions.add_parser("fit", help="fit several models, and choose the one with the smallest leave-one-out error")
    fit.add_argument(
        "points",
        metavar="POINTS",
        type=Path,
        help="CSV file with one column per factor and one column of times (time_s, time_ms, time_us or time_ns); or a "
        "run.json file whose test ids contain sizes",
    )
    fit.add_argument(
        "--intrinsic", metavar="NAMES", help="factors that describe the model, comma-separated, such as layers,channels"
    )
    fit.add_argument(
        "--extrinsic",
        metavar="NAMES",
        help="factors that describe how the model runs, comma-separated, such as batch,workers",
    )
    fit.add_argument("-k", metavar="TEXT", default="", help="with a run.json file: use the test whose id contains TEXT")
    fit.add_argument(
        "--metric", default="step_time", help="with a run.json file: the time metric to model (default: %(default)s)"
    )
    fit.add_argument(
        "--axes",
        metavar="NAMES",
        default="",
        help="with a run.json file: factor names for test ids that contain only numbers, such as test_step[8-2], in "
        "order",
    )
    fit.add_argument(
        "--parts",
        action="store_true",
        help="with a run.json file: also show how the time of each operator and kernel grows",
    )
    fit.add_argument("--save", metavar="MODEL", type=Path, help="write the model file for `perfdl scaling predict`")
    fit.add_argument(
        "--json",
        action="store_true",
        help="print the results as JSON, which `perfdl scaling predict` can read as a model file",
    )

    predict = actions.add_parser(
        "predict",
        help="predict step time, speed-up and cost at other sizes, and suggest the next measurement",
        allow_abbrev=False,
    )
    predict.takes_factors = True
    predict.add_argument(
        "model", metavar="MODEL", type=Path, help="model file that `perfdl scaling fit` wrote with --save or --json"
    )
    predict.add_argument(
        "--at",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="values of the factors, such as batch=64,workers=8; --batch 64 is the same as --at batch=64",
    )
    predict.add_argument(
        "--model",
        dest="form",
        metavar="NAME",
        help="name of the model to use (default: the model that `perfdl scaling fit` chose)",
    )
    predict.add_argument("--extrapolate", action="store_true", help="also predict beyond twice the measured range")
    predict.add_argument(
        "--along",
        metavar="NAMES",
        help="factors to show speed-up curves for, comma-separated (default: the extrinsic factors)",
    )
    predict.add_argument(
        "--steps", type=float, metavar="N", help="also predict the time and cost of N steps, such as one epoch"
    )
    predict.add_argument(
        "--samples",
        type=float,
        metavar="N",
        help="also predict the time and cost of N samples; needs a factor named batch",
    )
    predict.add_argument("--price", type=float, metavar="PER_HOUR", help="price of the hardware per hour")
    predict.add_argument("--plot", type=Path, metavar="OUT", help="write the first speed-up curve to an SVG image")
    predict.add_argument("--json", action="store_true", help="print the results as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Fit or predict, and report; 2 when the points or the model cannot be used."""
    return _fit(arguments) if arguments.action == "fit" else _predict(arguments)


def _fit(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.report import scaling
    from pytest_perfdl.report.files import write_files
    from pytest_perfdl.scaling.choose import choose

    points, parts = _read_points(arguments)
    choice = choose(points)
    text = scaling.dump(scaling.fitted_json(choice, parts))
    if arguments.save is not None:
        write_files({arguments.save: text.encode()})
    if arguments.json:
        for warning in choice.warnings:
            say(f"perfdl scaling: warning: {visible(warning)}", error=True)
        say_json(text)
    else:
        say(scaling.fitted(choice, width()))
        if parts is not None:
            say(f"\n{scaling.parts(parts, width())}")
        if arguments.save is not None:
            say(f"wrote {arguments.save}")
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.report import scaling
    from pytest_perfdl.scaling.choose import predict
    from pytest_perfdl.scaling.physical import PROCESSORS
    from pytest_perfdl.scaling.planning import epoch, next_measurement, speed_up

    choice = _load_model(arguments.model)
    points, fit = choice.points, _form(choice, arguments.form)
    at = _configuration([*",".join(arguments.at).split(","), *arguments.factors])
    found = predict(fit, points, at, extrapolate=arguments.extrapolate)
    along = _names(arguments.along)
    if along is None:
        outer = [name for name in points.extrinsic if name in points.varying] or points.varying
        along = [name for name in outer if points.columns[name].min() > 0]
        along.sort(key=lambda name: name not in PROCESSORS)
    curves = [speed_up(fit, points, at, name) for name in along]
    following = next_measurement(fit, points, at)
    if arguments.plot is not None:
        _write_plot(arguments.plot, fit, points, at, curves)
    steps = _steps(arguments, points, at)
    cost = None if steps is None else epoch(found, steps, arguments.price)
    if arguments.json:
        say_json(scaling.dump(scaling.predicted_json(fit, at, found, curves, following, cost)))
    else:
        say(scaling.predicted(fit, at, found, curves, following, cost, width()))
    return 0


def _write_plot(path: Path, fit: Fit, points: Points, at: dict[str, float], curves: Sequence[SpeedUp]) -> None:
    import numpy as np

    from pytest_perfdl.report.files import write_files
    from pytest_perfdl.report.scaling import PlottedLine, plot

    if not curves:
        raise CommandError("--plot needs a factor to plot: add --along FACTOR")
    axis = curves[0].axis
    sizes = np.linspace(curves[0].sizes[0], curves[0].sizes[-1], 101)
    columns = {name: np.full(len(sizes), at.get(name, points.columns[name][0])) for name in points.factors}
    ns, low, high = (each.tolist() for each in fit.interval({**columns, axis: sizes}))
    here = np.ones(len(points), dtype=bool)
    for name in points.factors:
        here &= (name == axis) | (points.columns[name] == columns[name][0])
    measured = list(zip(points.columns[axis][here].tolist(), points.ns[here].tolist(), strict=True))
    write_files({path: plot(axis, PlottedLine(sizes.tolist(), ns, low, high), measured).encode()})
    say(f"wrote {path}", error=True)


def _read_points(arguments: argparse.Namespace) -> tuple[Points, Parts | None]:
    """The points, and the parts of the steps where they are asked for."""
    from pytest_perfdl.results.run_file import read_run
    from pytest_perfdl.scaling.points import members_of, naming, points_of, read_csv
    from pytest_perfdl.scaling.saved import parts_of

    kinds = {"intrinsic": _names(arguments.intrinsic), "extrinsic": _names(arguments.extrinsic)}
    if arguments.points.suffix != ".json":
        if arguments.parts:
            raise CommandError("--parts needs a run.json file: a CSV file contains only step times")
        return read_csv(arguments.points, **kinds), None
    records = [result.new for result in read_run(arguments.points).results if result.new is not None]
    with naming(str(arguments.points)):
        members = members_of(records, test=arguments.k, names=_names(arguments.axes) or [])
        points = points_of(members, metric=arguments.metric, **kinds)
        return points, parts_of(members, metric=arguments.metric, **kinds) if arguments.parts else None


def _load_model(path: Path) -> Choice:
    from pytest_perfdl.model.untrusted_files import read_bytes
    from pytest_perfdl.scaling.saved import from_data

    try:
        return from_data(json.loads(read_bytes(path, _LIMIT))["saved"])
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    except ScalingError as error:
        raise CommandError(f"{path}: {error}") from error
    except OtherSchemaError as error:
        raise CommandError(f"{path} {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CommandError(f"{path} is not a model file of `perfdl scaling fit --save`") from None


def _form(choice: Choice, name: str | None) -> Fit:
    by_name = {fit.name: fit for fit in choice.fits}
    if name is not None and name not in by_name:
        raise CommandError(f"there is no model {name!r}; choose from {', '.join(by_name)}")
    return choice.chosen if name is None else by_name[name]


def _configuration(texts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in filter(None, map(str.strip, texts)):
        name, sign, value = text.partition("=")
        if not sign or not _is_number(value):
            raise CommandError(f"--at {text!r}: expected NAME=NUMBER pairs such as batch=64,workers=8")
        if name.strip() in found:
            raise CommandError(f"--at sets {name.strip()} twice: remove one value")
        found[name.strip()] = float(value)
    return found


def _steps(arguments: argparse.Namespace, points: Points, at: dict[str, float]) -> float | None:
    if arguments.samples is None:
        if arguments.price is not None and arguments.steps is None:
            raise CommandError("--price needs a number of steps or samples: add --steps or --samples")
        steps: float | None = arguments.steps
        return steps
    if arguments.steps is not None:
        raise CommandError("--steps and --samples cannot be combined: remove one of them")
    if "batch" not in points.factors:
        raise CommandError("--samples needs a factor named batch, the number of samples per step: use --steps instead")
    batch = at.get("batch", float(points.columns["batch"][0]))
    if not batch > 0:
        raise CommandError("--samples needs a batch size above 0: set the factor batch")
    return float(math.ceil(arguments.samples / batch)) if math.isfinite(arguments.samples) else math.nan


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
