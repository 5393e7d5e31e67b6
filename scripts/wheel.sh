#!/usr/bin/env bash
# Builds the wheel of the Python package: scripts/wheel.sh PROFILE DIRECTORY. maturin comes from the package index, into
# .venv-build, once. PYTHON chooses the interpreter (default: python3); the wheel is for any CPython from 3.9 on.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=$1
out=$2
venv=.venv-build
requirements=python/requirements-build.txt
stamp=$venv/.requirements

if [[ ! -f $stamp ]] || ! cmp --quiet "$requirements" "$stamp"; then
    scripts/venv.sh "$venv" "$requirements"
    cp "$requirements" "$stamp"
fi
rm -f "$out"/*.whl
PATH="$PWD/$venv/bin:$PATH" maturin build --locked --profile "$profile" --manifest-path python/Cargo.toml --out "$out"
