// SPDX-License-Identifier: Apache-2.0
//
// What a step computes, independent of how it is laid out: batch, sequence, precision, optimizer.
//
// Bytes per parameter of the named recipes (Rajbhandari et al. 2020 call the first one 16 Psi):
//
//   recipe      parameter  gradient  master  moments   sum
//   mixed           2          2        4       8       16   16-bit training with Adam, fp32 master
//   megatron        2          4        4       8       18   Megatron-LM: fp32 main gradients
//   no-master       2          2        0       8       12
//   pure-bf16       2          2        0       4        8   torch.optim's moments have the parameters' type
//   fp32            4          4        0       8       16
//   deepspeed-fp16  2          2        4       8       22   and 6 beside the master: gradients of the shard,
//                                                            averaged in fp16 and as the fp32 that Adam reads
//   deepspeed-bf16  2          4        4       8       22   and 4 beside the gradient: those in bf16, and
//                                                            as much again, which BigScience's runs show
//   adam-bf16       2          2        4       4       12   mixed, with moments in bf16
//   megatron-adam-bf16  2      4        4       4       14   megatron, with moments in bf16: DeepSeek-V3's
//                                                            (technical report, section 3.3.3)
//   precision-aware 2          4        2       4       12   Megatron-core's optimizer of this name with
//                                                            bf16 moments: of the fp32 master it keeps the
//                                                            16 bits that the parameter lacks
//   precision-aware-bf16  2    2        2       4       10   the same with gradients in bf16
//   adam-8bit       2          2        4       2       10   8-bit moments, and 4 bytes for 256 of each
//   pure-bf16-8bit  2          2        0       2        6   the same without a master copy
//   sgd             4          4        0       4       12   fp32, momentum
//
// ZeRO-1 shards master and moments, ZeRO-2 the gradient too, ZeRO-3 everything.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/adapter.h"
#include "core/documents.h"
#include "core/dtype.h"
#include "core/expert_load.h"
#include "core/fields.h"
#include "core/moments.h"
#include "core/muon.h"
#include "core/outer.h"
#include "core/rounding.h"

