"""`python -m pytest_perfdl.cli`: the `perfdl` command."""

import sys

from pytest_perfdl.cli import main

sys.exit(main())
