// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pointwise.h"

namespace orrery::kernels {

namespace baseline {
extern const Pointwise kPointwise;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Pointwise kPointwise;
}
namespace avx512 {
extern const Pointwise kPointwise;
}
#endif

const Pointwise& pointwise() {
#if defined(__x86_64__)
  static const Pointwise& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
                                     ? avx512::kPointwise
                                 : __builtin_cpu_supports("avx2") ? avx2::kPointwise
                                                                  : baseline::kPointwise;
  return best;
#else
  return baseline::kPointwise;
#endif
}

}  // namespace orrery::kernels
