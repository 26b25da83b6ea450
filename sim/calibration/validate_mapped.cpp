// SPDX-License-Identifier: Apache-2.0
//
// Published runs, of sparse models and of long sequences, whose rows name the model and say how it was
// mapped: tp, pp, ep, etp, cp, dp. Dimensions are those of public model cards.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "program/program.h"
#include "sim/calibration/published.h"

namespace orrery::sim {
namespace {

// Whether exchanges of experts ran beside compute: yes, no, or how else.
struct PublishedOverlap {
  bool in_pairs = false;
  std::string otherwise;
};
template <class V>
void describe(V&, PublishedOverlap&) {}
bool read_custom(const Json& json, const Cursor& at, PublishedOverlap& out) {
  if (json.is_boolean())
    out.in_pairs = json.get<bool>();
  else if (json.is_string())
    out.otherwise = json.get<std::string>();
  else
    at.fail(shown(json) + " is neither a boolean nor a name", "allowed: true, false, \"DualPipe\"");
  return true;
}

// Null and absent alike: the row does not say.
struct MappedRow {
  static constexpr bool kForeign = true;
  std::string id, source, model, outcome, gpu, precision, recompute, routing, notes, ways, dispatcher;
  std::int64_t gpus = 0, tp = 0, pp = 0, vpp = 0, ep = 1, cp = 1, dp = 0, mbs = 0, gbs = 0, seq = 0;
  std::optional<std::int64_t> etp, zero;
  PublishedOverlap overlap;
  double step_time_s = 0, tokens_per_s_per_gpu = 0, tflops_per_gpu = 0, peak_mem_gib = 0;
};

template <class V>
void describe(V& v, MappedRow& r) {
  constexpr double kMost = 1e12;
  const auto count = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 1, .max = 1 << 24};
  };
  v(Field{.name = "id", .help = "of the row", .required = true}, r.id);
  v(Field{.name = "source", .help = "where it was published", .required = true}, r.source);
  v(Field{.name = "model", .help = "as published", .required = true}, r.model);
  v(Field{.name = "outcome", .help = "\"ok\", or why there is no measurement"}, r.outcome);
  v(Field{.name = "gpu_type", .help = "GPU", .required = true}, r.gpu);
  v(Field{.name = "precision", .help = "number format"}, r.precision);
  v(Field{.name = "recompute", .help = "activation recomputation"}, r.recompute);
  v(Field{.name = "routing", .help = "how tokens were spread over experts"}, r.routing);
  v(Field{.name = "notes", .help = "what else the source says"}, r.notes);
  v(count("gpus", "GPUs"), r.gpus);
  v(count("tp", "tensor-parallel degree"), r.tp);
  v(count("pp", "pipeline stages"), r.pp);
  v(count("vpp", "model chunks per stage"), r.vpp);
  v(count("ep", "ranks that share the experts"), r.ep);
  v(count("cp", "context-parallel degree"), r.cp);
  v(Field{.name = "dispatcher", .help = "how tokens go to their experts"}, r.dispatcher);
  v(Field{.name = "overlap", .help = "whether exchanges of experts ran beside compute"}, r.overlap);
  v(Field{.name = "cp_kind", .help = "how ranks share sequences"}, r.ways);
  v(Field{.name = "zero_stage", .help = "ZeRO stage", .min = 0, .max = 3}, r.zero);
  v(count("dp", "data-parallel replicas"), r.dp);
  v(count("mbs", "sequences of a micro-batch"), r.mbs);
  v(count("gbs", "sequences of a step"), r.gbs);
  v(count("seq", "tokens of a sequence"), r.seq);
  v(count("etp", "ranks that share an expert's columns"), r.etp);
  v(Field{.name = "step_time_s", .help = "seconds of a step", .max = kMost}, r.step_time_s);
  v(Field{.name = "tokens_per_s_per_gpu", .help = "tokens per second and GPU", .max = kMost},
    r.tokens_per_s_per_gpu);
  v(Field{.name = "tflops_per_gpu", .help = "TFLOP/s of a GPU", .max = kMost}, r.tflops_per_gpu);
  v(Field{.name = "peak_mem_gib", .help = "peak memory of a GPU, GiB", .max = kMost}, r.peak_mem_gib);
}

