"""Runs the shell steps of actions and workflows as GitHub's runner does, with stand-ins of what is not here.

Only as much of the expressions is understood as our files use; anything else is an error.
"""

import json
import os
import re
import shlex
import stat
import subprocess
import sys

from plugin.project import surroundings

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_TOKENS = re.compile(
    r"\s*(?:(?P<text>'[^']*')|(?P<operator>==|!=|&&|\|\||!|\(|\))|(?P<name>[a-z_][\w-]*(?:\.[\w-]+)*(?:\(\))?))"
)
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not ", "==": "==", "!=": "!=", "(": "(", ")": ")"}


class Runner:
    """A machine for one job: its folders, the programs that are stand-ins, and what they were called with."""

    def __init__(self, folder, workspace, contexts, **environ):
        self.folder = folder
        self.workspace = workspace
        self.contexts = contexts
        """`github`, `inputs` and others, as nested dictionaries."""
        self.steps = {}
        self.output = {}
        """What each step printed, by its name."""
        self._programs = folder / "programs"
        self._calls = folder / "calls"
        self._programs.mkdir(parents=True)
        (folder / "temp").mkdir()
        contexts["runner"] = {"temp": str(folder / "temp"), "os": "Linux", "arch": "X64"}
        path = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        self.environ = surroundings(PATH=path, GITHUB_ACTIONS="true", RUNNER_TEMP=str(folder / "temp")) | environ
        self.program("perfdl", f"exec '{sys.executable}' -m pytest_perfdl.cli \"$@\"", calls=False)

    def program(self, name, script, *, calls=True):
        """Put a program onto the path, whose calls are kept."""
        keep = f"printf '%s\\0' {shlex.quote(name)} \"$@\" >> '{self._calls}'; printf '\\1' >> '{self._calls}'\n"
        path = self._programs / name
        path.write_text(f"#!/bin/bash\n{keep if calls else ''}{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @property
    def calls(self):
        """Programs that were called, with their arguments."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return [call.split("\0")[:-1] for call in text.split("\1")[:-1]]

    def run(self, steps):
        """Run steps until one fails; those that run regardless go on. The first exit code that is not 0, and the
        steps that use actions, with what they are given."""
        code, used = 0, []
        for number, step in enumerate(steps):
            condition = self.expression(str(step.get("if", "success()")), code)
            regardless = re.search(r"(?:always|cancelled)\(\)", str(step.get("if", "")))
            if not condition or (code and not regardless):
                continue
            name = step.get("id", str(number))
            if "uses" in step:
                used.append((step["uses"], {key: self.text(value) for key, value in step.get("with", {}).items()}))
                self.steps[name] = {"outputs": {}, "outcome": "success"}
                continue
            ended = self._shell(step, name)
            code = code or ended
        return code, used

    def _shell(self, step, name):
        outputs = self.folder / f"outputs-{name}"
        outputs.touch()
        given = {key: self.text(value) for key, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.workspace / self.text(step.get("working-directory", ".")),
            env={**self.environ, "GITHUB_OUTPUT": str(outputs), **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        self.output[step.get("name", name)] = done.stdout
        lines = [line.partition("=") for line in outputs.read_text().splitlines()]
        self.steps[name] = {
            "outputs": {key: value for key, _, value in lines},
            "outcome": "failure" if done.returncode else "success",
        }
        return done.returncode

    def text(self, value):
        """A value with its expressions replaced; what is not a text as GitHub spells it."""
        if not isinstance(value, str):
            return json.dumps(value)
        return _EXPRESSION.sub(lambda found: str(self.expression(found[1])), value)

    def expression(self, text, code=0):
        """The value of an expression, with or without its braces."""
        whole = _EXPRESSION.fullmatch(text.strip())
        text = (whole[1] if whole else text).strip()
        if text.startswith("hashFiles("):
            return "0123"
        python, end = "", 0
        while end < len(text):
            found = _TOKENS.match(text, end)
            assert found, f"not understood: {text[end:]}"
            end = found.end()
            if found["operator"]:
                python += _OPERATORS[found["operator"]]
            elif found["text"]:
                python += repr(found["text"][1:-1])
            else:
                python += repr(self._value(found["name"], code))
        return eval(python, {"__builtins__": {}})

    def _value(self, name, code):
        known = {"cancelled()": False, "always()": True, "success()": code == 0, "failure()": code != 0}
        if name in known:
            return known[name]
        value = {**self.contexts, "steps": self.steps}
        for part in name.split("."):
            # As on GitHub: what is not there is empty.
            value = value.get(part, "") if isinstance(value, dict) else ""
        return value
