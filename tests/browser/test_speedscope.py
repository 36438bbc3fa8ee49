"""The file for speedscope, opened in speedscope: Left Heavy begins with the cause.

speedscope is not part of this project: it is npm's package, unpacked where SPEEDSCOPE says, or fetched into pytest's
cache where npm can; without either the tests are skipped.
"""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from unit.report import runs, steps

PACKAGE = "speedscope@1.25.0"

# What the flame chart's labels say and where they are; they are drawn on a canvas, which no selector sees.
DRAWN_TEXT = """
window.drawn = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const at = this.getTransform().transformPoint({ x, y });
  window.drawn.push([text, at.x, at.y]);
  return write.call(this, text, x, y, ...rest);
};
"""


@pytest.fixture(scope="module")
def viewer(pytestconfig):
    """speedscope's page."""
    package = Path(os.environ["SPEEDSCOPE"]) if "SPEEDSCOPE" in os.environ else fetched(pytestconfig.cache)
    page = package / "dist" / "release" / "index.html"
    if not page.exists():
        pytest.skip(f"speedscope is not in {package}: unpack npm's {PACKAGE} there, or set SPEEDSCOPE")
    return page


def fetched(cache):
    """Where npm's package is in pytest's cache, after an attempt to fetch it."""
    folder = cache.mkdir("speedscope")
    if not (folder / "package").exists() and shutil.which("npm"):
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=False, capture_output=True, timeout=120)
        for archive in folder.glob("*.tgz"):
            shutil.unpack_archive(archive, folder, filter="data")
    return folder / "package"


@pytest.fixture
def shown(chromium, viewer, tmp_path):
    """A function that opens a file in a view and gives the page."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    context.add_init_script(DRAWN_TEXT)

    def show(data, view):
        page = context.new_page()
        # How speedscope's own command line opens a file.
        script = tmp_path / "trace.js"
        file = ("test_step.speedscope.json", base64.b64encode(data).decode())
        script.write_text(f"speedscope.loadFileFromBase64({', '.join(map(json.dumps, file))})")
        page.goto(f"{viewer.as_uri()}#localProfilePath={script}&view={view}")
        return page

    yield show
    context.close()


def labels(page, root):
    """Labels of the last picture of the flame chart with their places, from top to bottom and left to right."""
    is_drawn = "(root) => window.drawn.some(([text]) => text === root)"
    page.wait_for_function(is_drawn, arg=root)
    page.evaluate("window.drawn = []")
    page.set_viewport_size({"width": 1401, "height": 900})
    page.wait_for_function(is_drawn, arg=root)
    return sorted((y, x, text) for text, x, y in page.evaluate("window.drawn"))


def leftmost(page, root):
    """The leftmost label of every row, from the frame of this name down."""
    rows = {}
    for y, x, text in labels(page, root):
        rows.setdefault(round(y), []).append((x, text))
    firsts = [min(row)[1] for _, row in sorted(rows.items())]
    return firsts[firsts.index(root) :]


CAUSES = {
    "input": ({"wait": 12_000}, ["step", "perfdl.data_wait", steps.LOADER, "waiting for input"]),
    "operator": ({"softmax": 9_000}, ["step", "GPT", "GPT.h.1", "aten::softmax", "aten::_softmax"]),
    "python": ({"host": 9_000}, ["step", steps.ADAMW, "Python and host"]),
}


@pytest.mark.parametrize("change, stack", CAUSES.values(), ids=CAUSES)
def test_left_heavy_begins_with_the_cause(shown, change, stack):
    data = steps.flames(runs.result(), "", steps.training(), steps.training(**change))
    page = shown(data, "left-heavy")
    assert leftmost(page, "step")[: len(stack)] == stack


def test_the_current_step_is_shown_first_and_sandwich_adds_up_what_is_equal(shown):
    page = shown(steps.flames(runs.result(), "", steps.training(), steps.training(wait=12_000)), "sandwich")
    page.get_by_text("current: one observed step (1/2)").first.wait_for()
    text = page.locator("body").inner_text()
    assert [text.count(name) for name in ("waiting for input", steps.MM)] == [1, 1]
    assert "1.10ms" in text, "five multiplications are one row"


def test_the_causes_are_a_profile_with_the_largest_first(shown):
    causes = [
        runs.cause("aten::softmax", (1, 1_000), (1, 401_000), 0.5, module="GPT.h.1"),
        runs.cause(steps.MM, (5, 1_000), (5, 301_000), 0.4, module="GPT.h.1"),
    ]
    file = json.loads(steps.flames(runs.result(blame=causes), "", steps.training(), steps.training(softmax=500)))
    page = shown(json.dumps({**file, "activeProfileIndex": 2}).encode(), "left-heavy")
    assert leftmost(page, "GPT") == ["GPT", "GPT.h", "GPT.h.1", "aten::softmax"]
