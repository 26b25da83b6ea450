// SPDX-License-Identifier: Apache-2.0
//
// Published training runs as problems and plans. A row is skipped, with a reason, when our model cannot
// express it; what it leaves open is assumed and listed with it.
#include <algorithm>
#include <array>

#include "program/program.h"
#include "sim/calibration/validate.h"
#include "sim/estimate/estimate.h"

namespace orrery::sim {
namespace {

struct Skip {
  std::string reason;
};

struct GpuRule {
  const char* pattern;
  const char* topology;  // fabric constants of the node
  const char* device;
  double nic_gbit_per_gpu;  // where the row does not say
};
constexpr GpuRule kGpus[] = {{"A100-SXM4-40GB", "p4d", "a100-40gb", 200},
                             {"A100-SXM4-80GB", "dgx-a100", "a100-80gb", 200},
                             {"A800", "dgx-a100", "a100-80gb", 200},
                             {"H100-SXM5-80GB", "dgx-h100", "h100-sxm", 400},
                             {"H100-80GB", "dgx-h100", "h100-sxm", 400},
                             {"H100-SXM5-96GB-HBM2e-500W", "dgx-h100", "h100-sxm-500w", 400},
                             {"H200", "dgx-h100", "h200", 400},
                             {"GH200", "dgx-h100", "gh200", 200},
                             {"GB200", "gb200-nvl72", "gb200", 400},
                             {"GB300", "gb200-nvl72", "b300", 800},
                             {"B200", "dgx-b200", "b200", 400},
                             {"B300", "dgx-b200", "b300", 800},
                             {"V100-SXM2-16GB", "dgx-a100", "v100-16gb", 25},
                             {"V100", "dgx-a100", "v100-32gb", 25}};

struct StackRule {
  const char* source;
  const char* stack;
};
constexpr StackRule kStacks[] = {{"megatron_sc21", "megatron-2021"},
                                 {"megatron_2020", "megatron-2021"},
                                 {"bigscience", "megatron-2021"},
                                 {"bigscience_v100", "megatron-2021"},
                                 {"korthikanti", "megatron-2021"},
                                 {"vtrain_single", "megatron-2021"},
                                 {"zero_bubble", "megatron-2021"},
                                 {"sailor", "megatron-2021"},
                                 {"meg_deepspeed", "deepspeed"},
                                 {"colossalai", "deepspeed"},
                                 {"llm_foundry", "fsdp"},
                                 {"torchtitan", "torchtitan"},
                                 {"llmq", "orrery"},
                                 {"automodel", "fsdp"}};

// Gb/s of a whole node from the words of the row; zero when it does not say.
double node_network(const std::string& words, std::int64_t gpus_per_node) {
  struct Words {
    const char* pattern;
    double gbit, per_gpu;
  };
  constexpr std::array kWords = {Words{"8x HDR", 1600, 0},
                                 Words{"800 Gb/s HDR", 800, 0},
                                 Words{"1600 Gb/s", 1600, 0},
                                 Words{"4x 100 Gb/s", 400, 0},
                                 Words{"8x 400 Gb/s", 3200, 0},
                                 Words{"100 Gb/s Omni-Path", 100, 0},
                                 Words{"400 Gb/s RDMA per GPU", 0, 400},
                                 Words{"400 Gb/s per GPU", 0, 400},
                                 Words{"400 Gb/s CX-7 per GPU", 0, 400},
                                 Words{"Slingshot", 0, 200}};
  for (const Words& w : kWords) {
    if (words.find(w.pattern) != std::string::npos)
      return w.gbit > 0 ? w.gbit : w.per_gpu * static_cast<double>(gpus_per_node);
  }
  return 0;
}

class RowReader {
 public:
  RowReader(const Json& row, const DataFolders& data) : row_(row), data_(data) {}

  // Throws Skip.
  void read(Problem& problem, Plan& plan, std::vector<std::string>& assumed) const {
    for (const Json& f : row_.at("unverified_fields")) assumed.push_back(f.get<std::string>());
    read_model(problem.scenario.model, problem.scenario.training);
    read_hardware(problem);
    read_plan(problem, plan, assumed);
  }

