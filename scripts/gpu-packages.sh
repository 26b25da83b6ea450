#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On Debian 12: downloads the packages that scripts/gpu-check.sh builds with into build/gpu-packages. Copied into
# a checkout on a machine that reaches no mirror, they are unpacked there, in the checkout alone.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
mkdir -p build/gpu-packages
as_root apt-get update -qq
cd build/gpu-packages
rm -f ./*.deb
apt-get download -qq $packages_gpu
du -ch ./*.deb | tail -1
