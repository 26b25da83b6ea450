// SPDX-License-Identifier: Apache-2.0
#include "sim/document_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/hash.h"
#include "program/schedule.h"

namespace orrery::sim {
namespace {

constexpr std::uint64_t kSeedOfDocuments = 0xd0c5;
constexpr double kDocuments = 1 << 22, kMostSequences = 1024, kPairsOfRanks = 1 << 22;
// Sequences that a draw of a step looks at, and those that all draws of a mean do. Of larger batches, fewer
// replicas and micro-batches stand for all.
constexpr std::int64_t kMostOfDraw = 1 << 17, kMostOfReplica = 1 << 12, kMostOfMean = 1 << 18;
constexpr std::int64_t kFewestDraws = 4, kMostDraws = 256, kMostSlots = 1 << 13, kMostWalked = 1 << 16;
// Loads are rounded to so many of the most attention that a stage has, or of the longest stage.
constexpr double kStepsOfAttention = 16, kStepsOfStages = 256;

// Where a sequence's documents end.
using Ends = std::vector<std::int32_t>;

// Calls use(first token, last token + 1) for each document.
template <class Use>
void for_each_document(const Ends& ends, Use use) {
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    use(begin, end);
    begin = end;
  }
}

double pairs_of(const Ends& ends) {
  double sum = 0;
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) {
    const auto n = static_cast<double>(end - begin);
    sum += n * n / 2;
  });
  return sum;
}

// Pairs of a sequence whose queries are of rank k of a ring, and whose keys are of the rank `step` before it:
// [step][k].
std::vector<std::vector<double>> pairs_around(const Ends& ends, std::int64_t ring) {
  const auto ranks = static_cast<std::size_t>(ring);
  std::vector<std::vector<double>> out(ranks, std::vector<double>(ranks));
  const auto part = static_cast<double>(ends.back()) / static_cast<double>(2 * ring);
  const auto rank_of = [&](std::int64_t p) { return p < ring ? p : 2 * ring - 1 - p; };
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) {
    const auto of_token = [&](std::int64_t t) {
      return std::min(2 * ring - 1, static_cast<std::int64_t>(static_cast<double>(t) / part));
    };
    const std::int64_t from = of_token(begin), to = of_token(end - 1);
    const auto tokens = [&](std::int64_t p) {
      return std::min(static_cast<double>(end), static_cast<double>(p + 1) * part) -
             std::max(static_cast<double>(begin), static_cast<double>(p) * part);
    };
    for (std::int64_t q = from; q <= to; ++q) {
      for (std::int64_t k = from; k <= q; ++k) {
        const std::int64_t rank = rank_of(q), step = (rank - rank_of(k) + ring) % ring;
        out[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)] +=
            q == k ? tokens(q) * tokens(q) / 2 : tokens(q) * tokens(k);
      }
    }
  });
  return out;
}

// Pairs of the rank that paces the sequence, times the ranks.
double paced_pairs(const Ends& ends, std::int64_t ring, bool rings) {
  if (ring == 1) return pairs_of(ends);
  const auto pairs = pairs_around(ends, ring);
  double paced = 0;
  if (rings) {
    for (const std::vector<double>& step : pairs) paced += *std::max_element(step.begin(), step.end());
  } else {
    for (std::size_t k = 0; k < pairs.size(); ++k) {
      double sum = 0;
      for (const std::vector<double>& step : pairs) sum += step[k];
      paced = std::max(paced, sum);
    }
  }
  return static_cast<double>(ring) * paced;
}

}  // namespace

DocumentLoads::DocumentLoads(const Training& training) : sequence_(training.sequence) {
  if (training.packs()) lengths_.emplace(*training.documents);
}

DocumentLoads::Batch DocumentLoads::batch_of(const Plan& p) {
  Batch out{.ring = p.ring(),
            .rings = p.rings(),
            .replicas = p.dp,
            .micro_batch = p.micro_batch,
            .micro_batches = p.micro_batches,
            .pp = p.pp};
  if (p.zero >= 2) out.together = p.shards() / p.cp;
  if (p.splits_experts()) {
    const std::int64_t of_replica = p.tp * p.cp;
    out.together = std::max(out.together, std::lcm(p.expert_ranks(), of_replica) / of_replica);
  }
  out.together = std::clamp<std::int64_t>(out.together, 1, p.dp);
  return out;
}

