#!/bin/sh
# The steps of a CI job in any CI system, and on a laptop: compare HEAD with the commit that it is merged into.
# Usage: sh perf.sh [ARGUMENTS OF PYTEST]. It ends with pytest's exit code; perf-report/ has the report.
set -eu
base=$(perfdl ci base)
exec pytest --perf-against "$base" --junitxml=junit.xml "$@"
