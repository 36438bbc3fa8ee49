#!/bin/sh
# The steps of a CI job in any CI system, and on a laptop: compare HEAD with the commit that it is merged into.
# Usage: sh perf.sh [ARGUMENTS OF PYTEST]. It ends with pytest's exit code; perf-report/ has the report.
set -eu
base=$(perfdl ci base)
code=0
pytest --perf-against "$base" --junitxml=junit.xml "$@" || code=$?
if [ -f perf-report/run.json ]; then
    perfdl export perf-report/run.json -o metrics.txt
fi
exit "$code"
