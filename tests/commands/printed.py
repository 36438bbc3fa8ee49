"""Outputs that documents show of commands: compared with, or written from, what the commands print.

`<!-- printed -->` before a console fence says that the lines behind its command are its output. `make commands`
compares them with what the command prints, and writes them if PERFDL_OUTPUTS is "write". Numbers, hashes and the words
of causes differ from run to run, and so are not compared.

`...` stands for what a document leaves out: on a line of its own for any number of lines, at the end of a line for the
rest of the line. What stands between must be printed as it is shown, in this order. Writing keeps what is left out, and
renews the rest. To choose other lines, write the output whole (delete the lines behind the command), then shorten it.
"""

import re
import sys
from pathlib import Path

from commands.shown import ROOT

_LEFT_OUT = "..."
_PROGRESS = re.compile(r"perf: test \d+ of \d+, ")
"""How far a run is that takes long."""
_VARIES = (
    (re.compile(r"[a-z0-9-]+-\d+c-\d+t\b"), "MACHINE"),
    (re.compile(r"\.\.\./\S+|(?<= )[+-]{2,}(?=$)"), "..."),
    (re.compile(r"\b[0-9a-f]{7,64}\b"), "HASH"),
    (re.compile(r"[-+]?\d[\d,.]*(?:e-?\d+)?"), "NUMBER"),
    (re.compile(r"\bNUMBER (?:ns|\u00b5s|ms|s|min NUMBER s|min|h)\b"), "TIME"),
    (re.compile(r"\bin NUMBERs(?: \(NUMBER:NUMBER:NUMBER\))?"), "in TIME"),
    (re.compile(r"cause: .*"), "cause"),
    (re.compile("[\u2581-\u2588]"), "\u2581"),
    (re.compile(r"\s+"), " "),
)


def told(output, folder):
    """A command's output as a document shows it: without progress, and with the home of a reader."""
    lines = (
        output.replace(str(folder), "~/project").replace(str(Path(sys.executable).parent), "~/.venv/bin").splitlines()
    )
    return tuple(
        line.rpartition("\r")[2].rstrip()
        for line in lines
        if not line.endswith("\x1b[2K") and not _PROGRESS.match(line)
    )


def leaves_out(shown):
    """Whether a document shows a part of an output only."""
    return any(line.strip() == _LEFT_OUT or line.endswith(f" {_LEFT_OUT}") for line in shown)


def renewed(shown, lines):
    """The lines that a document shows of an output, as this output has them.

    Parameters
    ----------
    shown
        The lines in the document.
    lines
        The output.

    Returns
    -------
    tuple of str or None
        `None` if the output is another one: the document is wrong.
    """
    output = [line for line in lines if _form(line)]
    found = re.fullmatch("".join(map(_pattern, shown)), "".join(f"{_form(line)}\n" for line in output))
    if found is None:
        return None
    places = iter(found.string.count("\n", 0, start) for start, _ in found.regs[1:])
    return tuple(line if _is_free(line) else _cut(output[next(places)], line) for line in shown)


def _form(line):
    """What has to be the same in two runs of a command."""
    for pattern, word in _VARIES:
        line = pattern.sub(word, line)
    return line.strip()


def _is_free(line):
    """Whether a shown line says nothing about a line of the output."""
    return line.strip() in ("", _LEFT_OUT)


def _pattern(line):
    """What a shown line says of the forms of the output's lines."""
    if _is_free(line):
        return r"(?:.*\n)*?" if line.strip() else ""
    rest = ".*" if line.endswith(f" {_LEFT_OUT}") else ""
    return rf"({re.escape(_form(line.removesuffix(_LEFT_OUT)))}){rest}\n"


def _cut(line, shown):
    """A line of the output, up to where the shown one leaves out the rest."""
    if not shown.endswith(f" {_LEFT_OUT}"):
        return line
    form = _form(shown.removesuffix(_LEFT_OUT))
    return next(f"{line[:end]} {_LEFT_OUT}" for end in _word_ends(line) if _form(line[:end]) == form)


def _word_ends(line):
    return [space.start() for space in re.finditer(r"(?<=\S)(?= |$)", line)]


def write(shown, lines):
    """Put the output into the document, behind its command."""
    name, _, number = shown.place.rpartition(":")
    path = ROOT / name
    text = path.read_text(encoding="utf-8").splitlines()
    place = int(number)
    end = next(at for at in range(place, len(text)) if text[at].startswith(("$ ", "```")))
    path.write_text("\n".join([*text[:place], *lines, *text[end:]]) + "\n", encoding="utf-8")
