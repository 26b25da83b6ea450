#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU and the CUDA toolkit: build the micro-benchmarks, run them, and leave the
# measurements (with driver, runtime and device named) and a summary table. Ends in under 10 minutes.
# Usage: scripts/gpu-check.sh [OUTPUT_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
out="${1:-build/gpu-check}"
mkdir -p "$out"
# shellcheck disable=SC2086
install_missing $packages_build libbenchmark-dev
cmake --preset bench >"$out/configure.log"
cmake --build --preset bench --target orrery_gpu_bench orrery 2>&1 | tail -3
build/bench/bin/orrery_gpu_bench "$out/measurement.json" 30 >"$out/bench.log"
python3 - "$out/measurement.json" <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
print(f"{m['device']}: {m['units']} units, driver {m['driver']}, runtime {m['runtime']}")
for group in ("copies", "launch", "nccl"):
    for name, value in m[group].items():
        print(f"  {name:34} {value:12.2f}" if isinstance(value, (int, float)) else f"  {name:34} {value}")
print(f"  {'layout':18} {'m':>7} {'n':>7} {'k':>7} {'TFLOP/s':>9}")
for g in m["gemm"]:
    print(f"  {g['layout']:18} {g['m']:7} {g['n']:7} {g['k']:7} {g['tflops']:9.1f}")
PY
