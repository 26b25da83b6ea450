#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with a GPU: stages that can be called one by one, the first first. Each ends in under 8 minutes,
# writes its log as it goes and leaves JSON beside it; what fails does not keep the next from running, and the
# exit code is that of the worst. Prints the logs and a summary last.
#
#   smoke      what the machine is, and that the programs start
#   headline   tokens per second of GPT-2 124M, op by op and as one graph
#   tests      every GPU test
#   kernels    micro-benchmarks of our kernels, as ratios to the device's copies and best products
#   peers      PyTorch's attention and products on the same shapes (where PyTorch is)
#   large      tokens per second of GPT-2 1558M
#   loop       measures plans, fits a profile to some and compares its predictions of the others
#   memcheck   compute-sanitizer over the tests of kernels; racecheck and synccheck likewise
#   bench      what the device gives: products of many shapes, copies, launches
#
# Usage: scripts/gpu-check.sh OUTPUT_FOLDER [STAGE...]
# Runs what scripts/gpu-pack.sh left in build/gpu-pack, or builds it here. ORRERY_GPU_PROFILE names the device
# profile that the loop's fit begins with (h100-sxm). For a dry run ORRERY_GPU_BIN names another folder of
# programs, and ORRERY_GPU_MODELS=small has tiny models trained.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[ $# -ge 1 ] || { sed -n '3,20p' "$0" | cut -c3-; exit 2; }
out="$(realpath -m "$1")"
shift
stages=("$@")
[ $# -gt 0 ] || stages=(smoke headline tests kernels peers large loop memcheck racecheck synccheck bench)
mkdir -p "$out"
bin="${ORRERY_GPU_BIN:-$PWD/build/gpu-pack/bin}"
[ -d "$bin" ] || [ -z "${ORRERY_GPU_BIN:-}" ] || { echo "ORRERY_GPU_BIN: no folder $bin" && exit 2; }
[ -d "$bin" ] || scripts/gpu-pack.sh native || exit 1
models="${ORRERY_GPU_MODELS:-full}"
export ORRERY_DATA="$PWD"
# cuBLAS and NCCL may be there as Python wheels alone, as PyTorch installs them.
for wheel in $(python3 -c 'import nvidia; print(*(f"{p}/{w}/lib" for p in nvidia.__path__ for w in ("nccl", "cu13", "cudnn")))' 2>/dev/null); do
  [ -d "$wheel" ] && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheel"
done

smoke() {
  nvidia-smi && "$bin/orrery" doctor && ls -l "$bin"
}
headline() {
  local cases=(gpt2-124m,64,1,none,orrery gpt2-124m,64,1,none,orrery-graph gpt2-124m,64,8,none,orrery-graph)
  [ "$models" = full ] || cases=(tiny-gpt@16,1,1,none,orrery tiny-gpt@16,1,2,none,orrery-graph)
  python3 scripts/rate.py "$bin/orrery" "$out/headline" "${cases[@]}"
}
large() {
  local cases=(gpt2-1558m,8,2,none,orrery-graph gpt2-1558m,16,4,none,orrery-graph)
  [ "$models" = full ] || cases=(tiny-llama@16,1,1,full,orrery-graph)
  python3 scripts/rate.py "$bin/orrery" "$out/large" "${cases[@]}"
}
gpu_test() {  # here a test that is skipped for want of a GPU has failed
  "$bin/$1" --gtest_brief=1 2>&1 | tee "$out/$1.log"
  [ "${PIPESTATUS[0]}" -eq 0 ] && ! grep -q 'no GPU here' "$out/$1.log"
}
tests() {
  local worst=0 program
  for program in gpu_kernels_test gpu_equivalence_test gpu_nccl_test; do
    if [ -f "$bin/$program" ]; then gpu_test $program || worst=1; fi
  done
  return $worst
}
kernels() {
  "$bin/orrery_gpu_kernels_bench" --benchmark_min_time=0.05 --benchmark_counters_tabular=true \
    --benchmark_out="$out/kernels.json" --benchmark_out_format=json
}
peers() {
  python3 bench/cuda/peers.py "$out/peers.json"
}
loop() {
  local plans=(--plans gpu)
  [ "$models" = full ] || plans=(--plans small --steps 3)
  python3 scripts/loop.py "$bin/orrery" "$out/loop" "${plans[@]}" --backend cuda --device "${ORRERY_GPU_PROFILE:-h100-sxm}"
}
sanitizer() {  # of our kernels: in cuDNN's the tools report what asynchronous barriers order
  compute-sanitizer --kernel-name-exclude kernel_substring=cudnn --tool "$1" --error-exitcode 1 "$bin/gpu_kernels_test" --gtest_brief=1 \
    --gtest_filter="${2:-*}" 2>&1 | tail -60
  return "${PIPESTATUS[0]}"
}
memcheck() { sanitizer memcheck; }
racecheck() { sanitizer racecheck '*ttention*:*Norm*:*mbedding*:*Fp8*'; }
synccheck() { sanitizer synccheck '*ttention*:*Norm*:*mbedding*:*Fp8*'; }
bench() {
  "$bin/orrery_gpu_bench" "$out/measurement.json" 10
}

worst=0
summary=""
for stage in "${stages[@]}"; do
  declare -F "$stage" >/dev/null || { echo "no stage \"$stage\"; see scripts/gpu-check.sh" && exit 2; }
  begin=$SECONDS code=0
  # In a process group of its own, so that all of a stage ends at its limit.
  export -f "$stage" gpu_test sanitizer
  export out bin models
  timeout "${ORRERY_GPU_STAGE_SECONDS:-480}" bash -c "set -uo pipefail; $stage" >"$out/$stage.log" 2>&1 || code=$?
  summary+="$(printf '%-10s %5d s  exit %d' "$stage" $((SECONDS - begin)) "$code")"$'\n'
  [ "$code" -eq 0 ] || worst=1
  echo "--- $stage"
  tail -60 "$out/$stage.log" | cut -c1-200
done
printf '%s' "$summary"
exit $worst
