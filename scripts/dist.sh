#!/usr/bin/env bash
# Makes DIRECTORY/kvplane-VERSION-TRIPLE.tar.gz and its checksum: scripts/dist.sh PROFILE DIRECTORY. The same files make the same
# bytes: names are sorted, owners are root, and times are SOURCE_DATE_EPOCH (default: the last commit's). BINARY as for
# scripts/stage.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=$1
out=$2
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
# With a program that was built elsewhere there need be no Rust.
triple=$(rustc -vV 2>/dev/null | sed -n 's/^host: //p' || true)
[[ -n $triple ]] || triple=$(uname -m)-$(uname -s | tr '[:upper:]' '[:lower:]')
[[ -z ${ARCH:-} ]] || triple=$ARCH-unknown-linux-gnu

staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
scripts/stage.sh "$profile" "$staged/kvplane" /usr/local
read -r _ version _ < <("${PRINTER:-$staged/kvplane/bin/kvplane}" --version)
name=kvplane-$version-$triple
mv "$staged/kvplane" "$staged/$name"
mkdir -p "$out"
# An archive for tests is large and short-lived.
level=--best
[[ $profile == dev ]] && level=--fast
tar --create --directory "$staged" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" "$name" |
    gzip --no-name "$level" >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "$out/$name.tar.gz"
