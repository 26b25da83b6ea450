// SPDX-License-Identifier: Apache-2.0
#include "core/capabilities.h"

#include <algorithm>

#include "core/stack.h"

namespace orrery {
namespace {

template <class T>
bool has(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <NamedEnum E>
std::vector<E> every() {
  std::vector<E> out;
  for (const auto& [value, name] : enum_names(E{})) out.push_back(value);
  return out;
}

template <class T>
std::string names(const std::vector<T>& list) {
  std::vector<std::string> out;
  for (const T& value : list) {
    if constexpr (NamedEnum<T>)
      out.emplace_back(name_of(value));
    else
      out.push_back(fmt::format("{}", value));
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

template <class T>
std::string allowed(const std::vector<T>& list) {
  return list.empty() ? std::string() : "allowed: " + names(list);
}

// "Megatron-LM core_v0.19.0, profiles/stacks/megatron-core.json"
std::string source(const Stack& s) {
  return s.file.empty() ? s.runs->software : s.runs->software + ", " + s.file;
}

std::string lacks(const Stack& s, const std::string& what) {
  return fmt::format("{} has no {} ({})", s.name, what, source(s));
}

const NumberFormats* formats_of(const Capabilities& c, Precision p) {
  const auto found = std::find_if(c.formats.begin(), c.formats.end(),
                                  [p](const NumberFormats& f) { return f.precision == p; });
  return found == c.formats.end() ? nullptr : &*found;
}

bool grouped(const Plan& p) {
  return p.zero > 0 && p.shards() != p.copies();
}

// Asked of every plan of a search: the depth of a model is dear to make.
template <class Test>
bool any_layer(const Model& m, Test test) {
  const auto in_block = [&](const ModelBlock& b) {
    return std::any_of(b.layers.begin(), b.layers.end(),
                       [&](const Layer& l) { return std::visit(test, l.is); });
  };
  if (m.blocks.empty()) return in_block(standard_block(m));
  return std::any_of(m.blocks.begin(), m.blocks.end(), [&](const BlockRun& run) {
    return std::any_of(run.blocks.begin(), run.blocks.end(), in_block);
  });
}
bool has_window(const Model& m, const Training& t) {
  return any_layer(m, [&]<class L>(const L& layer) {
    if constexpr (std::is_same_v<L, AttentionLayer>) return layer.windowed(t.sequence);
    return false;
  });
}
bool has_expert_biases(const Model& m) {
  return any_layer(m, []<class L>(const L& layer) {
    if constexpr (std::is_same_v<L, ExpertsLayer>) return layer.biases;
    return false;
  });
}

bool differs(const std::optional<bool>& wanted, bool is) {
  return wanted && *wanted != is;
}

// Whether some plan of the model could meet the refusal.
bool concerns(const Refusal& r, const Model& m, const Training& t) {
  return (r.precision.empty() || has(r.precision, t.precision)) && (r.math.empty() || has(r.math, t.math)) &&
         !differs(r.lamb, t.lamb) && !differs(r.muon, t.muon.has_value()) &&
         (!r.sliding_window || *r.sliding_window == has_window(m, t)) &&
         (!r.expert_biases || *r.expert_biases == has_expert_biases(m));
}

bool refuses(const Refusal& r, const Model& m, const Plan& p, const Training& t) {
  if (!r.zero.empty() && (p.copies() == 1 || !has(r.zero, p.zero))) return false;
  if (!r.rank_order.empty() && !has(r.rank_order, p.rank_order)) return false;
  if (!r.schedule.empty() && (p.pp == 1 || !has(r.schedule, p.schedule))) return false;
  if (!r.context_parallel.empty() && (p.cp == 1 || !has(r.context_parallel, p.context_way()))) return false;
  return !differs(r.offload, p.offloads()) && !differs(r.nvme, p.optimizer_on_drives()) &&
         !differs(r.tensor_parallel, p.tp > 1) && !differs(r.pipeline_parallel, p.pp > 1) &&
         !differs(r.shard_group, grouped(p)) && !differs(r.expert_parallel, p.ep > 1) &&
         !differs(r.expert_tensor_parallel, p.expert_tp() > 1) && concerns(r, m, t);
}

// The field of a scenario that a message about a refused combination points to.
const char* pointer_of(const Refusal& r) {
  if (r.lamb) return "/training/lamb";
  if (r.nvme) return "/plan/offload/nvme";
  if (r.offload) return "/plan/offload";
  if (!r.precision.empty()) return "/training/precision";
  if (!r.schedule.empty()) return "/plan/schedule";
  if (!r.context_parallel.empty()) return "/plan/cp";
  if (!r.rank_order.empty()) return "/plan/rank_order";
  if (r.shard_group) return "/plan/shard_group";
  if (r.expert_tensor_parallel) return "/plan/etp";
  if (!r.zero.empty()) return "/plan/zero";
  if (r.muon) return "/training/muon";
  return r.pipeline_parallel ? "/plan/pp" : "/plan/tp";
}

bool places(const Capabilities& c, const Plan& p) {
  if (has(c.rank_order, p.rank_order)) return true;
  return std::any_of(c.rank_order.begin(), c.rank_order.end(),
                     [&](RankOrder o) { return placement(p, o) == placement(p, p.rank_order); });
}

// `layers` of the model; 0: unknown. Without chunk_layers a plan's chunks are as even as layers allow.
bool chunk_sizes_fit(const Capabilities& c, const Plan& p, std::int64_t layers) {
  if (c.chunk_layers == ChunkSizes::kAny) return true;
  const bool equal = c.chunk_layers == ChunkSizes::kEqual;
  if (p.chunk_layers.empty()) return !equal || layers % (p.pp * p.vpp) == 0;
  const auto [least, most] = std::minmax_element(p.chunk_layers.begin(), p.chunk_layers.end());
  return *most - *least <= (equal ? 0 : 1);
}

// Calls `report(pointer, text, allowed)` for the first axis of the plan that the software has not; the last
// two are functions, as a search wants no text. Returns whether there is one.
template <class Report>
bool report_axis(const Stack& s, const Capabilities& c, const Plan& p, std::int64_t layers, Report report) {
  const auto none = [] { return std::string(); };
  const auto one = [] { return std::string("allowed: 1"); };
  if (p.tp > 1 && !c.tensor_parallel)
    return report(
        "/plan/tp", [&] { return lacks(s, "tensor parallelism"); }, one);
  if (p.tp > 1 && !has(c.sequence_parallel, p.sequence_parallel)) {
    return report(
        "/plan/sequence_parallel",
        [&] {
          return p.sequence_parallel
                     ? lacks(s, "sequence parallelism")
                     : fmt::format("{} has no tensor parallelism without sequence parallelism ({})", s.name,
                                   source(s));
        },
        [&] { return allowed(c.sequence_parallel); });
  }
  if (p.splits_experts() && !c.expert_parallel)
    return report(
        p.ep > 1 ? "/plan/ep" : "/plan/etp", [&] { return lacks(s, "expert parallelism"); },
        [&] { return p.ep > 1 ? std::string("allowed: 1") : fmt::format("allowed: {}", p.tp); });
  if (p.ep > 1 && !has(c.expert_exchange, p.expert_exchange.value_or(ExpertExchange::kFlat))) {
    return report(
        "/plan/expert_exchange", [&] { return lacks(s, "such an exchange between experts"); },
        [&] { return allowed(c.expert_exchange); });
  }
  if (p.overlap_exchanges && !c.overlap_exchanges) {
    return report(
        "/plan/overlap_exchanges", [&] { return lacks(s, "forwards and backwards side by side"); },
        [] { return std::string("allowed: false"); });
  }
  if (p.cp > 1 && !has(c.context_parallel, p.context_way())) {
    return report(
        "/plan/cp", [&] { return lacks(s, fmt::format("{} context parallelism", name_of(p.context_way()))); },
        [&] { return c.context_parallel.empty() ? one() : allowed(c.context_parallel); });
  }
  if (p.pp > 1 && c.schedule.empty())
    return report(
        "/plan/pp", [&] { return lacks(s, "pipeline parallelism"); }, one);
  if (p.pp > 1 && !has(c.schedule, p.schedule)) {
    return report(
        "/plan/schedule", [&] { return lacks(s, fmt::format("{} schedule", name_of(p.schedule))); },
        [&] { return allowed(c.schedule); });
  }
  if (!chunk_sizes_fit(c, p, layers)) {
    return report(
        "/plan/chunk_layers",
        [&] { return lacks(s, fmt::format("chunks that are not {}", name_of(c.chunk_layers))); }, none);
  }
  if (p.copies() > 1 && !has(c.zero, p.zero)) {
    return report(
        "/plan/zero", [&] { return lacks(s, fmt::format("ZeRO stage {}", p.zero)); },
        [&] { return allowed(c.zero); });
  }
  if (!p.reshards() && !c.keep_gathered) {
    return report(
        "/plan/reshard_after_forward", [&] { return lacks(s, "ZeRO-3 that keeps what it gathered"); },
        [] { return std::string("allowed: true"); });
  }
  if (grouped(p) && !c.shard_group)
    return report(
        "/plan/shard_group", [&] { return lacks(s, "shard groups"); },
        [] { return std::string("allowed: 0"); });
  if (!has(c.recompute, p.recompute)) {
    return report(
        "/plan/recompute", [&] { return lacks(s, fmt::format("{} recomputation", name_of(p.recompute))); },
        [&] { return allowed(c.recompute); });
  }
  for (const RecomputePart part : p.repeated().list()) {
    if (has(c.recompute_parts, part)) continue;
    return report(
        p.recompute_parts.empty() ? "/plan/recompute" : "/plan/recompute_parts",
        [&] { return lacks(s, fmt::format("recomputation of {}", name_of(part))); },
        [&] { return allowed(c.recompute_parts); });
  }
  if (p.recompute == Recompute::kFull && p.recompute_layers > 1 && !c.recompute_layers)
    return report(
        "/plan/recompute_layers", [&] { return lacks(s, "recomputation of several layers at once"); }, one);
  if (p.recompute_first > 0 && !c.recompute_first) {
    return report(
        "/plan/recompute_first", [&] { return lacks(s, "recomputation of some layers of a chunk alone"); },
        [] { return std::string("allowed: 0"); });
  }
  if (!p.recompute_by_chunk.empty() && !c.recompute_by_chunk) {
    return report(
        "/plan/recompute_by_chunk",
        [&] { return lacks(s, "recomputation of different numbers of layers by chunk"); },
        [&] {
          return std::string(c.recompute_first ? "allowed: no such field; or recompute_first"
                                               : "allowed: no such field");
        });
  }
  if (p.loss_chunks > 1 && !c.loss_chunks)
    return report(
        "/plan/loss_chunks", [&] { return lacks(s, "a loss in chunks"); }, one);
  if (p.update_in_backward && !c.update_in_backward) {
    return report(
        "/plan/update_in_backward", [&] { return lacks(s, "updates in the backward pass"); },
        [] { return std::string("allowed: false"); });
  }
  if (p.offloaded_optimizer() > 0 && !c.offload_optimizer) {
    return report(
        "/plan/offload/optimizer", [&] { return lacks(s, "offloading of the optimizer's state"); },
        [] { return std::string("allowed: 0"); });
  }
  if (p.offloads_parameters() && !c.offload_parameters) {
    return report(
        "/plan/offload/parameters", [&] { return lacks(s, "offloading of parameters"); },
        [] { return std::string("allowed: false"); });
  }
  if (p.offloaded_layers() > 0 && !c.offload_activations) {
    return report(
        "/plan/offload/activation_layers", [&] { return lacks(s, "offloading of activations"); },
        [] { return std::string("allowed: 0"); });
  }
  if (p.optimizer_on_drives() && !c.offload_nvme) {
    return report(
        "/plan/offload/nvme", [&] { return lacks(s, "offloading to drives"); },
        [] { return std::string("allowed: \"nothing\""); });
  }
  if (p.islands > 1 && !c.islands) {
    return report(
        "/plan/islands", [&] { return lacks(s, "islands that train on their own between exchanges"); }, one);
  }
  if (!places(c, p)) {
    return report(
        "/plan/rank_order", [&] { return lacks(s, fmt::format("placement {}", name_of(p.rank_order))); },
        [&] { return allowed(c.rank_order); });
  }
  if (c.most_ranks > 0 && p.ranks() > c.most_ranks) {
    return report(
        "/plan/dp",
        [&] {
          return fmt::format("{} starts at most {} ranks, and the plan has {} ({})", s.name, c.most_ranks,
                             p.ranks(), source(s));
        },
        none);
  }
  return false;
}

// What the stack lacks of a layer. `in`: where the flat fields, or the blocks, stand.
std::optional<StackProblem> layer_problem(const Stack& s, const std::string& in, const AttentionLayer& a,
                                          const Training& t) {
  const Capabilities& c = *s.runs;
  if (!has(c.positions, a.positions)) {
    return StackProblem{in + "/positions", lacks(s, fmt::format("{} positions", name_of(a.positions))),
                        allowed(c.positions)};
  }
  if (a.positions == Positions::kRotary && !has(c.rotary_scaling, a.rotary.scaling)) {
    return StackProblem{in + "/rotary/scaling",
                        lacks(s, fmt::format("{} scaling of rotary positions", name_of(a.rotary.scaling))),
                        allowed(c.rotary_scaling)};
  }
  if (a.soft_cap != 0 && !c.soft_cap)
    return StackProblem{in + "/soft_cap", lacks(s, "caps of scores"), "allowed: 0"};
  if (a.query_scale != 0 && !c.scales)
    return StackProblem{in + "/query_scale", lacks(s, "factor of scores"), "allowed: 0"};
  if (a.sinks && !c.sinks)
    return StackProblem{in + "/sinks", lacks(s, "learned scores beside those of the tokens"),
                        "allowed: false"};
  if (!a.causal && !c.sees_all)
    return StackProblem{in + "/causal", lacks(s, "attention that is not causal"), "allowed: true"};
  if (a.windowed(t.sequence) && !c.sliding_window)
    return StackProblem{in + "/sliding_window", lacks(s, "sliding window"),
                        "allowed: no window, or one of the whole sequence"};
  return {};
}
std::optional<StackProblem> layer_problem(const Stack& s, const std::string& in,
                                          const LatentAttentionLayer& a, const Training&) {
  const Capabilities& c = *s.runs;
  if (!c.latent_attention) return StackProblem{in, lacks(s, "latent attention"), "allowed: attention"};
  if (!has(c.rotary_scaling, a.rotary.scaling)) {
    return StackProblem{in + "/rotary/scaling",
                        lacks(s, fmt::format("{} scaling of rotary positions", name_of(a.rotary.scaling))),
                        allowed(c.rotary_scaling)};
  }
  if (a.query_scale == 0 || c.scales) return {};
  return StackProblem{in + "/query_scale", lacks(s, "factor of scores"), "allowed: 0"};
}
std::optional<StackProblem> layer_problem(const Stack& s, const std::string& in, const CrossAttentionLayer& a,
                                          const Training&) {
  if (a.query_scale == 0 || s.runs->scales) return {};
  return StackProblem{in + "/query_scale", lacks(s, "factor of scores"), "allowed: 0"};
}
std::optional<StackProblem> activation_problem(const Stack& s, const std::string& in, Activation a) {
  if (has(s.runs->activation, a)) return {};
  return StackProblem{in + "/activation", lacks(s, fmt::format("{} activation", name_of(a))),
                      allowed(s.runs->activation)};
}
std::optional<StackProblem> layer_problem(const Stack& s, const std::string& in, const MlpLayer& l,
                                          const Training&) {
  return activation_problem(s, in, l.activation);
}
std::optional<StackProblem> layer_problem(const Stack& s, const std::string& in, const ExpertsLayer& l,
                                          const Training& t) {
  if (!s.runs->experts) return StackProblem{in, lacks(s, "experts"), "allowed: layers without experts"};
  if (l.biases && !s.runs->expert_biases)
    return StackProblem{in + "/biases", lacks(s, "biases on routers and experts"), "allowed: false"};
  if (rounds(t.math) && !s.runs->fp8_experts)
    return StackProblem{"/training/math", lacks(s, fmt::format("experts in \"{}\"", name_of(t.math))),
                        "allowed: bf16, fp16, tf32, fp32"};
  return activation_problem(s, in, l.activation);
}

std::optional<StackProblem> block_problem(const Stack& s, const Model& m, const ModelBlock& block,
                                          const Training& t) {
  const std::string in = m.blocks.empty() ? "/model" : "/model/blocks";
  if (!has(s.runs->block_forms, block.form)) {
    return StackProblem{in + "/form", lacks(s, fmt::format("{} blocks", name_of(block.form))),
                        allowed(s.runs->block_forms)};
  }
  for (const Layer& l : block.layers) {
    if (auto problem = std::visit([&](const auto& layer) { return layer_problem(s, in, layer, t); }, l.is))
      return problem;
  }
  return {};
}

// Whether blocks differ at most in having one MLP, or one mixture of experts in its place.
bool differ_in_experts_alone(const std::vector<ModelBlock>& kinds) {
  std::optional<MlpLayer> mlp;
  std::optional<ExpertsLayer> experts;
  const auto same = [](auto& known, const auto& layer) {
    if (!known) known = layer;
    return *known == layer;
  };
  std::vector<ModelBlock> without = kinds;
  for (ModelBlock& block : without) {
    for (Layer& l : block.layers) {
      const auto* own_mlp = std::get_if<MlpLayer>(&l.is);
      const auto* own_experts = std::get_if<ExpertsLayer>(&l.is);
      if ((own_mlp != nullptr && !same(mlp, *own_mlp)) ||
          (own_experts != nullptr && !same(experts, *own_experts)))
        return false;
      if (own_mlp != nullptr || own_experts != nullptr) l.is = MlpLayer{};
    }
  }
  return std::all_of(without.begin(), without.end(),
                     [&](const ModelBlock& b) { return b == without.front(); });
}

// Windows that some blocks have and others have not are of the first kind's width.
std::vector<ModelBlock> without_windows(std::vector<ModelBlock> kinds) {
  std::int64_t window = 0;
  const auto each = [&](const auto& use) {
    for (ModelBlock& block : kinds) {
      for (Layer& l : block.layers) {
        if (auto* a = std::get_if<AttentionLayer>(&l.is); a != nullptr && a->sliding_window > 0) use(*a);
      }
    }
  };
  each([&](AttentionLayer& a) { window = window == 0 ? a.sliding_window : window; });
  each([&](AttentionLayer& a) {
    if (a.sliding_window == window) a.sliding_window = 0;
  });
  return kinds;
}

// As report_axis, of the plan's axes and then of their combinations.
template <class Report>
bool report_plan(const Stack& s, const Model& m, const Plan& p, const Training& t, Report report) {
  const Capabilities& c = *s.runs;
  if (report_axis(s, c, p, m.layers, report)) return true;
  for (const Refusal& r : c.refused) {
    if (!refuses(r, m, p, t)) continue;
    return report(
        pointer_of(r), [&] { return fmt::format("{}: {} ({})", s.name, r.why, source(s)); },
        [] { return std::string(); });
  }
  return false;
}

// A function for report_plan that keeps what it is given.
auto keep_in(std::optional<StackProblem>& out) {
  return [&out](const char* pointer, auto text, auto allowed) {
    out = StackProblem{pointer, text(), allowed()};
    return true;
  };
}

}  // namespace

std::optional<StackProblem> stack_problem(const Stack& s, const Model& m, const Training& t) {
  if (!s.flash_attention && depth_of(m).sinks()) {
    return StackProblem{
        "/model/blocks",
        fmt::format("{} keeps attention's scores (flash_attention), and heads with learned scores "
                    "of their own are of attention that keeps none",
                    s.name),
        "allowed: sinks false"};
  }
  if (!s.runs) return {};
  const Capabilities& c = *s.runs;
  const NumberFormats* formats = formats_of(c, t.precision);
  if (formats == nullptr) {
    std::vector<Precision> known;
    for (const NumberFormats& f : c.formats) known.push_back(f.precision);
    return StackProblem{"/training/precision", lacks(s, fmt::format("recipe \"{}\"", name_of(t.precision))),
                        allowed(known)};
  }
  if (!has(formats->math, t.math)) {
    return StackProblem{
        "/training/math",
        lacks(s, fmt::format("\"{}\" products with precision \"{}\"", name_of(t.math), name_of(t.precision))),
        allowed(formats->math)};
  }
  if (t.lars && !c.lars) return StackProblem{"/training/lars", lacks(s, "LARS"), "allowed: false"};
  if (t.lamb && !c.lamb) return StackProblem{"/training/lamb", lacks(s, "LAMB"), "allowed: false"};
  if (t.muon && !c.muon) return StackProblem{"/training/muon", lacks(s, "Muon"), "allowed: no such field"};
  if (t.stochastic_rounding && !c.stochastic_rounding)
    return StackProblem{"/training/stochastic_rounding", lacks(s, "stochastic rounding"), "allowed: false"};
  if (t.adapter && !c.adapters)
    return StackProblem{"/training/adapter", lacks(s, "training of adapters"), "allowed: no such field"};
  if (m.logit_soft_cap != 0 && !c.soft_cap)
    return StackProblem{"/model/logit_soft_cap", lacks(s, "cap of logits"), "allowed: 0"};
  if (m.mtp_layers > 0 && !c.mtp)
    return StackProblem{"/model/mtp_layers", lacks(s, "multi-token prediction"), "allowed: 0"};
  if (m.embedding_scale != 1 && !c.scales)
    return StackProblem{"/model/embedding_scale", lacks(s, "factor of embeddings"), "allowed: 1"};
  if ((m.bags() != nullptr || m.has_pair()) && !c.bags)
    return StackProblem{"/model/inputs", lacks(s, "models of embedding bags"), "allowed: tokens"};
  const bool images = std::any_of(m.inputs.begin(), m.inputs.end(),
                                  [](const Input& i) { return std::holds_alternative<PatchInput>(i.is); });
  if ((images || m.classes() != nullptr) && !c.images)
    return StackProblem{"/model/inputs", lacks(s, "models of images and classes"), "allowed: tokens"};
  if (m.inputs.size() > 1 && !c.towers)
    return StackProblem{"/model/inputs", lacks(s, "models with several towers"), "allowed: one input"};
  const Depth depth = depth_of(m);
  const std::vector<ModelBlock> kinds = c.mixed_windows ? without_windows(depth.kinds) : depth.kinds;
  const bool alike =
      std::all_of(kinds.begin(), kinds.end(), [&](const ModelBlock& b) { return b == kinds.front(); });
  if (!alike && !c.mixed_blocks && !(c.experts && differ_in_experts_alone(kinds))) {
    return StackProblem{"/model/blocks", lacks(s, "blocks that differ along the depth"),
                        "allowed: blocks that are all alike"};
  }
  for (const ModelBlock& block : depth.kinds) {
    if (auto problem = block_problem(s, m, block, t)) return problem;
  }
  return {};
}

std::optional<StackProblem> stack_problem(const Stack& s, const Model& m, const Plan& p, const Training& t) {
  if (auto problem = stack_problem(s, m, t)) return problem;
  if (!s.runs) return {};
  std::optional<StackProblem> out;
  report_plan(s, m, p, t, keep_in(out));
  return out;
}

std::optional<StackProblem> stack_problem(const Stack& s, const Plan& p) {
  std::optional<StackProblem> out;
  if (s.runs) report_axis(s, *s.runs, p, 0, keep_in(out));
  return out;
}

bool runs_plan(const Stack& s, const Model& m, const Plan& p, const Training& t) {
  return !s.runs || !report_plan(s, m, p, t, [](auto&&...) { return true; });
}

bool runs_context(const Stack& s, const Plan& p) {
  return !s.runs || has(s.runs->context_parallel, p.context_way());
}

std::vector<std::string> stack_limits(const Stack& s, const Model& m, const Training& t) {
  std::vector<std::string> out;
  if (!s.runs) return out;
  const Capabilities& c = *s.runs;
  const auto missing = [&]<class T>(const std::vector<T>& list, const std::vector<T>& all,
                                    const char* words) {
    std::vector<T> lost;
    std::copy_if(all.begin(), all.end(), std::back_inserter(lost), [&](T v) { return !has(list, v); });
    if (!lost.empty()) out.push_back(fmt::format(fmt::runtime(words), names(lost)));
  };
  if (!c.tensor_parallel) out.emplace_back("no tensor parallelism");
  if (c.tensor_parallel && !has(c.sequence_parallel, true)) out.emplace_back("no sequence parallelism");
  if (c.tensor_parallel && !has(c.sequence_parallel, false))
    out.emplace_back("no tensor parallelism without sequence parallelism");
  if (c.context_parallel.empty())
    out.emplace_back("no context parallelism");
  else
    missing(c.context_parallel, every<ContextWay>(), "no context parallelism by {}");
  if (c.schedule.empty()) {
    out.emplace_back("no pipeline parallelism");
  } else {
    std::vector<Schedule> searched = every<Schedule>();
    std::erase(searched, Schedule::kListed);
    missing(c.schedule, searched, "no schedule {}");
    if (c.chunk_layers != ChunkSizes::kAny)
      out.push_back(fmt::format("no chunks that are not {}", name_of(c.chunk_layers)));
  }
  missing(c.zero, {0, 1, 2, 3}, "no ZeRO stage {}");
  if (!c.shard_group) out.emplace_back("no shard groups");
  missing(c.recompute, every<Recompute>(), "no {} recomputation");
  if (has(c.recompute, Recompute::kSelective))
    missing(c.recompute_parts, depth_of(m).parts().list(), "no recomputation of {} alone");
  if (!c.offload_optimizer) out.emplace_back("no offloading of the optimizer's state");
  if (!c.offload_parameters) out.emplace_back("no offloading of parameters");
  if (!c.offload_activations) out.emplace_back("no offloading of activations");
  if (!c.offload_nvme) out.emplace_back("no offloading to drives");
  if (!c.islands) out.emplace_back("no islands");
  if (!c.recompute_layers) out.emplace_back("no recomputation of several layers at once");
  if (!c.recompute_first) out.emplace_back("no recomputation of some layers of a chunk alone");
  if (!c.recompute_by_chunk) out.emplace_back("no recomputation of different numbers of layers by chunk");
  if (!c.loss_chunks) out.emplace_back("no loss in chunks");
  if (!c.update_in_backward) out.emplace_back("no updates in the backward pass");
  if (c.tensor_parallel || !c.schedule.empty()) missing(c.rank_order, every<RankOrder>(), "no placement {}");
  if (c.most_ranks > 0) out.push_back(fmt::format("no more than {} ranks", c.most_ranks));
  for (const Refusal& r : c.refused) {
    if (concerns(r, m, t)) out.push_back(r.why);
  }
  return out;
}

}  // namespace orrery
