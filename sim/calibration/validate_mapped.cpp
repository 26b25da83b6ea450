// SPDX-License-Identifier: Apache-2.0
//
// Published runs, of sparse models and of long sequences, whose rows name the model and say how it was
// mapped: tp, pp, ep, etp, cp, dp; and of fine-tuning, whose rows name the method. Dimensions are those of
// public model cards.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "program/program.h"
#include "program/schedule.h"
#include "sim/calibration/published.h"
#include "sim/calibration/training_row.h"

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

// The ends of the names of matrices, or one pattern for all of their names, as PEFT takes them.
struct AdapterTargets {
  std::vector<std::string> names;
};
template <class V>
void describe(V&, AdapterTargets&) {}
bool read_custom(const Json& json, const Cursor& at, AdapterTargets& out) {
  if (json.is_string())
    out.names = {json.get<std::string>()};
  else
    read_value(json, at, Field{}, out.names);
  return true;
}

// Null and absent alike: the row does not say.
struct MappedRow {
  static constexpr bool kForeign = true;
  std::string id, source, model, outcome, gpu, precision, recompute, routing, notes, ways, dispatcher;
  std::string method, quant, memory_kind;  // of fine-tuning
  Said offload;
  std::int64_t lora_rank = 0;
  AdapterTargets lora_targets;
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
  v(Field{.name = "gpu_type", .help = "GPU"}, r.gpu);
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
  v(Field{.name = "mem_kind", .help = "what of the memory was measured"}, r.memory_kind);
  v(Field{.name = "method", .help = "of fine-tuning"}, r.method);
  v(Field{.name = "quant", .help = "how frozen weights are stored"}, r.quant);
  v(Field{.name = "offload", .help = "what is kept in the host's memory"}, r.offload);
  v(count("lora_rank", "of adapters"), r.lora_rank);
  v(Field{.name = "lora_targets", .help = "matrices that have adapters"}, r.lora_targets);
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

// config.json of stabilityai/stablelm-base-alpha-3b.
Model stablelm_3b() {
  Model m = preset_model("gpt-neo-2.7b");
  m.layers = 16;
  m.hidden = 4096;
  m.heads = 32;
  m.ffn_hidden = 16384;
  m.vocab = 50688;
  m.max_positions = 4096;
  m.positions = Positions::kRotary;
  m.rotary.fraction = 0.25;
  m.form = BlockForm::kParallel;
  m.tied_embeddings = false;
  m.blocks.clear();
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
    ModelRule{"Moonlight-16B-A3B", [] { return preset_model("moonlight-16b-a3b"); }},
    ModelRule{"Llama2-7B", [] { return preset_model("llama-2-7b"); }},
    ModelRule{"Llama2-70B", [] { return preset_model("llama-2-70b"); }},
    ModelRule{"Yi-34B", yi},
    ModelRule{"GPT-OSS 20B", [] { return preset_model("gpt-oss-20b"); }},
    ModelRule{"gpt-oss-20b", [] { return preset_model("gpt-oss-20b"); }},
    ModelRule{"Llama-3-70B", [] { return preset_model("llama-3-70b"); }},
    ModelRule{"Llama-3-8B", [] { return preset_model("llama-3-8b"); }},
    ModelRule{"Llama-3.2-3B", [] { return preset_model("llama-3.2-3b"); }},
    ModelRule{"Llama 2 7 B", [] { return preset_model("llama-2-7b"); }},
    ModelRule{"StableLM Alpha 3 B", stablelm_3b},
    ModelRule{"Qwen2.5-7B", [] { return preset_model("qwen2.5-7b"); }},
    ModelRule{"Qwen2.5-32B", [] { return preset_model("qwen2.5-32b"); }}};

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

