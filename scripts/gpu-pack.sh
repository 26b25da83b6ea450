#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a machine with the CUDA toolkit, with or without a GPU: builds what scripts/gpu-check.sh runs into
# build/gpu-pack, with the libraries that it needs beside it (not those of CUDA). Copied with the checkout, it
# runs on a machine that has no compiler and reaches no mirror.
# Usage: scripts/gpu-pack.sh [ARCHITECTURES]   (90-real by default: the H100 and the H200)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
# shellcheck disable=SC2086
install_missing $packages_build libgtest-dev libboost-context-dev libbenchmark-dev
pack=build/gpu-pack
# cuDNN's frontend is headers alone. Debian has no package of it; the wheel is read as the archive that it is.
frontend=build/cudnn-frontend
if [ ! -f $frontend/include/cudnn_frontend.h ]; then
  python3 -m pip download -q --no-deps -d $frontend "nvidia-cudnn-frontend==1.32.0" &&
    python3 -m zipfile -e $frontend/*.whl $frontend || echo "cuDNN's frontend is not here: attention will be slow"
fi
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="${1:-90-real}" \
  -DORRERY_GUI=OFF -DORRERY_MPI=OFF -DORRERY_BENCH=ON -DORRERY_TESTS=ON -DCMAKE_BUILD_RPATH='$ORIGIN/../lib' \
  -DCMAKE_INCLUDE_PATH="$PWD/$frontend/include"
cmake --build build/gpu --target gpu_check
rm -rf $pack
mkdir -p $pack/bin $pack/lib
for program in orrery gpu_kernels_test gpu_equivalence_test gpu_nccl_test orrery_gpu_bench orrery_gpu_kernels_bench; do
  [ -f build/gpu/bin/$program ] || continue
  strip -o $pack/bin/$program build/gpu/bin/$program
done
# The other machine has a C library, the compiler's runtime and CUDA of its own.
ldd $pack/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux.*|libcublas.*|libcudart|libnccl|libcudnn.*)\.so' |
  xargs -r cp -Lt $pack/lib
du -sh $pack
