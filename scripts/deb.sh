#!/usr/bin/env bash
# Makes DIRECTORY/kvplane_VERSION_ARCH.deb and its checksum: scripts/deb.sh PROFILE DIRECTORY. BINARY as for scripts/stage.sh. Needs
# dpkg-deb. Times are SOURCE_DATE_EPOCH (default: the last commit's), so that the same files make the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=$1
out=$2
command -v dpkg-deb >/dev/null || { echo "deb: dpkg-deb is missing (Debian: apt-get install dpkg)" >&2; exit 1; }
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
umask 022

staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
root=$staged/root
scripts/stage.sh "$profile" "$root/usr" /usr
install -D -m 644 "$root/usr/share/kvplane/kvplane.toml" "$root/etc/kvplane/kvplane.toml"
read -r _ version _ < <("$root/usr/bin/kvplane" --version)
architecture=$(dpkg --print-architecture)
# The newest symbol of glibc that the program asks for is the oldest glibc that it runs with.
glibc=$(scripts/glibc.sh "$root/usr/bin/kvplane")

mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: kvplane
Version: $version
Architecture: $architecture
Maintainer: kvplane maintainers
Depends: libc6 (>= ${glibc:-2.28}), libgcc-s1
Section: net
Priority: optional
Installed-Size: $(du --summarize --block-size=1024 --apparent-size "$root/usr" | cut -f1)
Description: KV-cache event plane for LLM fleets
 Tells any router which engine holds which prompt prefix, and how sure it is.
 Installs a systemd unit that is not enabled: edit /etc/kvplane/kvplane.toml, then run systemctl enable --now kvplane.
CONTROL
echo /etc/kvplane/kvplane.toml >"$root/DEBIAN/conffiles"
mkdir -p "$out"
name=kvplane_${version}_$architecture.deb
# A package for tests is large and short-lived: making it small would take longer than all that is done with it.
compression=()
[[ $profile == dev ]] && compression=(-Zgzip -z1)
dpkg-deb --root-owner-group "${compression[@]}" --build "$root" "$out/$name" >/dev/null
(cd "$out" && sha256sum "$name" >"$name.sha256")
echo "$out/$name"