  // Seconds per step, from step time, tokens/s, or FLOP/s in a known convention. Throws Skip.
  double published_step(const Problem& problem, const Plan& plan) const {
    const Json& m = row_.at("measured");
    if (m.at("step_time_s").is_number()) return m.at("step_time_s").get<double>();
    const auto gpus = row_.at("num_gpus").get<double>();
    const double tokens = problem.scenario.training.tokens_per_step();
    if (m.at("tokens_per_s_per_gpu").is_number())
      return tokens / (m.at("tokens_per_s_per_gpu").get<double>() * gpus);
    const std::string source = row_.at("source_key").get<std::string>();
    if (!m.at("tflops_per_gpu").is_number()) throw Skip{"no measured time"};
    double flops = model_flops_per_sequence(problem.scenario.model, problem.scenario.training.sequence,
                                            AttentionFlops::kFull)
                       .value *
                   static_cast<double>(problem.scenario.training.global_batch);
    if (source == "megatron_sc21" || source == "bigscience") {
      if (plan.recompute == Recompute::kFull) flops *= 4.0 / 3.0;  // hardware FLOPs are printed
    } else if (source != "megatron_h100") {
      throw Skip{"FLOP/s in a convention we cannot convert"};
    }
    return flops / (m.at("tflops_per_gpu").get<double>() * 1e12 * gpus);
  }

 private:
  static std::int64_t integer(const Json& object, const char* name, std::int64_t otherwise = -1) {
    const auto found = object.find(name);
    return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
  }

  void read_model(Model& m, Training& t) const {
    const Json& j = row_.at("model");
    if (!j.at("moe").is_null()) throw Skip{"mixture of experts"};
    if (j.contains("arch") && !j.at("arch").is_null()) throw Skip{"not a plain transformer"};
    if (j.contains("attention") && !j.at("attention").is_null()) throw Skip{"latent attention"};
    m.name = j.at("name").get<std::string>();
    m.layers = integer(j, "layers");
    m.hidden = integer(j, "hidden");
    m.heads = integer(j, "heads");
    m.kv_heads = integer(j, "kv_heads", 0);
    m.ffn_hidden = integer(j, "ffn_hidden", 0);
    m.vocab = integer(j, "vocab", 50257);
    t.sequence = integer(j, "seq_len");
    if (m.layers <= 0 || m.hidden <= 0 || m.heads <= 0 || t.sequence <= 0)
      throw Skip{"model dimensions not published"};
    if (m.hidden % m.heads != 0) throw Skip{"heads do not divide the width"};
    m.max_positions = t.sequence;
    const bool gated = j.at("gated_mlp").is_boolean() && j.at("gated_mlp").get<bool>();
    m.activation = gated ? Activation::kSwiglu : Activation::kGelu;
    m.norm = gated ? Norm::kRmsNorm : Norm::kLayerNorm;
    m.positions = gated ? Positions::kRotary : Positions::kLearned;
    m.bias = !gated;
    m.tied_embeddings = j.contains("tied_embeddings") && j.at("tied_embeddings").is_boolean()
                            ? j.at("tied_embeddings").get<bool>()
                            : !gated;
  }

