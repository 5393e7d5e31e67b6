#!/usr/bin/env bash
# Takes away what scripts/stage.sh has put into a directory, and the directories that are kvplane's own: scripts/unstage.sh DIRECTORY.
# Those that others put files into, too, are not ours to take, even if they are empty.
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
# The innermost first. Whatever somebody else has put there keeps its directory.
for own in share/kvplane share/doc/kvplane; do
    if [[ -d $root/$own ]]; then
        find "$root/$own" -depth -type d -empty -delete
    fi
done
