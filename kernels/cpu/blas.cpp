// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace orrery::kernels {
namespace {

// The interface of cblas.h.
enum Order : int { kRowMajor = 101 };
enum Transpose : int { kNoTranspose = 111, kTranspose = 112 };
using Sgemm = void (*)(Order, Transpose, Transpose, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);

const char* core_type() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return nullptr;
}

struct Library {
  Library() {
    if (const char* core = core_type(); core != nullptr) setenv("OPENBLAS_CORETYPE", core, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    // dlsym gives an object pointer; POSIX says that it converts.
    const auto config = reinterpret_cast<const char* (*)()>(dlsym(library, "openblas_get_config"));
    const auto core = reinterpret_cast<const char* (*)()>(dlsym(library, "openblas_get_corename"));
    const auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
    if (config == nullptr || core == nullptr || set_threads == nullptr) return;
    const std::string text = config();  // "OpenBLAS 0.3.21 DYNAMIC_ARCH ... MAX_THREADS=64"
    // Built without threads it has no locks either, and two ranks that call it at once get wrong numbers.
    if (text.find("MAX_THREADS") == std::string::npos) {
      name = "reference (this OpenBLAS is not safe to call from several threads)";
      return;
    }
    set_threads(1);
    sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
    name = text.substr(0, text.find(' ', text.find(' ') + 1)) + " " + core();
  }
  Sgemm sgemm = nullptr;
  std::string name = "reference";
};

const Library& library() {
  static const Library opened;
  return opened;
}

void plain(const Product& p, const float* a, const float* b, float* c) {
  for (Index i = 0; i < p.m; ++i) {
    for (Index j = 0; j < p.n; ++j) {
      float sum = 0;
      for (Index l = 0; l < p.k; ++l)
        sum += (p.transpose_a ? a[l * p.lda + i] : a[i * p.lda + l]) *
               (p.transpose_b ? b[j * p.ldb + l] : b[l * p.ldb + j]);
      float& to = c[i * p.ldc + j];
      to = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * to);
    }
  }
}

}  // namespace

void multiply(const Product& p, const float* a, const float* b, float* c) {
  const Sgemm sgemm = library().sgemm;
  if (sgemm == nullptr) return plain(p, a, b, c);
  const auto integer = [](Index i) { return static_cast<int>(i); };
  sgemm(kRowMajor, p.transpose_a ? kTranspose : kNoTranspose, p.transpose_b ? kTranspose : kNoTranspose,
        integer(p.m), integer(p.n), integer(p.k), p.alpha, a, integer(p.lda), b, integer(p.ldb), p.beta, c,
        integer(p.ldc));
}

const char* blas_name() {
  return library().name.c_str();
}

}  // namespace orrery::kernels
