// SPDX-License-Identifier: Apache-2.0
//
// A published training run as data sets have it (tests/data/README.md). Zero, an empty text and false mean
// that the row does not say. Internal to sim/calibration/.
#pragma once

#include <string>
#include <vector>

#include "core/model.h"
#include "core/plan.h"

namespace orrery::sim {

// Whether a field says anything, whatever its type: it is neither null, false nor empty.
struct Said {
  bool something = false;
};
template <class V>
void describe(V&, Said&) {}
inline bool read_custom(const Json& json, const Cursor&, Said& out) {
  out.something =
      !json.is_null() && json != Json(false) && !(json.is_structured() && json.empty()) && json != Json("");
  return true;
}

struct RowExperts {
  static constexpr bool kForeign = true;
  std::int64_t experts = 0, topk = 0, shared = 0, expert_ffn = 0, dense_layers = 0, interleave = 1;
};
struct RowModel {
  static constexpr bool kForeign = true;
  std::string name;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn_hidden = 0, vocab = 50257, seq_len = 0;
  bool gated_mlp = false;
  std::optional<bool> tied_embeddings;
  std::int64_t mtp_layers = 0;
  RowExperts moe;
  std::string attention;
  Said arch;
};
struct RowParallel {
  static constexpr bool kForeign = true;
  std::int64_t tp = 0, pp = 0, dp = 0, cp = 1, ep = 0, vpp = 0;
  std::optional<std::int64_t> zero_stage;
  std::optional<bool> sp;
  std::string fsdp;
};
struct RowMeasured {
  static constexpr bool kForeign = true;
  double step_time_s = 0, tokens_per_s_per_gpu = 0, tflops_per_gpu = 0, peak_mem_gib = 0;
  std::string peak_mem_kind;
};
struct TrainingRow {
  static constexpr bool kForeign = true;
  std::string id, source, source_key, outcome, gpu, interconnect, precision, schedule, recompute;
  RowModel model;
  RowParallel parallel;
  RowMeasured measured;
  std::int64_t gpus_per_node = 8, num_gpus = 0, global_batch = 0, micro_batch = 0;
  std::optional<bool> flash_attention;
  Said heterogeneous, consistency_issues, suspect;
  std::vector<std::string> unverified_fields;
};
// A field of ours under the name of the row, where it may not be zero.
template <class T>
Field as_in(const char* ours, const char* name, const char* help) {
  Field field = declared<T>(ours);
  field.name = name;
  field.help = help;
  field.min = 1;
  field.required = false;
  return field;
}

template <class V>
void describe(V& v, RowExperts& m) {
  v(as_in<ExpertsLayer>("experts", "experts", "experts of a layer"), m.experts);
  v(as_in<ExpertsLayer>("top_k", "topk", "experts of a token"), m.topk);
  v(Field{.name = "shared", .help = "experts that all tokens have", .min = 0, .max = 1024}, m.shared);
  v(as_in<ExpertsLayer>("ffn_hidden", "expert_ffn", "width of an expert"), m.expert_ffn);
  v(Field{.name = "dense_layers",
          .help = "first layers without experts",
          .min = 0,
          .max = limits::kMostLayers},
    m.dense_layers);
  v(Field{.name = "interleave",
          .help = "every so manyth layer has experts",
          .min = 1,
          .max = limits::kMostLayers},
    m.interleave);
}

template <class V>
void describe(V& v, RowModel& m) {
  v(Field{.name = "name", .help = "as published"}, m.name);
  v(as_in<Model>("layers", "layers", "transformer blocks"), m.layers);
  v(as_in<Model>("hidden", "hidden", "model width"), m.hidden);
  v(as_in<Model>("heads", "heads", "attention heads"), m.heads);
  v(as_in<Model>("kv_heads", "kv_heads", "key/value heads"), m.kv_heads);
  v(as_in<Model>("ffn_hidden", "ffn_hidden", "feed-forward width"), m.ffn_hidden);
  v(as_in<Model>("vocab", "vocab", "vocabulary size"), m.vocab);
  v(Field{.name = "seq_len", .help = "tokens of a sequence", .min = 1, .max = 1 << 24}, m.seq_len);
  v(Field{.name = "gated_mlp", .help = "SwiGLU"}, m.gated_mlp);
  v(Field{.name = "tied_embeddings", .help = "the head shares the embedding's weight"}, m.tied_embeddings);
  v(Field{.name = "mtp_layers",
          .help = "modules of multi-token prediction",
          .min = 0,
          .max = limits::kMostMtpLayers},
    m.mtp_layers);
  v(Field{.name = "moe", .help = "mixture of experts"}, m.moe);
  v(Field{.name = "arch", .help = "what is no plain transformer"}, m.arch);
  v(Field{.name = "attention", .help = "\"MLA\": latent attention"}, m.attention);
}

template <class V>
void describe(V& v, RowParallel& p) {
  v(as_in<Plan>("tp", "tp", "tensor-parallel degree"), p.tp);
  v(as_in<Plan>("pp", "pp", "pipeline stages"), p.pp);
  v(as_in<Plan>("dp", "dp", "data-parallel replicas"), p.dp);
  v(as_in<Plan>("cp", "cp", "context-parallel degree"), p.cp);
  v(as_in<Plan>("ep", "ep", "ranks that share the experts"), p.ep);
  v(as_in<Plan>("vpp", "vpp", "model chunks per stage"), p.vpp);
  v(Field{.name = "zero_stage", .help = "ZeRO stage", .min = 0, .max = 3}, p.zero_stage);
  v(Field{.name = "sp", .help = "sequence parallelism"}, p.sp);
  v(Field{.name = "fsdp", .help = "ranks that share shards, in words"}, p.fsdp);
}

template <class V>
void describe(V& v, RowMeasured& m) {
  constexpr double kLeast = 1e-9, kMost = 1e12;
  v(Field{.name = "step_time_s", .help = "seconds of a step", .min = kLeast, .max = kMost}, m.step_time_s);
  v(Field{.name = "tokens_per_s_per_gpu", .help = "tokens per second and GPU", .min = kLeast, .max = kMost},
    m.tokens_per_s_per_gpu);
  v(Field{.name = "tflops_per_gpu", .help = "TFLOP/s of a GPU", .min = kLeast, .max = kMost},
    m.tflops_per_gpu);
  v(Field{.name = "peak_mem_gib", .help = "peak memory of a GPU, GiB", .min = kLeast, .max = 1 << 20},
    m.peak_mem_gib);
  v(Field{.name = "peak_mem_kind", .help = "what of the memory was measured"}, m.peak_mem_kind);
}

template <class V>
void describe(V& v, TrainingRow& r) {
  v(Field{.name = "id", .help = "of the row", .required = true}, r.id);
  v(Field{.name = "source", .help = "where it was published, in words"}, r.source);
  v(Field{.name = "source_key", .help = "where it was published", .required = true}, r.source_key);
  v(Field{.name = "outcome", .help = "\"ok\", or why there is no measurement"}, r.outcome);
  v(Field{.name = "gpu", .help = "GPU", .required = true}, r.gpu);
  v(Field{.name = "interconnect", .help = "network"}, r.interconnect);
  v(Field{.name = "precision", .help = "number format"}, r.precision);
  v(Field{.name = "schedule", .help = "pipeline schedule"}, r.schedule);
  v(Field{.name = "recompute", .help = "activation recomputation"}, r.recompute);
  v(Field{.name = "model", .help = "dimensions", .required = true}, r.model);
  v(Field{.name = "parallel", .help = "degrees", .required = true}, r.parallel);
  v(Field{.name = "measured", .help = "results", .required = true}, r.measured);
  v(Field{.name = "gpus_per_node", .help = "GPUs of a node", .min = 1, .max = limits::kMostInNode},
    r.gpus_per_node);
  v(Field{.name = "num_gpus", .help = "GPUs", .min = 1, .max = 1 << 22}, r.num_gpus);
  v(Field{.name = "global_batch", .help = "sequences of a step", .min = 1, .max = 1 << 24}, r.global_batch);
  v(as_in<Plan>("micro_batch", "micro_batch", "sequences of a micro-batch"), r.micro_batch);
  v(Field{.name = "flash_attention", .help = "fused attention"}, r.flash_attention);
  v(Field{.name = "heterogeneous", .help = "mixed GPU types"}, r.heterogeneous);
  v(Field{.name = "consistency_issues", .help = "where the row's own numbers disagree"},
    r.consistency_issues);
  v(Field{.name = "suspect", .help = "why the measurement is doubted"}, r.suspect);
  v(Field{.name = "unverified_fields", .help = "what the source does not state"}, r.unverified_fields);
}

}  // namespace orrery::sim
