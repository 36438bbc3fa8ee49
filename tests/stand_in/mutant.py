"""A plugin of pytest that puts one fault into the package: `pytest -p stand_in.mutant`.

The environment variable `PERFDL_MUTANT` is a JSON object: a `module`, and in its text, once, what is `old` and `new`.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        if text.count(FAULT["old"]) != 1:
            raise SystemExit(f"{fullname} has {text.count(FAULT['old'])} times {FAULT['old']!r}")
        return compile(text.replace(FAULT["old"], FAULT["new"]), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != FAULT["module"]:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=_Loader(fullname, found.origin))


FAULT = json.loads(os.environ["PERFDL_MUTANT"])
if FAULT["module"] in sys.modules:
    raise SystemExit(f"{FAULT['module']} is imported already")
sys.meta_path.insert(0, _Finder())