  PublishedRun read() {
    run_.id = row_.id;
    run_.source = row_.source;
    run_.study = study();
    // Samples of a batch are as long as they are, up to what the row says.
    const bool variable = says(row_.notes, "longest sample") || says(row_.notes, "variable length");
    if (variable) run_.timed = Timed::kNothing;
    if (says(row_.notes, "padded")) throw Skip{"samples are padded to a length that is not published"};
    if (says(row_.source, "attention only")) {
      read_attention();
      return std::move(run_);
    }
    if (says(row_.source, "Table 9")) throw Skip{"attention on one GPU"};
    run_.problem.scenario.model = model_of(row_.model);
    if (says(row_.model, "MTP")) run_.problem.scenario.model.mtp_layers = 1;
    read_hardware();
    read_training();
    read_adapter();
    read_plan();
    read_routing();
    if (row_.outcome != "ok") {
      run_.timed = Timed::kStep;  // which did not end
      return std::move(run_);
    }
    if (row_.peak_mem_gib > 0) {
      run_.memory_gib = row_.peak_mem_gib;
      run_.memory_kind = says(row_.memory_kind, "reserved") ? "reserved" : "peak";
      // Printed as bytes over 1e9.
      if (says(row_.memory_kind, "GPU RAM GB")) run_.memory_gib *= 1e9 / kGiB;
    }
    if (run_.timed == Timed::kStep) run_.step_s = step_seconds();
    return std::move(run_);
  }

 private:
  // Tables of one report are one study, and Megatron-Bridge's pages too, with its runs among the training
  // runs.
  std::string study() const {
    struct Rule {
      const char* word;
      const char* study;
    };
    constexpr std::array kStudies = {Rule{"Megatron-Bridge", "mbridge"}, Rule{"Parallel Folding", "folding"},
                                     Rule{"Megatron-Core MoE", "moe_report"}, Rule{"AMD Primus", "primus"}};
    for (const Rule& r : kStudies) {
      if (says(row_.source, r.word)) return r.study;
    }
    return row_.source;
  }

  // Of a layer with Llama-3.1-8B's heads, in the orders of a sequence that we have.
  void read_attention() {
    if (!says(row_.model, "Llama-3.1-8B")) throw Skip{"model " + row_.model};
    const bool ring = row_.ways == "zigzag ring", gathers = says(row_.ways, "all-gather");
    if (!ring && !gathers) throw Skip{"attention of " + row_.ways};
    run_.timed = says(row_.notes, "fwd+bwd") ? Timed::kAttentionWithBackward : Timed::kAttention;
    Scenario& s = run_.problem.scenario;
    s.model = preset_model("llama-3-8b");
    s.model.layers = 1;
    s.model.max_positions = row_.seq;
    s.training = {.global_batch = 1, .sequence = row_.seq};
    read_hardware();
    run_.plan.cp = row_.cp;
    run_.plan.cp_keys = ring ? ContextKeys::kRing : ContextKeys::kAllGather;
    run_.step_s = row_.step_time_s;
  }

  bool says(const std::string& in, const char* what) const { return in.find(what) != std::string::npos; }

  // Megatron-core until the spring of 2026, in reports that compare what was new then; others have kernels as
  // fused as the newest.
  std::string stack_name() const {
    if (says(row_.source, "XTuner")) return "deepspeed";
    if (says(row_.source, "AutoModel")) return "automodel";
    if (row_.overlap.otherwise == "DualPipe") return "hai-llm";
    if (fine_tunes() && !says(row_.source, "Megatron")) return "fsdp";
    constexpr std::array kOlder = {"Parallel Folding", "technical report", "EP-overlap", "halo"};
    const bool older =
        std::any_of(kOlder.begin(), kOlder.end(), [&](const char* of) { return says(row_.source, of); });
    return older ? "megatron-core-2024" : "megatron-core";
  }

  void read_hardware() {
    if (row_.gpus == 0 || row_.gpu.empty()) throw Skip{"GPUs not published"};
    const GpuRule& rule = rule_of(row_.gpu);
    const bool nvl72 = says(row_.gpu, "NVL72");
    set_nodes(run_.problem, rule, row_.gpus, std::min<std::int64_t>(nvl72 ? 4 : 8, row_.gpus), 0, at_, data_);
    run_.problem.cluster.sized = at_.child("gpus");
    run_.problem.devices = {load_device(rule.device, at_, data_)};
    run_.problem.stack = load_stack(stack_name(), at_, data_);
  }

