// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "program/order.h"
#include "program/program.h"
#include "program/schedule.h"

namespace orrery::program {
namespace {

std::int64_t degree_of(const Plan& p, Degree degree) {
  switch (degree) {
    case Degree::kTensor:
      return p.tp;
    case Degree::kHeads:
      return p.tp * p.ulysses;
    case Degree::kExpertTensor:
      return p.expert_tp();
    case Degree::kExpert:
      return p.ep;
  }
  return 1;
}
const char* field_of(const Plan& p, Degree degree) {
  switch (degree) {
    case Degree::kTensor:
      return "tp";
    case Degree::kHeads:
      return "ulysses";
    case Degree::kExpertTensor:
      return p.etp ? "etp" : "tp";
    case Degree::kExpert:
      return "ep";
  }
  return "";
}

// Experts over ranks of their own.
void check_experts(const Depth& depth, std::int64_t hidden, const Plan& p, const Training& t,
                   const Cursor& at) {
  if (depth.shared(Degree::kExpert) == 0) {
    if (p.ep > 1) at.child("ep").fail("the model has no experts", "allowed: 1");
    if (p.etp) at.child("etp").fail("the model has no experts", "allowed: no such field");
    if (p.expert_room) at.child("expert_room").fail("the model has no experts", "allowed: no such field");
  }
  if (p.expert_exchange && p.ep == 1)
    at.child("expert_exchange").fail("no ranks share the experts", "allowed: no such field");
  if (const std::string problem = overlap_problem(p); !problem.empty())
    at.child("overlap_exchanges").fail(problem, "allowed: false");
  if (const auto problem = experts_problem(p)) at.child(problem->field).fail(problem->why, problem->allowed);
  if (depth.expert_biases() && hidden % p.expert_tp() != 0) {
    at.child(p.etp ? "etp" : "tp")
        .fail(fmt::format("{} ranks do not share the {} columns of experts' biases", p.expert_tp(), hidden));
  }
  if (p.splits_experts() && t.scales_tensors())
    at.child("ep").fail("ratios of tensors' norms are not taken over experts on ranks of their own",
                        "allowed: 1");
}

// Ranks that share sequences.
void check_context(const Model& m, const Training& t, const Plan& p, const Cursor& at) {
  if (p.cp % p.ulysses != 0)
    at.child("ulysses").fail(fmt::format("{} does not divide cp {}", p.ulysses, p.cp));
  if (p.cp_keys && p.ring() == 1)
    at.child("cp_keys").fail("no two ranks pass keys to each other", "allowed: no such field");
  if (const std::string problem = context_problem(m, t, p); !problem.empty()) at.child("cp").fail(problem);
}

// Layers of each chunk.
void check_chunks(const Model& m, const Plan& p, const Cursor& at) {
  // Chunks without layers hold an end of the model alone; a plan has to name them.
  if (p.chunk_layers.empty()) {
    if (p.pp * p.vpp > m.layers)
      at.child("pp").fail(
          fmt::format("{} chunks are more than the model's {} layers", p.pp * p.vpp, m.layers));
    return;
  }
  const std::int64_t sum = std::accumulate(p.chunk_layers.begin(), p.chunk_layers.end(), std::int64_t{0});
  if (std::ssize(p.chunk_layers) != p.pp * p.vpp || sum != m.layers) {
    at.child("chunk_layers")
        .fail(fmt::format("{} chunks with {} layers in all", p.chunk_layers.size(), sum),
              fmt::format("allowed: {} chunks, {} layers", p.pp * p.vpp, m.layers));
  }
}

// Layers of each chunk that full recomputation repeats. Of what the plan can say in fewer numbers, these are
// the only name.
void check_recompute_by_chunk(std::int64_t layers_of_model, const Plan& p, const Cursor& at) {
  const Cursor field = at.child("recompute_by_chunk");
  if (p.recompute != Recompute::kFull) {
    field.fail(fmt::format("recompute \"{}\" repeats no whole layers", name_of(p.recompute)),
               "allowed: no such field, or with recompute \"full\"");
  }
  if (p.recompute_layers > 1) {
    field.fail("layers are recomputed several at once", "allowed: no such field, or with recompute_layers 1");
  }
  if (p.recompute_first > 0) {
    field.fail(fmt::format("recompute_first {} says how many layers of each chunk are recomputed",
                           p.recompute_first),
               "allowed: one of the two fields");
  }
  const std::vector<std::int64_t> layers = layers_by_chunk(p, layers_of_model);
  if (p.recompute_by_chunk.size() != layers.size()) {
    field.fail(
        fmt::format("{} numbers are not those of {} chunks", p.recompute_by_chunk.size(), layers.size()),
        fmt::format("allowed: {} numbers", layers.size()));
  }
  for (std::size_t c = 0; c < layers.size(); ++c) {
    if (p.recompute_by_chunk[c] > layers[c])
      field.child(c).fail(fmt::format("{} layers are more than the chunk has", p.recompute_by_chunk[c]),
                          fmt::format("allowed: 0 to {}", layers[c]));
  }
  const Plan said = with_recomputed(p, p.recompute_by_chunk, layers_of_model);
  if (said.recompute == Recompute::kNone)
    field.fail("no chunk recomputes a layer", "allowed: no such field, with recompute \"none\"");
  if (said.recompute_first > 0) {
    field.fail("all chunks recompute as many layers",
               fmt::format("allowed: no such field, with recompute_first {}", said.recompute_first));
  }
  if (said.recompute_by_chunk.empty())
    field.fail("all chunks recompute all layers", "allowed: no such field");
}

// A list of work, where the schedule is one.
void check_listed(const Model& m, const Plan& p, const Cursor& at) {
  if (p.schedule == Schedule::kListed && !p.schedule_order)
    at.child("schedule")
        .fail("no schedule_order lists the work", "allowed: other schedules, or with schedule_order");
  if (p.schedule != Schedule::kListed && p.schedule_order) {
    at.child("schedule_order")
        .fail(fmt::format("{} has an order of its own", name_of(p.schedule)),
              "allowed: no such field, or with schedule \"listed\"");
  }
  if (!p.schedule_order) return;
  // Between stages pass several tensors, which keep each other waiting.
  if (m.inputs.size() > 1)
    at.child("schedule")
        .fail("work is listed of models with one tower", "allowed: schedules that are not listed");
  check_order(p, at.child("schedule_order"));
  if (m.embeds_at_end()) {
    if (const std::string problem = shared_weight_problem(p); !problem.empty())
      at.child("schedule_order")
          .child("stages")
          .child(std::size_t{0})
          .fail(problem, "allowed: work of the last chunk before the last of chunk 0");
  }
}

// Parts that selective recomputation repeats.
void check_recompute(const Depth& depth, std::int64_t layers_of_model, const Plan& p, const Cursor& at) {
  if (p.recompute_first > 0) {
    const Cursor first = at.child("recompute_first");
    if (p.recompute != Recompute::kFull) {
      first.fail(fmt::format("recompute \"{}\" repeats no whole layers", name_of(p.recompute)),
                 "allowed: 0, or with recompute \"full\"");
    }
    if (p.recompute_layers > 1)
      first.fail("layers are recomputed several at once", "allowed: 0, or with recompute_layers 1");
    const auto layers = layers_by_chunk(p, layers_of_model);
    if (const std::int64_t most = *std::max_element(layers.begin(), layers.end());
        p.recompute_first >= most) {
      first.fail(fmt::format("{} are all layers of a chunk, which has {} at most", p.recompute_first, most),
                 most > 1 ? fmt::format("allowed: 0 for all, or 1 to {}", most - 1) : "allowed: 0 for all");
    }
  }
  if (!p.recompute_by_chunk.empty()) check_recompute_by_chunk(layers_of_model, p, at);
  if (p.recompute_parts.empty()) return;
  const Cursor field = at.child("recompute_parts");
  if (p.recompute != Recompute::kSelective) {
    field.fail(
        fmt::format("parts of layers are repeated by selective recomputation, not with recompute \"{}\"",
                    name_of(p.recompute)),
        "allowed: no such field");
  }
  check_parts(depth, p.recompute_parts, field);
}

// What of the products that round their operands has a size that tensor cores do not take.
struct Misfit {
  const char* what;
  std::int64_t size;
};
std::optional<Misfit> rounding_misfit(const Model& m, const Depth& depth, const Plan& p, std::int64_t tokens,
                                      std::int64_t multiple) {
  std::vector<Misfit> sizes{{"tokens of a micro-batch", tokens}, {"columns of the model's width", m.hidden}};
  depth.for_each_layer([&](const auto& layer, std::int64_t) {
    for (const SharedCount& of : layer.columns())
      sizes.push_back({of.what, of.count / degree_of(p, of.degree)});
  });
  const auto found =
      std::find_if(sizes.begin(), sizes.end(), [&](const Misfit& of) { return of.size % multiple != 0; });
  return found == sizes.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::optional<PlanProblem> offload_problem(const Plan& p, const Training& t) {
  if (!p.offload || *p.offload == Offload{}) return {};
  const Offload& o = *p.offload;
  if (t.serves()) return PlanProblem{"", "serving trains nothing", "allowed: no such field"};
  if (o.optimizer > 0 && t.scales_tensors()) {
    return PlanProblem{"optimizer",
                       "ratios of tensors' norms are taken on the device, of state that would be the host's",
                       "allowed: 0"};
  }
  if (o.optimizer > 0 && t.muon) {
    return PlanProblem{"optimizer", "Muon's products are the device's, of state that would be the host's",
                       "allowed: 0"};
  }
  if (o.parameters && p.zero != 3)
    return PlanProblem{"parameters", "shards of parameters are ZeRO-3's", "allowed: false"};
  if (o.parameters && o.optimizer < 1) {
    return PlanProblem{"parameters", "the host updates the parameters that it keeps",
                       "allowed with \"optimizer\": 1"};
  }
  if (o.activation_layers > 0 && p.overlap_exchanges) {
    return PlanProblem{"activation_layers",
                       "forwards and backwards that run side by side keep their activations", "allowed: 0"};
  }
  if (o.activation_layers > 0 && splits_backward(p)) {
    return PlanProblem{"activation_layers",
                       "weight gradients that come later would hold what was fetched for them", "allowed: 0"};
  }
  if (o.nvme != OnDrives::kNothing && o.optimizer == 0) {
    return PlanProblem{"nvme", "no state lies in the host's memory that could lie on its drives",
                       "allowed: \"nothing\", or with \"optimizer\" above 0"};
  }
  if (o.nvme == OnDrives::kAll && !o.parameters) {
    return PlanProblem{"nvme", "parameters lie in the devices' memory",
                       "allowed: \"nothing\", \"optimizer\", or with \"parameters\": true"};
  }
  if (o.optimizer == 0 && !o.overlap) {
    return PlanProblem{"overlap", "the host updates nothing that copies could run beside", "allowed: true"};
  }
  return {};
}

std::optional<PlanProblem> mtp_problem(const Model& m, const Plan& p) {
  if (m.mtp_layers == 0) return {};
  if (p.zero >= 2) {
    return PlanProblem{
        "zero",
        "modules of multi-token prediction read the head's weight several times, whose gradient "
        "ZeRO-2 and 3 reduce at once",
        "allowed: 0, 1"};
  }
  if (p.loss_chunks > 1)
    return PlanProblem{"loss_chunks", "modules of multi-token prediction take a loss each, whole",
                       "allowed: 1"};
  if (p.update_in_backward) {
    return PlanProblem{"update_in_backward",
                       "modules of multi-token prediction read the head's weight several times",
                       "allowed: false"};
  }
  return {};
}

std::optional<PlanProblem> loss_problem(const Model& m, const Training& t, const Plan& p) {
  if (p.loss_chunks == 1) return {};
  const auto problem = [](std::string why, std::string allowed) {
    return PlanProblem{"loss_chunks", std::move(why), std::move(allowed)};
  };
  if (t.serves()) return problem("serving takes no loss", "allowed: 1");
  if (m.has_pair() || m.classes() != nullptr) return problem("the model ends in no vocabulary", "allowed: 1");
  if (p.tp > 1 && p.sequence_parallel) {
    return problem("tensor ranks have rows of their own before the head (sequence_parallel)",
                   "allowed: 1, or with sequence_parallel false");
  }
  const auto tower = static_cast<std::size_t>(output_tower(depth_of(m)));
  const std::int64_t rows = tower_tokens(m, t)[tower] / p.cp;
  if (rows % p.loss_chunks != 0) {
    return problem(fmt::format("{} parts do not divide the {} tokens that a rank has of a sequence",
                               p.loss_chunks, rows),
                   fmt::format("allowed: divisors of {}", rows));
  }
  return {};
}

std::optional<PlanProblem> update_problem(const Training& t, const Plan& p) {
  if (!p.update_in_backward) return {};
  const auto problem = [](const char* why, const char* allowed) {
    return PlanProblem{"update_in_backward", why, allowed};
  };
  if (p.pp > 1 || p.copies() > 1 || p.islands > 1 || p.micro_batches > 1 || p.expert_dp() > 1)
    return problem("gradients are complete when several stages, replicas or micro-batches gave theirs",
                   "allowed: false, or pp, dp, cp, islands and micro_batches of 1");
  if (t.measures_norm())
    return problem("gradients are clipped by the norm of all of them", "allowed: false, or training.clip 0");
  if (t.scales_tensors() || t.muon)
    return problem("LAMB, LARS and Muon look at whole tensors", "allowed: false, or AdamW or SGD alone");
  if (p.offloaded_optimizer() > 0 || p.offloads_parameters())
    return problem("the host updates parameters", "allowed: false, or no offloaded optimizer or parameters");
  return {};
}

std::optional<PlanProblem> islands_problem(const Plan& p, const Training& t) {
  if (p.islands == 1) return {};
  const auto problem = [](const char* why, const char* allowed) {
    return PlanProblem{"islands", why, allowed};
  };
  if (t.serves()) return problem("serving trains nothing", "allowed: 1");
  if (!t.outer)
    return problem("nothing says how islands exchange", "allowed: 1, or a scenario with training.outer");
  if (t.scales_loss())
    return problem("the loss would be scaled otherwise on each island",
                   "allowed: 1, or math that is not fp16");
  if (p.offloaded_optimizer() > 0 || p.offloads_parameters())
    return problem("the host would update what islands exchange", "allowed: 1, or no offloaded optimizer");
  return {};
}

std::string overlap_problem(const Plan& p) {
  if (!p.overlap_exchanges) return {};
  if (p.ep == 1) return "no ranks share the experts: there are no exchanges to hide";
  if (!pairs_up(p.schedule) || (p.pp > 1 && p.schedule == Schedule::k1F1B)) {
    return fmt::format(
        "forwards and backwards of {} on {} stages do not run side by side; those of 1f1b on one stage do, "
        "and those of interleaved and dualpipe-v",
        name_of(p.schedule), p.pp);
  }
  if (p.zero >= 2)
    return fmt::format("ZeRO-{} keeps one layer whole at a time, and a pair needs two", p.zero);
  if (p.recompute == Recompute::kFull) return "full recomputation exchanges tokens again before a backward";
  return {};
}

namespace {

bool shard_counts_fit_experts(const Plan& p) {
  const auto fits = [](std::int64_t a, std::int64_t b) { return a % b == 0 || b % a == 0; };
  const std::int64_t shards = p.tp * p.shards();
  return fits(p.expert_tp(), shards) && fits(p.expert_ranks(), shards);
}

// Of these groups the first whose members do not stand at equal distances; null where all do.
const char* uneven_group(const Plan& p, std::initializer_list<const char*> groups) {
  const Mesh mesh = mesh_of(p);
  for (const char* const group : groups) {
    if (!mesh.find_range(mesh[group])) return group;
  }
  return nullptr;
}

}  // namespace

bool shards_fit_experts(const Plan& p) {
  if (!p.splits_experts()) return true;
  // Without groups of shards these groups are one rank, or all that have the same experts.
  return shard_counts_fit_experts(p) &&
         (p.shard_group == 0 || uneven_group(p, {"eshard", "ereplica"}) == nullptr);
}

std::optional<PlanProblem> experts_problem(const Plan& p) {
  if (!p.splits_experts()) return std::nullopt;
  const std::int64_t stage = p.tp * p.copies(), etp = p.expert_tp(), experts = p.expert_ranks();
  const char* const field = p.ep > 1 ? "ep" : "etp";
  if (stage % experts != 0) {
    return PlanProblem{field,
                       fmt::format("{} ranks that share all experts (etp {} x ep {}) do not divide the "
                                   "{} of a stage (tp x cp x dp)",
                                   experts, etp, p.ep, stage)};
  }
  if (p.tp > 1 && !p.sequence_parallel && etp != p.tp) {
    return PlanProblem{"etp", "without sequence_parallel all tensor ranks have the same tokens",
                       fmt::format("allowed: {}, or sequence_parallel", p.tp)};
  }
  const auto fits = [](std::int64_t a, std::int64_t b) { return a % b == 0 || b % a == 0; };
  if (!fits(etp, p.tp) || !fits(experts, p.tp)) {
    return PlanProblem{
        field, fmt::format("neither divides the other of tp {} and {} ranks that share {}", p.tp,
                           fits(etp, p.tp) ? experts : etp, fits(etp, p.tp) ? "all experts" : "an expert")};
  }
  for (const std::int64_t ranks : {p.tp * p.ulysses, p.tp * p.cp}) {
    if (fits(etp, ranks) && fits(experts, ranks)) continue;
    return PlanProblem{
        field, fmt::format("neither divides the other of {} ranks that share sequences (tp x {}) "
                           "and {} that share {}",
                           ranks, ranks == p.tp * p.cp ? "cp" : "ulysses", fits(etp, ranks) ? experts : etp,
                           fits(etp, ranks) ? "all experts" : "an expert")};
  }
  if (!shard_counts_fit_experts(p)) {
    return PlanProblem{field,
                       fmt::format("neither divides the other of {} ranks that share shards (tp x shards) "
                                   "and {} that share all experts",
                                   p.tp * p.shards(), experts)};
  }
  if (const char* const group = uneven_group(p, {"etp", "ep", "edp", "eshard", "ereplica"}); group != nullptr)
    return PlanProblem{"rank_order",
                       fmt::format("ranks of a group \"{}\" would not stand at equal distances", group),
                       "allowed: tp-dp-pp, pp-tp-dp"};
  return std::nullopt;
}

std::string context_problem(const Model& m, const Training& t, const Plan& p) {
  if (p.cp == 1) return {};
  if (!m.has_tokens() || m.inputs.size() > 1 || m.classes() != nullptr)
    return "only sequences of tokens of one tower are shared";
  if (p.ulysses > 1 && depth_of(m).sinks())
    return "heads with learned scores of their own are not exchanged (ulysses)";
  bool chunks = false;
  depth_of(m).for_each_layer([&]<class T>(const T& layer, std::int64_t) {
    if constexpr (std::is_same_v<T, AttentionLayer>) chunks = chunks || layer.reach(t.sequence) < t.sequence;
  });
  if (chunks) return "attention in chunks is not shared between ranks of one sequence";
  for (const std::int64_t tokens : tower_tokens(m, t)) {
    if (tokens % (2 * p.cp) != 0)
      return fmt::format("{} ranks do not share sequences of {} tokens in 2 parts each", p.cp, tokens);
  }
  return {};
}

bool takes_rounding(const Model& m, const Training& t, const Plan& p) {
  const auto rounding = rounding_of(t.math);
  if (!rounding) return true;
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  return std::none_of(tokens.begin(), tokens.end(), [&](std::int64_t n) {
    return rounding_misfit(m, depth, p, n / p.cp * p.micro_batch, rounding->multiple).has_value();
  });
}

void check_plan(const Model& m, const Plan& p, const Training& t, const Cursor& at) {
  const auto divides = [&](const char* field, std::int64_t d, std::int64_t n, const char* what) {
    if (n % d != 0) at.child(field).fail(fmt::format("{} does not divide the {} {}", d, n, what));
  };
  const Depth depth = depth_of(m);
  depth.for_each_layer([&](const auto& layer, std::int64_t) {
    for (const SharedCount& of : layer.shared()) {
      if (of.degree == Degree::kHeads && p.ulysses == 1) continue;
      divides(field_of(p, of.degree), degree_of(p, of.degree), of.count, of.what);
    }
  });
  check_context(m, t, p, at);
  check_experts(depth, m.hidden, p, t, at);
  check_chunks(m, p, at);
  check_recompute(depth, m.layers, p, at);
  for (const std::int64_t of_sample : tower_tokens(m, t)) {
    const std::int64_t tokens = of_sample / p.cp;
    if (p.sequence_parallel && p.tp > 1)
      divides("tp", p.tp, tokens * p.micro_batch, "tokens of a micro-batch");
    const auto rounding = rounding_of(t.math);
    if (!rounding) continue;
    if (const auto misfit = rounding_misfit(m, depth, p, tokens * p.micro_batch, rounding->multiple)) {
      at.child("tp").fail(fmt::format("with {} the {} are {}, and math \"{}\" takes multiples of {}", p.tp,
                                      misfit->what, misfit->size, name_of(t.math), rounding->multiple));
    }
  }
  check_listed(m, p, at);
  if (const auto problem = schedule_problem(p.schedule, p.pp, p.vpp, p.micro_batches); !problem.empty()) {
    at.child("schedule").fail(problem);
  }
  if (p.table_split && m.bags() == nullptr)
    at.child("table_split").fail("the model has no embedding bags", "allowed: no such field");
  for (const Input& input : m.inputs) {
    const auto* bags = std::get_if<BagInput>(&input.is);
    if (bags == nullptr) continue;
    switch (p.table_split.value_or(TableSplit::kRows)) {
      case TableSplit::kRows:
        divides("tp", p.tp, bags->rows, "rows of a table");
        break;
      case TableSplit::kColumns:
        divides("tp", p.tp, m.hidden, "columns of a table");
        break;
      case TableSplit::kTables:
        divides("tp", p.tp, bags->tables, "tables");
        break;
    }
  }
  if (m.has_pair() && p.sequence_parallel && p.tp > 1)
    at.child("sequence_parallel").fail("a sample of two towers has one token in each", "allowed: false");
  for (const Feed& f : feeds_of(m, t)) {
    if (f.columns > 1) divides("tp", p.tp, f.columns, "values of a patch");
  }
  if (m.layers * p.micro_batches > kMostLayerRuns) {
    at.child("micro_batches")
        .fail(
            fmt::format("{} micro-batches of {} layers are more than are walked", p.micro_batches, m.layers),
            fmt::format("allowed: {} micro-batches", kMostLayerRuns / m.layers));
  }
  if (p.global_batch() != t.global_batch) {
    const std::int64_t step = p.micro_batch * p.replicas();
    const std::int64_t below = t.global_batch / step * step;
    at.child("micro_batches")
        .fail(fmt::format("{} x {} x {} is a batch of {}, not {}", p.micro_batch, p.micro_batches,
                          p.replicas(), p.global_batch(), t.global_batch),
              below > 0 ? fmt::format("allowed with this micro-batch and dp: batches of {} or {}", below,
                                      below + step)
                        : fmt::format("allowed with this micro-batch and dp: a batch of {}", step));
  }
  if (const auto problem = mtp_problem(m, p)) at.child(problem->field).fail(problem->why, problem->allowed);
  if (const auto problem = loss_problem(m, t, p))
    at.child(problem->field).fail(problem->why, problem->allowed);
  if (const auto problem = update_problem(t, p))
    at.child(problem->field).fail(problem->why, problem->allowed);
  if (const auto problem = islands_problem(p, t))
    at.child(problem->field).fail(problem->why, problem->allowed);
  if (const auto problem = offload_problem(p, t)) {
    Cursor field = at.child("offload");
    if (*problem->field != '\0') field = field.child(problem->field);
    field.fail(problem->why, problem->allowed);
  }
  if (!p.reshards() && p.zero != 3) {
    at.child("reshard_after_forward")
        .fail(fmt::format("ZeRO stage {} gathers nothing before the forward pass", p.zero), "allowed: true");
  }
  if (p.copies() % p.shards() != 0)
    at.child("shard_group").fail(fmt::format("{} does not divide dp {}", p.shard_group, p.dp));
  if (p.zero >= 2 && splits_backward(p)) {
    at.child("zero").fail(
        fmt::format("ZeRO-2 and 3 reduce each micro-batch's gradient at once, and {} makes some later",
                    name_of(p.schedule)),
        "allowed: 0, 1");
  }
}

}  // namespace orrery::program
