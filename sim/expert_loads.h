// SPDX-License-Identifier: Apache-2.0
//
// How full the rank is that gets most of a layer's tokens (Training::expert_load). All ranks that share the
// experts of a layer meet in its exchanges, before and behind its products: the fullest of them paces the
// layer. A load is the fullest rank's rows over the mean of all ranks:
//
//   load = max over ranks r of (sum over r's experts e of n_e) / (sum over all e of n_e / ranks)
//
// n_e are the tokens of a micro-batch that chose expert e. An expert has the chance pi_e of a token, pi_e <=
// 1 as no token chooses an expert twice, sum of pi_e = k = top_k. With N tokens, M = N k choices and m_r the
// choices that rank r gets in the mean, n_r is multinomial: covariance m_r (1 - m_r / M), and -m_r m_s / M.
// Choices without repetition differ less: by sqrt((E - k) / (E - 1)) where all of E experts have the same
// chance, as hypergeometric draws do; so much is taken for all chances.
//
// The chances of a layer stay the same in a step, and are drawn anew for every layer (dirichlet);
// micro-batches differ by their choices.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/model.h"
#include "core/plan.h"
#include "core/training.h"

namespace orrery::sim {

// The tokens that a plan exchanges between the ranks that share experts.
struct SharedExperts {
  std::int64_t parts = 1;   // ranks that have others of the experts
  std::int64_t ranks = 1;   // whose tokens these experts get
  std::int64_t tokens = 0;  // of each of these ranks, of a micro-batch
  friend auto operator<=>(const SharedExperts&, const SharedExperts&) = default;
};
SharedExperts shared_experts(const Plan& plan, const Training& training);

class ExpertLoads {
 public:
  ExpertLoads(const Model& model, const Training& training);

  // Whether all loads are 1.
  bool even(const SharedExperts& of) const { return !load_ || layers_.empty() || of.parts == 1; }
  // In the mean over what may be drawn, and over all layers. Memoised.
  double mean(const SharedExperts& of);
  // By block of the model, 1 where it has no experts: in the mean, or of one draw of the step.
  std::vector<double> means(const SharedExperts& of) const;
  std::vector<double> drawn(const SharedExperts& of, std::uint64_t draw) const;
  // Tokens of one draw of the step: of its first micro-batches, and by expert, of a layer by its number among
  // those with experts. Without a capacity their sum is that of all choices. `group`: which of the groups of
  // ranks that share experts. Precondition: the training has loads.
  std::vector<std::vector<std::int64_t>> tokens(const SharedExperts& of, std::size_t layer,
                                                std::uint64_t group, std::int64_t micro_batches) const;
  // Even shares that a rank needs room for, in quarters: no layer has more in 19 of 20 draws.
  double room(const SharedExperts& of);

 private:
  double mean_of(std::size_t layer, const SharedExperts& of) const;
  template <class Load>
  std::vector<double> by_block(Load load) const;

  std::int64_t blocks_ = 0;  // of the model
  std::vector<ExpertsAt> layers_;
  std::optional<ExpertLoad> load_;
  std::map<SharedExperts, double> means_, rooms_;
};

}  // namespace orrery::sim
