#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is installed runs wherever it is moved, is found by CMake and Python, and comes and goes as packages.
# Usage: package.sh BUILD SOURCE
set -euo pipefail
build=$(readlink -f "$1") source=$(readlink -f "$2")
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
fail() { echo "package: $1" >&2; exit 1; }
unset ORRERY_DATA

cmake --install "$build" --prefix "$at/first" --strip >/dev/null
mv "$at/first" "$at/moved"
orrery=$at/moved/bin/orrery
# A cluster that is nowhere but in the folder that was moved.
mv "$at/moved/share/orrery/topologies/p5.json" "$at/moved/share/orrery/topologies/moved-here.json"
ask="plan --model llama-2-7b --nodes 1 --batch 64 --sequence 4096 --top 1 --cluster"
(cd / && "$orrery" $ask moved-here) | grep -q "^  1 " || fail "the moved program does not find its data"
! (cd / && "$orrery" $ask nowhere) 2>/dev/null || fail "a cluster that is nowhere was planned for"

for command in $("$orrery" --help | sed -n '/^Subcommands/,$s/^  \([a-z-]*\) .*/\1/p'); do
  [ -s "$at/moved/share/man/man1/orrery-$command.1" ] || fail "orrery-$command has no manual page"
done
bash -n "$at/moved/share/bash-completion/completions/orrery" || fail "the completion for bash is no script"

if [ -d "$at/moved/lib/python3" ]; then
  printf 'import orrery\nassert "moved-here" in orrery.clusters()\nanswer = orrery.plan(model="llama-2-7b", cluster="moved-here", nodes=1, batch=64, sequence=4096)\nprint(answer.best["name"])\n' >"$at/ask.py"
  (cd / && PYTHONPATH=$at/moved/lib/python3/dist-packages python3 "$at/ask.py") || fail "the module for Python"
fi

cmake -S "$source/examples/cpp" -B "$at/example" -DCMAKE_PREFIX_PATH="$at/moved" -DCMAKE_BUILD_TYPE=Debug >"$at/log" ||
  { cat "$at/log"; fail "find_package(orrery)"; }
cmake --build "$at/example" >"$at/log" || { cat "$at/log"; fail "the example for C++ does not build"; }
ORRERY_DATA=$source "$at/example/plan" || fail "the example for C++"

(cd "$build" && cpack -G TGZ -B "$at/packages" >"$at/log") || { cat "$at/log"; fail "no archive"; }
mkdir "$at/archive"
tar -xzf "$at"/packages/orrery-*.tar.gz -C "$at/archive" --strip-components=1
(cd / && "$at/archive/bin/orrery" $ask p5) | grep -q "^  1 " || fail "the archive's program"

# Debian's own tool installs and removes them in a folder; scripts/test-packages.sh does so in a bare root.
if command -v dpkg-shlibdeps >/dev/null && [ "$(id -u)" -eq 0 ]; then
  (cd "$build" && cpack -G DEB -B "$at/packages" >"$at/log") || { cat "$at/log"; fail "no packages"; }
  for name in orrery liborrery-dev; do
    ls "$at"/packages/${name}_*.deb >/dev/null || fail "no package $name"
  done
  mkdir -p "$at/root/var/lib/dpkg/updates" "$at/root/var/lib/dpkg/info" "$at/root/usr" "$at/root/etc"
  : >"$at/root/var/lib/dpkg/status"
  dpkg --root="$at/root" --force-depends -i "$at"/packages/*.deb >"$at/log" 2>&1 || { cat "$at/log"; fail "dpkg -i"; }
  "$at/root/usr/bin/orrery" $ask p5 | grep -q "^  1 " || fail "the installed program"
  dpkg --root="$at/root" --force-depends -P orrery orrery-gui liborrery-dev python3-orrery >"$at/log" 2>&1 ||
    { cat "$at/log"; fail "dpkg -P"; }
  left=$(find "$at/root" -type f -not -path "*/var/lib/dpkg/*" -not -path "*/var/log/*")
  [ -z "$left" ] || fail "left behind: $left"
fi
echo "package: all well"
