#!/usr/bin/env bash
# What tests/newcomer types besides kvplane: git and curl. Installs them where it may.
set -euo pipefail

missing=()
for tool in git curl; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
[[ ${#missing[@]} == 0 ]] && exit 0
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "newcomer-env: installing ${missing[*]}" >&2
    "$(dirname "$0")/retry.sh" bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"' - "${missing[@]}" >&2 && exit 0
fi
echo "newcomer-env: missing: as root, run 'apt-get install ${missing[*]}' (or your system's equivalent), then try again" >&2
exit 1
