// SPDX-License-Identifier: Apache-2.0
//
// An independent count of memory: this executable's own malloc. After the first steps, which fill workspaces
// that are kept, no step takes memory: all tensors live in the arenas.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "exec/run.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define ORRERY_OWN_MALLOC 0
#else
#define ORRERY_OWN_MALLOC 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<std::int64_t> calls{0}, bytes{0}, in_library{0};

void count(std::size_t size, const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info from{};
  if (dladdr(caller, &from) != 0 && from.dli_fname != nullptr &&
      std::strstr(from.dli_fname, "openblas") != nullptr) {
    ++in_library;
    return;
  }
  ++calls;
  bytes += static_cast<std::int64_t>(size);
}
}  // namespace

#if ORRERY_OWN_MALLOC
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t n, std::size_t size);
void* __libc_realloc(void* p, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void* malloc(std::size_t size) {
  count(size, __builtin_return_address(0));
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  count(n * size, __builtin_return_address(0));
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t size) {
  count(size, __builtin_return_address(0));
  return __libc_realloc(p, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count(size, __builtin_return_address(0));
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** p, std::size_t alignment, std::size_t size) {
  count(size, __builtin_return_address(0));
  *p = __libc_memalign(alignment, size);
  return *p == nullptr ? 12 : 0;
}
}
#endif

namespace orrery {
namespace {

TEST(Allocation, TheCounterCounts) {
  if (!ORRERY_OWN_MALLOC) GTEST_SKIP() << "sanitizers and other C libraries have a malloc of their own";
  calls = bytes = 0;
  counting = true;
  void* volatile p = std::malloc(123);
  counting = false;
  std::free(p);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(bytes, 123);
}

TEST(Allocation, StepsTakeNoMemory) {
  if (!ORRERY_OWN_MALLOC) GTEST_SKIP() << "sanitizers and other C libraries have a malloc of their own";
  struct Layout {
    const char* preset;
    std::int64_t tp, pp, dp, zero;
    Precision precision = Precision::kFp32;
    Math math = Math::kFp32;
    double dropout = 0;
    exec::Algorithm collectives = exec::Algorithm::kDirect;
  };
  for (const Layout& l :
       {Layout{"tiny-gpt", 1, 1, 1, 0}, Layout{"tiny-gpt", 2, 2, 2, 1}, Layout{"tiny-llama", 2, 2, 2, 3},
        Layout{"tiny-llama", 1, 4, 2, 2},
        Layout{"tiny-gpt", 2, 2, 2, 1, Precision::kMixed, Math::kFp16, 0.1, exec::Algorithm::kRing},
        Layout{"tiny-llama", 2, 1, 4, 3, Precision::kMegatron, Math::kBf16, 0,
               exec::Algorithm::kHierarchical}}) {
    Plan p;
    p.tp = l.tp;
    p.pp = l.pp;
    p.dp = l.dp;
    p.zero = l.zero;
    p.micro_batches = 8 / l.dp;
    p.sequence_parallel = l.tp > 1;
    const Training t{
        .global_batch = 8, .sequence = 64, .precision = l.precision, .math = l.math, .dropout = l.dropout};
    const auto program = program::compile(preset_model(l.preset), p, t, Stack{});
    exec::RunOptions options;
    options.steps = 8;
    options.collectives = l.collectives;
    options.on_step = [&](std::int64_t step, const exec::StepReport&) {
      if (step == 3) {
        calls = bytes = 0;
        counting = true;
      }
      if (step == 6) counting = false;  // before the end, where results are gathered
    };
    exec::run(program, options);
    EXPECT_EQ(calls, 0) << bytes << " bytes under " << short_name(p);
  }
}

}  // namespace
}  // namespace orrery