const std::vector<double>& DocumentLoads::sequences(std::int64_t ring, bool rings) {
  std::vector<double>& out = sequences_[{ring, rings}];
  if (!out.empty()) return out;
  if (drawn_.empty()) {
    const double documents = static_cast<double>(sequence_) / lengths_->mean() + 1;
    const auto n = static_cast<std::uint64_t>(std::clamp(kDocuments / documents, 4.0, kMostSequences));
    for (std::uint64_t i = 0; i < n; ++i) drawn_.push_back(lengths_->ends(kSeedOfDocuments, i, sequence_));
  }
  // Fewer of those that very many ranks share, each of whom meets each.
  const auto n = static_cast<std::size_t>(
      std::clamp(kPairsOfRanks / static_cast<double>(ring * ring), 16.0, kMostSequences));
  double sum = 0;
  for (std::size_t i = 0; i < std::min(n, drawn_.size()); ++i) {
    out.push_back(paced_pairs(drawn_[i], ring, rings));
    sum += pairs_of(drawn_[i]);
  }
  for (double& w : out) w *= static_cast<double>(out.size()) / sum;
  return out;
}

// By micro-batch, of the replica that seems to take longest. Of large batches some replicas stand for all.
DocumentLoads::Loads DocumentLoads::longest(const Batch& of, std::uint64_t draw) {
  const std::vector<double>& w = sequences(of.ring, of.rings);
  const std::int64_t m = of.micro_batches;
  const std::int64_t groups = std::clamp<std::int64_t>(kMostOfDraw / (of.together * m * of.micro_batch), 1,
                                                       (of.replicas + of.together - 1) / of.together);
  Loads out, loads(static_cast<std::size_t>(m));
  double longest_so_far = 0;
  std::uint64_t next = mix(draw);
  for (std::int64_t g = 0; g < groups; ++g) {
    std::fill(loads.begin(), loads.end(), 0.0);
    for (std::int64_t r = 0; r < of.together; ++r) {
      for (double& load : loads) {
        double sum = 0;
        for (std::int64_t s = 0; s < of.micro_batch; ++s) sum += w[mix(next++) % w.size()];
        load = std::max(load, sum / static_cast<double>(of.micro_batch));
      }
    }
    // As many micro-batches as there are stages are under way at once, and wait for the longest of them.
    double time = 0;
    for (std::int64_t j = 0; j < m; ++j)
      time += *std::max_element(loads.begin() + j, loads.begin() + std::min(m, j + of.pp));
    if (time <= longest_so_far) continue;
    longest_so_far = time;
    out = loads;
  }
  return out;
}

const std::vector<DocumentLoads::Loads>& DocumentLoads::draws(const Batch& of) {
  std::vector<Loads>& out = draws_[of];
  if (!out.empty()) return out;
  const std::int64_t of_draw = std::min(kMostOfDraw, of.replicas * of.micro_batch * of.micro_batches);
  const std::int64_t of_walk = 2 * of.micro_batches * of.pp;
  const std::int64_t n =
      std::clamp(std::min(kMostOfMean / of_draw, kMostWalked / of_walk), kFewestDraws, kMostDraws);
  for (std::int64_t d = 0; d < n; ++d) out.push_back(longest(of, static_cast<std::uint64_t>(d)));
  return out;
}

namespace {

using Slots = std::vector<std::vector<program::Slot>>;

// Ends of forwards and backwards by chunk of the model and micro-batch, while a schedule is walked.
class Done {
 public:
  Done(std::int64_t chunks, std::int64_t micro_batches)
      : micro_batches_(micro_batches), forward_(static_cast<std::size_t>(chunks * micro_batches), kNotYet) {
    backward_ = forward_;
  }
  double& forward(std::int64_t chunk, std::int64_t j) { return forward_[at(chunk, j)]; }
  double& backward(std::int64_t chunk, std::int64_t j) { return backward_[at(chunk, j)]; }
  static constexpr double kNotYet = -1;

