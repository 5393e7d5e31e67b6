#!/usr/bin/env bash
# What calls cost from Python, beside the same calls from Rust, as tables. Compare rows of one run, not runs.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
venv=.venv-python
"${CARGO:-cargo}" build --release -p kvplane-embed --example embed_bench
scripts/wheel.sh release dist
scripts/venv.sh "$venv" python/tests/requirements.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps dist/kvplane-*.whl
"$venv/bin/python" python/benches/bench.py "$target/release/examples/embed_bench"
