#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a release and packs it: Debian packages (orrery, orrery-gui, liborrery-dev, python3-orrery) and an
# archive of all. They come into build/packages. Without CUDA and MPI, which other machines may lack:
# ORRERY_PACKAGE_OPTIONS="-DORRERY_CUDA=ON -DORRERY_MPI=ON" packs with both.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
# shellcheck disable=SC2086
install_missing $packages_build $packages_python $packages_gui dpkg-dev
# shellcheck disable=SC2086
cmake --preset release -B build/package -DCMAKE_INSTALL_PREFIX=/usr -DORRERY_CUDA=OFF -DORRERY_MPI=OFF ${ORRERY_PACKAGE_OPTIONS:-}
cmake --build build/package
(cd build/package && cpack -G 'DEB;TGZ' -B ../packages)
ls -l build/packages/*.deb build/packages/*.tar.gz
