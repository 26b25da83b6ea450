// SPDX-License-Identifier: Apache-2.0
//
// A stack: how some software runs a plan. It changes the op list and the costs, so it is an input of
// compile. "orrery" is the stack our engine executes; the others describe other people's software and
// are for prediction only. Files live in profiles/stacks/.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/capabilities.h"
#include "core/device.h"
#include "core/fields.h"

namespace orrery {

enum class Launch { kEager, kGraph };
constexpr auto enum_names(Launch) {
  return std::array{std::pair{Launch::kEager, "eager"}, std::pair{Launch::kGraph, "graph"}};
}

// What the loss keeps for its gradient.
enum class LossKeeps {
  kLogits,         // as they are, and two numbers a row; the gradient is written over them
  kLogitsApart,    // likewise, but the gradient has memory of its own
  kProbabilities,  // in fp32, over the exponentials that they are made from
  kBoth            // log-probabilities in fp32, beside the fp32 logits that they are made from
};
constexpr auto enum_names(LossKeeps) {
  return std::array{
      std::pair{LossKeeps::kLogits, "logits"}, std::pair{LossKeeps::kLogitsApart, "logits-apart"},
      std::pair{LossKeeps::kProbabilities, "probabilities"}, std::pair{LossKeeps::kBoth, "both"}};
}

constexpr bool keeps_logits(LossKeeps k) {
  return k == LossKeeps::kLogits || k == LossKeeps::kLogitsApart;
}

struct Stack {
  std::string name = "orrery";
  bool executable = false;                                         // our engine runs it
  bool flash_attention = true;                                     // no s*s scores in memory
  AttentionKernels attention_kernels = AttentionKernels::kNewest;  // where scores are not in memory
  bool overlap_grad_reduce = true;  // buckets are reduced while the backward pass goes on
  bool overlap_tp = true;           // the backward all-reduce runs beside the weight gradient
  LossKeeps loss_keeps = LossKeeps::kLogits;
  Bytes bucket{25 << 20};  // gradient bytes that start a reduction
  Launch launch = Launch::kEager;
  bool fused_gelu = false;  // matrix products compute GELU and its gradient
  // The product that makes a weight's gradient sums that of the bias beside it.
  bool fused_bias_gradients = false;
  bool fused_residual_norms = false;  // the end of a residual branch is one kernel with the norm behind it
  // Element-wise ops are a framework's own, one by one, and each keeps what its gradient reads: a norm its
  // input in fp32, and what it makes of that before a trained weight; a gated activation the activated half.
  bool eager_activations = false;
  bool norms_in_products = false;   // the product behind a norm does it, and keeps what it makes
  double elementwise_passes = 1.0;  // memory passes of element-wise work over a fully fused stack
  double routing_passes = 1.0;      // likewise of routers, permutations and activations of experts
  double dequantise_passes = 1.0;   // likewise of what makes weights from 4 bits
  // Of updates by the host's processors, memory traffic over that of one fused pass; and whether the master
  // copies of what is updated there stay on the device too.
  double host_update_passes = 1.0;
  bool keeps_offloaded_master = false;
  // Products that round their operands (core/rounding.h): reads of operands for rounding, and writes of
  // rounded ones, relative to one for every product that takes them.
  double rounding_reads = 1.0, rounding_writes = 1.0;
  double host_cost_factor = 1.0;  // host time per op over the device profile's
  // What each member of a group adds to the time of its collectives beside what passes: software that waits
  // for its device before or after them, or that issues a call for each member.
  Time collective_sync{0};
  // Multiprocessors that kernels which exchange tokens between the ranks of experts keep from compute while
  // they run.
  std::int64_t exchange_units = 0;
  // Before each forward and backward of a pipeline's stage, once what it needs has arrived: software that
  // waits for its host, or for its peers.
  Time handover{0};
  // Of serving software, for each pass over the tokens of a batch: it schedules the next one, samples, and
  // hands tokens out, while its device waits.
  Time pass_overhead{0};
  Bytes context{600 << 20};          // CUDA context and libraries
  Bytes communicator{256 << 20};     // per communicator group a rank belongs to
  double allocator_overhead = 1.04;  // reserved over live bytes
  // 80 % of measured runs took between these multiples of what was predicted with this stack; absent: what
  // published runs say (Problem::measured).
  std::optional<double> measured_low, measured_high;
  std::optional<Capabilities> runs;  // what the software can do; absent: everything
  std::map<std::string, std::string> origin;
  std::string file;  // that it was read from, for messages
};

template <class V>
void describe(V& v, Stack& s) {
  v(Field{.name = "name", .help = "name of the stack", .required = true}, s.name);
  v(Field{.name = "executable", .help = "whether orrery run accepts plans compiled for it"}, s.executable);
  v(Field{.name = "flash_attention", .help = "fused attention: no s*s scores in memory"}, s.flash_attention);
  v(Field{.name = "attention_kernels", .help = "generation of the fused attention kernels"},
    s.attention_kernels);
  v(Field{.name = "overlap_grad_reduce", .help = "reduce gradient buckets during the backward pass"},
    s.overlap_grad_reduce);
  v(Field{.name = "overlap_tp",
          .help = "run the backward tensor-parallel collective beside the weight gradient"},
    s.overlap_tp);
  v(Field{.name = "loss_keeps", .help = "what the loss keeps for its gradient"}, s.loss_keeps);
  v(Field{.name = "bucket",
          .help = "gradient bytes that start a reduction",
          .min = 1,
          .max = limits::kLargestBuffer},
    s.bucket);
  v(Field{.name = "launch", .help = "how work reaches a device: op by op (eager), or as graphs"}, s.launch);
  v(Field{.name = "fused_gelu", .help = "matrix products compute GELU and its gradient as they write"},
    s.fused_gelu);
  v(Field{.name = "fused_bias_gradients",
          .help = "the product that makes a weight's gradient sums its bias's"},
    s.fused_bias_gradients);
  v(Field{.name = "fused_residual_norms",
          .help = "the sum that ends a residual branch and the norm behind it are one kernel"},
    s.fused_residual_norms);
  v(Field{.name = "eager_activations",
          .help = "element-wise ops are a framework's own and keep more: norms their input in fp32, gated "
                  "activations the activated half"},
    s.eager_activations);
  v(Field{.name = "norms_in_products",
          .help = "norms belong to the products behind them, so that these keep what norms make"},
    s.norms_in_products);
  v(Field{.name = "elementwise_passes",
          .help = "memory traffic of element-wise ops relative to a fully fused stack",
          .min = 0.1,
          .max = 20},
    s.elementwise_passes);
  v(Field{.name = "routing_passes",
          .help = "memory traffic of what routes tokens to experts relative to a fully fused stack",
          .min = 0.1,
          .max = 20},
    s.routing_passes);
  v(Field{.name = "dequantise_passes",
          .help = "time of making weights from 4 bits over that of moving their bytes",
          .min = 1,
          .max = 100},
    s.dequantise_passes);
  v(Field{.name = "host_update_passes",
          .help = "memory traffic of updates by the host's processors relative to one fused pass",
          .min = 1,
          .max = 100},
    s.host_update_passes);
  v(Field{.name = "keeps_offloaded_master",
          .help = "whether master copies of parameters that the host updates stay on the device too"},
    s.keeps_offloaded_master);
  v(Field{.name = "rounding_reads",
          .help = "reads of operands for rounding, relative to one for every product",
          .min = 0,
          .max = 10},
    s.rounding_reads);
  v(Field{.name = "rounding_writes",
          .help = "writes of rounded operands, relative to one for every product",
          .min = 0,
          .max = 10},
    s.rounding_writes);
  v(Field{.name = "host_cost_factor",
          .help = "host time per op relative to the device profile",
          .min = 0,
          .max = 1000},
    s.host_cost_factor);
  v(Field{.name = "collective_sync",
          .help = "what each member of a group adds to the time of a collective",
          .min = 0,
          .max = limits::kLongestLatency},
    s.collective_sync);
  v(Field{.name = "exchange_units",
          .help = "multiprocessors that exchanges of tokens keep from compute while they run",
          .min = 0,
          .max = 100000},
    s.exchange_units);
  v(Field{.name = "handover",
          .help = "what the software takes before each forward and backward of a pipeline's stage",
          .min = 0,
          .max = limits::kLongestLatency},
    s.handover);
  v(Field{.name = "pass_overhead",
          .help = "what serving software takes for each pass over the tokens of a batch, its device waiting",
          .min = 0,
          .max = limits::kLongestLatency},
    s.pass_overhead);
  v(Field{.name = "context",
          .help = "memory of context and libraries",
          .min = 0,
          .max = limits::kLargestBuffer},
    s.context);
  v(Field{.name = "communicator",
          .help = "memory per communicator group of a rank",
          .min = 0,
          .max = limits::kLargestBuffer},
    s.communicator);
  v(Field{.name = "allocator_overhead", .help = "reserved bytes over live bytes", .min = 1, .max = 4},
    s.allocator_overhead);
  v(Field{.name = "measured_low",
          .help = "10th percentile of measured over predicted step time",
          .min = 0.01,
          .max = 1000},
    s.measured_low);
  v(Field{.name = "measured_high",
          .help = "90th percentile of measured over predicted step time",
          .min = 0.01,
          .max = 1000},
    s.measured_high);
  v(Field{.name = "runs", .help = "plans that the software runs; without it every plan is taken"}, s.runs);
  v(Field{.name = "origin", .help = "where each value comes from"}, s.origin);
}

ORRERY_FIELDS(extern, Stack);

}  // namespace orrery
