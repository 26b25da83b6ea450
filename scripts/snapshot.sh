#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes the answers of one build, so that two builds can be compared byte for byte:
#   scripts/snapshot.sh BUILD FOLDER      then: diff -r BEFORE AFTER
# The answers are the JSON of `plan` (without its seconds) and `simulate` for every shipped scenario, losses and
# gradient norms of `run` for the tiny scenarios and for 500 random plans, checksums of simulated timelines with
# every op, and `validate`. The program's hash and size in memory are left out.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '4,7s/^# \{0,1\}//p' "$0"; exit 2; }
orrery="$(realpath "$1")/bin/orrery" tests="$(realpath "$1")/bin/equivalence_test"
mkdir -p "$2"
out="$(realpath "$2")"
cd "$(dirname "$0")/.."
without_seconds() { python3 -c '
import json, sys
def less(x):
    if isinstance(x, dict): return {k: less(v) for k, v in x.items() if k != "seconds"}
    return [less(v) for v in x] if isinstance(x, list) else x
json.dump(less(json.load(sys.stdin)), sys.stdout, indent=1)'; }
for scenario in scenarios/*.json; do
  name="$(basename "$scenario" .json)"
  "$orrery" plan "$scenario" --json 2>/dev/null | without_seconds >"$out/$name.plan.json"
  # A scenario without a plan, or whose plan is refused, says so.
  "$orrery" simulate "$scenario" --json --trace "$out/trace.json" >"$out/$name.simulate.json" 2>&1 ||
    echo "exit code $?" >>"$out/$name.simulate.json"
  sed -i '/"program_bytes"/d' "$out/$name.simulate.json"
  [ ! -f "$out/trace.json" ] ||
    sed 's/"program_hash":"[0-9]*",//' "$out/trace.json" | sha256sum >"$out/$name.timeline.sha256"
  rm -f "$out/trace.json"
done
for scenario in scenarios/tiny-*.json; do
  "$orrery" run "$scenario" --steps 10 --seed 7 --json 2>/dev/null | python3 -c '
import json, sys
for s in json.load(sys.stdin)["steps"]: print(repr(s["loss"]), repr(s["grad_norm"]))' >"$out/$(basename "$scenario" .json).run.txt"
done
"$orrery" validate --rows --json tests/data/training_runs.json tests/data/collectives.json >"$out/validate.json" 2>/dev/null
sed -i "s|$PWD/||g" "$out"/*.json
rm -f "$out/random-plans.txt"
ORRERY_PLANS=50 ORRERY_DIGEST="$out/random-plans.txt" "$tests" --gtest_filter='Batches/RandomPlans.*/?' >/dev/null
[ "$(wc -l <"$out/random-plans.txt")" -eq 500 ] || { echo "there are not 500 random plans" >&2; exit 1; }