  void read_training() {
    Training& t = run_.problem.scenario.training;
    const std::int64_t sequence = row_.seq > 0 ? row_.seq : longest_sample();
    if (sequence == 0 || (row_.gbs == 0 && row_.step_time_s > 0 && run_.timed == Timed::kStep))
      throw Skip{"batch not published"};
    t.sequence = run_.problem.scenario.model.max_positions = sequence;
    t.global_batch = row_.gbs;
    // Of rates alone: a step in which a pipeline has eight micro-batches a stage.
    if (row_.gbs == 0) {
      t.global_batch = std::max<std::int64_t>(1, row_.mbs) * replicas() * (row_.pp > 1 ? 8 * row_.pp : 1);
      run_.assumed.push_back("global_batch");
    }
    // DeepSeek-V3's moments are in bf16 (technical report, section 3.3.3), and Megatron-Bridge's recipe of
    // Moonlight has gradients in bf16 too (recipes/moonlight/h100/moonlight_16b.py at the row's commit).
    t.precision = run_.problem.stack.name == "deepspeed" ? Precision::kMixed
                  : run_.problem.stack.name == "hai-llm" ? Precision::kMegatronAdamBf16
                  : says(row_.source, "recompute study") ? Precision::kPrecisionAwareBf16
                                                         : Precision::kMegatron;
    // Models that are loaded in bf16, without autocast.
    const bool pure =
        row_.precision == "bf16-true" || says(row_.source, "torchtune") || says(row_.source, "HF PEFT");
    if (fine_tunes() && run_.problem.stack.name == "fsdp")
      t.precision = pure ? Precision::kPureBf16 : Precision::kMixed;
    const bool bf16 = row_.precision == "bf16" || row_.precision == "BF16" || row_.precision == "bfloat16" ||
                      row_.precision == "bf16-true";
    const auto narrow = narrow_format(row_.precision, run_.problem.devices);
    if (!bf16 && !narrow) throw Skip{"precision " + row_.precision};
    t.math = narrow.value_or(Math::kBf16);
  }

  // torchtune's table adds a technique in each row ("cumulative step 5: +optimizer in backward"): the last
  // one that a row has; -1: the row is of no such table.
  std::int64_t rung() const {
    constexpr std::string_view kWords = "cumulative step ";
    const auto at = row_.notes.find(kWords);
    return at == std::string::npos ? -1 : std::strtoll(row_.notes.c_str() + at + kWords.size(), nullptr, 10);
  }
  static constexpr std::int64_t kCompiled = 2, kLossInChunks = 3, kCheckpointing = 4, kInBackward = 5,
                                kActivationsOffloaded = 6, kEightBits = 7, kAdapters = 8;
  void climb(Plan& p, Training& t) {
    const std::int64_t reached = rung();
    if (reached >= kCompiled) {  // by torch.compile, as torchtitan's models are
      run_.problem.stack.eager_activations = false;
      run_.problem.stack.elementwise_passes = load_stack("torchtitan", at_, data_).elementwise_passes;
    }
    constexpr std::int64_t kTorchtunesChunks = 8;
    if (reached >= kLossInChunks) p.loss_chunks = kTorchtunesChunks;
    if (reached >= kCheckpointing) p.recompute = Recompute::kFull;
    const bool all_parameters = reached < kAdapters;
    if (reached >= kInBackward && all_parameters) {
      p.update_in_backward = true;
      t.clip = 0;
    }
    if (reached >= kActivationsOffloaded)
      p.offload = Offload{.activation_layers = run_.problem.scenario.model.layers};
    if (reached >= kEightBits && all_parameters) t.precision = Precision::kPureBf16Adam8bit;
  }

  bool fine_tunes() const { return !row_.method.empty() && row_.method != "pretrain"; }
  // Of a run on one GPU the row need not say it.
  std::int64_t replicas() const { return row_.dp == 0 && row_.tp <= 1 && row_.pp <= 1 ? row_.gpus : row_.dp; }
  // "longest sample 1304 tokens": memory is of that one, and the time of others that are not known.
  std::int64_t longest_sample() {
    constexpr std::string_view kWords = "longest sample ";
    const auto at = row_.notes.find(kWords);
    if (at == std::string::npos) return 0;
    return std::strtoll(row_.notes.c_str() + at + kWords.size(), nullptr, 10);
  }

