#!/usr/bin/env bash
# What the browser tests need: Debian's chromium with its driver, and .venv-browser with exactly what
# tests/browser/requirements.txt names. Does nothing when it is there already. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-browser
requirements=tests/browser/requirements.txt
stamp=$venv/.requirements

fail() {
    echo "browser-env: $*" >&2
    exit 1
}

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v chromedriver >/dev/null || missing+=(chromium-driver)
if ((${#missing[@]})); then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "browser-env: installing ${missing[*]}" >&2
        scripts/retry.sh bash -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"' - "${missing[@]}" >&2 ||
            fail "${missing[*]} could not be installed: run 'apt-get install ${missing[*]}' and look at what it says"
    else
        fail "${missing[*]} missing: as root, run 'apt-get install ${missing[*]}' (or your system's equivalent), then try again"
    fi
fi

wanted=$({ "${PYTHON:-python3}" -VV; cat "$requirements"; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi
scripts/venv.sh "$venv" "$requirements"
echo "$wanted" >"$stamp"
