#!/usr/bin/env bash
# What a plane costs by the size of its fleet. Figures are of this machine and this moment: compare lines of one run.
#   scripts/bench-scale.sh [ENGINES ...]
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release -p kvplane
cargo build --release -p kvplane-server --example scale_bench
# Every publisher listens and has a connection.
ulimit -n "$(ulimit -Hn)"

echo "# $(nproc) cores, $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), load $(cut -d' ' -f1-3 /proc/loadavg)"
target/release/examples/scale_bench target/release/kvplane "$@"