  // What was trained, and how all else is stored.
  void read_adapter() {
    if (row_.offload.something) throw Skip{"offload"};
    if (row_.method.empty()) return;
    const std::string& method = row_.method;
    if (method == "full" || method == "full SFT" || method == "FULL") return;
    constexpr std::array kLora = {"LoRA", "LORA", "QLoRA", "LoRA r8"};
    if (std::none_of(kLora.begin(), kLora.end(), [&](const char* m) { return method == m; }))
      throw Skip{"fine-tuning by " + method};
    for (const char* variant : {"dora", "bdlora", "lorafa", "mica"}) {
      if (says(row_.notes, variant)) throw Skip{"a variant of LoRA"};
    }
    using enum AdapterTarget;
    Adapter a;
    if (says(row_.source, "LitGPT")) {  // lora_query and lora_value; their parameters are published
      a.targets = {kQuery, kValue};
    } else if (row_.lora_rank > 0 && !row_.lora_targets.names.empty()) {
      a.rank = row_.lora_rank;
      read_targets(a);
    } else if (says(row_.source, "torchtune")) {  // its recipe of this model
      a.rank = 64;
      if (method == "QLoRA") a.base = BaseStorage::kNf4Double;
    } else if (says(row_.source, "AutoModel")) {
      run_.assumed.push_back("adapters of rank 8 on all matrices of layers");
    } else {
      a.rank = 16;
      a.targets = {kQuery, kKey, kValue};
      run_.assumed.push_back("adapters of rank 16 on queries, keys and values");
    }
    if (row_.quant == "bnb.nf4") a.base = BaseStorage::kNf4;
    if (row_.quant == "bnb.nf4-dq") a.base = BaseStorage::kNf4Double;
    run_.problem.scenario.training.adapter = a;
  }
  void read_targets(Adapter& a) const {
    for (const std::string& name : row_.lora_targets.names) {
      const auto target = enum_from<AdapterTarget>(std::string_view(name).substr(0, name.rfind("_proj")));
      if (!target) throw Skip{"adapters on " + name};
      a.targets.push_back(*target);
    }
  }

  void read_plan() {
    if (replicas() == 0 || (!fine_tunes() && (row_.tp == 0 || row_.pp == 0)))
      throw Skip{"parallel degrees not published"};
    run_.plan.tp = std::max<std::int64_t>(1, row_.tp);
    run_.plan.pp = std::max<std::int64_t>(1, row_.pp);
    run_.plan.dp = replicas();
    share_sequences(run_.plan, row_.cp, run_.problem, run_.assumed);
    run_.plan.ep = row_.ep;
    run_.plan.etp = row_.etp;
    if (run_.plan.ep > 1 && (says(row_.dispatcher, "deepep") || says(row_.dispatcher, "hybridep")))
      run_.plan.expert_exchange = ExpertExchange::kByNode;
    // AutoModel's default is not to.
    run_.plan.sequence_parallel = row_.tp > 1 && run_.problem.stack.name != "automodel";
    if (run_.plan.ranks() != row_.gpus) throw Skip{"degrees do not multiply to the GPUs"};
    run_.plan.zero = run_.plan.copies() == 1                                   ? 0
                     : row_.zero                                               ? *row_.zero
                     : says(row_.notes, "FSDP") || says(row_.source, "LitGPT") ? 3
                                                                               : 1;
    if (!row_.zero) run_.assumed.push_back("zero_stage");
    run_.plan.micro_batch = row_.mbs;
    if (row_.mbs == 0) {
      run_.assumed.push_back("micro_batch");
      // Sparse models have a sequence at a time, and others without a pipeline up to four.
      const bool several = row_.pp == 1 && depth_of(run_.problem.scenario.model).shared(Degree::kExpert) == 0;
      run_.plan.micro_batch =
          several ? std::clamp<std::int64_t>(run_.problem.scenario.training.global_batch / replicas(), 1, 4)
                  : 1;
    }
    const std::int64_t batch = run_.problem.scenario.training.global_batch;
    if (batch % (run_.plan.micro_batch * run_.plan.dp) != 0)
      throw Skip{"micro-batch does not divide the batch"};
    run_.plan.micro_batches = batch / (run_.plan.micro_batch * run_.plan.dp);
    read_chunks();
    read_recompute();
    climb(run_.plan, run_.problem.scenario.training);
    run_.plan.overlap_exchanges = row_.overlap.in_pairs;
    if (row_.overlap.otherwise == "DualPipe")
      read_dual_pipe();
    else if (!row_.overlap.otherwise.empty())
      run_.assumed.push_back("overlap");  // none
    if (const std::string problem = program::overlap_problem(run_.plan); !problem.empty())
      throw Skip{problem};
  }

