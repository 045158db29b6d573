#!/usr/bin/env bash
# Runs in a fresh root folder (fresh_root.sh): installs ~/packages, uses each of them, purges them, and looks for what is left.
set -euo pipefail
tree=$PWD
export DEBIAN_FRONTEND=noninteractive
cd "$HOME"

fail() {
  echo "as_a_user: $*" >&2
  exit 1
}
quietly() {  # COMMAND...: shows its output if it fails
  "$@" >"$HOME/quiet.log" 2>&1 || { cat "$HOME/quiet.log" >&2; fail "$* ended with a failure"; }
}
step() {  # WHAT COMMAND...: prints how long it took
  local what=$1 before=$SECONDS
  shift
  "$@"
  echo "== $what: $((SECONDS - before)) s"
}
files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root -o -path /var/cache -o -path /var/log -o -path "$tree" \) -prune -o -print | sort; }

alone() {
  quietly apt-get install -q -y --no-install-recommends ./packages/ddp-run_*.deb
  ! dpkg -l | grep -q '^ii *libtorch' || fail "ddp-run pulls in LibTorch"
  ddp-run --standalone --nproc-per-node 2 sh -c 'echo rank $RANK of $WORLD_SIZE' >out
  [ "$(sort out)" = "$(printf '[%s:0] rank 0 of 2\n[%s:1] rank 1 of 2\n' "$(uname -n)" "$(uname -n)")" ] || fail "two workers: $(cat out)"
  local installed
  installed=$(dpkg-query -W -f '${Installed-Size}' ddp-run)
  [ "$installed" -lt 5120 ] || fail "ddp-run takes $installed KiB; 5120 are too many"
  echo "ddp-run alone: $(du -cb packages/ddp-run_*.deb | tail -n 1 | cut -f1) bytes to download," \
    "$installed KiB installed"
}
all() { quietly apt-get install -q -y --no-install-recommends ./packages/*.deb; }
demo() { ddp-run demo >out 2>&1 || { cat out; fail "the demo"; }; tail -n 3 out; }
cmake_project() {
  quietly apt-get install -q -y --no-install-recommends g++ cmake ninja-build
  cp -r /usr/share/doc/libddp-dev/examples project
  quietly cmake -S project -B project/build -G Ninja
  quietly cmake --build project/build
  # Two folders of one project that look for it.
  mkdir -p both/a both/b
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(both CXX)\nadd_subdirectory(a)\nadd_subdirectory(b)\n' >both/CMakeLists.txt
  echo 'find_package(ddp REQUIRED)' | tee both/a/CMakeLists.txt >both/b/CMakeLists.txt
  quietly cmake -S both -B both/build -G Ninja
  ddp-run --standalone --nproc-per-node 2 project/build/train >out || { cat out; fail "the CMake project"; }
  [ "$(grep -o 'weights [0-9a-f]*' out | sort -u | wc -l)" = 1 ] || fail "the CMake project's weights: $(cat out)"
}
python_script() {
  dpkg -s python3-ddp-run >/dev/null 2>&1 || { echo "no Python package here"; return; }
  cat >sum.py <<'END'
import torch
import torch.distributed as dist

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
    import ddp_run

dist.init_process_group("ddp")
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print("sum", tensor.item())
dist.destroy_process_group()
END
  ddp-run --standalone --nproc-per-node 2 sum.py >out 2>&1 || { cat out; fail "the Python script"; }
  [ "$(grep -c 'sum 3.0' out)" = 2 ] || fail "the Python script: $(cat out)"
}
manual() {
  quietly apt-get install -q -y --no-install-recommends man-db
  for page in ddp-run ddp-agent ddp-rendezvous ddp-checkpoint ddp-train ddp-top ddp-demo; do
    MANWIDTH=80 man 1 "$page" >out 2>err || fail "man $page: $(cat err)"
    [ "$(wc -L <out)" -le 80 ] || fail "man $page is wider than 80 columns"
  done
  MANWIDTH=80 man 7 ddp-run-manual >/dev/null
}
purge() {
  local packages
  mapfile -t packages < <(for deb in packages/*.deb; do dpkg-deb -f "$deb" Package; done)
  quietly apt-get purge -q -y "${packages[@]}"
  quietly apt-get autoremove -q -y --purge
  files >after
  # The package manager's own books, and what other packages that came along leave.
  comm -13 before after | grep -i ddp >left || true
  [ ! -s left ] || fail "this is left: $(cat left)"
  ! getent passwd | grep -i ddp || fail "a user is left"
}

quietly apt-get update -q
files >before
step "apt install ./ddp-run_*.deb" alone
step "apt install ./*.deb" all
step "ddp-run demo" demo
step "a Python script" python_script
step "a CMake project" cmake_project
step "man pages" manual
step "apt purge" purge
