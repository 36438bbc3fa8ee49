"""Draws the packages and what they import into CONTRIBUTING.md, from the code.

python docs/package_map.py            # rewrite the part between the markers
python docs/package_map.py --check    # say whether it is what the code says

The check also says whether files import one another, and which modules their package's docstring does not name.
Imports inside functions count, and so does `import_module("pytest_perfdl.x")`; imports for annotations alone do not.

Runs where the linters are installed (`make lint` does the check).
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from fnmatch import filter as matching
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- Made by docs/package_map.py from the code: change it there. -->\n", "<!-- End of what is made. -->\n"
PACKAGE = "pytest_perfdl"

Graph = Mapping[str, set[str]]
"""What each module or package imports."""


def files() -> Graph:
    """What each file of the package imports of it when it runs, wherever in the file and by whatever call."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=True)
    found = {}
    for module in graph.modules:
        path = ROOT.joinpath(*module.split("."))
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        found[module] = graph.find_modules_directly_imported_by(module) | called(source, graph.modules)
    return found


def called(source: str, modules: Set[str]) -> set[str]:
    """Modules that a file imports by a call with their name; of a name that is put together, all that fit."""
    programs = {module for module in modules if module.endswith(".__main__")}
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args)
    found: set[str] = set()
    for node in calls:
        function, name = node.func, node.args[0]
        if getattr(function, "attr", getattr(function, "id", "")) in ("import_module", "__import__"):
            parts = name.values if isinstance(name, ast.JoinedStr) else [name]
            pattern = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
            found.update({*matching(modules, pattern)} - programs if pattern.startswith(f"{PACKAGE}.") else [])
    return found


def packages() -> Graph:
    """What each package, or module of the root, needs of the others when it runs."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=True)
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules - {PACKAGE}):
        own = module.split(".")[1]
        others = (other.split(".") for other in graph.find_modules_directly_imported_by(module))
        found.setdefault(own, set()).update(parts[1] for parts in others if len(parts) > 1 and parts[1] != own)
    return found


def layers() -> list[list[str]]:
    """The layers of the contract in pyproject.toml, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (lines,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    return [[name.strip().removeprefix(f"{PACKAGE}.") for name in line.split("|")] for line in lines]


def circle(graph: Graph) -> list[str]:
    """Modules each of which imports the next, and the last the first; empty where there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1][::-1])
    return []


def beyond_others(graph: Graph) -> Iterator[tuple[str, str]]:
    """The imports that a drawing needs: those of a package that nothing else it imports has too."""

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            for other in graph.get(waiting.pop(), set()) - found:
                found.add(other)
                waiting.append(other)
        return found

    for name, others in graph.items():
        yield from ((name, other) for other in sorted(others) if not any(other in reached(each) for each in others))


def subject(package: str) -> str:
    """The first sentence of a package's docstring."""
    text = import_module(f"{PACKAGE}.{package}").__doc__ or ""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


def unnamed() -> Iterator[str]:
    """Modules that the docstring of their package does not name; one file a subcommand, `cli` names only the others."""
    from pytest_perfdl.cli import _GROUPS

    commands = {module for group in _GROUPS.values() for module, _ in group.values()}
    for init in sorted((ROOT / PACKAGE).rglob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        named = {word for name in re.findall(r"`([\w.]+)", text) for word in name.split(".")}
        for path in sorted(init.parent.glob("*.py")):
            is_command = init.parent.name == "cli" and path.stem in commands
            if path.stem not in named and not path.stem.startswith("__") and not is_command:
                yield str(path.relative_to(ROOT))


def drawn() -> str:
    """The diagram and the list."""
    graph, order = packages(), layers()
    lines = ["```mermaid", "flowchart TD"]
    for number, names in enumerate(order, 1):
        lines.append(f'  subgraph layer{number}[" "]')
        lines += [f"    {name}" for name in names]
        lines.append("  end")
    lines += [f"  {name} --> {other}" for name, other in beyond_others(graph) if name != "hookspecs"]
    lines += ["```", "", "| package | subject |", "| --- | --- |"]
    root = f"{PACKAGE}/"
    for name in (each for names in order for each in names):
        path = f"{root}{name}.py" if (ROOT / root / f"{name}.py").exists() else f"{root}{name}/"
        lines.append(f"| [`{name}`]({path}) | {subject(name)} |")
    return "\n".join(lines) + "\n"


def rewritten(text: str) -> str:
    """The page with what the code says today between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} has lost its markers")
    return f"{before}{begin}\n{drawn()}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the page; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    around = circle(files())
    found = [f"files import in a circle: {' -> '.join(around)}"] if around else []
    found += [f"{path}: the docstring of its package does not name it" for path in unnamed()]
    text = PAGE.read_text(encoding="utf-8")
    wanted = rewritten(text)
    if not options.check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif text != wanted:
        found.append(f"{PAGE.name} is not what the code says: run python docs/package_map.py")
    print(
        "\n".join(found)
        or f"{PAGE.name} is what the code says, and so are the packages' docstrings; no files import one another"
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
