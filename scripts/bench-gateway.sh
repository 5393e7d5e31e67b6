#!/usr/bin/env bash
# Measures the gateway beside SMG's and vLLM's router, over the same engines and under the same load, in one run:
# scripts/bench-gateway.sh [--quick]. KVPLANE_BIN is a program that was built already.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
router=.venv-router
scripts/python-env.sh
if [[ ! -x $router/bin/vllm-router ]]; then
    requirements=$(mktemp)
    trap 'rm -f "$requirements"' EXIT
    printf '%s\n' vllm-router==0.1.16 aiohttp fastapi orjson uvicorn requests >"$requirements"
    scripts/venv.sh "$router" "$requirements" || echo "bench-gateway: without vllm-router" >&2
fi
if [[ -z ${KVPLANE_BIN-} ]]; then
    "$cargo" build --release -p kvplane
    KVPLANE_BIN=$target/release/kvplane
fi
mkdir -p "$target"
rustc --edition 2024 -O benches/gateway/load.rs -o "$target/gateway-load"
.venv/bin/python scripts/bench_gateway.py --kvplane "$KVPLANE_BIN" --load "$target/gateway-load" "$@"
