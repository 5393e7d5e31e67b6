#!/usr/bin/env bash
# Lays out what is installed: scripts/stage.sh PROFILE DIRECTORY PREFIX. PREFIX is where the directory will be when kvplane runs.
# BINARY is a kvplane that was built already; without it one is built, with this profile: by scripts/portable.sh if PORTABLE is 1. share/kvplane/manifest lists the files,
# for whoever takes them away again. With ARCH, PORTABLE=1 builds for another architecture; manual pages and completions are then printed
# by PRINTER, a kvplane of this source that runs here.
set -euo pipefail
cd "$(dirname "$0")/.."
# Whoever installs it, everybody may read it.
umask 022

profile=$1
root=$2
prefix=$3
built=${BINARY:+$(realpath -- "$BINARY")}

if [[ $prefix != /* ]]; then
    echo "stage: PREFIX=$prefix is not an absolute path: the unit for systemd would not find the program; for another root there is DESTDIR" >&2
    exit 2
fi
if [[ $prefix == *[[:space:]]* ]]; then
    echo "stage: PREFIX=$prefix has a blank in it: systemd would take it for two words" >&2
    exit 2
fi
if [[ -z $built && ${PORTABLE:-0} == 1 ]]; then
    built=$(scripts/portable.sh "$profile" | tail -n 1)
elif [[ -z $built ]]; then
    cargo=${CARGO:-cargo}
    "$cargo" build --locked --profile "$profile" -p kvplane
    target=$("$cargo" metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    # The directory of the profile `dev` has a name of its own.
    built=$target/${profile/#dev/debug}/kvplane
fi

foreign=
[[ ${ARCH:-$(uname -m)} == "$(uname -m)" ]] || foreign=$ARCH
if [[ -n $foreign && -z ${PRINTER:-} ]]; then
    echo "stage: ARCH=$ARCH does not run here: set PRINTER to a kvplane of this source that does" >&2
    exit 2
fi
printer=${PRINTER:-$built}

# Everything is made here, and put where it belongs once it is whole.
aside=$(mktemp -d)
trap 'rm -rf "$aside"' EXIT
tree=$aside/tree
put() { # MODE FILE PATH
    install -D -m "$1" "$2" "$tree/$3"
}
put 755 "$built" bin/kvplane
if [[ -n $foreign ]]; then
    : # It was linked without its names.
elif command -v strip >/dev/null; then
    strip "$tree/bin/kvplane"
else
    echo "stage: there is no strip (Debian: apt-get install binutils): the program keeps its names of functions, and is larger" >&2
fi
mkdir -p "$tree/share/man/man1"
"$printer" man "$tree/share/man/man1"
for shell in bash zsh fish; do
    "$printer" completions "$shell" >"$aside/$shell"
done
put 644 "$aside/bash" share/bash-completion/completions/kvplane
put 644 "$aside/zsh" share/zsh/site-functions/_kvplane
put 644 "$aside/fish" share/fish/vendor_completions.d/kvplane.fish
# The unit of a source tree is one that can be read and checked; only where the binary is differs.
sed "s|/usr/bin/kvplane|$prefix/bin/kvplane|" deploy/systemd/kvplane.service >"$aside/unit"
put 644 "$aside/unit" lib/systemd/system/kvplane.service
put 644 deploy/kvplane.toml share/kvplane/kvplane.toml
put 644 deploy/prometheus/alerts.yaml share/kvplane/prometheus/alerts.yaml
put 644 deploy/grafana/kvplane.json share/kvplane/grafana/kvplane.json
while read -r text; do
    put 644 "$text" "share/doc/kvplane/$text"
done < <(find LICENSE ./*.md docs -type f \( -name LICENSE -o -name '*.md' -o -name '*.png' \))

manifest=share/kvplane/manifest
(cd "$tree" && { find . -type f -printf '%P\n'; echo "$manifest"; } | LC_ALL=C sort) >"$aside/manifest"
# What an earlier version had and this one has not.
if [[ -f $root/$manifest ]]; then
    LC_ALL=C comm -23 "$root/$manifest" "$aside/manifest" | while read -r gone; do
        rm -f "$root/$gone"
    done
fi
# The list comes first: whatever breaks off from here on can be taken away by it.
install -D -m 644 "$aside/manifest" "$root/$manifest"
while read -r file; do
    mode=644
    [[ $file != bin/* ]] || mode=755
    install -D -m "$mode" "$tree/$file" "$root/$file"
done < <(grep -v -x -F "$manifest" "$aside/manifest")
