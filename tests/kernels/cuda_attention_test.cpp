// SPDX-License-Identifier: Apache-2.0
//
// Attention on the device against the reference: plain and fused, heads shared by queries, dropout, sizes
// that do and do not fill tiles. On a GPU and on the emulated device, as cuda_test.cpp.
#include "kernels/cuda/kernels.h"
#include "tests/kernels/closeness.h"
#include "tests/kernels/context_cases.h"

namespace orrery::kernels {
namespace {

struct AttentionCase {
  const char* name;
  DType type;
  reference::AttentionShape shape;
  bool packed = false;  // from documents
};
constexpr Dropout kDrops{.probability = 0.25, .seed = 77, .site = 4, .first_sample = 2};
const AttentionCase kAttentions[] = {
    {"fp32", DType::kFloat32, {2, 37, 4, 2, 24}},
    {"fp32_dropout", DType::kFloat32, {1, 37, 4, 2, 24, false, 4, kDrops}},
    {"fp32_materialised", DType::kFloat32, {1, 37, 4, 2, 24, true}},
    {"fp32_materialised_dropout", DType::kFloat32, {1, 37, 4, 2, 24, true, 4, kDrops}},
    {"bf16_materialised_dropout", DType::kBfloat16, {1, 37, 4, 2, 24, true, 4, kDrops}},
    {"fp32_window", DType::kFloat32, {1, 37, 4, 2, 24, false, 0, {}, 9}},
    {"fp32_sees_all_capped", DType::kFloat32, {1, 37, 4, 2, 24, false, 0, {}, 0, true, 0.5F, 0.3F}},
    {"fp32_materialised_window_capped", DType::kFloat32, {1, 37, 4, 2, 24, true, 0, {}, 9, false, 0.5F}},
    {"fp32_cross", DType::kFloat32, {2, 37, 4, 2, 24, false, 0, {}, 0, true, 0, 0.3F, 50}},
    {"fp32_cross_dropout", DType::kFloat32, {1, 37, 4, 2, 24, false, 4, kDrops, 0, true, 0, 0, 21}},
    {"fp32_cross_materialised_dropout",
     DType::kFloat32,
     {1, 37, 4, 2, 24, true, 4, kDrops, 0, true, 0, 0, 50}},
    {"fp32_narrow_values", DType::kFloat32, {1, 37, 4, 2, 24, false, 0, {}, 0, false, 0, 0, 0, 16}},
    {"fp32_materialised_wide_values", DType::kFloat32, {1, 37, 4, 4, 24, true, 0, {}, 0, false, 0, 0, 0, 40}},
    {"fp32_packed", DType::kFloat32, {2, 37, 4, 2, 24}, true},
    {"fp32_packed_window_dropout", DType::kFloat32, {2, 37, 4, 2, 24, false, 4, kDrops, 3}, true},
    {"fp32_packed_materialised_dropout", DType::kFloat32, {1, 37, 4, 2, 24, true, 4, kDrops}, true},
    {"bf16_packed_64", DType::kBfloat16, {2, 100, 2, 2, 64}, true},
    {"bf16_plain", DType::kBfloat16, {2, 37, 2, 2, 40}},
    {"bf16_flash_64", DType::kBfloat16, {2, 200, 2, 2, 64}},
    {"bf16_flash_64_one_tile", DType::kBfloat16, {1, 9, 1, 1, 64}},
    {"bf16_flash_128_grouped", DType::kBfloat16, {1, 256, 4, 2, 128}},
    {"fp16_flash_64_grouped", DType::kFloat16, {1, 129, 4, 1, 64}},
    {"fp16_flash_128", DType::kFloat16, {1, 65, 2, 2, 128}},
};

class Attention : public testing::TestWithParam<AttentionCase> {};

// Scores, probabilities and their gradients rounded to the type, as computing in it does.
struct Naive {
  Vector out, d_qkv;
};
Naive naive_attention(DType type, const reference::AttentionShape& s, const Vector& qkv,
                      const Vector& d_out) {
  const auto r = [&](double x) { return rounded(type, {static_cast<float>(x)})[0]; };
  Naive n{Vector(d_out.size()), Vector(qkv.size())};
  Vector& d = n.d_qkv;
  const Index width = s.width();
  const float scale = 1.0F / std::sqrt(static_cast<float>(s.head));
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) {
      const Index kv = h * s.kv / s.heads;
      const auto at = [&](Index token, Index of, Index e) {
        return static_cast<std::size_t>((b * s.seq + token) * width + of * s.head + e);
      };
      const Index k = s.heads + kv, v = s.heads + s.kv + kv;
      for (Index i = 0; i < s.seq; ++i) {
        Vector p(static_cast<std::size_t>(i + 1)), dp(p.size());
        const Index first = s.packed ? s.document[b * s.seq + i] : 0;
        const auto o = static_cast<std::size_t>(((b * s.seq + i) * s.heads + h) * s.head);
        double largest = -1e30, sum = 0, dot = 0;
        for (Index j = 0; j <= i; ++j) {
          double x = 0, y = 0;
          for (Index e = 0; e < s.head; ++e) {
            x += static_cast<double>(qkv[at(i, h, e)]) * qkv[at(j, k, e)];
            y += static_cast<double>(d_out[o + static_cast<std::size_t>(e)]) * qkv[at(j, v, e)];
          }
          p[static_cast<std::size_t>(j)] = j < first ? -1e30F : r(x * scale);
          dp[static_cast<std::size_t>(j)] = r(y);
          largest = std::max(largest, static_cast<double>(p[static_cast<std::size_t>(j)]));
        }
        for (float& x : p) sum += x = std::exp(x - static_cast<float>(largest));
        for (float& x : p) x = r(x / sum);
        for (Index e = 0; e < s.head; ++e) {
          double x = 0;
          for (Index j = 0; j <= i; ++j)
            x += static_cast<double>(p[static_cast<std::size_t>(j)]) * qkv[at(j, v, e)];
          n.out[o + static_cast<std::size_t>(e)] = r(x);
        }
        for (std::size_t j = 0; j < p.size(); ++j) dot += static_cast<double>(p[j]) * dp[j];
        for (Index j = 0; j <= i; ++j) {
          const float pj = p[static_cast<std::size_t>(j)];
          const float ds = r(pj * (dp[static_cast<std::size_t>(j)] - dot) * scale);
          for (Index e = 0; e < s.head; ++e) {
            d[at(i, h, e)] += ds * qkv[at(j, k, e)];
            d[at(j, k, e)] += ds * qkv[at(i, h, e)];
            d[at(j, v, e)] += pj * d_out[o + static_cast<std::size_t>(e)];
          }
        }
      }
    }
  }
  d = rounded(type, d);
  return n;
}

