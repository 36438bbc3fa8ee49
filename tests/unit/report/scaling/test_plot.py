"""The picture of a curve: everything is inside the frame and well-formed, names are text."""

import re
from xml.etree import ElementTree

import pytest

from pytest_perfdl.report.scaling import HEIGHT, WIDTH, PlottedLine, PlottedSide, inline, plot

SVG = "{http://www.w3.org/2000/svg}"
LINE = PlottedLine([2.0, 16.0], [2e6, 9e6], [1e6, 8e6], [3e6, 10e6])


def drawn(*args):
    return ElementTree.fromstring(plot(*args))


def kinds(root):
    return [each.get("class") for each in root.iter() if each.get("class") not in (None, "frame", "plot")]


def places(text):
    """Every place that something is drawn at."""
    pairs = [*re.findall(r"(-?[\d.]+),(-?[\d.]+)", text), *re.findall(r'cx="(.*?)" cy="(.*?)"', text)]
    return [tuple(map(float, pair)) for pair in pairs]


def test_points_line_and_band():
    root = drawn("batch", LINE, [(2.0, 2.1e6), (8.0, 5e6)])
    assert kinds(root) == ["band", "line", "point", "point"]
    assert [title.text for title in root.iter(f"{SVG}title")] == ["batch 2: 2.100 ms", "batch 8: 5.000 ms"]
    assert root.get("aria-label") == "step time over batch"


def test_the_curve_it_is_held_against_and_the_intervals_of_points():
    new = PlottedSide(PlottedLine([4.0], [3e6], [2.5e6], [3.5e6]), LINE)
    base = PlottedSide(
        PlottedLine([4.0], [2e6], [1.5e6], [2.5e6]), PlottedLine([2.0, 16.0], [1e6, 5e6], [0.0, 4e6], [2e6, 6e6])
    )
    root = ElementTree.fromstring(inline("batch", new, base, logarithmic=False, label="said <b>"))
    assert kinds(root) == [
        "band of-base",
        "band",
        "line of-base",
        "line",
        "whisker of-base",
        "point of-base",
        "whisker",
        "point",
    ]
    assert [title.text for title in root.iter("title")] == [
        "baseline, batch 4: 2.000 ms [1.500 ms, 2.500 ms]",
        "batch 4: 3.000 ms [2.500 ms, 3.500 ms]",
    ]
    assert root.get("aria-label") == "said <b>"


@pytest.mark.parametrize("logarithmic", [False, True], ids=["even", "logarithmic"])
def test_nothing_leaves_the_frame(logarithmic):
    # A band and a point's interval that reach zero have no place on a logarithmic axis.
    line = PlottedLine([1.0, 32.0], [2e6, 9e6], [0.0, 8e6], [3e6, 10e6])
    points = PlottedLine([1.0, 32.0], [0.5e6, 30e6], [0.0, 29e6], [1e6, 31e6])
    text = inline("batch", PlottedSide(points, line), None, logarithmic=logarithmic, label="")
    assert len(places(text)) > 8
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places(text))


def test_a_power_is_a_straight_line_on_logarithmic_axes():
    sizes = [1.0, 4.0, 16.0, 64.0]
    points = PlottedLine(sizes, [1e6 * size**2 for size in sizes])
    text = inline("batch", PlottedSide(points, PlottedLine([], [])), None, logarithmic=True, label="")
    xs, ys = zip(*(map(float, pair) for pair in re.findall(r'cx="(.*?)" cy="(.*?)"', text)), strict=True)
    slopes = [(ys[at + 1] - ys[at]) / (xs[at + 1] - xs[at]) for at in range(3)]
    assert slopes == pytest.approx([slopes[0]] * 3, rel=0.01)
    assert slopes[0] < 0
    assert {"1", "10", "10.00 ms", "1.000 s"} <= set(re.findall(r">([^<>]+)</text>", text))


def test_names_are_text_and_one_size_is_drawn():
    assert "<b>" not in plot('<b>"&', PlottedLine([4.0], [1e6]), [])
    root = drawn('<b>"&\u202e', PlottedLine([4.0], [1e6]), [(4.0, 1e6)])
    assert kinds(root) == ["line", "point"]
    assert root.get("aria-label") == 'step time over <b>"&\\u202e'
