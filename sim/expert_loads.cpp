// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <type_traits>
#include <variant>

#include "core/one_of.h"

namespace orrery::sim {
namespace {

// Draws that a mean is taken of; and of each, micro-batches.
constexpr std::uint64_t kDraws = 64, kMicroBatches = 4;
// Above so many choices, the number of an expert's is as good as normal.
constexpr double kManyChoices = 1e5;

using Random = std::mt19937_64;

Random random_of(std::uint64_t layer, std::uint64_t draw) {
  std::seed_seq seed{std::uint32_t{0x0ecc}, static_cast<std::uint32_t>(layer),
                     static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32)};
  return Random(seed);
}

double sum_of(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0);
}

// Scaled so that their sum is `choices` and none is above 1.
void limit(std::vector<double>& chances, double choices) {
  for (;;) {
    double capped = 0, rest = 0;
    for (double& p : chances) {
      p = std::min(p, 1.0);
      (p == 1 ? capped : rest) += p;
    }
    if (rest == 0) return;
    const double factor = (choices - capped) / rest;
    bool again = false;
    for (double& p : chances) {
      if (p == 1) continue;
      p *= factor;
      again |= p > 1;
    }
    if (!again) return;
  }
}

// The chances of a layer's experts, of which a token chooses top_k.
struct Chances {
  const ExpertsLayer& layer;
  std::size_t number;  // of the layer
  Random& random;

  std::vector<double> operator()(const DirichletLoad& load) const {
    const auto n = static_cast<double>(layer.experts);
    std::vector<double> out(static_cast<std::size_t>(layer.experts), 1 / n);
    if (load.spread == 0 || layer.experts == 1) return out;
    // A share of Dirichlet(a, .., a) has the squared spread (n - 1) / (n a + 1).
    const double a = ((n - 1) / (load.spread * load.spread) - 1) / n;
    if (a <= 0) return one_takes_all(std::move(out));
    std::gamma_distribution<double> gamma(a);
    for (double& p : out) p = gamma(random);
    const double sum = sum_of(out);
    if (!(sum > 0)) return one_takes_all(std::move(out));
    for (double& p : out) p /= sum;
    return out;
  }
  std::vector<double> operator()(const HotLoad& load) const {
    const auto n = static_cast<double>(layer.experts);
    std::vector<double> out(static_cast<std::size_t>(layer.experts),
                            n > 1 ? (n - load.shares) / n / (n - 1) : 1);
    out.front() = load.shares / n;
    return out;
  }
  std::vector<double> operator()(const RecordedLoad& load) const {
    const std::vector<std::int64_t>& tokens = load.tokens[load.tokens.size() == 1 ? 0 : number];
    std::vector<double> out(tokens.begin(), tokens.end());
    const double sum = sum_of(out);
    for (double& p : out) p /= sum;
    return out;
  }

 private:
  // What a Dirichlet distribution comes to as its parameter goes to 0.
  std::vector<double> one_takes_all(std::vector<double> out) const {
    std::fill(out.begin(), out.end(), 0.0);
    out[std::uniform_int_distribution<std::size_t>(0, out.size() - 1)(random)] = 1;
    return out;
  }
};

// How often each was chosen of so many choices, with these numbers in the mean.
std::vector<double> chosen(const std::vector<double>& means, double choices, Random& random) {
  std::vector<double> out(means.size());
  if (choices <= kManyChoices) {
    double left = sum_of(means);
    auto choices_left = static_cast<std::int64_t>(std::llround(choices));
    for (std::size_t i = 0; i < means.size(); ++i) {
      const double chance = left > 0 ? std::clamp(means[i] / left, 0.0, 1.0) : 0;
      const std::int64_t n = i + 1 == means.size() || chance == 1 ? choices_left
                             : chance == 0
                                 ? 0
                                 : std::binomial_distribution<std::int64_t>(choices_left, chance)(random);
      out[i] = static_cast<double>(n);
      choices_left -= n;
      left -= means[i];
    }
    return out;
  }
  // Independent ones, less what their sum is off: the covariances of a multinomial.
  std::normal_distribution<double> normal;
  double off = 0;
  for (std::size_t i = 0; i < means.size(); ++i) {
    out[i] = means[i] + std::sqrt(means[i]) * normal(random);
    off += out[i] - means[i];
  }
  for (std::size_t i = 0; i < means.size(); ++i) out[i] = std::max(0.0, out[i] - off * means[i] / choices);
  return out;
}