TEST_P(Attention, EqualsTheReferenceAndSoDoesItsGradient) {
  const auto& [name, type, shape, packed] = GetParam();
  TestDevice device;
  reference::AttentionShape s = shape;
  const std::vector<std::int32_t> starts = document_starts(s.batch, s.seq);
  s.packed = packed;
  s.document = device.put(starts);
  const Index tokens = s.batch * s.seq, n_out = tokens * s.heads * s.value_head();
  // Rows of keys in their own tensor stand behind the queries' rows.
  const Index n_q = tokens * s.query_width(), n_kv = s.other_seq > 0 ? s.batch * s.keys() * s.key_width() : 0;
  const Index n_qkv = n_q + n_kv, scores = s.batch * s.heads * s.seq * s.keys();
  const auto rows_in = [&](auto* first, Index size) {
    using Pointer = decltype(first);
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
    auto* const behind =
        reinterpret_cast<Pointer>(reinterpret_cast<Byte*>(first) + (n_kv > 0 ? n_q * size : 0));
    return reference::AttentionRows<Pointer>(first, behind);
  };
  const auto size = static_cast<Index>(bytes_of(type));
  const auto n_softmax =
      static_cast<std::size_t>(s.materialised ? (s.drops() ? 2 : 1) * scores : s.batch * s.heads * s.seq);
  const DType softmax_type = s.materialised ? type : DType::kFloat32;
  const Tensor qkv(device, type, n_qkv, 1, 2), d_out(device, type, n_out, 2);
  const Index* const step = device.put(std::vector<Index>{40});
  void* const out = device.allocate(static_cast<std::size_t>(n_out) * 4);
  void *const softmax = device.allocate(n_softmax * 4), *const d_qkv = device.allocate(
                                                            static_cast<std::size_t>(n_qkv) * 4);
  const bool masks = s.materialised && s.drops();
  auto* const mask =
      masks ? static_cast<std::uint8_t*>(device.allocate(static_cast<std::size_t>(scores))) : nullptr;
  const std::size_t bytes =
      std::max(cuda::attention_workspace(type, s), cuda::attention_grad_workspace(type, s));
  const cuda::Workspace workspace{device.allocate(bytes), bytes};
  cuda::attention(device.stream, type, s, step, rows_in(static_cast<const void*>(qkv.at), size), out, softmax,
                  mask, workspace);
  cuda::attention_grad(device.stream, type, s, step, rows_in(static_cast<const void*>(qkv.at), size), out,
                       softmax, mask, d_out.at, rows_in(d_qkv, size), workspace);

  s.dropout.first_sample += 40;
  s.document = starts.data();
  Vector out_here(static_cast<std::size_t>(n_out)), softmax_here(n_softmax),
      d_here(static_cast<std::size_t>(n_qkv));
  std::vector<std::uint8_t> mask_here(static_cast<std::size_t>(scores));
  reference::attention(s, rows_in(qkv.data(), 4), out_here.data(), softmax_here.data(), mask_here.data());
  reference::attention_grad(s, rows_in(qkv.data(), 4), out_here.data(), softmax_here.data(), mask_here.data(),
                            d_out.data(), rows_in(d_here.data(), 4));
  const bool half = is_half(type);
  const Naive naive = half && !s.drops() ? naive_attention(type, s, qkv.values, d_out.values) : Naive{};
  const auto close = [&](const Vector& actual, const Vector& expected, const Vector& of_naive,
                         const char* what) {
    if (!of_naive.empty()) return expect_close(actual, expected, of_naive, what);
    EXPECT_LE(distance(actual, expected), half ? 0.01 : 1e-5) << what;
  };
  close(device.get(type, out, out_here.size()), out_here, naive.out, "out");
  expect_close(softmax_type, device.get(softmax_type, softmax, n_softmax), softmax_here, "softmax");
  if (masks) {
    EXPECT_EQ(device.get<std::uint8_t>(mask, mask_here.size()), mask_here);
  }
  close(device.get(type, d_qkv, d_here.size()), d_here, naive.d_qkv, "d_qkv");
}

