#!/usr/bin/env bash
# Lays out what is installed: scripts/stage.sh PROFILE DIRECTORY PREFIX. PREFIX is where the directory will be when kvplane runs.
# BINARY is a kvplane that was built already; without it one is built, with this profile. share/kvplane/manifest lists the files,
# for whoever takes them away again.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=$1
root=$2
prefix=$3
built=${BINARY:-}

if [[ -z $built ]]; then
    "${CARGO:-cargo}" build --locked --profile "$profile" -p kvplane
    # The directory of the profile `dev` has a name of its own.
    built=${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/kvplane
fi

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$built" man "$pages"
for shell in bash zsh fish; do
    "$built" completions "$shell" >"$pages/$shell"
done
# The unit of a source tree is one that can be read and checked; only where the binary is differs.
sed "s|/usr/bin/kvplane|$prefix/bin/kvplane|" deploy/systemd/kvplane.service >"$pages/unit"

manifest=()
put() { # MODE FILE PATH
    install -D -m "$1" "$2" "$root/$3"
    manifest+=("$3")
}
put 755 "$built" bin/kvplane
strip "$root/bin/kvplane"
for page in "$pages"/*.1; do
    put 644 "$page" "share/man/man1/${page##*/}"
done
put 644 "$pages/bash" share/bash-completion/completions/kvplane
put 644 "$pages/zsh" share/zsh/site-functions/_kvplane
put 644 "$pages/fish" share/fish/vendor_completions.d/kvplane.fish
put 644 "$pages/unit" lib/systemd/system/kvplane.service
put 644 deploy/kvplane.toml share/kvplane/kvplane.toml
put 644 deploy/prometheus/alerts.yaml share/kvplane/prometheus/alerts.yaml
put 644 deploy/grafana/kvplane.json share/kvplane/grafana/kvplane.json
for text in LICENSE README.md CHANGELOG.md; do
    put 644 "$text" "share/doc/kvplane/$text"
done
# What the alerts' runbook annotations name.
put 644 docs/guide/alerts.md share/doc/kvplane/docs/guide/alerts.md
printf '%s\n' "${manifest[@]}" share/kvplane/manifest | LC_ALL=C sort >"$pages/manifest"
install -m 644 "$pages/manifest" "$root/share/kvplane/manifest"
