#!/usr/bin/env bash
# The Python package as a user gets it: `pip install ./python` in a virtual environment that is made anew, and its tests there.
# Arguments go to pytest. `--environment` alone makes the environment, for the next run to use. The package is built with the profile
# of the other tests, so that what those have built is used; pip fetches maturin by itself. The binary is there to compare answers with.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-python
requirements=python/tests/requirements.txt
# There while nothing was installed but what is required.
fresh=$venv/.requirements

environment() {
    if [[ ! -f $fresh ]] || ! cmp --quiet "$requirements" "$fresh"; then
        scripts/venv.sh "$venv" "$requirements"
        cp "$requirements" "$fresh"
    fi
}

environment
[[ ${1-} == --environment ]] && exit 0
"${CARGO:-cargo}" build -p kvplane
rm "$fresh"
MATURIN_PEP517_ARGS="--profile dev" scripts/retry.sh \
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps ./python
# Not from python/: there the sources would be imported, not what is installed.
"$venv/bin/python" -m pytest -n 4 python/tests "$@"
