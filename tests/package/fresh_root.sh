#!/usr/bin/env bash
# Installs the packages of scripts/package in a root folder that is made for it, as a new user would, and purges them.
#   tests/package/fresh_root.sh SUITE      bookworm, trixie or sid; after: scripts/in-debian SUITE scripts/package
# Takes minutes and a mirror, so ctest does not run it. The root folder is deleted at the end.
set -euo pipefail
suite=$1
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
built=${DDP_DEBIAN_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/ddp-run/debian}/$suite/var/cache/ddp-run-build$tree/packages
ls "$built"/*.deb >/dev/null

DDP_DEBIAN_ROOTS=$(mktemp -d /var/tmp/fresh-root.XXXXXX)
export DDP_DEBIAN_ROOTS
trap 'rm -rf --one-file-system "$DDP_DEBIAN_ROOTS"' EXIT
"$tree/scripts/in-debian" "$suite" true
mkdir "$DDP_DEBIAN_ROOTS/$suite/root/packages"
cp "$built"/*.deb "$DDP_DEBIAN_ROOTS/$suite/root/packages/"
"$tree/scripts/in-debian" "$suite" tests/package/as_a_user.sh
