#!/usr/bin/env bash
# Builds a kvplane that runs with glibc 2.28 and newer: scripts/portable.sh PROFILE. Prints the program's path on the last line.
# zig, from the Python package index, links against the symbols of that glibc. ARCH (x86_64, aarch64) is this machine's unless it is set.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=$1
glibc=2.28
target=${ARCH:-$(uname -m)}-unknown-linux-gnu
tools=.tools/zig
requirements=scripts/requirements-portable.txt
cargo=${CARGO:-cargo}

if [[ ! -d $(rustc --print target-libdir --target "$target") ]]; then
    echo "portable: Rust's standard library for $target is missing: rustup target add $target, or make with PORTABLE=0" >&2
    exit 1
fi
if [[ ! -f $tools/.requirements ]] || ! cmp --quiet "$requirements" "$tools/.requirements"; then
    mkdir -p .tools
    scripts/venv.sh "$tools" "$requirements" >&2
    cp "$requirements" "$tools/.requirements"
fi
# zig's own cache belongs to the build.
# The strip of this machine knows no other architecture.
[[ $target == "$(uname -m)"-* ]] || export "CARGO_PROFILE_${profile^^}_STRIP=symbols"
built=$("$cargo" metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$built/zig}
PATH="$PWD/$tools/bin:$PATH" "$tools/bin/cargo-zigbuild" zigbuild --locked --profile "$profile" --target "$target.$glibc" -p kvplane >&2
# The directory of the profile `dev` has a name of its own.
program=$built/$target/${profile/#dev/debug}/kvplane
needed=$(scripts/glibc.sh "$program")
if [[ $(printf '%s\n' "$glibc" "$needed" | sort --version-sort | tail -n 1) != "$glibc" ]]; then
    echo "portable: $program needs glibc $needed, newer than $glibc" >&2
    exit 1
fi
echo "$program"
