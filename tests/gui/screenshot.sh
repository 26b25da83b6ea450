#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The window's command line: a picture of a real trace without a display, and answers to wrong input.
# Usage: screenshot.sh ORRERY ORRERY_GUI FOLDER
set -euo pipefail
orrery=$1 gui=$2 out=$3
root="$(cd "$(dirname "$0")/../.." && pwd)"
mkdir -p "$out"
cd "$out"
rm -f out.png
"$orrery" simulate "$root/scenarios/llama3-70b-p4d.json" --trace trace.json >/dev/null
QT_QPA_PLATFORM=offscreen "$gui" --open trace.json --screenshot out.png
file_size=$(stat -c %s out.png)
[ "$file_size" -gt 10000 ] || { echo "the picture has $file_size bytes"; exit 1; }
expect() {  # CODE TEXT ARGUMENTS...
  local code=$1 text=$2 status=0
  shift 2
  QT_QPA_PLATFORM=offscreen "$gui" "$@" 2>errors || status=$?
  [ "$status" -eq "$code" ] || { echo "$*: exit $status, not $code"; cat errors; exit 1; }
  grep -q -- "$text" errors || { echo "$*: does not say \"$text\""; cat errors; exit 1; }
}
echo '{"traceEvents": [3]}' >bad.json
expect 3 "bad.json: /traceEvents/0" --open bad.json --screenshot no.png
expect 3 "no such file" --open missing.json --screenshot no.png
expect 1 "/nowhere/no.png: cannot be written: No such file or directory" --open trace.json --screenshot /nowhere/no.png
expect 1 "no.what: cannot be written: Unsupported image format" --open trace.json --screenshot no.what
expect 2 "is no time" --open trace.json --at soon
expect 2 "is no page" --page nowhere
expect 2 "is no size" --size 3x3
expect 2 "is no pane of this page; allowed: slice, selection" --open trace.json --page timeline --pane nowhere --screenshot no.png
expect 2 "nknown option" --what
# Without a display: help and the version are printed, a window is refused, and a picture is drawn.
alone() { env -u DISPLAY -u WAYLAND_DISPLAY -u QT_QPA_PLATFORM "$gui" "$@"; }
alone --help | grep -q -- "--screenshot"
alone --version | grep -q "orrery-gui"
status=0
alone trace.json 2>errors || status=$?
[ "$status" -eq 1 ] && grep -q "there is no display" errors || { echo "no display: exit $status"; cat errors; exit 1; }
# A plan's page of plans is drawn when they have been searched: it has more in it than the page of another problem.
"$orrery" plan "$root/scenarios/tiny-cpu.json" -o plan.json >/dev/null
for page in plans cost failures; do
  alone --open plan.json --page $page --screenshot $page.png
  alone --page $page --screenshot empty.png
  full=$(stat -c %s $page.png) empty=$(stat -c %s empty.png)
  [ "$full" -gt $((empty * 5 / 4)) ] || { echo "$page of a plan: $full bytes, empty $empty"; exit 1; }
done
[ ! -e no.png ] || { echo "a picture was written of a file that cannot be opened"; exit 1; }
