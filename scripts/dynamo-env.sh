#!/usr/bin/env bash
# Makes .venv-dynamo in the checkout with exactly what tests/interop/dynamo.txt names. Does nothing when it is there already.
# Without it the tests against Dynamo are skipped. PYTHON chooses the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-dynamo
requirements=tests/interop/dynamo.txt
stamp=$venv/.requirements
python=${PYTHON:-python3}

wanted=$({ "$python" -VV; cat "$requirements"; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

# --no-compile: few of the modules are imported, and each of them is compiled when it is.
scripts/venv.sh "$venv" "$requirements" --no-deps --no-compile
echo "$wanted" >"$stamp"
