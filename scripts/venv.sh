#!/usr/bin/env bash
# Makes a virtual environment with exactly what a file of requirements names: scripts/venv.sh DIRECTORY REQUIREMENTS
# [PIP-OPTION...].
# What is in the directory already is removed. PYTHON chooses the interpreter (default: python3).
set -euo pipefail

venv=$1
requirements=$2
pip_options=("${@:3}")
python=${PYTHON:-python3}
retry=$(dirname "$0")/retry.sh

fail() {
    echo "venv: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is not installed: install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" -V 2>&1), Python 3.11 or newer is needed (PYTHON=... chooses another)"

# Debian ships venv without ensurepip unless python3-venv is installed.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "venv: installing python3-venv" >&2
        "$retry" bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv' >&2 ||
            fail "python3-venv could not be installed: run 'apt-get install python3-venv' and look at what it says"
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python still has no ensurepip after installing python3-venv: PYTHON=/usr/bin/python3 chooses the system's"
    else
        fail "$python has no ensurepip: as root, run 'apt-get install python3-venv' (or your system's equivalent), then try again"
    fi
fi

echo "venv: making $venv" >&2
"$python" -m venv --clear "$venv" || fail "cannot make $venv with $python"
"$retry" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${pip_options[@]}" --requirement "$requirements" ||
    fail "cannot install $requirements, see pip's words above (is a Python package index reachable?)"
