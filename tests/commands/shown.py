"""Every command line that this project shows: in its documents, in its messages, in its reports.

In a document a command stands

- after `$ ` in a ```` ```console ```` fence,
- after `run: ` or `entry: ` in a ```` ```yaml ```` fence,
- on a line of a ```` ```bash ```` fence, which is a script for another machine and not run,
- on a line of a block that is indented by four spaces, or
- between backticks, if it begins with `pytest`, `perfdl` or `python` and goes on.

What it is expected to do, if that is not to succeed in the state that the document's earlier commands left, stands
beside it, in a comment before the fence or block or on the line of the backticks:

    <!-- exit: 1 -->           this exit code; `0 or 1` where both may be
    # ... exit code 1 ...      behind a command in a fence: this exit code, or 0
    <!-- with: PATCH -->       in the state that states.py calls PATCH
    <!-- only parsed -->       not run: a part of a command, or one that is explained in states.NOT_RUN
    <!-- printed -->           the lines behind the command are what it prints; see printed.py
"""

import ast
import html
import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    "examples/README.md",
)

_FENCE = re.compile(r"^ *```(\w*)")
_NOTE = re.compile(
    r"<!-- (exit: (?P<exits>\d+(?: or \d+)*)|with: (?P<state>\w+)|(?P<parsed>only parsed)|(?P<printed>printed)) -->"
)
_SPAN = re.compile(r"(?<!`)`((?:pytest|perfdl|python) [^`]+)`(?!`)")
_STARTS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:pytest|perfdl|python|make|pip|git|xdg-open)\b")
WHOLE = (
    "perfdl baseline verify",
    "perfdl list",
    "perfdl check",
    "perfdl prune",
    "perfdl prune --apply",
    "perfdl whatif --list",
    "perfdl history",
)
"""Commands of ours that are whole without naming a file."""


@dataclass(frozen=True)
class Shown:
    """A command line as it is shown."""

    text: str
    place: str
    """`README.md:48`."""
    exits: tuple[int, ...] = (0,)
    state: str = ""
    runs: bool = True
    """Whether it is a whole command, rather than a part or a form of one."""
    printed: tuple[str, ...] | None = None
    """The lines that it is said to print; `None` if nothing is said."""

    def __str__(self):
        return f"{self.place}: {self.text}"


def in_document(name):
    """The commands of a document, in order."""
    found, fence, pending, note = [], None, {}, {}
    for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), start=1):
        here = _notes(line)
        place = f"{name}:{number}"
        if mark := _FENCE.match(line):
            fence = mark[1] if fence is None else None
            note, pending = (pending, {}) if fence is not None else ({}, {})
        elif fence == "console" and not line.startswith("$ ") and note.get("printed") is not None:
            found[-1] = replace(found[-1], printed=(*found[-1].printed, line))
        elif fence == "console" and line.startswith("$ "):
            found.append(Shown(_without_comment(line[2:]), place, **{**note, **_comment(line)}))
        elif fence == "yaml" and (run := re.match(r"[ -]*(?:run|entry): (?!\|)(.+)", line)):
            found.append(Shown(_without_comment(run[1]), place, **{**note, **_comment(run[1])}))
        elif fence == "bash" and _STARTS.match(line):
            found.append(Shown(_without_comment(line), place, runs=False))
        elif fence is None and line.startswith("    ") and _STARTS.match(line[4:]):
            found.append(Shown(_without_comment(line[4:]), place, **pending))
        elif fence is None and not line.startswith("#"):
            spans = [Shown(span[1], place, **{"runs": _whole(span[1]), **here}) for span in _SPAN.finditer(line)]
            found += spans
            # A note on a line of its own is for the block behind it.
            pending = (
                here if here and not spans and line.strip().startswith("<!--") else pending if not line.strip() else {}
            )
    return found


def in_source(path):
    """What the texts of a module show; none is run by itself, since messages are shown in states of their own."""
    found = []
    source = path.read_text(encoding="utf-8")
    # Most have none, and walking over syntax trees takes seconds.
    if not re.search("pytest |perfdl [a-z]", source):
        return found
    for node in ast.walk(ast.parse(source)):
        text = None
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values]
            text = "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text is not None:
            place = f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
            found += [Shown(command, place, runs=False) for command in in_prose(text)]
    return list(dict.fromkeys(found))


_ACTIONS = ("fit", "predict", "outputs", "comment")
"""Actions of commands of ours that are not whole by themselves."""
_OPTION = r"-{1,2}\w[^\s,;:()`'\"]*[^\s,;:()`'\".]"
_FILE = r"[\w./*-]+(?:::|\.json|\.gz|\.csv|/)[^\s,;()`'\"]*"
_WORD = rf"(?: +(?:'[^']*'|{_OPTION}|[A-Z][A-Z_0-9]+\b|{_FILE}))"
_IN_PROSE = re.compile(rf"\b((?:pytest{_WORD}+)|(?:perfdl [a-z]+(?: (?:fit|predict|base|outputs|comment)\b)?{_WORD}+))")


def in_prose(text):
    """The commands within a sentence: they begin with our programs and go on with options, files or metavariables."""
    return [match[1] for match in _IN_PROSE.finditer(text)]


def in_terminal(text):
    """The commands at the ends of lines of a run's output, behind what they are for."""
    return re.findall(r"(?m)(?:^|\s\s)((?:python -m )?pytest -\S*perf.*)$", text)


def in_annotations(text):
    """The commands in GitHub's workflow commands, which spell line ends in percent."""
    lines = [line for line in text.splitlines() if line.startswith("::")]
    plain = "\n".join(lines).replace("%0A", "\n").replace("%25", "%")
    return re.findall(r"(?m)^[a-z ]+: ((?:python -m )?pytest -.*)$", plain)


def in_summary(text):
    """The commands in summary.md."""
    fences = re.findall(r"(?s)```+sh\n(.*?)```", text)
    return [line.partition("  # ")[0] for fence in fences for line in fence.splitlines()]


def in_page(text):
    """What the page's buttons copy."""
    return [html.unescape(command) for command in re.findall(r'data-copy="([^"]*)"', text)]


def everywhere():
    """The commands of all documents and all modules."""
    found = [each for name in DOCUMENTS for each in in_document(name)]
    for path in sorted((ROOT / "pytest_perfdl").rglob("*.py")):
        found += in_source(path)
    return found


def _notes(line):
    said = {}
    for note in _NOTE.finditer(line):
        if note["exits"]:
            said["exits"] = tuple(map(int, note["exits"].split(" or ")))
        if note["state"]:
            said["state"] = note["state"]
        if note["parsed"]:
            said["runs"] = False
        if note["printed"]:
            said["printed"] = ()
    return said


def _comment(text):
    """What a shell's comment behind a command says of its exit code."""
    said = re.search(r"\s#\s.*\bexit code (\d+)", text)
    return {"exits": (0, int(said[1]))} if said else {}


def _without_comment(text):
    return re.sub(r"\s+#\s.*$", "", text).strip()


def _whole(text):
    """Whether backticks hold a whole command, without metavariables and dots, rather than a mention of one."""
    words = text.split()
    if words[0] == "perfdl" and text not in WHOLE:
        given = [word for word in words[2:] if not word.startswith("-") and word not in _ACTIONS]
        if not given:
            return False
    return "..." not in text and not any(
        re.fullmatch(r"(?:[A-Z][A-Z0-9_]*|\S*=[A-Z]+)(?:\.\.\.)?", word) for word in words
    )
