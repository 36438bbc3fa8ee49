"""Outputs that documents show of commands: compared with, or written from, what the commands print.

`<!-- printed -->` before a console fence says that the lines behind its command are its output. `make commands`
compares them with what the command prints, and writes them if PERFDL_OUTPUTS is "write". Numbers, hashes and the words
of causes differ from run to run, and so are not compared.
"""

import re
import sys
from pathlib import Path

from commands.shown import ROOT

_VARIES = (
    (re.compile(r"[a-z0-9-]+-\d+c-\d+t\b"), "MACHINE"),
    (re.compile(r"\.\.\./\S+|(?<= )[+-]{2,}(?=$)"), "..."),
    (re.compile(r"\b[0-9a-f]{7,64}\b"), "HASH"),
    (re.compile(r"[-+]?\d[\d,.]*(?:e-?\d+)?"), "NUMBER"),
    (re.compile(r"\bNUMBER (?:ns|\u00b5s|ms|s|min NUMBER s|min|h)\b"), "TIME"),
    (re.compile(r"cause: .*"), "cause"),
    (re.compile(r"\s+"), " "),
)


def told(output, folder):
    """A command's output as a document shows it: without progress, and with the home of a reader."""
    lines = (
        output.replace(str(folder), "~/project").replace(str(Path(sys.executable).parent), "~/.venv/bin").splitlines()
    )
    return tuple(line.rpartition("\r")[2].rstrip() for line in lines if not line.endswith("\x1b[2K"))


def form(lines):
    """What has to be the same in two runs of a command."""
    found = []
    for line in lines:
        for pattern, word in _VARIES:
            line = pattern.sub(word, line)
        found.append(line.strip())
    return [line for line in found if line]


def write(shown, lines):
    """Put the output into the document, behind its command."""
    name, _, number = shown.place.rpartition(":")
    path = ROOT / name
    text = path.read_text(encoding="utf-8").splitlines()
    place = int(number)
    end = next(at for at in range(place, len(text)) if text[at].startswith(("$ ", "```")))
    path.write_text("\n".join([*text[:place], *lines, *text[end:]]) + "\n", encoding="utf-8")
