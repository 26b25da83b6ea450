// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/capabilities.h"
#include "program/program.h"
#include "sim/estimate/estimate.h"

namespace orrery::sim {
namespace {

constexpr GpuRule kGpus[] = {{"A100-SXM4-40GB", "p4d", "a100-40gb", 200},
                             {"A100-SXM4-80GB", "dgx-a100", "a100-80gb", 200},
                             {"A100-80GB", "dgx-a100", "a100-80gb", 200},
                             {"A800", "hgx-a800", "a800", 200},
                             {"H100-SXM5-80GB", "dgx-h100", "h100-sxm", 400},
                             {"H100-80GB", "dgx-h100", "h100-sxm", 400},
                             {"H100-SXM5-96GB-HBM2e-500W", "dgx-h100", "h100-sxm-500w", 400},
                             {"H800", "hgx-h800", "h800", 400},
                             {"MI355X", "mi355x", "mi355x", 400},
                             {"H200", "dgx-h100", "h200", 400},
                             {"GH200", "dgx-h100", "gh200", 200},
                             {"GB200", "gb200-nvl72", "gb200", 400},
                             {"GB300", "gb200-nvl72", "b300", 800},
                             {"B200", "dgx-b200", "b200", 400},
                             {"B300", "dgx-b200", "b300", 800},
                             {"V100-SXM2-16GB", "dgx-a100", "v100-16gb", 25},
                             {"V100", "dgx-a100", "v100-32gb", 25},
                             {"RTX-2080", "geforce-pcie", "rtx-2080-ti", 12.5},
                             {"RTX-3090", "geforce-pcie", "rtx-3090", 12.5},
                             {"Titan-RTX", "geforce-pcie", "titan-rtx", 12.5},
                             {"NVIDIA L40S", "rtx-pro-6000-pcie", "l40s", 25}};

// Tools print memory at different levels; compare like with like.
double comparable_memory(const PublishedRun& run, const Estimator& estimator, Bytes logical) {
  const std::string& kind = run.memory_kind;
  if (kind.starts_with("max allocated") || kind.starts_with("peak"))
    return static_cast<double>(logical.value);
  if (kind.starts_with("reserved") || kind.starts_with("max over stages"))
    return static_cast<double>(logical.value) * run.problem.stack.allocator_overhead;
  return static_cast<double>(estimator.device_bytes(run.plan, logical).value);
}

std::string text(auto value) {
  return fmt::format("{}", value);
}

// A step of one micro-batch has the batch that its plan has.
std::map<std::string, std::string> asked_of(const Problem& problem, const Plan& p) {
  const Scenario& s = problem.scenario;
  const Model& m = s.model;
  return {{"model", fmt::format("{} of {} layers, {} wide, {}/{} heads, MLPs {}, vocabulary {}", m.name,
                                m.layers, m.hidden, m.heads, m.kv_heads, m.ffn_hidden, m.vocab)},
          {"gpu", problem.device_names()},
          {"software", problem.stack.name},
          {"network", fmt::format("{} {}", problem.cluster.name, problem.cluster.nic_bandwidth.value)},
          {"gpus", text(p.ranks())},
          {"global batch", p.pp == 1 && p.micro_batches == 1 ? "a micro-batch of each replica"
                                                             : text(s.training.global_batch)},
          {"sequence", text(s.training.sequence)},
          {"number format", fmt::format("{} {}", name_of(s.training.math), name_of(s.training.precision))}};
}

// What follows from others and the number of GPUs (dp, micro-batches) is not among them.
std::map<std::string, std::string> knobs_of(const Plan& p) {
  std::string parts;
  for (const RecomputePart part : p.recompute_parts) parts += fmt::format(" {}", name_of(part));
  return {{"tp", text(p.tp)},
          {"pp", text(p.pp)},
          {"vpp", fmt::format("{} {}", p.vpp, p.pp > 1 ? name_of(p.schedule) : "")},
          {"cp", text(p.cp)},
          {"way of cp", p.cp > 1 ? std::string(name_of(p.context_way())) : std::string()},
          {"ep", text(p.ep)},
          {"etp", text(p.splits_experts() ? p.expert_tp() : 0)},
          {"exchange of experts", p.ep > 1 && p.exchanges_by_node() ? "by node" : ""},
          {"overlap of exchanges", p.overlap_exchanges ? "in pairs" : ""},
          {"micro-batch", text(p.micro_batch)},
          {"zero", text(p.zero)},
          {"shard group", text(p.shard_group)},
          {"recompute", fmt::format("{}/{}{}", name_of(p.recompute), p.recompute_layers, parts)},
          {"sequence parallel", p.tp == 1 || p.sequence_parallel ? "" : "none"}};
}

// Of sources, by their number format.
const char* suffix_of(Math math) {
  if (math == Math::kNvfp4) return " fp4";
  if (math == Math::kFp8Rowwise) return " fp8 rowwise";
  return rounds(math) ? " fp8" : "";
}

}  // namespace

const GpuRule& rule_of(std::string_view gpu) {
  const auto* rule = std::find_if(std::begin(kGpus), std::end(kGpus),
                                  [&](const GpuRule& g) { return gpu.starts_with(g.pattern); });
  if (rule == std::end(kGpus)) throw Skip{"no profile for the GPU"};
  return *rule;
}

void set_nodes(Problem& p, const GpuRule& rule, std::int64_t gpus, std::int64_t per_node, double gbit,
               const Cursor& at, const DataFolders& data) {
  p.cluster = load_cluster(rule.topology, {}, at, data);
  if (gpus == 0 || gpus % per_node != 0) throw Skip{"GPUs do not fill whole nodes"};
  if (p.cluster.scale_up_nodes > 1)
    p.cluster.scale_up_nodes =
        std::max<std::int64_t>(1, p.cluster.scale_up_nodes * p.cluster.devices_per_node / per_node);
  p.cluster.devices_per_node = per_node;
  p.cluster.nodes = gpus / per_node;
  p.cluster.nics = per_node;
  if (gbit == 0) gbit = rule.nic_gbit_per_gpu * static_cast<double>(per_node);
  p.cluster.nic_bandwidth = Bandwidth{static_cast<std::int64_t>(gbit * 1e9 / 8)};
}

std::optional<Math> narrow_format(std::string_view text, const std::vector<Device>& devices) {
  struct Name {
    std::string_view name;
    Math math;
  };
  // "amp_fp8" and "fp8 (TE)" are Transformer Engine's default recipe, and torchao's products have a factor
  // for each tensor. Megatron-Bridge calls its recipe with factors of now FP8, and later FP8-CS.
  constexpr std::array kNames{Name{"NVFP4", Math::kNvfp4},
                              Name{"MXFP8", Math::kMxfp8},
                              Name{"MXFP8/BF16", Math::kMxfp8},
                              Name{"FP8-MX", Math::kMxfp8},
                              Name{"fp8_mx", Math::kMxfp8},
                              Name{"FP8-Block", Math::kFp8Blockwise},
                              Name{"FP8-BLK", Math::kFp8Blockwise},
                              Name{"fp8 blockwise 1x128/128x128", Math::kFp8Blockwise},
                              Name{"fp8 rowwise", Math::kFp8Rowwise},
                              Name{"fp8 delayed", Math::kFp8Delayed},
                              Name{"amp_fp8", Math::kFp8Delayed},
                              Name{"fp8 (TE) / bf16", Math::kFp8Delayed},
                              Name{"FP8", Math::kFp8},
                              Name{"FP8-CS", Math::kFp8},
                              Name{"fp8 tensorwise", Math::kFp8},
                              Name{"fp8 (linear) / bf16", Math::kFp8},
                              Name{"fp8 e4m3 matmul / bf16", Math::kFp8}};
  for (const Name& n : kNames) {
    if (n.name == text) return n.math;
  }
  if (text != "FP8 fine-grained") return std::nullopt;
  return devices.front().applies_factors(Math::kMxfp8) ? Math::kMxfp8 : Math::kFp8Blockwise;
}

void deal_around_mtp(const Model& model, Plan& plan, std::vector<std::string>& assumed) {
  const std::int64_t chunks = plan.pp * plan.vpp;
  if (model.mtp_layers == 0 || plan.pp == 1 || model.layers + ends_as_layers(model).sum() < chunks) return;
  plan.chunk_layers = lighter_ends(model, chunks);
  assumed.emplace_back("layers of stages");
}

void share_sequences(Plan& plan, std::int64_t cp, const Problem& problem, std::vector<std::string>& assumed) {
  if (cp == 1) return;
  const Stack& stack = problem.stack;
  if (!stack.runs || stack.runs->context_parallel.empty()) throw Skip{"context parallel in " + stack.name};
  plan.cp = cp;
  assumed.emplace_back("how ranks share sequences");
  const std::vector<ContextWay>& ways = stack.runs->context_parallel;
  const ContextWay way = ways.front();
  if (way == ContextWay::kUlysses)
    plan.ulysses = cp;
  else
    plan.cp_keys = way == ContextWay::kAllGather ? ContextKeys::kAllGather : ContextKeys::kRing;
  const std::int64_t node = problem.cluster.devices_per_node;
  const Depth depth = depth_of(problem.scenario.model);
  bool latent = false;
  depth.for_each_layer([&](const auto& layer, std::int64_t) {
    latent |= std::is_same_v<std::decay_t<decltype(layer)>, LatentAttentionLayer>;
  });
  if (!latent || way != ContextWay::kRing || plan.tp * cp <= node || node % plan.tp != 0 ||
      std::find(ways.begin(), ways.end(), ContextWay::kRingUlysses) == ways.end())
    return;
  const std::int64_t heads = depth.shared(Degree::kHeads);
  plan.ulysses = std::gcd(std::gcd(cp, node / plan.tp), heads / std::gcd(heads, plan.tp));
}

bool fits(const Problem& problem, const Plan& plan, double room) {
  try {
    check_model(problem.scenario.model, Cursor{});
    check_step(problem, Cursor{});
    program::check_plan(problem.scenario.model, plan, problem.scenario.training, Cursor{});
  } catch (const InputError&) {
    return true;
  }
  const Topology topology(problem.cluster);
  Estimator estimator(problem, topology);
  return static_cast<double>(estimator.device_bytes(plan, estimator.estimate(plan).peak).value) <=
         room * static_cast<double>(problem.devices.front().memory.value);
}

bool keeps_activations(const Problem& problem, const Plan& plan, double room) {
  return problem.devices.front().architecture.starts_with("Grace") || fits(problem, plan, room);
}

void add(PublishedRun run, PublishedRuns& to) {
  const Scenario& s = run.problem.scenario;
  if (run.timed == Timed::kStep || run.timed == Timed::kNothing) {
    try {
      check_model(s.model, Cursor{});
      check_step(run.problem, Cursor{});
      program::check_plan(s.model, run.plan, s.training, Cursor{});
    } catch (const InputError& e) {
      throw Skip{"plan outside our model: " + std::string(e.what()).substr(0, 24)};
    }
    if (const auto wrong = stack_problem(run.problem.stack, s.model, run.plan, s.training))
      throw Skip{fmt::format("{}: {}", wrong->pointer, wrong->text.substr(0, wrong->text.find(" (")))};
    const bool sparse = depth_of(s.model).shared(Degree::kExpert) > 0;
    run.source +=
        std::string(sparse ? " sparse" : "") + (run.plan.cp > 1 ? " cp" : "") + suffix_of(s.training.math);
  }
  to.runs.push_back(std::move(run));
}

double predict_seconds(const PublishedRun& run, const Problem& problem) {
  if (run.timed == Timed::kAttention || run.timed == Timed::kAttentionWithBackward)
    return seconds(attention_alone(problem, run.plan, run.timed == Timed::kAttentionWithBackward));
  const Topology topology(problem.cluster);
  return seconds(Estimator(problem, topology).estimate(run.plan).step);
}

Validation validate(const PublishedRuns& runs) {
  Validation out{.read = runs.read, .skipped = runs.skipped};
  for (const PublishedRun& run : runs.runs) {
    if (run.timed == Timed::kAttention || run.timed == Timed::kAttentionWithBackward) {
      out.rows.push_back(
          {run.id, run.source, "step_time", predict_seconds(run, run.problem), run.step_s, {}});
      continue;
    }
    const Topology topology(run.problem.cluster);
    Estimator estimator(run.problem, topology);
    const Estimate estimate = estimator.estimate(run.plan);
    // A run that fitted says little where what it kept is a guess.
    if (run.problem.devices.size() == 1 && (!run.ran() || run.assumed.empty())) {
      out.fits.push_back({run.id, run.source,
                          static_cast<double>(estimator.device_bytes(run.plan, estimate.peak).value),
                          static_cast<double>(run.problem.devices.front().memory.value), run.ran()});
    }
    if (!run.ran()) continue;
    if (run.timed == Timed::kStep)
      out.rows.push_back({run.id, run.source, "step_time", seconds(estimate.step), run.step_s, run.assumed, 0,
                          asked_of(run.problem, run.plan), knobs_of(run.plan),
                          run.problem.scenario.training.global_batch, run.suspect});
    if (run.memory_gib == 0) continue;
    const double memory = comparable_memory(run, estimator, estimate.peak);
    out.rows.push_back({run.id, run.source, "memory", memory, run.memory_gib * kGiB, run.assumed, 0,
                        asked_of(run.problem, run.plan), knobs_of(run.plan)});
  }
  return out;
}

}  // namespace orrery::sim
