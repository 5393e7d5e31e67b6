#!/usr/bin/env bash
# Makes .venv-NAME in the checkout with exactly what tests/interop/NAME.txt names, for the tests against that software:
# scripts/interop-env.sh NAME. Does nothing when it is there already. Without it those tests are skipped. PYTHON chooses the interpreter
# (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-$1
requirements=tests/interop/$1.txt
stamp=$venv/.requirements
python=${PYTHON:-python3}

wanted=$({ "$python" -VV; cat "$requirements"; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

# --no-compile: few modules, or none, are imported, and each of them is compiled when it is.
scripts/venv.sh "$venv" "$requirements" --no-deps --no-compile
echo "$wanted" >"$stamp"