// "moe_act, layernorm" or "RMSNorm, MLA up-proj, SwiGLU".
RecomputeParts parts_named(std::string text) {
  for (char& c : text) {
    if (c == '_' || c == ' ')
      c = '-';
    else if (c == '+')
      c = ',';
    else if (c >= 'A' && c <= 'Z')
      c = static_cast<char>(c - 'A' + 'a');
  }
  RecomputeParts out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::size_t first = std::min(text.find_first_not_of('-', begin), end);
    const std::string_view word(text.data() + first, end - first);
    if (word == "rmsnorm")
      out.add(RecomputePart::kNorms);
    else if (word == "swiglu")
      out.add(RecomputePart::kExpertActivation);
    else if (const auto part = enum_from<RecomputePart>(word))
      out.add(*part);
    begin = end + 1;
  }
  return out;
}

// All blocks of a dense model with experts in place of their MLPs.
Model with_experts(const char* preset, const ExpertsLayer& experts) {
  Model m = preset_model(preset);
  m.blocks.clear();
  ModelBlock block = standard_block(m);
  block.layers.back() = {experts};
  m.blocks = {{m.layers, {block}}};
  return m;
}

// config.json of moonshotai/Moonlight-16B-A3B.
Model moonlight() {
  Model m = preset_model("deepseek-v3-671b");
  m.layers = 27;
  m.hidden = 2048;
  m.heads = m.kv_heads = 16;
  m.ffn_hidden = 11264;
  m.vocab = 163840;
  m.blocks.clear();
  ModelBlock dense = standard_block(m);
  dense.layers.front() = {
      LatentAttentionLayer{.heads = 16, .kv_rank = 512, .turned = 64, .plain = 128, .value = 128}};
  ModelBlock sparse = dense;
  sparse.layers.back() = {ExpertsLayer{.experts = 64,
                                       .top_k = 6,
                                       .ffn_hidden = 1408,
                                       .shared_ffn_hidden = 2816,
                                       .score = RouterScore::kSigmoid,
                                       .weight_scale = 2.446,
                                       .bias_rate = 0.001}};
  m.blocks = {{1, {dense}}, {26, {sparse}}};
  return m;
}

// config.json of 01-ai/Yi-34B-200K.
Model yi() {
  Model m = preset_model("llama-2-70b");
  m.layers = 60;
  m.hidden = 7168;
  m.heads = 56;
  m.ffn_hidden = 20480;
  m.vocab = 64000;
  return m;
}

struct ModelRule {
  const char* pattern;
  Model (*model)();
};
// The first whose pattern is in the name. "G8T8": experts of an eighth of the width, eight times as many, and
// eight of them for a token.
const std::array kModels{
    ModelRule{"Mixtral-8x22B-G8T8",
              [] { return with_experts("mixtral-8x22b", {.experts = 64, .top_k = 8, .ffn_hidden = 2048}); }},
    ModelRule{"Mixtral-8x22B", [] { return preset_model("mixtral-8x22b"); }},
    ModelRule{"Llama3-8x70B",
              [] { return with_experts("llama-3-70b", {.experts = 8, .top_k = 2, .ffn_hidden = 28672}); }},
    ModelRule{"Qwen2-57B-A14B", [] { return preset_model("qwen2-57b-a14b"); }},
    ModelRule{"Qwen3-235B-A22B", [] { return preset_model("qwen3-235b-a22b"); }},
    ModelRule{"Qwen3-30B-A3B", [] { return preset_model("qwen3-30b-a3b"); }},
    ModelRule{"DeepSeek-V3", [] { return preset_model("deepseek-v3-671b"); }},
    ModelRule{"Moonlight-16B-A3B", moonlight},
    ModelRule{"Llama2-7B", [] { return preset_model("llama-2-7b"); }},
    ModelRule{"Llama2-70B", [] { return preset_model("llama-2-70b"); }},
    ModelRule{"Yi-34B", yi},
    ModelRule{"GPT-OSS 20B", [] { return preset_model("gpt-oss-20b"); }},
    ModelRule{"gpt-oss-20b", [] { return preset_model("gpt-oss-20b"); }}};

Model model_of(const std::string& name) {
  for (const ModelRule& rule : kModels) {
    if (name.find(rule.pattern) != std::string::npos) return rule.model();
  }
  throw Skip{"model " + name};
}

class MappedReader {
 public:
  MappedReader(const MappedRow& row, const Cursor& at, const DataFolders& data)
      : row_(row), at_(at), data_(data) {}

  void score_into(Validation& out) {
    if (says(row_.source, "attention only")) return score_attention(out);
    if (says(row_.source, "Table 9")) throw Skip{"attention on one GPU"};
    Scenario& s = problem_.scenario;
    s.model = model_of(row_.model);
    read_hardware();
    read_training();
    read_plan();
    if (row_.model.find("MTP") != std::string::npos) assumed_.push_back("no multi-token prediction");
    read_routing();
    const bool memory = row_.peak_mem_gib > 0;
    score({row_.id, row_.source, step_seconds(), memory ? row_.peak_mem_gib : 0, memory ? "peak" : ""},
          problem_, plan_, assumed_, out);
  }

