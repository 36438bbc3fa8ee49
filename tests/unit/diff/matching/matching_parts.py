"""Parts for tests, and what groups hold, in words."""

import json

from pytest_perfdl.diff.matching.match import match
from pytest_perfdl.diff.matching.stages import Weighted
from pytest_perfdl.model.step_part import Part


def kernel(name, *path, shapes=(), module="", phase="", line="", ns=1000.0, count=1.0):
    """A kernel below these operators."""
    text = json.dumps(shapes) if shapes else ""
    return Weighted(Part("kernel", name, path, text, module, line, phase=phase), count, ns)


def operator(name, *path, shapes=(), module="", phase="", line="", ns=1000.0, count=1.0):
    """An operator's own time below these operators."""
    text = json.dumps(shapes) if shapes else ""
    return Weighted(Part("operator", name, path, text, module, line, phase=phase), count, ns)


def idle(name, function="", line="", module="", phase="", ns=1000.0):
    """A class of idle time while this ran."""
    return Weighted(Part("idle", name, module=module, line=line, function=function, phase=phase), 0.0, ns)


def found(base, new, **more):
    """The groups as (names of the base's parts, names of the new side's, by)."""
    return [
        ([base[place].part.name for place in group.base], [new[place].part.name for place in group.new], group.by)
        for group in match(base, new, **more)
    ]


def places(base, new, **more):
    """The groups as (places on the base, on the new side, by)."""
    return [(group.base, group.new, group.by) for group in match(base, new, **more)]


def confidence(base, new):
    """Of the only group."""
    (group,) = match(base, new)
    return group.confidence