// Of each expert, that a token chooses it.
std::vector<double> chances_of(const ExpertLoad& load, std::size_t number, const ExpertsLayer& layer,
                               Random& random) {
  std::vector<double> out = std::visit(Chances{layer, number, random}, load.is);
  const auto k = static_cast<double>(layer.top_k);
  for (double& p : out) p *= k;
  limit(out, k);
  return out;
}

// Makes the sum of counts what it is to be, by changing each by about as much; none goes below 0 or above
// most. Precondition: there is room for the sum.
void give_rest(std::vector<std::int64_t>& counts, std::int64_t sum, std::int64_t most) {
  std::int64_t rest = sum - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  while (rest != 0) {
    const std::int64_t each = std::max<std::int64_t>(1, std::abs(rest) / std::ssize(counts));
    const std::int64_t before = rest;
    for (std::int64_t& n : counts) {
      // An expert that all tokens choose stays so.
      const std::int64_t by = rest > 0    ? std::min({each, rest, most - n})
                              : n == most ? 0
                                          : -std::min({each, -rest, n});
      n += by;
      rest -= by;
    }
    if (rest == before) return;  // all are full, or none has anything
  }
}

// The load of one draw, in the mean over some micro-batches.
double drawn_load(const ExpertLoad& load, std::size_t number, const ExpertsLayer& layer,
                  const SharedExperts& of, Random& random) {
  const std::vector<double> chances = chances_of(load, number, layer, random);
  const auto k = static_cast<double>(layer.top_k), experts = static_cast<double>(layer.experts);
  const auto tokens = static_cast<double>(of.ranks * of.tokens);
  const double narrower = layer.experts > 1 ? std::sqrt((experts - k) / (experts - 1)) : 0;
  const auto parts = static_cast<std::size_t>(of.parts), of_part = chances.size() / parts;
  const auto by_part = [&](const std::vector<double>& by_expert) {
    std::vector<double> out(parts);
    for (std::size_t i = 0; i < by_expert.size(); ++i) out[i / of_part] += by_expert[i];
    return out;
  };
  // Where experts drop tokens, those of each count; else a rank's together.
  const bool drops = layer.capacity_factor > 0;
  std::vector<double> means = drops ? chances : by_part(chances);
  for (double& m : means) m *= tokens;
  const auto most = static_cast<double>(of.ranks * layer.capacity(of.tokens));
  const double even =
      static_cast<double>(of.ranks * layer.routed_rows(of.tokens)) / static_cast<double>(of.parts);
  double sum = 0;
  for (std::uint64_t i = 0; i < kMicroBatches; ++i) {
    std::vector<double> rows = chosen(means, tokens * k, random);
    for (std::size_t e = 0; e < rows.size(); ++e) {
      rows[e] = means[e] + (rows[e] - means[e]) * narrower;
      if (drops) rows[e] = std::min(rows[e], most);
    }
    if (drops) rows = by_part(rows);
    sum += *std::max_element(rows.begin(), rows.end()) / even;
  }
  return sum / kMicroBatches;
}

}  // namespace

SharedExperts shared_experts(const Plan& plan, const Training& training) {
  if (!plan.splits_experts()) return {};
  return {.parts = plan.ep,
          .ranks = plan.expert_ranks(),
          .tokens = plan.micro_batch * training.sequence / (plan.cp * plan.tp)};
}

ExpertLoads::ExpertLoads(const Model& model, const Training& training) : load_(training.expert_load) {
  if (!load_) return;
  blocks_ = depth_of(model).blocks() + model.mtp_layers;
  layers_ = experts_of(model);
}

double ExpertLoads::mean_of(std::size_t layer, const SharedExperts& of) const {
  // What is drawn for one layer is drawn for all.
  const std::size_t drawn_as = std::holds_alternative<RecordedLoad>(load_->is) ? layer : 0;
  double sum = 0;
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    Random random = random_of(drawn_as, draw);
    sum += drawn_load(*load_, layer, layers_[layer].layer, of, random);
  }
  return sum / kDraws;
}

