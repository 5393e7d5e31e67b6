#!/usr/bin/env bash
# Makes .venv in the checkout with exactly what tests/interop/requirements.txt names, and in it engines/ with the files of
# engines' releases that tests/interop/engines.txt names. Does nothing when it is there already. PYTHON chooses the
# interpreter (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
requirements=tests/interop/requirements.txt
engines=tests/interop/engines.txt
stamp=$venv/.requirements
python=${PYTHON:-python3}

fail() {
    echo "python-env: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is not installed: install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" -V 2>&1), Python 3.11 or newer is needed (PYTHON=... chooses another)"

wanted=$({ "$python" -VV; cat "$requirements" "$engines"; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

# Debian ships venv without ensurepip unless python3-venv is installed.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "python-env: installing python3-venv" >&2
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >&2 ||
            fail "python3-venv could not be installed: run 'apt-get install python3-venv' and look at what it says"
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python still has no ensurepip after installing python3-venv: PYTHON=/usr/bin/python3 chooses the system's"
    else
        fail "$python has no ensurepip: as root, run 'apt-get install python3-venv' (or your system's equivalent), then try again"
    fi
fi

echo "python-env: making $venv" >&2
"$python" -m venv --clear "$venv" || fail "cannot make $venv with $python"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements" ||
    fail "cannot install $requirements, see pip's words above (is a Python package index reachable?)"

# Wheels of engines are large, and what they need is larger: of each, one file is kept. It is Python, so whose wheel it comes
# from does not matter.
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
grep -v '^#' "$engines" | while read -r release file; do
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.11 --platform manylinux_2_34_x86_64 --dest "$wheels" "$release" ||
        fail "cannot fetch $release, see pip's words above (is a Python package index reachable?)"
    name=${release/==/-}
    mkdir -p "$venv/engines/$name"
    "$venv/bin/python" - "$wheels"/"$name"-*.whl "$file" >"$venv/engines/$name/${file##*/}" <<'PYTHON' ||
import sys, zipfile
sys.stdout.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]).decode())
PYTHON
        fail "$release has no $file"
done
echo "$wanted" >"$stamp"
