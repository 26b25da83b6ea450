#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a bare Debian 12 to a planned, simulated and executed training step.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
say() { printf '\n\033[1m== %s\033[0m\n' "$1"; }

say "Installing what is missing and building a release"
# shellcheck disable=SC2086
install_missing $packages_build $packages_gui
cmake --preset release
cmake --build --preset release
orrery=build/release/bin/orrery
out=build/quickstart
mkdir -p "$out"

say "Llama-3-70B on 8 p4d nodes (A100, 40 GB)"
"$orrery" plan scenarios/llama3-70b-p4d.json -o "$out/llama3-70b-p4d.plan.json"
say "The same on 8 p4de nodes (A100, 80 GB)"
"$orrery" plan scenarios/llama3-70b-p4de.json -o "$out/llama3-70b-p4de.plan.json"

say "One step of the best plan through the event engine"
"$orrery" simulate "$out/llama3-70b-p4d.plan.json" --trace "$out/llama3-70b-p4d.trace.json" --window 0s:5s

say "A tiny plan trained for real on eight thread ranks"
"$orrery" run scenarios/tiny-cpu.json --steps 5

say "Two ranks, run for real; a profile of this machine from that run; and another run, predicted and measured"
"$orrery" run scenarios/tiny-cpu-pair.json --steps 20 --trace "$out/first.json"
"$orrery" calibrate scenarios/tiny-cpu-pair.json "$out/first.json" --name here --device "$out/device.json" \
  --cluster "$out/here.json"
sed 's/"laptop-cpu"/"here.json"/' scenarios/tiny-cpu-pair.json >"$out/pair.json"
"$orrery" simulate "$out/pair.json" --trace "$out/predicted.json"
"$orrery" run "$out/pair.json" --steps 20 --trace "$out/measured.json"
"$orrery" compare "$out/predicted.json" "$out/measured.json"

say "The plan in a window, as a picture"
build/release/bin/orrery-gui --open "$out/llama3-70b-p4d.plan.json" --page timeline --screenshot "$out/timeline.png"

say "Where to look next"
cat <<TEXT
  $out/llama3-70b-p4d.plan.json    the plan; orrery export FILE --to megatron makes launcher flags of it
  $out/llama3-70b-p4d.trace.json   its first five seconds; ui.perfetto.dev opens it too
  build/release/bin/orrery-gui $out/llama3-70b-p4d.plan.json    the window: look into the plan, op by op
  scenarios/                       more questions; copy one and ask your own
  $out/timeline.png                what the window shows
  docs/                            how it works, the formulas and their sources, how wrong it is
  $orrery --help                   all commands
TEXT