namespace orrery {

enum class Precision {
  kMixed,
  kMegatron,
  kDeepspeedFp16,
  kDeepspeedBf16,
  kNoMaster,
  kPureBf16,
  kFp32,
  kAdamBf16,
  kMegatronAdamBf16,
  kPrecisionAware,
  kPrecisionAwareBf16,
  kAdam8bit,
  kPureBf16Adam8bit,
  kSgd
};
// What weight decay shrinks: tensors of two dimensions, or norms and biases too.
enum class Decay { kMatrices, kAll };

constexpr auto enum_names(Precision) {
  return std::array{std::pair{Precision::kMixed, "mixed"},
                    std::pair{Precision::kMegatron, "megatron"},
                    std::pair{Precision::kDeepspeedFp16, "deepspeed-fp16"},
                    std::pair{Precision::kDeepspeedBf16, "deepspeed-bf16"},
                    std::pair{Precision::kNoMaster, "no-master"},
                    std::pair{Precision::kPureBf16, "pure-bf16"},
                    std::pair{Precision::kFp32, "fp32"},
                    std::pair{Precision::kAdamBf16, "adam-bf16"},
                    std::pair{Precision::kMegatronAdamBf16, "megatron-adam-bf16"},
                    std::pair{Precision::kPrecisionAware, "precision-aware"},
                    std::pair{Precision::kPrecisionAwareBf16, "precision-aware-bf16"},
                    std::pair{Precision::kAdam8bit, "adam-8bit"},
                    std::pair{Precision::kPureBf16Adam8bit, "pure-bf16-8bit"},
                    std::pair{Precision::kSgd, "sgd"}};
}
constexpr auto enum_names(Decay) {
  return std::array{std::pair{Decay::kMatrices, "matrices"}, std::pair{Decay::kAll, "all"}};
}

struct BytesPerParameter {
  std::int64_t parameter, gradient, master, moments;
  // What software keeps beside these: as long as gradients are, and of the elements that a rank updates.
  std::int64_t beside_gradient = 0, beside_master = 0;
  std::int64_t moment = 4;  // of one of them
  // Whether the master copy is parted: its upper 16 bits are the parameter, rounded to the nearest, and what
  // is kept beside it is the difference in units of the last place (kernels/cpu/moments.h).
  constexpr bool splits_master() const { return master == 2; }
  constexpr std::int64_t optimizer() const { return master + moments; }
  constexpr std::int64_t total() const {
    return parameter + gradient + master + moments + beside_gradient + beside_master;
  }
  constexpr MomentLayout moments_of(std::int64_t elements) const {
    return {elements, moments / moment, moment};
  }
  // Of master copies and moments of so many elements, with the scales of 8-bit moments.
  constexpr std::int64_t optimizer_of(std::int64_t elements) const {
    return elements * master + moments_of(elements).bytes();
  }
  // Bytes that an update reads and writes, and what LAMB reads before for the norm of Adam's update. Without
  // a whole master copy the parameter is read too.
  constexpr std::int64_t update_traffic() const {
    const bool has_whole_master = master > 0 && !splits_master();
    return gradient + 2 * optimizer() + (has_whole_master ? 1 : 2) * parameter;
  }
  constexpr std::int64_t trust_traffic() const {
    return gradient + moments + (master > 0 ? master : parameter);
  }
};

constexpr BytesPerParameter bytes_per_parameter(Precision p) {
  switch (p) {
    case Precision::kMixed:
      return {2, 2, 4, 8};
    case Precision::kMegatron:
      return {2, 4, 4, 8};
    case Precision::kDeepspeedFp16:
      return {.parameter = 2, .gradient = 2, .master = 4, .moments = 8, .beside_master = 6};
    case Precision::kDeepspeedBf16:
      return {.parameter = 2, .gradient = 4, .master = 4, .moments = 8, .beside_gradient = 4};
    case Precision::kNoMaster:
      return {2, 2, 0, 8};
    case Precision::kPureBf16:
      return {.parameter = 2, .gradient = 2, .master = 0, .moments = 4, .moment = 2};
    case Precision::kFp32:
      return {4, 4, 0, 8};
    case Precision::kAdamBf16:
      return {.parameter = 2, .gradient = 2, .master = 4, .moments = 4, .moment = 2};
    case Precision::kMegatronAdamBf16:
      return {.parameter = 2, .gradient = 4, .master = 4, .moments = 4, .moment = 2};
    case Precision::kPrecisionAware:
      return {.parameter = 2, .gradient = 4, .master = 2, .moments = 4, .moment = 2};
    case Precision::kPrecisionAwareBf16:
      return {.parameter = 2, .gradient = 2, .master = 2, .moments = 4, .moment = 2};
    case Precision::kAdam8bit:
      return {.parameter = 2, .gradient = 2, .master = 4, .moments = 2, .moment = 1};
    case Precision::kPureBf16Adam8bit:
      return {.parameter = 2, .gradient = 2, .master = 0, .moments = 2, .moment = 1};
    case Precision::kSgd:
      return {4, 4, 0, 4};
  }
  return {};
}

// Of parameters that Muon updates, which have one moment.
constexpr BytesPerParameter with_muon(BytesPerParameter bytes) {
  bytes.moments /= 2;
  return bytes;
}

// Bytes of an activation element.
constexpr std::int64_t activation_bytes(Precision p) {
  return bytes_per_parameter(p).parameter;
}

// The type of floats of so many bytes: what is narrower than fp32 has the format of matrix products.
constexpr DType float_type(std::int64_t bytes, Math math) {
  if (bytes >= 4) return DType::kFloat32;
  return math == Math::kFp16 ? DType::kFloat16 : DType::kBfloat16;
}

// AdamW (Loshchilov and Hutter 2019), and LAMB, which scales its update. The recipe "sgd" takes its momentum
// from beta1, and LARS scales its gradients (You et al. 2017, arXiv:1708.03888). Defaults are the constants
// that GPT-3 was trained with (Brown et al. 2020, appendix B).
struct Optimizer {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  Decay decay = Decay::kMatrices;
  double trust = 0.001;  // LARS's coefficient
};

// The keys and values of the tokens that serving has seen, which it keeps for the passes after.
struct KvCache {
  std::int64_t room = 0;           // tokens of a sequence that there is memory for
  std::int64_t cached = 0;         // tokens of a sequence before the pass, by which its ops are priced
  std::int64_t element_bytes = 2;  // 1: predicted only
  friend bool operator==(const KvCache&, const KvCache&) = default;
};

struct Training {
  std::int64_t global_batch = 1;     // sequences per optimizer step
  std::int64_t sequence = 2048;      // tokens per sequence
  std::int64_t target_sequence = 0;  // of a decoder's target; 0: as many as of the sequence
  double tokens = 0;                 // of the whole run; 0: unknown
  Precision precision = Precision::kMixed;
  Math math = Math::kBf16;
  double dropout = 0;                // probability; with it one-byte masks are kept
  bool stochastic_rounding = false;  // of updated bf16 parameters that have no master copy
  bool lamb = false;                 // Adam's update of each tensor is scaled to the tensor's norm
  bool lars = false;                 // SGD's gradient of each tensor is
  std::optional<Muon> muon;          // it updates matrices of layers
  double noise_scale = 0;            // of the gradient, in samples; 0: unknown
  double clip = 1.0;  // largest global gradient norm; 0: gradients are neither measured nor clipped
  Optimizer optimizer;
  std::optional<ExpertLoad> expert_load;
  std::optional<Documents> documents;   // that sequences are packed from
  std::optional<OuterOptimizer> outer;  // of plans with islands
  std::optional<Adapter> adapter;       // that alone are trained; nothing: all parameters are
  // There in place of a training step is a pass of serving (core/serving.h): `sequence` tokens of each
  // sequence go forward, and the successor of the last one is chosen. No field of files.
  std::optional<KvCache> cache;

