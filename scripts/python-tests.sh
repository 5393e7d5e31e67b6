#!/usr/bin/env bash
# The Python package as a user gets it: its wheel in a virtual environment that is made anew, and its tests there.
# Arguments go to pytest. The wheel is built with the profile of the other tests, so that what those have built is used; the
# binary is there to compare answers with.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-python
wheels=${CARGO_TARGET_DIR:-target}/wheels-for-tests

"${CARGO:-cargo}" build -p kvplane
scripts/wheel.sh dev "$wheels"
scripts/venv.sh "$venv" python/tests/requirements.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$wheels"/kvplane-*.whl
# Not from python/: there the sources would be imported, not the wheel.
"$venv/bin/python" -m pytest python/tests "$@"