 private:
  std::size_t at(std::int64_t chunk, std::int64_t j) const {
    return static_cast<std::size_t>(chunk * micro_batches_ + j);
  }
  std::int64_t micro_batches_;
  std::vector<double> forward_, backward_;
};

// When the last stage is done. `load(j)`: of a micro-batch. Backwards take two thirds of what is no
// attention, in halves where they are split.
template <class Load>
double walked(const Plan& plan, const Slots& slots, const std::vector<StageLoad>& stages, Load load) {
  const std::int64_t chunks = plan.pp * plan.vpp;
  Done done(chunks, plan.micro_batches);
  std::vector<double> free(slots.size(), 0.0);
  std::vector<std::size_t> next(slots.size(), 0);
  // Activations go one way through the stages, their gradients the other.
  bool goes_on = true;
  for (bool down = true; goes_on; down = !down) {
    goes_on = false;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::size_t stage = down ? i : slots.size() - 1 - i;
      const auto of_chunk = [&](double of_stage) { return of_stage / static_cast<double>(plan.vpp); };
      const double forward = of_chunk(stages[stage].forward), attention = of_chunk(stages[stage].attention);
      const double third = (of_chunk(stages[stage].all) - attention) / 3;
      for (; next[stage] < slots[stage].size(); ++next[stage], goes_on = true) {
        const program::Slot& slot = slots[stage][next[stage]];
        const std::int64_t j = slot.micro_batch;
        const std::int64_t chunk = program::global_chunk(chunk_placement(plan), plan.pp,
                                                         static_cast<std::int64_t>(stage), slot.chunk);
        double ready = 0, takes = third;
        double* end = nullptr;
        switch (slot.work) {
          case program::Work::kForward:
            ready = chunk == 0 ? 0 : done.forward(chunk - 1, j);
            takes += forward * load(j);
            end = &done.forward(chunk, j);
            break;
          case program::Work::kBackward:
            takes += third;
            [[fallthrough]];
          case program::Work::kBackwardInput:
            ready = chunk + 1 == chunks ? done.forward(chunk, j) : done.backward(chunk + 1, j);
            takes += (attention - forward) * load(j);
            end = &done.backward(chunk, j);
            break;
          case program::Work::kBackwardWeight:
            break;
        }
        if (ready == Done::kNotYet) break;
        free[stage] = std::max(free[stage], ready) + takes;
        if (end != nullptr) *end = free[stage];
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

}  // namespace

double DocumentLoads::longer(const Plan& plan, const std::vector<StageLoad>& stages) {
  if (even()) return 0;
  double most = 0, longest_stage = 0;
  for (const StageLoad& s : stages) {
    most = std::max(most, s.attention);
    longest_stage = std::max(longest_stage, s.all);
  }
  if (most == 0) return 0;
  const double unit = std::max(most / kStepsOfAttention, longest_stage / kStepsOfStages);
  // Some of very many micro-batches: whole rounds of all stages, which schedules want.
  Plan some = plan;
  const std::int64_t enough = std::max(
      4 * plan.pp,
      std::min(kMostOfReplica / plan.micro_batch, kMostSlots / (2 * plan.pp * plan.vpp)) / plan.pp * plan.pp);
  if (plan.schedule != Schedule::kListed) some.micro_batches = std::min(plan.micro_batches, enough);
  Walk walk{batch_of(some), some.vpp, some.schedule, some.overlap_exchanges, {}};
  std::vector<StageLoad> rounded;
  for (const StageLoad& s : stages) {
    const double forward = std::round(s.forward / unit), attention = std::round(s.attention / unit);
    rounded.push_back({forward, attention, std::max(attention, std::round(s.all / unit))});
    for (const double load : {forward, attention, rounded.back().all})
      walk.loads.push_back(static_cast<std::int64_t>(load));
  }
  const auto found = longer_.find(walk);
  const bool listed = plan.schedule == Schedule::kListed;  // they have no name
  double sum = 0;
  if (found != longer_.end() && !listed) {
    sum = found->second;
  } else {
    const Slots slots = program::pipeline_schedule(some);
    const double of_mean = walked(some, slots, rounded, [](std::int64_t) { return 1.0; });
    const std::vector<Loads>& of_draws = draws(walk.batch);
    for (const Loads& loads : of_draws)
      sum += walked(some, slots, rounded, [&](std::int64_t j) { return loads[static_cast<std::size_t>(j)]; });
    sum = std::max(0.0, sum / static_cast<double>(of_draws.size()) - of_mean);
    if (!listed) longer_.emplace(walk, sum);
  }
  // Waits add up over micro-batches; without any, deviations from the mean do as the root of their number.
  const double times = static_cast<double>(plan.micro_batches) / static_cast<double>(some.micro_batches);
  const bool waits = plan.pp > 1 || walk.batch.together > 1 || walk.batch.ring > 1;
  return unit * sum * (waits ? times : std::sqrt(times));
}

DocumentLoads::Loads DocumentLoads::drawn(const Plan& plan, std::uint64_t draw) {
  return longest(batch_of(plan), draw);
}

}  // namespace orrery::sim
