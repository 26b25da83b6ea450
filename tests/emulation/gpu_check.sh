#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A dry run of scripts/gpu-check.sh on the emulated GPU: the stages that need no tool of a real one, with models
# that it trains in seconds. Says nothing of speed.
# Usage: gpu_check.sh FOLDER_OF_PROGRAMS
set -euo pipefail
bin="$(realpath "$1")"
cd "$(dirname "$0")/../.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/tools"
ln -s "$bin/emulated_orrery" "$work/bin/orrery"
printf '#!/bin/sh\necho "emulated GPU"\n' >"$work/tools/nvidia-smi"
# Of the tests, those of norms stand for all.
ln -s "$bin/emulated_gpu_test" "$work/bin/gpu_kernels_test"
chmod +x "$work/tools/nvidia-smi"
PATH="$work/tools:$PATH" ORRERY_GPU_BIN="$work/bin" ORRERY_GPU_MODELS=small GTEST_FILTER='*Norm*' \
  scripts/gpu-check.sh "$work/out" smoke headline tests large loop
# What a stage leaves is read on another machine.
python3 - "$work/out" <<'PY'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
for stage in ("headline", "large"):
    rows = json.loads((out / stage / "rate.json").read_text())
    assert rows and all("error" not in r and r["tokens_per_s"] > 0 for r in rows), rows
    # A guess among V tokens has a loss of ln V, 5.5 for 256: training may begin a little above.
    assert all(4.5 < loss < 7 for r in rows for loss in r["loss"]), [r["loss"] for r in rows]
loop = json.loads((out / "loop" / "loop.json").read_text())
assert loop["backend"] == "cuda" and len(loop["rows"]) == 2, loop
profile = json.loads((out / "loop" / "profile.json").read_text())
assert any(m["op"] == "gemm" for m in profile["measured"]), profile["measured"][:3]
PY
echo "all stages ran"
