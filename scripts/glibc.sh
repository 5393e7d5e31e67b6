#!/usr/bin/env bash
# Prints the oldest glibc that a program runs with, which is the newest symbol version that it asks for: scripts/glibc.sh FILE.
set -euo pipefail

{ grep --text --only-matching 'GLIBC_2\.[0-9.]*' "$1" || true; } | sed 's/GLIBC_//; s/\.$//' | sort --version-sort --unique | tail -n 1
