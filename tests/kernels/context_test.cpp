// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/context_cases.h"

#include <numeric>
#include <set>

namespace orrery::kernels {
namespace {

ContextKernels on_cpu() {
  return {[](const ContextShape& s, const Floats& q, const Floats& kv, const Floats& sums, Floats& out,
             Floats& lse) { context_attention(s, q.data(), kv.data(), sums.data(), out.data(), lse.data()); },
          [](const ContextShape& s, const Floats& q, const Floats& kv, const Floats& out, const Floats& lse,
             const Floats& d_out, Floats& dq, Floats& dkv) {
            context_attention_grad(s, q.data(), kv.data(), out.data(), lse.data(), d_out.data(), dq.data(),
                                   dkv.data());
          }};
}

class ContextAttention : public testing::TestWithParam<ContextCase> {};

TEST_P(ContextAttention, IsTheWholes) {
  const ContextErrors e = context_errors(GetParam(), on_cpu());
  EXPECT_LT(e.out, 2e-6);
  EXPECT_LT(e.dq, 4e-6);
  EXPECT_LT(e.dkv, 4e-6);
}
INSTANTIATE_TEST_SUITE_P(Cases, ContextAttention, testing::ValuesIn(kContextCases),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

// Keys that are taken for another rank's are seen by other queries.
TEST(ContextAttentionControl, AnotherOrderOfTheRingIsNoticed) {
  const ContextErrors e = context_errors({"ring_4", 4, 1, true}, on_cpu(), 1);
  EXPECT_GT(e.out, 1e-2);
  EXPECT_GT(e.dkv, 1e-2);
}

// All ranks together have each token once, and under a causal mask all see as many keys: of 2c parts of n
// tokens rank r has parts r and 2c - 1 - r, whose tokens see n (r + 1/2) + n (2c - 1 - r + 1/2) = 2cn keys on
// the mean.
TEST(TokenShare, EveryRankSeesAsManyKeys) {
  for (const auto& [ring, ulysses] : {std::pair<Index, Index>{1, 1}, {4, 1}, {1, 4}, {3, 2}}) {
    constexpr Index kTokens = 6;
    std::set<Index> all;
    for (Index r = 0; r < ring; ++r) {
      Index seen = 0;
      for (Index u = 0; u < ulysses; ++u) {
        const TokenShare share = token_share(kTokens, ring, ulysses, r, u);
        for (Index t = 0; t < kTokens; ++t) {
          all.insert(share.position(t));
          seen += share.position(t) + 1;
        }
      }
      // The tokens of a place in the ring exchange heads, and see keys together.
      const Index sequence = kTokens * ring * ulysses, own = kTokens * ulysses;
      EXPECT_EQ(2 * seen, own * (sequence + 1)) << "rank " << r << " of " << ring << " x " << ulysses;
    }
    EXPECT_EQ(std::ssize(all), kTokens * ring * ulysses);
    EXPECT_EQ(*all.rbegin(), kTokens * ring * ulysses - 1);
  }
}

// Two ranks' shares of the heads of a token, and back.
TEST(Heads, PackAndUnpack) {
  const HeadsShape s{.tokens = 2, .heads = 4, .kv = 2, .head = 1, .value = 1, .parts = 2};
  // Per token: q0 q1 q2 q3 k0 k1 v0 v1.
  Floats qkv(16), q(8), kv(8), back(16);
  std::iota(qkv.begin(), qkv.end(), 0.0F);
  heads_pack(s, qkv.data(), q.data(), kv.data());
  EXPECT_EQ(q, (Floats{0, 1, 8, 9, 2, 3, 10, 11}));
  EXPECT_EQ(kv, (Floats{4, 6, 12, 14, 5, 7, 13, 15}));
  heads_pack_grad(s, q.data(), kv.data(), back.data());
  EXPECT_EQ(back, qkv);
  Floats whole(8), parts(8);
  heads_unpack(s, q.data(), whole.data());
  EXPECT_EQ(whole, (Floats{0, 1, 2, 3, 8, 9, 10, 11}));
  heads_unpack_grad(s, whole.data(), parts.data());
  EXPECT_EQ(parts, q);
}

}  // namespace
}  // namespace orrery::kernels
