#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes the pictures of docs/gui/: every page, and the panes that are no page's first, in both themes and two
# sizes (NAME-THEME-WIDTH.png). Usage: scripts/screenshots.sh ORRERY ORRERY_GUI [NAME...]
set -euo pipefail
orrery=$(readlink -f "$1") gui=$(readlink -f "$2")
shift 2
cd "$(dirname "$0")/.."
. scripts/lib.sh
install_missing pngquant
out=docs/gui
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$orrery" plan scenarios/llama3-70b-p4d.json -o "$work/llama3-70b.json" >/dev/null
# A run under a prediction that was calibrated by another run on this machine.
"$orrery" run scenarios/tiny-cpu-pair.json --steps 20 --trace "$work/first.timeline" >/dev/null
"$orrery" calibrate scenarios/tiny-cpu-pair.json "$work/first.timeline" --name here --device "$work/device.json" \
  --cluster "$work/here.json" >/dev/null
sed 's/"laptop-cpu"/"here.json"/' scenarios/tiny-cpu-pair.json >"$work/pair.json"
"$orrery" simulate "$work/pair.json" --trace "$work/predicted.timeline" >/dev/null
"$orrery" run scenarios/tiny-cpu-pair.json --steps 10 --trace "$work/measured.timeline" >/dev/null
sed 's/"fp8-blockwise"/&, "expert_load": {"dirichlet": {"spread": 0.3}}/' scenarios/deepseek-v3-dualpipe-2048-h800.json \
  >"$work/experts.json"
"$orrery" simulate "$work/experts.json" --trace "$work/experts.timeline" >/dev/null 2>&1

plan="--open $work/llama3-70b.json"
two="--open $work/predicted.timeline --beside $work/measured.timeline"
declare -A pictures=(
  [start]="--page start"
  [plans]="$plan --page plans"
  [all-degrees]="$plan --page plans --pane all-degrees"
  [timeline]="$plan --page timeline --at 40s"
  [by-layer]="$plan --page timeline --pane by-layer --at 40s"
  [ranks]="$plan --page timeline --pane ranks"
  [experts]="--open $work/experts.timeline --page timeline --pane experts --at 6s"
  [predicted-measured]="$two --page timeline --pane difference"
  [why-they-differ]="$two --page timeline --pane why-they-differ"
  [memory]="$plan --page memory"
  [topology]="$plan --page topology"
  [what-if]="$plan --page what-if"
  [cost]="$plan --page cost"
  [failures]="--open scenarios/llama3-405b-16k-h100.json --page failures"
)
[ $# -gt 0 ] || set -- "${!pictures[@]}"
for name in "$@"; do
  for theme in light dark; do
    for size in 1280x800 2560x1440; do
      file=$out/$name-$theme-${size%x*}.png
      # shellcheck disable=SC2086
      QT_QPA_PLATFORM=offscreen "$gui" ${pictures[$name]} --theme $theme --size $size --screenshot "$file" 2>"$work/said" ||
        { cat "$work/said"; exit 1; }
      pngquant --force --skip-if-larger --ext .png 64 "$file" || [ $? -eq 98 ]
    done
  done
done
du -ch $out/*.png | tail -1
