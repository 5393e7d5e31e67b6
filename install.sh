#!/bin/sh
# Installs kvplane from an archive of `make dist`: install.sh FILE|URL [--prefix DIRECTORY] [--sha256 DIGEST]
#
# The digest is that of FILE.sha256 or URL.sha256, unless --sha256 gives it. Nothing is installed whose digest differs. Nothing but the
# files of the archive is written; `--prefix ~/.local` needs no root.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

source= prefix=/usr/local wanted=
while [ $# -gt 0 ]; do
    case $1 in
    --prefix) [ $# -gt 1 ] || fail "--prefix needs a directory"; prefix=$2; shift 2 ;;
    --sha256) [ $# -gt 1 ] || fail "--sha256 needs a digest"; wanted=$2; shift 2 ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail "unknown option $1; known: --prefix, --sha256" ;;
    *) [ -z "$source" ] || fail "give one archive: $source or $1"; source=$1; shift ;;
    esac
done
[ -n "$source" ] || fail "give an archive: install.sh kvplane-VERSION-TRIPLE.tar.gz, or its URL"
case $prefix in /*) ;; *) fail "--prefix $prefix: give an absolute path" ;; esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

fetch() { # URL FILE
    if command -v curl >/dev/null; then curl --fail --silent --show-error --location --output "$2" "$1"
    elif command -v wget >/dev/null; then wget --quiet --output-document="$2" "$1"
    else fail "curl or wget is needed to download $1"; fi
}

case $source in
http://* | https://*)
    archive=$work/archive.tar.gz
    fetch "$source" "$archive" || fail "cannot download $source"
    [ -n "$wanted" ] || { fetch "$source.sha256" "$work/sum" || fail "cannot download $source.sha256; give --sha256"; }
    ;;
*)
    archive=$source
    [ -f "$archive" ] || fail "$archive: no such file"
    [ -n "$wanted" ] || [ -f "$archive.sha256" ] || fail "$archive.sha256 is missing; give --sha256"
    [ -n "$wanted" ] || cp "$archive.sha256" "$work/sum"
    ;;
esac
[ -n "$wanted" ] || wanted=$(cut -d' ' -f1 "$work/sum")
found=$(sha256sum "$archive" | cut -d' ' -f1)
[ "$found" = "$wanted" ] || fail "checksum mismatch: $found, expected $wanted; nothing was installed"

mkdir -p "$work/tree" "$prefix" || fail "cannot write to $prefix: run as root, or give --prefix ~/.local"
tar -xzf "$archive" -C "$work/tree" --strip-components=1 || fail "$source is not an archive of kvplane"
version=$("$work/tree/bin/kvplane" --version) || fail "this machine cannot run the program of $source: it needs Linux on the architecture that the archive names, with a glibc as new as that of the machine that built it (2.28 for archives of make dist PORTABLE=1)"
# The unit names the place of the program.
unit=$work/tree/lib/systemd/system/kvplane.service
[ ! -f "$unit" ] || sed -i "s|/usr/local/bin/kvplane|$prefix/bin/kvplane|" "$unit"
(cd "$work/tree" && tar -cf - .) | tar -xf - -C "$prefix" --no-same-owner || fail "cannot write to $prefix"

echo "installed $version"
echo "  program        $prefix/bin/kvplane"
echo "  configuration  $prefix/share/kvplane/kvplane.toml (an example)"
echo "  systemd unit   $prefix/lib/systemd/system/kvplane.service (not enabled)"
echo "  all files      $prefix/share/kvplane/manifest"
case :$PATH: in *":$prefix/bin:"*) ;; *) echo "add $prefix/bin to PATH" ;; esac
echo "next: kvplane demo"
