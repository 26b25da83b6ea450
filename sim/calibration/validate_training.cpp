// SPDX-License-Identifier: Apache-2.0
//
// Published training runs as problems and plans. A row is skipped, with a reason, when our model cannot
// express it; what it leaves open is assumed and listed with it.
#include <algorithm>
#include <array>
#include <charconv>
#include <regex>

#include "program/program.h"
#include "sim/calibration/published.h"
#include "sim/calibration/training_row.h"

namespace orrery::sim {
namespace {

// Heads that are not as wide as the model's width over their number says: model cards.
struct HeadRule {
  const char* model;
  std::int64_t head_dim;
  bool qk_norm;
  const char* left_out = nullptr;  // of the model, without which it is predicted
};
constexpr HeadRule kHeads[] = {{"Qwen3-30B-A3B", 128, true},
                               {"Qwen3-235B-A22B", 128, true},
                               {"GPT-OSS", 64, false, "no windows, which every second block has"}};

// The software of a source, of all its rows or of those whose source has a word. Dates matter: what was new
// in one release is the default of the next.
struct StackRule {
  const char* source;
  const char* word;
  const char* stack;
};
constexpr StackRule kStacks[] = {{"megatron_sc21", "", "megatron-2021"},
                                 {"megatron_2020", "", "megatron-2021"},
                                 {"korthikanti", "", "megatron-2021"},
                                 {"sailor", "", "megatron-2021"},
                                 {"bigscience", "", "megatron-deepspeed"},
                                 {"bigscience_v100", "", "megatron-deepspeed"},
                                 {"meg_deepspeed", "", "megatron-deepspeed"},
                                 {"zero_bubble", "", "megatron-zero-bubble"},
                                 {"internevo", "", "internevo"},
                                 {"llm_foundry", "", "fsdp-2023"},
                                 {"automodel", "", "automodel"},
                                 {"torchtitan", "", "torchtitan-2024"},
                                 {"colossalai", "", "deepspeed"},
                                 {"llmq", "", "orrery"},
                                 {"dgxc", "maxtext/", "maxtext"},
                                 {"dgxc", "paxml/", "maxtext"},
                                 {"dgxc", "", "megatron-core-2024"},
                                 {"mbridge", "\"25.", "megatron-core-2024"},
                                 {"mbridge", "\"26.02", "megatron-core-2024"},
                                 {"mbridge", "\"26.04", "megatron-core-2024"},
                                 {"mbridge", "", "megatron-core"},
                                 {"megatron_ci", "", "megatron-core"},
                                 {"megatron_h100", "", "megatron-core-2024"},
                                 {"nemo_launcher", "", "megatron-core-2024"},
                                 {"simumax", "", "megatron-core-2024"}};

// NVIDIA's stacks interleave, and split sequences among tensor ranks, where a row does not say.
bool interleaves(std::string_view stack) {
  return stack.starts_with("megatron-core");
}

// Gb/s of a whole node from the words of the row; zero when it does not say. "8x HDR", "4x 100 Gb/s" and
// "1600 Gb/s" are of a node, "400 Gb/s CX-7 per GPU" of a GPU.
double node_network(const std::string& words, std::int64_t gpus_per_node) {
  struct Words {
    const char* pattern;
    double gbit, per_gpu;
  };
  constexpr std::array kWords = {Words{"8x HDR", 1600, 0}, Words{"Slingshot", 0, 200}};
  for (const Words& w : kWords) {
    if (words.find(w.pattern) != std::string::npos)
      return w.gbit > 0 ? w.gbit : w.per_gpu * static_cast<double>(gpus_per_node);
  }
  static const std::regex kRate(R"((?:(\d{1,2}) ?x )?(\d{1,5}(?:\.\d{1,3})?) ?Gb(?:/s|ps)([^;,)]{0,40}))");
  std::smatch found;
  if (!std::regex_search(words, found, kRate)) return 0;
  const double ports = found[1].matched ? std::stod(found[1]) : 1;
  const bool per_gpu = found[3].str().find("per GPU") != std::string::npos;
  return std::stod(found[2]) * ports * (per_gpu ? static_cast<double>(gpus_per_node) : 1);
}

// "optimizer shard over 8 ranks", "FSDP=128 x DP=4", "FSDP2 shard 32": the ranks that share shards; zero
// where all replicas do.
std::int64_t shard_ranks(const std::string& words) {
  for (const std::string_view before : {"shard over ", "FSDP=", "shard "}) {
    const std::size_t at = words.find(before);
    if (at == std::string::npos) continue;
    std::int64_t n = 0;
    const char* first = words.data() + at + before.size();
    if (std::from_chars(first, words.data() + words.size(), n).ec == std::errc()) return n;
  }
  return 0;
}

class RowReader {
 public:
  RowReader(const TrainingRow& row, const Cursor& at, const DataFolders& data)
      : row_(row), at_(at), data_(data) {}