// Of ranks that share sequences.
ContextKernels on_device(DType type) {
  const auto put = [](TestDevice& device, DType as, const Floats& v) { return device.put(as, v); };
  const auto floats = [](void* p) { return static_cast<float*>(p); };
  const auto on = [](TestDevice& device, ContextShape s) {
    s.dropout.first_sample -= 1;  // counted from the step's first
    s.document = device.put(std::vector<std::int32_t>(s.document, s.document + s.batch * s.sequence()));
    return s;
  };
  return {[=](const ContextShape& shape, const Floats& q, const Floats& kv, const Floats& sums, Floats& out,
              Floats& lse) {
            TestDevice device;
            const ContextShape s = on(device, shape);
            const Index* const step = device.put(std::vector<Index>{1});
            void* const to = put(device, DType::kFloat32, sums);
            void* const of_lse = put(device, DType::kFloat32, lse);
            cuda::context_attention(device.stream, type, DType::kFloat32, s, step, put(device, type, q),
                                    put(device, type, kv), floats(to), to, floats(of_lse));
            out = device.get(DType::kFloat32, to, out.size());
            lse = device.get(DType::kFloat32, of_lse, lse.size());
          },
          [=](const ContextShape& shape, const Floats& q, const Floats& kv, const Floats& out,
              const Floats& lse, const Floats& d_out, Floats& dq, Floats& dkv) {
            TestDevice device;
            const ContextShape s = on(device, shape);
            const Index* const step = device.put(std::vector<Index>{1});
            void *const to_q = put(device, type, dq), *const to_kv = put(device, type, dkv);
            cuda::context_attention_grad(device.stream, type, s, step, put(device, type, q),
                                         put(device, type, kv), put(device, type, out),
                                         floats(put(device, DType::kFloat32, lse)), put(device, type, d_out),
                                         to_q, to_kv);
            dq = device.get(type, to_q, dq.size());
            dkv = device.get(type, to_kv, dkv.size());
          }};
}