  // Whether sequences are packed from documents; and of the pairs of tokens that causal attention with that
  // window (0: none) sees, those of one document.
  bool packs() const { return documents && !serves(); }
  double within_documents(std::int64_t window) const {
    return packs() ? DocumentLengths(*documents).share_seen(sequence, window) : 1;
  }
  bool serves() const { return cache.has_value(); }
  // Whether an update needs norms of single tensors.
  bool scales_tensors() const { return lamb || lars; }
  // Of parameters that Muon updates, or of the others.
  BytesPerParameter bytes_of(bool muon_updates) const {
    const BytesPerParameter all = bytes_per_parameter(precision);
    return muon_updates ? with_muon(all) : all;
  }
  // In which Muon computes, and its shards are gathered.
  DType muon_type() const {
    return bytes_per_parameter(precision).parameter >= 4 ? DType::kFloat32 : DType::kBfloat16;
  }
  DType activation_type() const { return float_type(activation_bytes(precision), math); }
  DType parameter_type() const { return float_type(bytes_per_parameter(precision).parameter, math); }
  DType gradient_type() const { return float_type(bytes_per_parameter(precision).gradient, math); }
  bool drops() const { return dropout > 0; }
  // fp16 has a narrow range: the loss is multiplied by a factor that follows the gradients' size.
  bool scales_loss() const { return activation_type() == DType::kFloat16; }
  // The global gradient norm is wanted for clipping, and to see gradients that overflowed.
  bool measures_norm() const { return clip > 0 || scales_loss(); }
  std::int64_t target_tokens() const { return target_sequence > 0 ? target_sequence : sequence; }
  double tokens_per_step() const { return static_cast<double>(global_batch) * static_cast<double>(sequence); }
};

template <class V>
void describe(V& v, Optimizer& o) {
  constexpr double kMostBeta = 0.999999;  // 1 - beta^n must not vanish in fp32
  v(Field{.name = "beta1",
          .help = "decay of the first moment; the momentum of the recipe sgd",
          .min = 0,
          .max = kMostBeta},
    o.beta1);
  v(Field{.name = "beta2", .help = "decay of the second moment", .min = 0, .max = kMostBeta}, o.beta2);
  v(Field{.name = "epsilon", .help = "added to the root of the second moment", .min = 1e-20, .max = 1},
    o.epsilon);
  v(Field{.name = "decay", .help = "tensors that weight decay shrinks: matrices leaves out norms and biases"},
    o.decay);
  v(Field{.name = "trust", .help = "LARS: the size of an update over that of its tensor", .min = 0, .max = 1},
    o.trust);
}

template <class V>
void describe(V& v, Training& t) {
  v(Field{.name = "global_batch",
          .help = "sequences per optimizer step",
          .min = 1,
          .max = 1 << 24,
          .required = true},
    t.global_batch);
  v(Field{.name = "sequence", .help = "tokens per sequence", .min = 1, .max = 1 << 24, .required = true},
    t.sequence);
  v(Field{.name = "target_sequence",
          .help = "tokens of the target of a model with a decoder; 0 means as many as of the sequence",
          .min = 0,
          .max = 1 << 24},
    t.target_sequence);
  v(Field{.name = "tokens", .help = "tokens of the whole run; 0 when unknown", .min = 0, .max = 1e18},
    t.tokens);
  v(Field{.name = "precision", .help = "recipe: bytes of parameter, gradient, master and moments"},
    t.precision);
  v(Field{.name = "math", .help = "number format of matrix products (core/rounding.h)"}, t.math);
  v(Field{.name = "dropout",
          .help = "probability of dropout after attention and MLP, and on attention scores",
          .min = 0,
          .max = 0.9},
    t.dropout);
  v(Field{.name = "stochastic_rounding",
          .help = "round updated parameters up or down at random, right on average; with no-master and bf16"},
    t.stochastic_rounding);
  v(Field{.name = "lamb",
          .help = "LAMB: Adam's update of each tensor is scaled to the tensor's norm; with recipes of Adam"},
    t.lamb);
  v(Field{.name = "lars",
          .help = "LARS: SGD's gradient of each tensor is scaled to the tensor's norm; with the recipe sgd"},
    t.lars);
  v(Field{.name = "muon",
          .help = "Muon updates matrices of layers, AdamW the rest; with recipes of Adam. Absent: AdamW all"},
    t.muon);
  v(Field{.name = "noise_scale",
          .help =
              "samples of a batch beyond which more hardly help, as orrery gradient-noise measures it; 0: "
              "unknown",
          .min = 0,
          .max = 1e12},
    t.noise_scale);
  v(Field{.name = "clip",
          .help = "largest global gradient norm; 0 neither measures nor clips",
          .min = 0,
          .max = 1e30},
    t.clip);
  v(Field{.name = "optimizer", .help = "constants of AdamW, LAMB, SGD and LARS"}, t.optimizer);
  v(Field{.name = "outer",
          .help = "how islands exchange what they have learned; for plans that have islands"},
    t.outer);
  v(Field{.name = "expert_load",
          .help = "how tokens fall on experts: dirichlet, hot or recorded; absent means evenly"},
    t.expert_load);
  v(Field{.name = "documents",
          .help = "lengths of the documents that sequences are packed from, outside of which a token sees "
                  "nothing: fixed, lognormal or recorded; absent means that it sees its whole sequence"},
    t.documents);
  v(Field{.name = "adapter",
          .help = "low-rank adapters (LoRA): they alone are trained; absent means all parameters"},
    t.adapter);
}

ORRERY_FIELDS(extern, Training);

}  // namespace orrery