  // Throws Skip.
  void read(Problem& problem, Plan& plan, std::vector<std::string>& assumed) const {
    assumed = row_.unverified_fields;
    read_model(problem.scenario.model, problem.scenario.training, assumed);
    read_hardware(problem, assumed);
    read_plan(problem, plan, assumed);
  }

  // Seconds per step, from step time, tokens/s, or FLOP/s in a known convention. Throws Skip.
  double published_step(const Problem& problem, const Plan& plan) const {
    const RowMeasured& m = row_.measured;
    if (m.step_time_s > 0) return m.step_time_s;
    const auto gpus = static_cast<double>(row_.num_gpus);
    const double tokens = problem.scenario.training.tokens_per_step();
    if (m.tokens_per_s_per_gpu > 0) return tokens / (m.tokens_per_s_per_gpu * gpus);
    if (m.tflops_per_gpu == 0) throw Skip{"no measured time"};
    double flops =
        model_flops_per_sequence(problem.scenario.model, problem.scenario.training, AttentionFlops::kFull)
            .value *
        static_cast<double>(problem.scenario.training.global_batch);
    if (row_.source_key == "megatron_sc21" || row_.source_key == "bigscience") {
      if (plan.recompute == Recompute::kFull) flops *= 4.0 / 3.0;  // hardware FLOPs are printed
    } else if (row_.source_key != "megatron_h100") {
      throw Skip{"FLOP/s in a convention we cannot convert"};
    }
    return flops / (m.tflops_per_gpu * 1e12 * gpus);
  }

 private:
  void read_model(Model& m, Training& t, std::vector<std::string>& assumed) const {
    const RowModel& r = row_.model;
    if (r.arch.something) throw Skip{"not a plain transformer"};
    const bool latent = r.attention == "MLA";
    if (!r.attention.empty() && !latent) throw Skip{"attention " + r.attention};
    if (r.layers == 0 || r.hidden == 0 || r.heads == 0 || r.seq_len == 0)
      throw Skip{"model dimensions not published"};
    const auto* rule = std::find_if(std::begin(kHeads), std::end(kHeads),
                                    [&](const HeadRule& h) { return r.name.starts_with(h.model); });
    if (rule != std::end(kHeads)) {
      m.head_dim = rule->head_dim;
      m.qk_norm = rule->qk_norm ? QkNorm::kPerHead : QkNorm::kNone;
      if (rule->left_out != nullptr) assumed.emplace_back(rule->left_out);
    } else if (r.hidden % r.heads != 0 && !latent) {
      throw Skip{"heads do not divide the width"};
    }
    m.name = r.name;
    m.layers = r.layers;
    m.hidden = r.hidden;
    m.heads = r.heads;
    m.kv_heads = r.kv_heads;
    m.ffn_hidden = r.ffn_hidden;
    m.vocab = r.vocab;
    t.sequence = m.max_positions = r.seq_len;
    m.activation = r.gated_mlp ? Activation::kSwiglu : Activation::kGelu;
    m.norm = r.gated_mlp ? Norm::kRmsNorm : Norm::kLayerNorm;
    m.positions = r.gated_mlp ? Positions::kRotary : Positions::kLearned;
    m.bias = !r.gated_mlp;
    m.tied_embeddings = r.tied_embeddings.value_or(!r.gated_mlp);
    m.mtp_layers = r.mtp_layers;
    if (r.moe.experts > 0) add_experts(m, latent);
    if (latent && r.moe.experts == 0) throw Skip{"latent attention without experts"};
  }

