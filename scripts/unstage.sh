#!/usr/bin/env bash
# Takes away what scripts/stage.sh has put into a directory, and directories that are empty then: scripts/unstage.sh DIRECTORY.
set -euo pipefail

root=$1
manifest=$root/share/kvplane/manifest
[[ -f $manifest ]] || {
    echo "unstage: kvplane is not installed in $root: there is no $manifest" >&2
    exit 1
}
mapfile -t files <"$manifest"
for file in "${files[@]}"; do
    rm -f "$root/$file"
done
for file in "${files[@]}"; do
    directory=${file%/*}
    # Others' files keep a directory, and those above it.
    while rmdir "$root/$directory" 2>/dev/null && [[ $directory == */* ]]; do
        directory=${directory%/*}
    done
done
