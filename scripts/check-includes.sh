#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A folder may include only folders above it (docs/architecture.md). Prints each violation.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
declare -A allowed=(
  [core]="core"
  [trace]="core trace"
  [program]="core program"
  [sim]="core program sim"
  [planner]="core program sim planner"
  [kernels]="core kernels"
  [exec]="core program kernels exec"
  [gui]="core trace program sim planner gui"
  [cli]="core trace program sim planner kernels exec cli"
)
bad=0
for folder in "${!allowed[@]}"; do
  while IFS=: read -r file line target; do
    case " ${allowed[$folder]} " in
      *" $target "*) ;;
      *) echo "$file:$line: $folder may not include $target"; bad=1 ;;
    esac
  done < <(grep -rnoE '#include "(core|trace|program|sim|planner|kernels|exec|cli|gui)/' "$folder" --include='*.h' --include='*.cpp' --include='*.cu' |
           sed -E 's/#include "([a-z]+)\//\1/')
done
exit $bad