  void read_hardware(Problem& p) const {
    if (row_.contains("heterogeneous") && !row_.at("heterogeneous").is_null()) {
      const Json& h = row_.at("heterogeneous");
      if (!h.is_boolean() || h.get<bool>()) throw Skip{"mixed GPU types"};
    }
    const std::string gpu = row_.at("gpu").get<std::string>();
    const auto* rule = std::find_if(std::begin(kGpus), std::end(kGpus),
                                    [&](const GpuRule& g) { return gpu.starts_with(g.pattern); });
    if (rule == std::end(kGpus)) throw Skip{"no profile for the GPU"};
    const Cursor nowhere{"", ""};
    p.cluster = load_cluster(rule->topology, {}, nowhere, data_);
    const std::int64_t gpus = integer(row_, "num_gpus", 0),
                       per_node = std::min(integer(row_, "gpus_per_node", 8), gpus);
    if (gpus <= 0 || gpus % per_node != 0) throw Skip{"GPUs do not fill whole nodes"};
    if (p.cluster.scale_up_nodes > 1) p.cluster.scale_up_nodes = std::max<std::int64_t>(1, 72 / per_node);
    p.cluster.devices_per_node = per_node;
    p.cluster.nodes = gpus / per_node;
    p.cluster.nics = per_node;
    const Json& words = row_.at("interconnect");
    double gbit = words.is_string() ? node_network(words.get<std::string>(), per_node) : 0;
    if (gbit == 0) gbit = rule->nic_gbit_per_gpu * static_cast<double>(per_node);
    p.cluster.nic_bandwidth = Bandwidth{static_cast<std::int64_t>(gbit * 1e9 / 8)};
    const std::string device = rule->device;
    p.device = load_device(device == "h100-sxm-500w" ? "h100-sxm" : device, nowhere, data_);
    if (device == "h100-sxm-500w") p.device.memory_bandwidth = *parse_bandwidth("2.4 TB/s");
    if (gpu.starts_with("V100")) {
      p.cluster.intra_bandwidth = *parse_bandwidth("150 GB/s");
      p.cluster.in_network_gain = 0;
      p.cluster.measured = {};
    }
    const std::string source = row_.at("source_key").get<std::string>();
    const auto* stack = std::find_if(std::begin(kStacks), std::end(kStacks),
                                     [&](const StackRule& s) { return source == s.source; });
    p.stack = load_stack(stack == std::end(kStacks) ? "megatron-core" : stack->stack, nowhere, data_);
    if (row_.at("flash_attention").is_boolean())
      p.stack.flash_attention = row_.at("flash_attention").get<bool>();
  }

  void read_plan(Problem& problem, Plan& plan, std::vector<std::string>& assumed) const {
    const Json& j = row_.at("parallel");
    Training& t = problem.scenario.training;
    plan.tp = integer(j, "tp");
    plan.pp = integer(j, "pp");
    plan.dp = integer(j, "dp");
    if (plan.tp <= 0 || plan.pp <= 0 || plan.dp <= 0) throw Skip{"parallel degrees not published"};
    if (integer(j, "cp", 1) > 1) throw Skip{"context parallel"};
    if (plan.ranks() != integer(row_, "num_gpus")) throw Skip{"degrees do not multiply to the GPUs"};
    plan.vpp = std::max<std::int64_t>(1, integer(j, "vpp", 1));
    plan.sequence_parallel = j.at("sp").is_boolean() && j.at("sp").get<bool>();
    plan.zero = std::max<std::int64_t>(0, integer(j, "zero_stage", plan.dp > 1 ? 1 : 0));
    if (plan.dp == 1) plan.zero = 0;
    if (!j.at("zero_stage").is_number_integer()) assumed.push_back("parallel.zero_stage");
    t.global_batch = integer(row_, "global_batch", 0);
    if (t.global_batch <= 0) throw Skip{"batch not published"};
    plan.micro_batch = integer(row_, "micro_batch", 0);
    if (plan.micro_batch <= 0) {
      plan.micro_batch = 1;
      assumed.push_back("micro_batch");
    }
    if (t.global_batch % (plan.micro_batch * plan.dp) != 0)
      throw Skip{"micro-batch does not divide the batch"};
    plan.micro_batches = t.global_batch / (plan.micro_batch * plan.dp);
    plan.schedule = plan.vpp > 1 && plan.pp > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
    if (plan.pp == 1) plan.vpp = 1;
    if (row_.contains("schedule") && row_.at("schedule").is_string()) {
      const std::string s = row_.at("schedule").get<std::string>();
      if (s == "zb-1p")
        plan.schedule = Schedule::kZeroBubbleH1;
      else if (s == "zb-2p")
        throw Skip{"schedule zb-2p"};
    }
    read_recompute(plan, assumed);
    read_precision(t, problem.stack.name);
  }

