#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU and the CUDA toolkit: builds for that GPU, runs every GPU test (under compute-sanitizer
# too), the micro-benchmarks, and a loop of prediction and measurement. Leaves logs and JSON in OUTPUT_FOLDER and
# prints a summary last. Ends in under 10 minutes. What fails does not keep the rest from running; the exit code
# is that of the worst.
# Usage: scripts/gpu-check.sh [OUTPUT_FOLDER] [DEVICE_PROFILE]   (h100-sxm by default: what the fit begins with)
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
out="$(realpath -m "${1:-build/gpu-check}")"
profile="${2:-h100-sxm}"
mkdir -p "$out"
# What scripts/gpu-packages.sh downloaded, or what a mirror has; where there is neither, what is there must do.
packages="$PWD/build/gpu-packages"
if compgen -G "$packages/*.deb" >/dev/null; then
  for package in "$packages"/*.deb; do dpkg-deb -x "$package" "$packages/root" || exit 1; done
  libraries="$packages/root/usr/lib/x86_64-linux-gnu"
  export CMAKE_PREFIX_PATH="$packages/root/usr" \
    LD_LIBRARY_PATH="$libraries:$libraries/openblas-pthread${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
  # shellcheck disable=SC2086
  install_missing $packages_build libgtest-dev libboost-context-dev libbenchmark-dev >"$out/install.log" 2>&1 ||
    echo "packages could not be installed: going on with what is here"
fi
# NCCL and cuBLAS may be there as Python wheels alone, as PyTorch installs them.
for wheel in $(python3 -c 'import nvidia; print(*(f"{p}/{w}" for p in nvidia.__path__ for w in ("nccl", "cu13")))' 2>/dev/null); do
  [ -d "$wheel" ] || continue
  export CMAKE_INCLUDE_PATH="${CMAKE_INCLUDE_PATH:+$CMAKE_INCLUDE_PATH:}$wheel/include"
  export CPLUS_INCLUDE_PATH="${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$wheel/include"
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheel/lib"
done
worst=0
summary=""
stage() {  # NAME SECONDS COMMAND...
  local name="$1" limit="$2" begin=$SECONDS code=0
  shift 2
  timeout "$limit" bash -c '"$@"' stage "$@" >"$out/$name.log" 2>&1 || code=$?
  summary+="$(printf '%-16s %5d s  exit %d' "$name" $((SECONDS - begin)) "$code")"$'\n'
  [ "$code" -eq 0 ] || worst=1
  return "$code"
}

build=build/gpu
architecture="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ')"
if [ -z "$architecture" ]; then
  echo "no GPU here: nvidia-smi names none"
  exit 1
fi
configure() {
  cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="$architecture-real" \
    -DORRERY_GUI=OFF -DORRERY_BENCH=ON -DORRERY_TESTS=ON
}
compile() {
  cmake --build $build --target gpu_check
}
gpu_tests() {  # here a test that is skipped for want of a GPU has failed
  ctest --test-dir $build -L gpu --output-on-failure | tee "$out/ctest.log"
  [ "${PIPESTATUS[0]}" -eq 0 ] && ! grep -q 'did not run' "$out/ctest.log"
}
export out build architecture
export -f configure compile gpu_tests
if stage configure 30 configure && stage build 200 compile; then
  stage tests 85 gpu_tests
  if command -v compute-sanitizer >/dev/null; then
    stage sanitizer 60 compute-sanitizer --error-exitcode 1 $build/bin/gpu_kernels_test
  fi
  stage bench 40 $build/bin/orrery_gpu_bench "$out/measurement.json" 10
  stage kernels 60 $build/bin/orrery_gpu_kernels_bench --benchmark_min_time=0.1 --benchmark_out="$out/kernels.json" \
    --benchmark_out_format=json
  stage loop 115 python3 scripts/loop.py $build/bin/orrery "$out/loop" --backend cuda --device "$profile"
fi
for name in configure build tests sanitizer bench kernels loop; do
  grep -qs "$name .* exit 0" <<<"$summary" || { [ -f "$out/$name.log" ] && echo "--- $name" && tail -40 "$out/$name.log"; }
done
if [ -f "$out/measurement.json" ]; then
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
fi
if [ -f "$out/kernels.json" ]; then
  python3 - "$out/kernels.json" <<'PY'
import json, sys
print(f"  {'kernel':34} {'time':>12} {'GB/s':>8} {'of copy':>8} {'TFLOP/s':>8} {'of best':>8}")
for b in json.load(open(sys.argv[1]))["benchmarks"]:
    cell = lambda key, form: format(b[key], form) if key in b else ""
    print(f"  {b['name'].removesuffix('/manual_time'):34} {b['real_time']:9.1f} us {cell('GB/s', '.0f'):>8} "
          f"{cell('of_copy', '.3f'):>8} {cell('TFLOP/s', '.1f'):>8} {cell('of_best', '.3f'):>8}")
PY
fi
[ -f "$out/loop.log" ] && cat "$out/loop.log"
printf '%s' "$summary"
exit $worst