 private:
  // Of a layer with Llama-3.1-8B's heads, in the orders of a sequence that we have.
  void score_attention(Validation& out) {
    if (!says(row_.model, "Llama-3.1-8B")) throw Skip{"model " + row_.model};
    const bool ring = row_.ways == "zigzag ring", gathers = says(row_.ways, "all-gather");
    if (!ring && !gathers) throw Skip{"attention of " + row_.ways};
    problem_.scenario.model = preset_model("llama-3-8b");
    problem_.scenario.model.layers = 1;
    problem_.scenario.model.max_positions = row_.seq;
    problem_.scenario.training = {.global_batch = 1, .sequence = row_.seq};
    read_hardware();
    plan_.cp = row_.cp;
    plan_.cp_keys = ring ? ContextKeys::kRing : ContextKeys::kAllGather;
    const Time time = attention_alone(problem_, plan_, says(row_.notes, "fwd+bwd"));
    out.rows.push_back({row_.id, row_.source, "step_time", seconds(time), row_.step_time_s, {}});
  }

  bool says(const std::string& in, const char* what) const { return in.find(what) != std::string::npos; }

  // Megatron-core until the spring of 2026, in reports that compare what was new then; others have kernels as
  // fused as the newest.
  std::string stack_name() const {
    if (says(row_.source, "XTuner")) return "deepspeed";
    constexpr std::array kOlder = {"Parallel Folding", "technical report", "EP-overlap", "halo"};
    const bool older =
        std::any_of(kOlder.begin(), kOlder.end(), [&](const char* of) { return says(row_.source, of); });
    return older ? "megatron-core-2024" : "megatron-core";
  }

  void read_hardware() {
    if (row_.gpus == 0) throw Skip{"GPUs not published"};
    const GpuRule& rule = rule_of(row_.gpu);
    const bool nvl72 = says(row_.gpu, "NVL72");
    set_nodes(problem_, rule, row_.gpus, std::min<std::int64_t>(nvl72 ? 4 : 8, row_.gpus), 0, at_, data_);
    problem_.cluster.sized = at_.child("gpus");
    problem_.devices = {load_device(rule.device, at_, data_)};
    problem_.stack = load_stack(stack_name(), at_, data_);
  }

  void read_training() {
    Training& t = problem_.scenario.training;
    if (row_.seq == 0 || (row_.gbs == 0 && row_.step_time_s > 0)) throw Skip{"batch not published"};
    t.sequence = problem_.scenario.model.max_positions = row_.seq;
    t.global_batch = row_.gbs;
    // Of rates alone: a step in which a pipeline has eight micro-batches a stage.
    if (row_.gbs == 0) {
      t.global_batch = std::max<std::int64_t>(1, row_.mbs) * row_.dp * (row_.pp > 1 ? 8 * row_.pp : 1);
      assumed_.push_back("global_batch");
    }
    t.precision = problem_.stack.name == "deepspeed" ? Precision::kMixed : Precision::kMegatron;
    const bool bf16 = row_.precision == "bf16" || row_.precision == "BF16";
    t.math = bf16 ? Math::kBf16 : Math::kFp8;
    if (!bf16 && !says(row_.precision, "fp8") && !says(row_.precision, "FP8"))
      throw Skip{"precision " + row_.precision};
  }

  void read_plan() {
    if (row_.tp == 0 || row_.pp == 0 || row_.dp == 0) throw Skip{"parallel degrees not published"};
    plan_.tp = row_.tp;
    plan_.pp = row_.pp;
    plan_.dp = row_.dp;
    share_sequences(plan_, row_.cp, problem_.stack, assumed_);
    plan_.ep = row_.ep;
    plan_.etp = row_.etp;
    if (plan_.ep > 1 && (says(row_.dispatcher, "deepep") || says(row_.dispatcher, "hybridep")))
      plan_.expert_exchange = ExpertExchange::kByNode;
    plan_.sequence_parallel = row_.tp > 1;
    if (plan_.ranks() != row_.gpus) throw Skip{"degrees do not multiply to the GPUs"};
    plan_.zero = plan_.copies() == 1 ? 0 : row_.zero ? *row_.zero : says(row_.notes, "FSDP") ? 3 : 1;
    if (!row_.zero) assumed_.push_back("zero_stage");
    plan_.micro_batch = row_.mbs;
    if (row_.mbs == 0) {
      assumed_.push_back("micro_batch");
      plan_.micro_batch =
          row_.pp == 1 ? std::clamp<std::int64_t>(problem_.scenario.training.global_batch / row_.dp, 1, 4)
                       : 1;
    }
    const std::int64_t batch = problem_.scenario.training.global_batch;
    if (batch % (plan_.micro_batch * plan_.dp) != 0) throw Skip{"micro-batch does not divide the batch"};
    plan_.micro_batches = batch / (plan_.micro_batch * plan_.dp);
    read_chunks();
    read_recompute();
    plan_.overlap_exchanges = row_.overlap.in_pairs;
    if (!row_.overlap.otherwise.empty()) assumed_.push_back("overlap");  // none
    if (const std::string problem = program::overlap_problem(plan_); !problem.empty()) throw Skip{problem};
  }

