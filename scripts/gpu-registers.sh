#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Registers and spilled bytes of every kernel, as ptxas reports them for each architecture; needs nvcc, no GPU.
# Prints a table in Markdown of the most of each kernel over its types and sizes; docs/gpu.md has the table.
# Usage: scripts/gpu-registers.sh [ARCHITECTURE...]   (80 90 100 by default)
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=("$@")
[ $# -gt 0 ] || architectures=(80 90 100)
for source in kernels/cuda/*.cu; do
  for architecture in "${architectures[@]}"; do
    nvcc -std=c++20 -I. -arch="sm_$architecture" -cubin -Xptxas -v -o /dev/null "$source" 2>&1 | c++filt |
      sed "s|^|$(basename "$source") $architecture |"
  done
done | python3 -c '
import collections, re, sys
most = collections.defaultdict(lambda: [0, 0, 0])
kernel = None
for line in sys.stdin:
    source, architecture, text = line.split(" ", 2)
    if found := re.search(r"Compiling entry function .*?(\w+_kernel)", text):
        kernel = (source, found[1], architecture)
        most[kernel][2] += 1
    elif found := re.search(r"(\d+) bytes spill stores", text):
        most[kernel][1] = max(most[kernel][1], int(found[1]))
    elif found := re.search(r"Used (\d+) registers", text):
        most[kernel][0] = max(most[kernel][0], int(found[1]))
architectures = sorted({k[2] for k in most}, key=int)
print("| kernel | instances | " + " | ".join(f"registers, sm_{a}" for a in architectures) + " | most spilled, bytes |")
print("|---|---|" + "---|" * (len(architectures) + 1))
for source, name in sorted({k[:2] for k in most}):
    of = [most[source, name, a] for a in architectures]
    print(f"| `{name}` ({source}) | {of[0][2]} | " + " | ".join(str(o[0]) for o in of) + f" | {max(o[1] for o in of)} |")
'
