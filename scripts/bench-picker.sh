#!/usr/bin/env bash
# Measures the endpoint picker behind a real Envoy, beside one that decides nothing: scripts/bench-picker.sh [--quick]
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
scripts/python-env.sh
scripts/interop-env.sh envoy
scripts/prompt-env.sh
"$cargo" build --release -p kvplane
"$cargo" build --release -p kvplane-picker --examples
.venv/bin/python scripts/bench_picker.py --kvplane "$target/release/kvplane" --noop "$target/release/examples/noop_picker" --alone "$target/release/examples/alone_picker" \
    --tokenizer .venv-prompt/models/qwen "$@"
