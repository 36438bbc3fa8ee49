"""The picture of a curve: everything is inside the frame and well-formed, names are text."""

import re
from xml.etree import ElementTree

from pytest_perfdl.report.scaling.plot import HEIGHT, WIDTH, Line, plot

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*args, **more):
    return ElementTree.fromstring(plot(*args, **more))


def kinds(root):
    return [each.get("class") for each in root.iter() if each.get("class") not in (None, "frame")]


LINE = Line([2.0, 16.0], [2e6, 9e6], [1e6, 8e6], [3e6, 10e6])


def test_points_line_and_band():
    root = drawn("batch", LINE, [(2.0, 2.1e6), (8.0, 5e6)])
    assert kinds(root) == ["band", "line", "point", "point"]
    assert [title.text for title in root.iter(f"{SVG}title")] == ["batch 2: 2.100 ms", "batch 8: 5.000 ms"]
    assert root.get("aria-label") == "time of a step over batch"


def test_the_curve_it_is_held_against():
    root = drawn("batch", Line([2.0, 16.0], [2e6, 9e6]), [], base=Line([2.0, 16.0], [1e6, 5e6]), base_points=[(4, 2e6)])
    assert kinds(root) == ["base", "line", "point of-base"]


def test_nothing_leaves_the_frame():
    text = plot("batch", LINE, [(1.0, 0.5e6), (32.0, 30e6)])
    places = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+),(-?[\d.]+)", text)]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


def test_names_are_text_and_one_size_is_drawn():
    assert "<b>" not in plot('<b>"&', Line([4.0], [1e6]), [])
    assert kinds(drawn('<b>"&', Line([4.0], [1e6]), [(4.0, 1e6)])) == ["line", "point"]