  // Parts that the model lacks are not repeated.
  void read_recompute() {
    if (row_.recompute.starts_with("full")) {
      plan_.recompute = Recompute::kFull;
      return;
    }
    if (row_.recompute.starts_with("none")) return;
    const RecomputeParts named = parts_named(row_.recompute);
    if (named.empty()) {
      assumed_.push_back("recompute");
      return;
    }
    plan_.recompute_parts = (named & depth_of(problem_.scenario.model).parts()).list();
    if (!plan_.recompute_parts.empty()) plan_.recompute = Recompute::kSelective;
  }

  // Without a number, two layers a chunk, or one, as these stacks are run.
  void read_chunks() {
    plan_.vpp = std::max<std::int64_t>(1, row_.vpp);
    if (plan_.pp > 1 && row_.vpp == 0) {
      assumed_.push_back("vpp");
      const std::int64_t layers = problem_.scenario.model.layers;
      for (const std::int64_t of_chunk : {2, 1}) {
        const std::int64_t chunks = plan_.pp * of_chunk;
        if (plan_.vpp == 1 && layers % chunks == 0 && plan_.micro_batches % plan_.pp == 0)
          plan_.vpp = layers / chunks;
      }
    }
    plan_.schedule = plan_.vpp > 1 && plan_.pp > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
    if (plan_.pp == 1) plan_.vpp = 1;
    if (says(row_.notes, "schedule ") && !says(row_.notes, "schedule 1f1b")) throw Skip{"another schedule"};
  }

  // Tokens beyond an expert's even share were dropped.
  void read_routing() {
    if (!says(row_.routing, "CF=1")) return;
    for (BlockRun& run : problem_.scenario.model.blocks) {
      for (ModelBlock& block : run.blocks) {
        for (Layer& layer : block.layers) {
          if (auto* experts = std::get_if<ExpertsLayer>(&layer.is)) experts->capacity_factor = 1;
        }
      }
    }
  }

  // Megatron's FLOPs of a model count full attention, and Megatron-Bridge's and the technical report's what a
  // causal mask leaves of it.
  double step_seconds() const {
    if (row_.step_time_s > 0) return row_.step_time_s;
    const Scenario& s = problem_.scenario;
    const auto gpus = static_cast<double>(row_.gpus);
    if (row_.tokens_per_s_per_gpu > 0)
      return s.training.tokens_per_step() / (row_.tokens_per_s_per_gpu * gpus);
    if (row_.tflops_per_gpu == 0) throw Skip{"no measured time"};
    const bool causal = says(row_.source, "Megatron-Bridge") || says(row_.source, "technical report");
    const double flops = model_flops_per_sequence(s.model, s.training,
                                                  causal ? AttentionFlops::kCausal : AttentionFlops::kFull)
                             .value *
                         static_cast<double>(s.training.global_batch);
    return flops / (row_.tflops_per_gpu * 1e12 * gpus);
  }

  const MappedRow& row_;
  const Cursor& at_;
  const DataFolders& data_;
  Problem problem_;
  Plan plan_;
  std::vector<std::string> assumed_;
};

}  // namespace

Validation validate_mapped(const Json& rows, const std::string& file, const DataFolders& data) {
  Validation out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ++out.read;
    const Cursor at = Cursor{file, ""}.child(i);
    const auto row = read_fields<MappedRow>(rows[i], at);
    try {
      if (row.outcome != "ok") throw Skip{"out of memory"};
      MappedReader(row, at, data).score_into(out);
    } catch (const Skip& s) {
      ++out.skipped[s.reason];
    }
  }
  return out;
}

}  // namespace orrery::sim