  // Two copies of a pipeline in opposite ways on the same ranks are, cut in half, a pipeline in a V on half
  // as many stages, with twice the replicas and half of the micro-batches (DualPipe's README).
  void read_dual_pipe() {
    Plan& p = run_.plan;
    if (p.pp % 2 != 0) throw Skip{"DualPipe on an odd number of stages"};
    if (p.micro_batches % 2 != 0) throw Skip{"DualPipe of an odd number of micro-batches"};
    if (p.vpp != 1) throw Skip{"DualPipe in chunks"};
    p.pp /= 2;
    p.vpp = 2;
    p.dp *= 2;
    p.micro_batches /= 2;
    p.schedule = Schedule::kDualPipeV;
    p.overlap_exchanges = true;
    if (const std::string problem = program::schedule_problem(p.schedule, p.pp, p.vpp, p.micro_batches);
        !problem.empty())
      throw Skip{problem};
  }

  // Parts that the model lacks are not repeated.
  void read_recompute() {
    if (row_.recompute.starts_with("full")) {
      run_.plan.recompute = Recompute::kFull;
      return;
    }
    if (row_.recompute.starts_with("none")) return;
    const RecomputeParts named = parts_named(row_.recompute);
    if (named.empty()) {
      run_.assumed.push_back("recompute");
      // What ran had to fit, and beside frozen weights there is little else than activations.
      constexpr double kUnlikely = 1.2;
      const bool adapters = run_.problem.scenario.training.adapter.has_value();
      if (adapters && row_.outcome == "ok" && !keeps_activations(run_.problem, run_.plan, kUnlikely))
        run_.plan.recompute = Recompute::kFull;
      return;
    }
    run_.plan.recompute_parts = (named & depth_of(run_.problem.scenario.model).parts()).list();
    if (!run_.plan.recompute_parts.empty()) run_.plan.recompute = Recompute::kSelective;
  }

  // Without a number, two layers a chunk, or one, as these stacks are run.
  void read_chunks() {
    run_.plan.vpp = std::max<std::int64_t>(1, row_.vpp);
    if (run_.plan.pp > 1 && row_.vpp == 0) {
      run_.assumed.push_back("vpp");
      const std::int64_t layers = run_.problem.scenario.model.layers;
      for (const std::int64_t of_chunk : {2, 1}) {
        const std::int64_t chunks = run_.plan.pp * of_chunk;
        if (run_.plan.vpp == 1 && layers % chunks == 0 && run_.plan.micro_batches % run_.plan.pp == 0)
          run_.plan.vpp = layers / chunks;
      }
    }
    run_.plan.schedule = run_.plan.vpp > 1 && run_.plan.pp > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
    if (run_.plan.pp == 1) run_.plan.vpp = 1;
    deal_around_mtp(run_.problem.scenario.model, run_.plan, run_.assumed);
    if (says(row_.notes, "schedule ") && !says(row_.notes, "schedule 1f1b")) throw Skip{"another schedule"};
  }

  // Tokens beyond an expert's even share were dropped.
  void read_routing() {
    if (!says(row_.routing, "CF=1")) return;
    for (BlockRun& run : run_.problem.scenario.model.blocks) {
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
    const Scenario& s = run_.problem.scenario;
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
  PublishedRun run_;
};

}  // namespace

PublishedRuns read_mapped(const Json& rows, const std::string& file, const DataFolders& data) {
  PublishedRuns out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ++out.read;
    const Cursor at = Cursor{file, ""}.child(i);
    const auto row = read_fields<MappedRow>(rows[i], at);
    try {
      add(MappedReader(row, at, data).read(), out);
    } catch (const Skip& s) {
      ++out.skipped[s.reason];
    }
  }
  return out;
}

Validation validate_mapped(const Json& rows, const std::string& file, const DataFolders& data) {
  return validate(read_mapped(rows, file, data));
}

}  // namespace orrery::sim