template <class Load>
std::vector<double> ExpertLoads::by_block(Load load) const {
  std::vector<double> out(static_cast<std::size_t>(blocks_), 0.0), layers(out.size(), 0.0);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto block = static_cast<std::size_t>(layers_[i].block);
    out[block] += load(i);
    ++layers[block];
  }
  for (std::size_t b = 0; b < out.size(); ++b) out[b] = layers[b] > 0 ? out[b] / layers[b] : 1;
  return out;
}

std::vector<double> ExpertLoads::means(const SharedExperts& of) const {
  if (even(of)) return std::vector<double>(static_cast<std::size_t>(blocks_), 1.0);
  std::vector<std::pair<const ExpertsLayer*, double>>
      known;  // layers that are alike, unless they are recorded
  return by_block([&](std::size_t i) {
    if (!std::holds_alternative<RecordedLoad>(load_->is)) {
      for (const auto& [layer, load] : known) {
        if (*layer == layers_[i].layer) return load;
      }
    }
    return known.emplace_back(&layers_[i].layer, mean_of(i, of)).second;
  });
}

double ExpertLoads::mean(const SharedExperts& of) {
  if (even(of)) return 1;
  const auto found = means_.find(of);
  if (found != means_.end()) return found->second;
  const std::vector<double> all = means(of);
  double sum = 0;
  for (const ExpertsAt& at : layers_) sum += all[static_cast<std::size_t>(at.block)];
  return means_[of] = sum / static_cast<double>(layers_.size());
}

std::vector<double> ExpertLoads::drawn(const SharedExperts& of, std::uint64_t draw) const {
  if (even(of)) return std::vector<double>(static_cast<std::size_t>(blocks_), 1.0);
  return by_block([&](std::size_t i) {
    Random random = random_of(i + 1, draw);
    return drawn_load(*load_, i, layers_[i].layer, of, random);
  });
}

std::vector<std::vector<std::int64_t>> ExpertLoads::tokens(const SharedExperts& of, std::size_t number,
                                                           std::uint64_t group,
                                                           std::int64_t micro_batches) const {
  const ExpertsLayer& layer = layers_[number].layer;
  constexpr std::uint64_t kDraw = 0;
  Random random = random_of(number + 1, kDraw);
  const std::vector<double> chances = chances_of(*load_, number, layer, random);
  // Groups have the same chances, and choices of their own.
  random = random_of(number + 1, group + 1);
  const std::int64_t all = of.ranks * of.tokens, choices = all * layer.top_k;
  const bool drops = layer.capacity_factor > 0;
  const std::int64_t most = drops ? std::min(all, of.ranks * layer.capacity(of.tokens)) : all;
  std::vector<double> means = chances;
  for (double& m : means) m *= static_cast<double>(all);
  std::vector<std::vector<std::int64_t>> out(static_cast<std::size_t>(micro_batches));
  for (std::vector<std::int64_t>& tokens : out) {
    const std::vector<double> rows = chosen(means, static_cast<double>(choices), random);
    for (std::size_t e = 0; e < rows.size(); ++e) {
      // A token chooses an expert once: of so many tokens, so many do with the expert's chance.
      const double n = means[e] + (rows[e] - means[e]) * std::sqrt(std::max(0.0, 1 - chances[e]));
      tokens.push_back(std::llround(std::clamp(n, 0.0, static_cast<double>(all))));
    }
    give_rest(tokens, choices, all);
    for (std::int64_t& n : tokens) n = std::min(n, most);
  }
  return out;
}

double ExpertLoads::room(const SharedExperts& of) {
  if (even(of)) return 1;
  const auto found = rooms_.find(of);
  if (found != rooms_.end()) return found->second;
  std::vector<double> fullest;
  constexpr std::uint64_t kSteps = 20;
  for (std::uint64_t draw = 0; draw < kSteps; ++draw) {
    const std::vector<double> loads = drawn(of, draw);
    fullest.push_back(*std::max_element(loads.begin(), loads.end()));
  }
  std::sort(fullest.begin(), fullest.end());
  double most = 1;
  for (const ExpertsAt& at : layers_) most = std::max(most, at.layer.most_shares(of.parts));
  return rooms_[of] = std::clamp(std::ceil(4 * fullest[kSteps - 2]) / 4, 1.0, most);
}

}  // namespace orrery::sim
