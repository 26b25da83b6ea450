// SPDX-License-Identifier: Apache-2.0
//
// What adapters add to a program, and what frozen weights leave out of it, counted by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/model.h"
#include "program/check.h"
#include "program/program.h"
#include "tests/program/small_model.h"

namespace orrery::program {
namespace {

Training training(std::vector<AdapterTarget> targets, std::int64_t rank = 4) {
  return {.global_batch = 4,
          .sequence = 8,
          .precision = Precision::kFp32,
          .math = Math::kFp32,
          .adapter = Adapter{.rank = rank, .alpha = 8, .targets = std::move(targets)}};
}

Program compiled(const Training& t, Plan p = {.micro_batches = 4}) {
  const Model m = small_llama();
  check_plan(m, p, t, {"plan", ""});
  Program out = compile(m, p, t, Stack{});
  EXPECT_EQ(check(out), std::vector<std::string>());
  return out;
}

std::multiset<std::string> names(const Program& p, SegmentKind kind) {
  std::multiset<std::string> out;
  for (const Segment& s : p.classes.front().segments) {
    if (s.kind != kind || !s.last_micro_batch) continue;
    for (const Op& op : s.ops) out.insert(op.name);
  }
  return out;
}

double flops(const Program& p, SegmentKind kind) {
  double sum = 0;
  for (const Segment& s : p.classes.front().segments) {
    if (s.kind != kind || (kind != SegmentKind::kForward && !s.last_micro_batch)) continue;
    for (const Op& op : s.ops) sum += op.flops;
  }
  return sum;
}

TEST(Adapters, ParametersAreThoseOfThinMatrices) {
  using enum AdapterTarget;
  // Of rank 4: q 4 (64 + 64), k and v 4 (32 + 64) each, o 4 (64 + 64), gate and up 4 (128 + 64) each, down
  // 4 (64 + 128).
  const Model m = small_llama();
  const auto count = [&](std::vector<AdapterTarget> targets) {
    return count_adapter_parameters(m, {.rank = 4, .targets = std::move(targets)});
  };
  EXPECT_EQ(count({kQuery, kValue}), 2 * (512 + 384));
  EXPECT_EQ(count({}), 2 * (512 + 2 * 384 + 512 + 2 * 768 + 768));
  // Llama-2-70B with r = 16 on q and v: 80 layers of 16 (8192 + 8192) and 16 (1024 + 8192): 32.8 M, 0.048 %.
  const Model large = preset_model("llama-2-70b");
  EXPECT_EQ(count_adapter_parameters(large, {.rank = 16, .targets = {kQuery, kValue}}),
            80 * 16 * (8192 + 8192 + 1024 + 8192));
  EXPECT_NEAR(80.0 * 16 * 25600 / static_cast<double>(count_parameters(large)), 0.00048, 0.00001);
}

// The program has as many as the model says, of whatever targets, and nothing else is trained.
TEST(Adapters, ProgramsTrainThemAlone) {
  for (const char* preset : {"tiny-llama", "tiny-gpt"}) {
    const Model m = preset_model(preset);
    for (const auto& [target, name] : enum_names(AdapterTarget{})) {
      const Adapter adapter{.rank = 3, .targets = {target}};
      Training t = training({target}, 3);
      const Program p = compile(m, {.micro_batches = 4}, t, Stack{});
      std::int64_t trained = 0, frozen = 0;
      for (const Parameter& of : p.classes.front().parameters)
        (of.kept == Kept::kTrained ? trained : frozen) += of.local_elements();
      EXPECT_EQ(trained, count_adapter_parameters(m, adapter)) << preset << ' ' << name;
      EXPECT_EQ(frozen, count_parameters(m)) << preset << ' ' << name;
    }
  }
}

// With adapters on q and v, a layer's backward has no weight gradients but theirs; and of the first layer no
// gradient goes further down than to its q and v.
TEST(Adapters, BackwardStopsWhereNothingBelowTrains) {
  const Program p = compiled(training({AdapterTarget::kQuery, AdapterTarget::kValue}));
  const auto backward = names(p, SegmentKind::kBackward);
  for (const std::string& name : backward) {
    EXPECT_EQ(name.find("/wgrad") != std::string::npos,
              name.find("/lora_") != std::string::npos && name.ends_with("/wgrad"))
        << name;
    EXPECT_EQ(name.find("embedding"), std::string::npos) << name;
  }
  EXPECT_EQ(backward.count("layer1/attn/qkv/dgrad"), 1U);
  EXPECT_EQ(backward.count("layer1/attn/norm/grad"), 1U);
  EXPECT_EQ(backward.count("layer0/attn/core/grad"), 1U);
  EXPECT_EQ(backward.count("layer0/attn/qkv/lora_b/wgrad"), 1U);
  EXPECT_EQ(backward.count("layer0/attn/qkv/lora_a/wgrad"), 1U);
  for (const char* none : {"layer0/attn/qkv/dgrad", "layer0/attn/qkv/lora_a/dgrad", "layer0/attn/norm/grad"})
    EXPECT_EQ(backward.count(none), 0U) << none;
  // In the first layer's MLP gradients go through the products, which have no weight gradients.
  EXPECT_EQ(backward.count("layer0/mlp/fc1/dgrad"), 1U);
  EXPECT_EQ(backward.count("layer0/mlp/fc1/wgrad"), 0U);
}

// Negative control: with all parameters trained, all of these are there.
TEST(Adapters, WithoutThemAllIsTrained) {
  Training t = training({});
  t.adapter.reset();
  const auto backward = names(compiled(t), SegmentKind::kBackward);
  for (const char* name :
       {"layer0/attn/qkv/dgrad", "layer0/attn/norm/grad", "layer0/mlp/fc1/wgrad", "embedding/grad"})
    EXPECT_EQ(backward.count(name), 1U) << name;
}

// A micro-batch of 8 tokens. A layer's matrices have 64 (64 + 64) + 64 64 + 3 * 64 * 128 = 36,864 elements,
// the head 64 * 256; attention is 4 * 8 * 8 * 64 forward, of which a causal kernel computes half of the
// pairs, and 2.5 times as much backward (its scores are computed again). Adapters of rank 4 on all matrices
// have 4,096 parameters a layer.
TEST(Adapters, FlopsAreTwoThirdsOfProductsAndThoseOfAdapters) {
  const Program p = compiled(training({}));
  const double tokens = 8, layer = 64 * 128 + 64 * 64 + 3 * 64 * 128, head = 64 * 256, adapters = 4096;
  Training all = training({});
  all.adapter.reset();
  const Program whole = compiled(all);
  const double attention = flops(whole, SegmentKind::kForward) - 2 * tokens * (2 * layer + head);
  const double attention_back = flops(whole, SegmentKind::kBackward) - 4 * tokens * (2 * layer + head);
  EXPECT_EQ(flops(p, SegmentKind::kForward), 2 * tokens * (2 * (layer + adapters) + head) + attention);
  // The first layer's queries, keys, values and their adapters give no gradient of their input: 64 * 128
  // elements, and three A of 4 * 64.
  EXPECT_EQ(flops(p, SegmentKind::kBackward),
            2 * tokens * (2 * layer + head - 64 * 128 + 2 * 2 * adapters - 3 * 4 * 64) + attention_back);
  // The model's FLOPs, by which MFU is counted, know nothing of what the first layer leaves out.
  EXPECT_DOUBLE_EQ(
      model_flops_per_sequence(small_llama(), training({}), AttentionFlops::kFull).value,
      4 * tokens * (2 * layer + head) + 3 * 2 * 4 * tokens * tokens * 64 + 6 * tokens * 2 * adapters);
}

// Of each rank: all parameters, and of adapters alone gradients and moments, 4 + 8 bytes.
TEST(Adapters, FrozenWeightsHaveNoState) {
  const Model m = small_llama();
  const Program p = compiled(training({}));
  std::array<std::int64_t, kBufferClasses> bytes{};
  for (const Buffer& b : p.classes.front().buffers) {
    if (b.life == Life::kStatic) bytes[static_cast<std::size_t>(b.cls)] += b.bytes.value * b.instances;
  }
  const std::int64_t adapters = 2 * 4096;
  EXPECT_EQ(bytes[static_cast<std::size_t>(BufferClass::kParameter)], 4 * (count_parameters(m) + adapters));
  EXPECT_EQ(bytes[static_cast<std::size_t>(BufferClass::kGradient)], 4 * adapters);
  EXPECT_EQ(bytes[static_cast<std::size_t>(BufferClass::kOptimizer)], 8 * adapters);
}

// In 4 bits a layer's matrices are 36,864 elements: 18,432 bytes of codes and 576 scales, of 4 bytes or of a
// byte with a factor for each matrix (of 8,192, 4,096, 16,384 and 8,192 elements, at most 256 * 64: one
// factor) and a mean, of 16 bytes each as they are stored.
TEST(Adapters, MatricesInFourBits) {
  Training t = training({});
  const auto parameter_bytes = [&](BaseStorage base) {
    t.adapter->base = base;
    const Program p = compiled(t);
    std::int64_t bytes = 0, wide = 0;
    for (const Buffer& b : p.classes.front().buffers) {
      if (b.cls == BufferClass::kParameter) bytes += b.bytes.value;
    }
    for (const Parameter& of : p.classes.front().parameters) {
      if (!is_quantised(of.kept)) wide += 4 * of.local_elements();
    }
    return bytes - wide;
  };
  EXPECT_EQ(parameter_bytes(BaseStorage::kAsComputed), 0);
  EXPECT_EQ(parameter_bytes(BaseStorage::kNf4), 2 * (18'432 + 4 * 576));
  EXPECT_EQ(parameter_bytes(BaseStorage::kNf4Double), 2 * (18'432 + 576 + 4 * (16 + 16)));
  // Each matrix is made before each product that reads it: forward, and backward but for the first layer's
  // queries, keys and values, whose input wants no gradient.
  const Program p = compiled(t);
  int forward = 0, backward = 0;
  for (const Segment& s : p.classes.front().segments) {
    for (const Op& op : s.ops) {
      if (!op.is<ops::Dequantise>()) continue;
      (s.kind == SegmentKind::kForward ? forward : backward) +=
          s.kind == SegmentKind::kForward || s.last_micro_batch;
    }
  }
  EXPECT_EQ(forward, 8);
  EXPECT_EQ(backward, 7);
}

// Four replicas exchange the gradients of adapters, and of nothing else: 4 bytes for each parameter.
TEST(Adapters, ReplicasExchangeTheirGradientsAlone) {
  const Program p = compiled(training({}), {.dp = 4});
  std::int64_t payload = 0;
  for (const Segment& s : p.classes.front().segments) {
    for (const Op& op : s.ops) {
      if (op.is<ops::Collective>() && op.group == p.communication.group("dp")) payload += op.payload.value;
    }
  }
  EXPECT_EQ(payload, 4 * 2 * 4096);
}

// Two tensor ranks with sequence parallelism. Beside qkv, h is made of a rank's own tokens and gathered: r
// columns in place of 64. Beside out, parts of h stay parts: one reduce-scatter completes both products.
TEST(Adapters, TensorRanksExchangeThinValues) {
  const auto collectives = [](const Program& p) {
    const Segment& forward = p.classes.front().segments.front();
    std::vector<std::pair<std::string, std::int64_t>> of;
    for (const Op& op : forward.ops) {
      if (op.is<ops::Collective>() && op.layer == 0 && op.name.find("attn") != std::string::npos)
        of.emplace_back(op.name, op.payload.value);
    }
    return of;
  };
  using Found = std::vector<std::pair<std::string, std::int64_t>>;
  const Plan two{.tp = 2, .sequence_parallel = true, .micro_batches = 4};
  const std::int64_t tokens = 8;
  EXPECT_EQ(collectives(compiled(training({AdapterTarget::kQuery, AdapterTarget::kOutput}), two)),
            (Found{{"layer0/attn/qkv/input/all-gather", tokens * 64 * 4},
                   {"layer0/attn/qkv/lora_b/input/all-gather", tokens * 4 * 4},
                   {"layer0/attn/out/lora_b/reduce-scatter", tokens * 64 * 4}}));
}

}  // namespace
}  // namespace orrery::program