  void read_recompute(Plan& plan, std::vector<std::string>& assumed) const {
    const Json& r = row_.at("recompute");
    if (r.is_null()) {
      assumed.push_back("recompute");
      return;
    }
    const std::string text = r.get<std::string>();
    if (text == "none")
      plan.recompute = Recompute::kNone;
    else if (text == "full")
      plan.recompute = Recompute::kFull;
    else if (text == "selective" || text == "selective(op)")
      plan.recompute = Recompute::kSelective;
    else
      throw Skip{"recomputation " + text};
  }

  void read_precision(Training& t, const std::string& stack) const {
    const Json& p = row_.at("precision");
    const std::string text = p.is_string() ? p.get<std::string>() : "bf16";
    if (text == "fp16")
      t.math = Math::kFp16;
    else if (text == "bf16" || text == "BF16" || text == "amp_bf16")
      t.math = Math::kBf16;
    else if (text == "FP8" || text == "FP8-CS" || text == "amp_fp8" || text == "fp8 (TE) / bf16" ||
             text == "fp8 (linear) / bf16" || text == "fp8 tensorwise" || text == "fp8 e4m3 matmul / bf16")
      t.math = Math::kFp8;
    else
      throw Skip{"precision " + text};
    t.precision = stack.starts_with("megatron") ? Precision::kMegatron : Precision::kMixed;
  }

  const Json& row_;
  const DataFolders& data_;
};

// Tools print memory at different levels; compare like with like.
double comparable_memory(const std::string& kind, const Problem& problem, const Plan& plan,
                         const Estimator& e, Bytes logical) {
  if (kind.starts_with("max allocated") || kind.starts_with("peak"))
    return static_cast<double>(logical.value);
  if (kind.starts_with("reserved") || kind.starts_with("max over stages")) {
    return static_cast<double>(logical.value) * problem.stack.allocator_overhead;
  }
  return static_cast<double>(e.device_bytes(plan, logical).value);
}

void predict(const Json& row, const DataFolders& data, Validation& out) {
  Problem problem;
  Plan plan;
  std::vector<std::string> assumed;
  const RowReader reader(row, data);
  reader.read(problem, plan, assumed);
  const double published = reader.published_step(problem, plan);
  try {
    program::check_plan(problem.scenario.model, plan, problem.scenario.training, Cursor{});
  } catch (const InputError& e) {
    throw Skip{"plan outside our model: " + std::string(e.what()).substr(0, 24)};
  }
  const Topology topology(problem.cluster);
  Estimator estimator(problem, topology);
  const Estimate estimate = estimator.estimate(plan);
  const std::string id = row.at("id").get<std::string>();
  const char* const format = problem.scenario.training.math == Math::kFp8 ? " fp8" : "";
  const std::string source = row.at("source_key").get<std::string>() + format;
  out.rows.push_back({id, source, "step_time", seconds(estimate.step), published, assumed});
  const Json& m = row.at("measured");
  if (m.at("peak_mem_gib").is_number() && m.at("peak_mem_kind").is_string() &&
      m.at("peak_mem_kind") != "analytic") {
    const double memory =
        comparable_memory(m.at("peak_mem_kind").get<std::string>(), problem, plan, estimator, estimate.peak);
    out.rows.push_back({id, source, "memory", memory, m.at("peak_mem_gib").get<double>() * kGiB, assumed});
  }
}

}  // namespace

Validation validate_training(const Json& rows, const std::string& file, const DataFolders& data) {
  Validation out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ++out.read;
    try {
      if (rows[i].value("outcome", std::string()) != "ok") throw Skip{"out of memory"};
      if (rows[i].contains("consistency_issues") && !rows[i].at("consistency_issues").empty())
        throw Skip{"the row's own numbers disagree"};
      predict(rows[i], data, out);
    } catch (const Skip& s) {
      ++out.skipped[s.reason];
    } catch (const Json::exception& e) {
      Cursor{file, fmt::format("/{}", i)}.fail(std::string("a field has another type than expected: ") +
                                               e.what());
    }
  }
  return out;
}

}  // namespace orrery::sim
