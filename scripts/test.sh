#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need, builds with warnings as errors, runs every test, or the named test programs.
# Usage: scripts/test.sh [PRESET [PROGRAM...]]   (dev by default; asan, tsan, clang, debug)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
preset="${1:-dev}"
programs=("${@:2}")

# Interventions run alone after all other tests (tests/CMakeLists.txt) and skip where the machine is too noisy.
skipped_interventions() {
  awk '/^[0-9]+\/[0-9]+ Testing: / { name = $3; if (name ~ /^Interventions\./) ++all }
       reason { why[++skipped] = name ": " $0; reason = 0 }
       /: Skipped$/ && name ~ /^Interventions\./ { reason = 1 }
       END { printf "interventions: %d of %d skipped\n", skipped, all
             for (i = 1; i <= skipped; ++i) print "  " why[i] }' "$1"
}

# shellcheck disable=SC2086
install_missing $packages_test
[ "$preset" = clang ] && install_missing clang
cmake --preset "$preset"
if [ ${#programs[@]} -gt 0 ]; then
  cmake --build --preset "$preset" --target "${programs[@]}"
  printf '%s\n' "${programs[@]}" | xargs -P "$(nproc)" -I{} env "build/$preset/bin/{}" --gtest_brief=1
  exit
fi
cmake --build --preset "$preset"
# A log of an earlier run would be summed up, and ctest begins with tests that failed in it.
log="build/$preset/Testing/Temporary/LastTest.log"
rm -f "$log" "build/$preset/Testing/Temporary/LastTestsFailed.log"
status=0
ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)" || status=$?
[ -f "$log" ] && skipped_interventions "$log"
exit "$status"