  // Some first blocks, and then others, have an MLP; all others experts. Latent attention has the widths that
  // DeepSeek's models share, and Kimi K2.
  void add_experts(Model& m, bool latent) const {
    const RowExperts& r = row_.model.moe;
    if (r.topk == 0 || r.expert_ffn == 0) throw Skip{"experts' dimensions not published"};
    ModelBlock dense = standard_block(m);
    if (latent) {
      dense.layers.front() = {LatentAttentionLayer{
          .heads = m.heads, .q_rank = 1536, .kv_rank = 512, .turned = 64, .plain = 128, .value = 128}};
    }
    ModelBlock sparse = dense;
    sparse.layers.back() = {ExpertsLayer{.experts = r.experts,
                                         .top_k = r.topk,
                                         .ffn_hidden = r.expert_ffn,
                                         .shared_ffn_hidden = r.shared * r.expert_ffn,
                                         .score = latent ? RouterScore::kSigmoid : RouterScore::kSoftmax}};
    if (r.dense_layers > 0) m.blocks.push_back({r.dense_layers, {dense}});
    if (r.interleave == 1) {
      m.blocks.push_back({m.layers - r.dense_layers, {sparse}});
    } else {
      std::vector<ModelBlock> pattern(static_cast<std::size_t>(r.interleave), dense);
      pattern.back() = sparse;
      if ((m.layers - r.dense_layers) % r.interleave != 0) throw Skip{"layers are no whole patterns"};
      m.blocks.push_back({(m.layers - r.dense_layers) / r.interleave, pattern});
    }
    if (m.layers <= r.dense_layers) throw Skip{"no layer has experts"};
  }

  // "RTX-3090+Titan-RTX" are nodes of the one and then of the other, as many of each.
  void read_hardware(Problem& p, std::vector<std::string>& assumed) const {
    const GpuRule& rule = rule_of(row_.gpu);
    const std::int64_t per_node = std::min(row_.gpus_per_node, row_.num_gpus);
    set_nodes(p, rule, row_.num_gpus, per_node, node_network(row_.interconnect, per_node), at_, data_);
    p.cluster.sized = at_.child("num_gpus");
    const std::string device = rule.device;
    p.devices = {load_device(device == "h100-sxm-500w" ? "h100-sxm" : device, at_, data_)};
    read_other_nodes(p, assumed);
    if (device == "h100-sxm-500w") p.devices[0].memory_bandwidth = *parse_bandwidth("2.4 TB/s");
    if (row_.gpu.starts_with("V100")) {
      p.cluster.intra_bandwidth = *parse_bandwidth("150 GB/s");
      p.cluster.in_network_gain = 0;
      p.cluster.measured = {};
    }
    p.stack = load_stack(stack_name(assumed), at_, data_);
    // Its runs had nothing beside compute.
    if (row_.source_key == "simumax") p.stack.overlap_grad_reduce = p.stack.overlap_tp = false;
    p.stack.flash_attention = row_.flash_attention.value_or(p.stack.flash_attention);
  }

  void read_other_nodes(Problem& p, std::vector<std::string>& assumed) const {
    const auto types = std::count(row_.gpu.begin(), row_.gpu.end(), '+') + 1;
    if (types == 1 && row_.heterogeneous.something) throw Skip{"mixed GPU types without their names"};
    if (types == 1) return;
    if (p.cluster.nodes < types) throw Skip{"more GPU types than nodes"};
    std::size_t name = 0;
    for (std::int64_t i = 1; i < types; ++i) {
      name = row_.gpu.find('+', name) + 1;
      const GpuRule& rule = rule_of(std::string_view(row_.gpu).substr(name));
      OtherNodes other{load_cluster(rule.topology, {}, at_, data_), i * p.cluster.nodes / types};
      other.device = rule.device;
      other.nic_bandwidth = p.cluster.nic_bandwidth;
      p.cluster.other_nodes.push_back(other);
      p.devices.push_back(load_device(rule.device, at_, data_));
    }
    assumed.push_back("nodes of each GPU, and their order");
    assumed.push_back("interconnect");
  }

  std::string stack_name(std::vector<std::string>& assumed) const {
    // The paper compares its own plans with ZeRO-3, which DeepSpeed ran.
    if (row_.source_key == "megatron_sc21" && row_.parallel.zero_stage == 3) return "megatron-deepspeed";
    const auto* rule = std::find_if(std::begin(kStacks), std::end(kStacks), [&](const StackRule& s) {
      return row_.source_key == s.source && row_.source.find(s.word) != std::string::npos;
    });
    if (rule != std::end(kStacks)) return rule->stack;
    assumed.emplace_back("software");
    if (row_.gpu.starts_with("V100") || row_.precision == "fp16") return "megatron-2021";
    if (row_.parallel.tp * row_.parallel.pp == 1 && !row_.parallel.fsdp.empty()) return "fsdp";
    const bool blackwell =
        row_.gpu.find("B200") != std::string::npos || row_.gpu.find("B300") != std::string::npos;
    return blackwell ? "megatron-core" : "megatron-core-2024";
  }

