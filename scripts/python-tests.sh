#!/usr/bin/env bash
# The Python package as a user gets it: `pip install ./python` in a virtual environment that is made anew, and its tests there.
# Arguments go to pytest. It is built with the profile of the other tests, so that what those have built is used; pip fetches
# maturin by itself. The binary is there to compare answers with.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-python

"${CARGO:-cargo}" build -p kvplane
scripts/venv.sh "$venv" python/tests/requirements.txt
MATURIN_PEP517_ARGS="--profile dev" \
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps ./python
# Not from python/: there the sources would be imported, not what is installed.
"$venv/bin/python" -m pytest python/tests "$@"
