#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need, builds with warnings as errors, runs every test.
# Usage: scripts/test.sh [PRESET]   (dev by default; asan, tsan, clang, debug)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
preset="${1:-dev}"
# shellcheck disable=SC2086
install_missing $packages_test
[ "$preset" = clang ] && install_missing clang
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)"
