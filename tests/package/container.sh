#!/usr/bin/env bash
# Builds scripts/container/Dockerfile with buildah, and uses its image in one of Debian 12, whose libraries are older.
#   tests/package/container.sh      as root; after: scripts/in-debian trixie scripts/package
# Needs buildah. Debian's base images are made here by debootstrap, because no registry is asked. ctest does not run it: it takes minutes.
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
roots=${DDP_DEBIAN_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/ddp-run/debian}
work=$(mktemp -d /var/tmp/container.XXXXXX)
export BUILDAH_ISOLATION=chroot TMPDIR=$work
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }
cleanup() {
  buildah rm --all >/dev/null
  buildah rmi --all --force >/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "container: $*" >&2
  exit 1
}
base_image() {  # SUITE
  local container
  debootstrap --variant=minbase "$1" "$work/$1" >"$work/$1.log" 2>&1 || fail "debootstrap: $(tail -n 1 "$work/$1.log")"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/$1" / >/dev/null
  buildah commit --quiet "$container" "docker.io/library/debian:$1-slim" >/dev/null
  buildah rm "$container" >/dev/null
}
base_image trixie
base_image bookworm

mkdir -p "$work/tree/build/packages" "$work/tree/scripts"
cp "$roots"/trixie/var/cache/ddp-run-build"$tree"/packages/ddp-run_*.deb "$work/tree/build/packages/"
cp -r "$tree/scripts/container" "$work/tree/scripts/"
buildah build --pull-never --quiet -t ddp-run -f "$work/tree/scripts/container/Dockerfile" "$work/tree" >/dev/null

image=$(buildah from --pull-never ddp-run)
bytes=$(du -sb "$(buildah mount "$image")" | cut -f1)
echo "the image has $bytes bytes"
[ "$bytes" -lt 40000000 ] || fail "the image is larger than 40 MB"

cat >"$work/tree/Dockerfile" <<'END'
FROM debian:bookworm-slim
COPY --from=ddp-run /opt/ddp-run /opt/ddp-run
ENV PATH=/opt/ddp-run/bin:/usr/bin:/bin
END
buildah build --pull-never --quiet -t training "$work/tree" >/dev/null
training=$(buildah from --pull-never training)
inside() { buildah run "$training" -- "$@"; }
said=$(inside ddp-run --standalone --nproc-per-node 2 sh -c 'echo rank $RANK of $WORLD_SIZE' 2>&1)
[ "$(grep -c 'rank [01] of 2' <<<"$said")" = 2 ] || fail "two workers: $said"
# With a secret, libcrypto is loaded.
said=$(inside env DDP_RDZV_TOKEN=0123456789abcdef0123 ddp-run --standalone sh -c 'echo rank $RANK; cat /etc/debian_version' 2>&1)
grep -q '^12' <<<"$said" || fail "a job with a token: $said"
# A training may have it set for its own libraries.
said=$(inside env LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu DDP_RDZV_TOKEN=0123456789abcdef0123 ddp-run --standalone sh -c 'echo rank $RANK' 2>&1)
grep -q 'rank 0' <<<"$said" || fail "a job with LD_LIBRARY_PATH: $said"
said=$(inside ddp-run --rdzv-backend etcd --rdzv-endpoint 127.0.0.1:1 --join-timeout 1 true 2>&1) && fail "a job without its etcd"
! grep -q libcurl <<<"$said" || fail "a job with etcd: $said"
for program in ddp-rendezvous ddp-agent; do
  inside "$program" --version | grep -q "$program" || fail "$program --version"
done
echo "it runs in an image of Debian 12"