class ContextAttention : public testing::TestWithParam<ContextCase> {};

TEST_P(ContextAttention, IsTheWholes) {
  const ContextErrors e = context_errors(GetParam(), on_device(DType::kFloat32));
  EXPECT_LT(e.out, 2e-6);
  EXPECT_LT(e.dq, 4e-6);
  EXPECT_LT(e.dkv, 4e-6);
  // Numbers and gradients of 8 bits, rounded at each step.
  const ContextErrors half = context_errors(GetParam(), on_device(DType::kBfloat16));
  EXPECT_LT(std::max({half.out, half.dq, half.dkv}), 0.03);
}
INSTANTIATE_TEST_SUITE_P(Cases, ContextAttention, testing::ValuesIn(kContextCases),
                         [](const auto& of) { return std::string(of.param.name); });

TEST(Heads, PackAndUnpackOnTheDevice) {
  TestDevice device;
  const HeadsShape s{.tokens = 5, .heads = 8, .kv = 4, .head = 6, .value = 4, .parts = 2};
  const Index queries = 5 * 8 * 6, keys = 5 * 4 * 10, context = 5 * 8 * 4;
  const Tensor qkv(device, DType::kBfloat16, queries + keys, 1), ctx(device, DType::kBfloat16, context, 2);
  const auto room = [&](Index n) { return device.allocate(static_cast<std::size_t>(2 * n)); };
  const auto get = [&](void* p, Index n) {
    return device.get(DType::kBfloat16, p, static_cast<std::size_t>(n));
  };
  void *const q = room(queries), *const kv = room(keys), *const back = room(queries + keys);
  cuda::heads_pack(device.stream, DType::kBfloat16, s, qkv.at, q, kv);
  cuda::heads_pack_grad(device.stream, DType::kBfloat16, s, q, kv, back);
  Vector q_here(static_cast<std::size_t>(queries)), kv_here(static_cast<std::size_t>(keys));
  heads_pack(s, qkv.data(), q_here.data(), kv_here.data());
  EXPECT_EQ(get(q, queries), q_here);
  EXPECT_EQ(get(kv, keys), kv_here);
  EXPECT_EQ(get(back, queries + keys), qkv.values);
  void *const whole = room(context), *const parts = room(context);
  cuda::heads_unpack(device.stream, DType::kBfloat16, s, ctx.at, whole);
  cuda::heads_unpack_grad(device.stream, DType::kBfloat16, s, whole, parts);
  Vector whole_here(static_cast<std::size_t>(context));
  heads_unpack(s, ctx.data(), whole_here.data());
  EXPECT_EQ(get(whole, context), whole_here);
  EXPECT_EQ(get(parts, context), ctx.values);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention, testing::ValuesIn(kAttentions),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace orrery::kernels
