#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation site into build/site: docs/, and a reference that the program prints.
# Usage: scripts/site.sh [ORRERY]   (the program; without it that of a build of this tree)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
orrery="${1:-}"
for preset in release dev package; do
  [ -z "$orrery" ] && [ -x "build/$preset/bin/orrery" ] && orrery="build/$preset/bin/orrery"
done
[ -n "$orrery" ] || { echo "site: there is no program yet; build one (scripts/test.sh) or name one: scripts/site.sh ORRERY" >&2; exit 1; }
# shellcheck disable=SC2086
install_missing $packages_site
python3 -B scripts/site_pages.py "$orrery" build/site-pages
mkdocs build --quiet --strict --clean
echo "the site: $PWD/build/site/index.html"
