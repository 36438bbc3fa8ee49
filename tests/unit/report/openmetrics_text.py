"""A strict reader of OpenMetrics 1.0 text with gauges; it also refuses what Prometheus' older format lacks."""

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}})? (\S+)")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_ABOUT = re.compile(rf"# (TYPE|UNIT|HELP) ({_NAME}) (.+)")


@dataclass
class Family:
    """What the text says of one metric."""

    about: dict = field(default_factory=dict)
    samples: dict = field(default_factory=dict)
    """By the labels, as a tuple of pairs."""


def parsed(text):
    """The families of a text by their names; ValueError says what is wrong with it."""
    if not text.endswith("\n# EOF\n") and text != "# EOF\n":
        raise ValueError("does not end with # EOF")
    families, name = {}, None
    for line in text[: -len("# EOF\n")].split("\n")[:-1]:
        if about := _ABOUT.fullmatch(line):
            name = _about(families, name, *about.groups())
        elif sample := _SAMPLE.fullmatch(line):
            if sample[1] != name:
                raise ValueError(f"a sample outside of its family: {line}")
            _add(families[name], *sample.groups()[1:])
        else:
            raise ValueError(f"not a line of OpenMetrics: {line!r}")
    for each, family in families.items():
        if family.about.get("TYPE") != "gauge" or "HELP" not in family.about or not family.samples:
            raise ValueError(f"{each} is not a whole gauge: {family}")
        if not each.endswith(f"_{family.about.get('UNIT', each.rpartition('_')[2])}"):
            raise ValueError(f"{each} does not end with its unit")
    return families


def _about(families, before, kind, name, value):
    if name != before:
        if name in families:
            raise ValueError(f"{name} is in two parts")
        families[name] = Family()
    family = families[name]
    if kind in family.about or family.samples:
        raise ValueError(f"{kind} of {name} comes twice, or behind a sample")
    # A quotation mark is escaped in the one format and must not be in the other.
    if kind == "HELP" and not re.fullmatch(r'(?:[^"\\]|\\[\\n])*', value):
        raise ValueError(f"help of {name}: {value}")
    family.about[kind] = value
    return name


def _add(family, labels, value):
    pairs = tuple((each.partition("=")[0], _plain(each.partition("=")[2])) for each in re.findall(_LABEL, labels or ""))
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(f"a label comes twice: {labels}")
    if {tuple(sorted(each)) for each in family.samples} & {tuple(sorted(pairs))}:
        raise ValueError(f"two samples have the same labels: {labels}")
    if not _NUMBER.fullmatch(value) or not math.isfinite(float(value)):
        raise ValueError(f"not a number: {value}")
    family.samples[pairs] = float(value)


def _plain(quoted):
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), quoted[1:-1])