  void read_plan(Problem& problem, Plan& plan, std::vector<std::string>& assumed) const {
    const RowParallel& r = row_.parallel;
    Training& t = problem.scenario.training;
    if (r.tp == 0 || r.pp == 0 || r.dp == 0) throw Skip{"parallel degrees not published"};
    plan.tp = r.tp;
    plan.pp = r.pp;
    plan.dp = r.dp;
    share_sequences(plan, r.cp, problem, assumed);
    if (row_.model.moe.experts > 0) {
      if (r.ep == 0) throw Skip{"ranks of experts not published"};
      plan.ep = r.ep;
      // Megatron-Bridge's recipes leave experts whole.
      if (row_.source_key == "mbridge") plan.etp = 1;
      assumed.push_back("etp");
    }
    if (plan.ranks() != row_.num_gpus) throw Skip{"degrees do not multiply to the GPUs"};
    plan.sequence_parallel = r.sp.value_or(r.tp > 1 && interleaves(problem.stack.name));
    if (plan.sequence_parallel && !r.sp) assumed.emplace_back("parallel.sp");
    if (plan.copies() > 1) plan.zero = r.zero_stage.value_or(1);
    // Where there is a pipeline, torchtitan gathers parameters once a step (fsdp_reshard_after_forward:
    // default), and torch.distributed.pipelining reduces gradients once, after the last micro-batch.
    if (row_.source_key == "torchtitan" && r.pp > 1 && plan.zero == 3) plan.zero = 1;
    if (!r.zero_stage) assumed.push_back("parallel.zero_stage");
    const std::int64_t shards = plan.zero > 0 ? shard_ranks(r.fsdp) : 0;
    if (shards > 0 && shards < plan.dp && plan.dp % shards == 0) plan.shard_group = shards;
    t.global_batch = row_.global_batch;
    if (t.global_batch == 0) throw Skip{"batch not published"};
    plan.micro_batch = row_.micro_batch > 0 ? row_.micro_batch : usual_micro_batch(plan, t.global_batch);
    // Its pipelines have as many micro-batches as stages.
    if (row_.source_key == "torchtitan" && row_.micro_batch == 0 && r.pp > 1)
      plan.micro_batch = std::max<std::int64_t>(1, t.global_batch / (plan.dp * plan.pp));
    if (row_.micro_batch == 0) assumed.push_back("micro_batch");
    if (t.global_batch % (plan.micro_batch * plan.dp) != 0)
      throw Skip{"micro-batch does not divide the batch"};
    plan.micro_batches = t.global_batch / (plan.micro_batch * plan.dp);
    read_schedule(problem, plan, assumed);
    read_precision(t, problem.stack.name, problem.devices);
    read_recompute(problem, plan, assumed);
  }

  // Without pipeline ranks: up to 4 sequences.
  static std::int64_t usual_micro_batch(const Plan& plan, std::int64_t batch) {
    if (plan.pp > 1 || batch % plan.dp != 0) return 1;
    for (const std::int64_t n : {4, 2}) {
      if (batch / plan.dp % n == 0) return n;
    }
    return 1;
  }

  void read_schedule(const Problem& problem, Plan& plan, std::vector<std::string>& assumed) const {
    const std::int64_t layers = problem.scenario.model.layers;
    plan.vpp = plan.pp == 1 ? 1 : std::max<std::int64_t>(1, row_.parallel.vpp);
    if (plan.pp > 1 && row_.parallel.vpp == 0) {
      assumed.emplace_back("parallel.vpp");
      if (interleaves(problem.stack.name) && layers % plan.pp == 0)
        plan.vpp = layers % (2 * plan.pp) == 0 ? layers / (2 * plan.pp) : layers / plan.pp;
    }
    if (row_.source_key == "zero_bubble" && row_.schedule == "1f1b-i") plan.vpp = (layers + 2) / plan.pp;
    // Both ends count as a layer, where that fills the chunks.
    const std::int64_t chunks = plan.pp * plan.vpp;
    if (plan.pp > 1 && layers % chunks != 0 && lighter_ends_are_equal(problem.scenario.model, chunks))
      plan.chunk_layers = lighter_ends(problem.scenario.model, chunks);
    deal_around_mtp(problem.scenario.model, plan, assumed);
    plan.schedule = plan.vpp > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
    if (row_.schedule == "zb-1p") plan.schedule = Schedule::kZeroBubbleH1;
    if (row_.schedule == "zb-2p") throw Skip{"schedule zb-2p"};
  }

