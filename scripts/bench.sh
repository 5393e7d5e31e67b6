#!/usr/bin/env bash
# Every benchmark, as tables. Figures are of this machine and this moment: compare rows of one run, not runs.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/python-env.sh
cargo build --release -p kvplane
cargo build --release -p kvplane-wire --example decode_bench --example drain_bench
cargo build --release -p kvplane-ingest --example recorder_bench
cargo build --release -p kvplane-hints --example hints_bench
cargo build --release -p kvplane-route --example decide_bench
cargo build --release -p kvplane-receipts --example ledger_bench
cargo build --release -p kvplane-prompt --example tokenize_bench
cargo build --release -p kvplane-server --example relay_bench --example drain_fleet_bench --example front_bench --example query_bench --example report_bench --example fleet_flush_bench

echo "# $(nproc) cores, $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), load $(cut -d' ' -f1-3 /proc/loadavg)"
echo
target/release/examples/decode_bench
echo
target/release/examples/drain_bench
echo
# Each part in a process of its own: memory is measured from a fresh start.
for part in fanout index memory snapshot; do
    target/release/examples/recorder_bench "$part"
    echo
done
target/release/examples/relay_bench target/release/kvplane .venv/bin/python scripts/smg_relay_server.py
echo
target/release/examples/drain_fleet_bench target/release/kvplane
echo
target/release/examples/front_bench
echo
target/release/examples/query_bench target/release/kvplane
echo
target/release/examples/decide_bench
echo
target/release/examples/ledger_bench
echo
if scripts/prompt-env.sh; then
    target/release/examples/tokenize_bench .venv-prompt/models/qwen
    echo
fi
# Pages that were freed would count as used for a while otherwise.
MIMALLOC_PURGE_DELAY=0 target/release/examples/hints_bench memory
for part in lookup removal beside; do
    target/release/examples/hints_bench "$part"
done
echo
target/release/examples/report_bench target/release/kvplane
echo
# Pages that were freed would count as used for a while otherwise.
MIMALLOC_PURGE_DELAY=0 target/release/examples/fleet_flush_bench target/release/kvplane
