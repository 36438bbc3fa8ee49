"""The words that a user reads: those of the glossary, and none of the phrases that reviews replaced."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted(
    path
    for path in (ROOT / "pytest_perfdl").rglob("*")
    if path.suffix in {".py", ".html", ".js", ".css", ".j2", ".md"} and path.is_file()
)
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.py")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

PHRASES = (
    # What to write instead is in the glossary, and in CONTRIBUTING.md.
    r"\b(?:take|takes|taking|in) turns\b",
    r"\bby lot\b",
    r"\bmachine'?s?'? moods?\b|\bshares? its moods\b",
    r"\bholds? it against\b",
    r"\bhonest for a new process\b",
    r"\bdearest\b|\bdear ones\b",
    r"\bhad it not changed\b",
    r"\bnot from durations\b",
    r"without the profiler the step changed by",
    r"put down to the machine",
    r"what the profiler (?:hides|adds)",
    r"\banother mix\b|\blonger each\b|\bless of it hidden\b",
    r"goes (?:the|its) step's way",
    r"were the code unchanged",
    r"raise no alarm by chance",
    r"would have been found with",
    r"others beside it, or the clock",
    r"\bothers had the processor\b",
    r"a mode not seen in the baseline",
    r"perf tests? pass: \d+ missing",
    r"no baseline under any key",
    r"how long they take is not known",
    r"empty its caches",
    r"more wanted to run than",
    r"can hold a test to",
    r"this system does not say",
    r"predictions can be trusted as far",
    r"off on (?:configurations|what was) left out",
    r"the plan changed since",
    r"\bit stood here\b",
    r"after re\.sub of this",
    r"change of the step that is still unchanged",
    r"begin no run that would end later",
    r"where every run is added to",
    r"what predictions need and no trace tells|ask of a machine and no trace tells",
    r"say what a step would take if",
    r"a page that opens from disk",
    r"end after the one around them",
    r"\"before the window\"",
    r"mend it, or accept it|at last what to do",
    r"the repair is said",
    r"on one GPU measure each other",
    r"ground floor|floors of the house|\(the doors\)",
    r"\bguilty\b",
    r"\bconfess\b|takes it for a real one",
    r"does not bear to be looked into",
    r"no cliff is to be seen",
    r"rounds? prove nothing",
    r"tells what waits for what was left out",
    r"lifts no budget and meets no expectation",
    r"\bNotTold\b|\b_Untold\b",
    r"waiting for one is their doing",
    r"nobody asks for measurements in this process",
    r"nothing else to nobody else",
    r"each of its chapters is|\bis the story\b",
    r"faces of the `perf` fixture|pytest's hooks do with a face",
    r"worth a word",
)
"""Never in the package nor in documents, also where a line ends within them."""

WORDS = (
    r"\b(?:synchronis|optimis|normalis|behaviour|colour|analys(?:e|es|ed|ing)\b)\w*",
    r"\bprocessors?\b",
    r"\bblam\w+|\bculprits?\b",
    r"\bfigures?\b",
    r"\boccasions?\b",
    r"\bmend(?:s|ed|ing)?\b",
    r"\b(?:told|amiss|thereof|at last)\b",
    r"\bstands\b|\blies beside\b|\bby itself\b|\bof its own\b",
    r"\btrust(?:s|ed)?\b",
    r"\baccounts?\b(?! for)",
    r"\bunder (?:a|any|another|one|this) key\b",
    r"\b(?:a|each|every|one|stored|fresh|single) repeats?\b",
    r"\b(?:base|head|other) revision\b|\bthis run\b",
    r"\d \w+ a step\b",
    r"\b1 (?:baselines|tests|repeats|processes|rounds|kernels|events)\b",
)
"""Never in the prose of documents: outside of code and of what programs print."""


def in_one_line(text):
    """A text without the line ends, quotes and comment signs within its sentences."""
    text = re.sub(r"""["'] *\n\s*[rf]{0,2}["']""", "", text)
    return re.sub(r"\s*\n[ #*]*", " ", text)


def prose(text):
    """A document's sentences: no code, no output, no comments, no targets of links."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    text = re.sub(r"<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|(?m:^ {4}.*$)", "", text, flags=re.DOTALL)
    return in_one_line(text)


def found_in(paths, patterns, read):
    for path in paths:
        text = read(path.read_text(encoding="utf-8"))
        for pattern in patterns:
            for match in re.finditer(pattern, text, re.IGNORECASE):
                around = text[max(0, match.start() - 40) : match.end() + 40]
                yield f"{path.relative_to(ROOT).as_posix()}: {match[0]!r} in ...{around}..."


@pytest.mark.long
@pytest.mark.parametrize("paths", [PACKAGE, DOCUMENTS], ids=["package", "documents"])
def test_replaced_phrases_do_not_come_back(paths):
    found = list(found_in(paths, PHRASES, in_one_line))
    assert not found, "\n".join(found)


def test_documents_use_one_word_for_one_thing():
    written = [
        path
        for path in DOCUMENTS
        if path.suffix == ".md" and "<!-- Made by docs/reference.py" not in path.read_text(encoding="utf-8")
    ]
    assert len(written) > 25
    found = list(found_in(written, WORDS, prose))
    assert not found, "\n".join(found)


def test_a_phrase_is_found_across_lines_and_quotes():
    split = 'say("two processes that take "\n    f"turns")\n# drawn by\n# lot\n'
    assert [re.search(each, in_one_line(split), re.IGNORECASE) is not None for each in PHRASES[:3]] == [
        True,
        True,
        False,
    ]
    text = "`trust` and\n```console\n$ trust\n```\nmore than 3 ms a step, which\nmends nothing"
    assert [match[0] for each in WORDS for match in re.finditer(each, prose(text))] == ["mends", "3 ms a step"]


def terms():
    rows = [line.split("|")[1].strip() for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if "|" in line]
    return rows[2:]


def test_the_glossary_is_short_and_without_doubles():
    assert 20 <= len(terms()) <= 40
    assert len({term.casefold() for term in terms()}) == len(terms())


@pytest.mark.parametrize("term", terms())
def test_a_term_of_the_glossary_is_used(term):
    others = [path for path in DOCUMENTS if path.suffix == ".md" and path != GLOSSARY]
    used = [
        path for path in others if re.search(rf"\b{re.escape(term)}", prose(path.read_text("utf-8")), re.IGNORECASE)
    ]
    assert used, f"{term!r} is in no document: leave it out, or use it"