  // Where the row does not say, nothing, unless without it the plan needs far more memory than there is: what
  // a row leaves open may save some, and predictions of memory err.
  static constexpr double kImpossible = 1.5;
  void read_recompute(const Problem& problem, Plan& plan, std::vector<std::string>& assumed) const {
    const std::string& text = row_.recompute;
    if (text.empty()) {
      assumed.emplace_back("recompute");
      if (!keeps_activations(problem, plan, kImpossible)) plan.recompute = Recompute::kFull;
    } else if (text == "none") {
      plan.recompute = Recompute::kNone;
    } else if (text == "full") {
      plan.recompute = Recompute::kFull;
    } else if (text == "selective") {
      plan.recompute = Recompute::kSelective;
    } else if (text == "selective(op)") {
      // Attention and every second product are kept: of the others MLPs have nearly all the FLOPs.
      plan.recompute = Recompute::kSelective;
      plan.recompute_parts = {RecomputePart::kNorms, RecomputePart::kMlp};
    } else {
      throw Skip{"recomputation " + text};
    }
  }

  // Dropout of GPT by default of Megatron, and of its forks.
  static constexpr double kDropout = 0.1;

  void read_precision(Training& t, const std::string& stack, const std::vector<Device>& devices) const {
    const std::string& text = row_.precision;
    if (row_.source_key == "sailor" && text.empty()) {  // its runs keep PyTorch's number format
      t.math = Math::kTf32;
      t.precision = Precision::kFp32;
      return;
    }
    if (text == "fp16")
      t.math = Math::kFp16;
    else if (text.empty() || text == "bf16" || text == "BF16" || text == "amp_bf16")
      t.math = Math::kBf16;
    else if (const auto math = narrow_format(text, devices))
      t.math = *math;
    else
      throw Skip{"precision " + text};
    // Megatron and torchtitan sum gradients in fp32.
    const bool sums_in_fp32 = stack.starts_with("megatron") || stack.starts_with("torchtitan");
    t.precision = sums_in_fp32 ? Precision::kMegatron : Precision::kMixed;
    if (stack == "megatron-deepspeed" && row_.parallel.zero_stage != 3)
      t.precision = t.math == Math::kFp16 ? Precision::kDeepspeedFp16 : Precision::kDeepspeedBf16;
    constexpr std::array kOfThen = {"megatron-2021", "megatron-deepspeed", "megatron-zero-bubble"};
    if (std::find(kOfThen.begin(), kOfThen.end(), stack) != kOfThen.end()) t.dropout = kDropout;
  }

  const TrainingRow& row_;
  const Cursor& at_;
  const DataFolders& data_;
};

PublishedRun read_run(const TrainingRow& row, const Cursor& at, const DataFolders& data) {
  PublishedRun run{
      .id = row.id, .source = row.source_key, .study = row.source_key, .suspect = row.suspect.something};
  const RowReader reader(row, at, data);
  reader.read(run.problem, run.plan, run.assumed);
  if (row.outcome != "ok") return run;
  run.step_s = reader.published_step(run.problem, run.plan);
  const RowMeasured& m = row.measured;
  if (!m.peak_mem_kind.empty() && m.peak_mem_kind != "analytic") {
    run.memory_gib = m.peak_mem_gib;
    run.memory_kind = m.peak_mem_kind;
  }
  return run;
}

}  // namespace

PublishedRuns read_training(const Json& rows, const std::string& file, const DataFolders& data) {
  PublishedRuns out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ++out.read;
    const Cursor at = Cursor{file, ""}.child(i);
    const auto row = read_fields<TrainingRow>(rows[i], at);
    try {
      if (row.consistency_issues.something) throw Skip{"the row's own numbers disagree"};
      add(read_run(row, at, data), out);
    } catch (const Skip& s) {
      ++out.skipped[s.reason];
    }
  }
  return out;
}

Validation validate_training(const Json& rows, const std::string& file, const DataFolders& data) {
  return validate(read_training(rows, file, data));
}

}  // namespace orrery::sim
