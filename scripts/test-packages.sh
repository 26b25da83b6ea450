#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the packages of scripts/package.sh in a bare Debian 12 root, asks for a plan, and uninstalls them. As
# root, with debootstrap and Debian's archive. Usage: scripts/test-packages.sh [FOLDER OF PACKAGES]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
packages=$(readlink -f "${1:-build/packages}")
install_missing debootstrap
root=$(mktemp -d /var/tmp/orrery-root.XXXXXX)
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf "$root"' EXIT
debootstrap --variant=minbase bookworm "$root" >"$root.log" || { tail -5 "$root.log"; exit 1; }
rm -f "$root.log"
mount -t proc proc "$root/proc"
mkdir "$root/packages"
cp "$packages"/*.deb "$packages"/*.tar.gz "$root/packages"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$1"; }
# Lines of find(1) but for caches and what dpkg, apt and ldconfig keep for themselves.
files='find / -xdev -not -path "/proc/*" -not -path "/var/*" -not -path "/packages/*" -not -path "/tmp/*" \
  -not -path "/etc/ld.so.cache" -not -name "__pycache__" -not -name "*.pyc" | sort'

inside "$files" >"$root/packages/before"
began=$SECONDS
inside 'apt-get update -qq && apt-get install -y -qq --no-install-recommends /packages/orrery_*.deb >/dev/null
  orrery plan --model llama-3.1-8b --cluster p5 --nodes 4 --batch 1024 --sequence 8192 --tokens 15e12'
echo "first answer: $((SECONDS - began)) s after the package was there, with the download of what it needs"
inside 'orrery --version; test -e /usr/share/man/man1/orrery-plan.1*; test -e /usr/share/bash-completion/completions/orrery
  apt-get install -y -qq --no-install-recommends /packages/python3-orrery_*.deb >/dev/null
  python3 -c "import orrery; print(orrery.plan(model=\"llama-2-7b\", cluster=\"p5\", nodes=1, batch=64, sequence=4096).best[\"name\"])"'
inside 'apt-get purge -y -qq orrery python3-orrery >/dev/null'
# The archive without the package: it finds its data beside itself. Debian's libraries that it needs are there.
inside 'mkdir /opt/here && tar -xzf /packages/orrery-*.tar.gz -C /opt/here --strip-components=1
  /opt/here/bin/orrery plan --model llama-2-7b --cluster p5 --nodes 1 --batch 64 --sequence 4096 --top 1 >/tmp/answer
  head -8 /tmp/answer; rm -r /opt/here'
inside 'apt-get autoremove -y -qq --purge >/dev/null'
inside "$files" >"$root/packages/after"
if grep -i orrery "$root/packages/after"; then
  echo "left behind" >&2
  exit 1
fi
echo "installed, ran, uninstalled"
