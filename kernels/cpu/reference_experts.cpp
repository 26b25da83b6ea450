// SPDX-License-Identifier: Apache-2.0
//
// Routers and experts.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {
namespace {

float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

// Of the columns in `of` the k of the largest values, largest first.
void choose(const float* values, std::vector<Index>& of, Index k) {
  std::stable_sort(of.begin(), of.end(), [&](Index a, Index b) { return values[a] > values[b]; });
  of.resize(static_cast<std::size_t>(k));
}

// The experts that a token chooses by these values.
std::vector<Index> chosen(const RouteShape& s, const float* values, bool by_two) {
  const Index in_group = s.experts / s.groups;
  std::vector<float> best(static_cast<std::size_t>(s.groups));
  std::vector<Index> groups, experts;
  for (Index g = 0; g < s.groups; ++g) {
    groups.push_back(g);
    std::vector<Index> of_group;
    for (Index e = g * in_group; e < (g + 1) * in_group; ++e) of_group.push_back(e);
    choose(values, of_group, std::min<Index>(by_two ? 2 : 1, in_group));
    for (const Index e : of_group) best[static_cast<std::size_t>(g)] += values[e];
  }
  choose(best.data(), groups, s.top_groups);
  std::sort(groups.begin(), groups.end());
  for (const Index g : groups) {
    for (Index e = g * in_group; e < (g + 1) * in_group; ++e) experts.push_back(e);
  }
  choose(values, experts, s.top_k);
  return experts;
}

}  // namespace

void router_scores(const RouterShape& s, const float* logits, float* scores) {
  for (Index t = 0; t < s.tokens; ++t, logits += s.experts, scores += s.experts) {
    const float largest = *std::max_element(logits, logits + s.experts);
    float sum = 0;
    for (Index e = 0; e < s.experts; ++e) {
      scores[e] = s.sigmoid ? sigmoid(logits[e]) : std::exp(logits[e] - largest);
      sum += scores[e];
    }
    for (Index e = 0; e < s.experts && !s.sigmoid; ++e) scores[e] /= sum;
  }
}

void router_scores_grad(const RouterShape& s, const float* logits, const float* scores, const float* d_scores,
                        float* d_logits) {
  for (Index t = 0; t < s.tokens; ++t) {
    const Index at = t * s.experts;
    float mean = 0, sum = 0;
    const float largest = *std::max_element(logits + at, logits + at + s.experts);
    for (Index e = at; e < at + s.experts; ++e) {
      mean += d_scores[e] * scores[e];
      sum += std::exp(logits[e] - largest);
    }
    const float log_sum = largest + std::log(sum);
    for (Index e = at; e < at + s.experts; ++e) {
      d_logits[e] = scores[e] * (s.sigmoid ? d_scores[e] * (1 - scores[e]) : d_scores[e] - mean);
      if (s.z_loss != 0) d_logits[e] += 2 * s.z_loss * log_sum * std::exp(logits[e] - log_sum);
    }
  }
}

Index route(const RouteShape& s, const float* scores, const float* biases, float* weights,
            std::int32_t* choice, std::int32_t* counts, float* load) {
  std::vector<float> values(static_cast<std::size_t>(s.experts));
  std::fill_n(counts, s.experts, 0);
  std::fill_n(load, s.samples * s.experts, 0.0F);
  for (Index t = 0; t < s.tokens; ++t) {
    const float* const of = scores + t * s.experts;
    for (Index e = 0; e < s.experts; ++e) {
      const float value = of[e] + (biases != nullptr ? biases[e] : 0.0F);
      // What is no number comes last: a token has experts whatever became of its scores.
      values[static_cast<std::size_t>(e)] = std::isnan(value) ? std::numeric_limits<float>::lowest() : value;
    }
    const std::vector<Index> experts = chosen(s, values.data(), biases != nullptr);
    float sum = 0;
    for (const Index e : experts) sum += of[e];
    for (Index j = 0; j < s.top_k; ++j) {
      const Index e = experts[static_cast<std::size_t>(j)];
      weights[t * s.top_k + j] = s.scale * (s.normalised ? of[e] / sum : of[e]);
      choice[t * 2 * s.top_k + j] = static_cast<std::int32_t>(e);
      choice[(t * 2 + 1) * s.top_k + j] = counts[e] < s.capacity ? counts[e]++ : -1;
      load[(s.first + t) / s.seq * s.experts + e] += 1;
    }
  }
  // Where rows of experts begin, and, of the last ones of a part, how many have room.
  std::vector<Index> first(static_cast<std::size_t>(s.experts));
  const Index of_part = s.experts / s.parts;
  Index beyond = 0;
  for (Index e = 0, in_part = 0; e < s.experts; ++e) {
    if (e % of_part == 0) in_part = 0;
    first[static_cast<std::size_t>(e)] = e / of_part * s.room + in_part;
    const Index placed = s.parts == 1 ? counts[e] : std::min<Index>(counts[e], s.room - in_part);
    beyond += counts[e] - placed;
    counts[e] = static_cast<std::int32_t>(placed);
    in_part += placed;
  }
  for (Index t = 0; t < s.tokens; ++t) {
    for (Index j = 0; j < s.top_k; ++j) {
      std::int32_t& row = choice[(t * 2 + 1) * s.top_k + j];
      const std::int32_t e = choice[t * 2 * s.top_k + j];
      if (row >= counts[e]) row = -1;
      if (row >= 0) row += static_cast<std::int32_t>(first[static_cast<std::size_t>(e)]);
    }
  }
  return beyond;
}

void choice_bias_grad(Index samples, Index experts, const float* load, float* d_biases, bool accumulate) {
  std::vector<double> tokens(static_cast<std::size_t>(experts));
  double all = 0;
  for (Index i = 0; i < samples * experts; ++i) {
    tokens[static_cast<std::size_t>(i % experts)] += load[i];
    all += load[i];
  }
  for (Index e = 0; e < experts; ++e) {
    const auto beyond =
        static_cast<float>(tokens[static_cast<std::size_t>(e)] - all / static_cast<double>(experts));
    d_biases[e] = accumulate ? d_biases[e] + beyond : beyond;
  }
}

void route_grad(const RouteShape& s, const float* scores, const std::int32_t* choice, const float* d_weights,
                float* d_scores) {
  std::fill_n(d_scores, s.tokens * s.experts, 0.0F);
  for (Index t = 0; t < s.tokens; ++t) {
    const float* const of = scores + t * s.experts;
    const std::int32_t* const experts = choice + t * 2 * s.top_k;
    const float* const dw = d_weights + t * s.top_k;
    float sum = 0, mean = 0;
    for (Index j = 0; j < s.top_k; ++j) {
      sum += of[experts[j]];
      mean += dw[j] * of[experts[j]];
    }
    for (Index j = 0; j < s.top_k; ++j)
      d_scores[t * s.experts + experts[j]] = s.scale * (s.normalised ? (dw[j] - mean / sum) / sum : dw[j]);
  }
}

void balance_grad(const BalanceShape& s, const float* scores, const float* load, float* d_scores) {
  const float each = s.factor * static_cast<float>(s.experts) / static_cast<float>(s.top_k * s.seq);
  for (Index t = 0; t < s.tokens; ++t) {
    const float *const of = scores + t * s.experts, *const chose = load + (s.first + t) / s.seq * s.experts;
    float* const d = d_scores + t * s.experts;
    float sum = 0, mean = 0;
    for (Index e = 0; e < s.experts; ++e) {
      sum += of[e];
      mean += each * chose[e] * of[e];
    }
    for (Index e = 0; e < s.experts; ++e)
      d[e] = s.normalises ? (each * chose[e] - mean / sum) / sum : each * chose[e];
  }
}

void permute(const PermuteShape& s, const float* x, const float* weights, const std::int32_t* choice,
             float* y, float* row_weights) {
  for (Index t = 0; t < s.tokens; ++t) {
    for (Index j = 0; j < s.top_k; ++j) {
      const Index row = choice[(t * 2 + 1) * s.top_k + j];
      if (row < 0) continue;
      std::copy_n(x + t * s.width, s.width, y + row * s.width);
      row_weights[row] = weights[t * s.top_k + j];
    }
  }
}

void permute_grad(const PermuteShape& s, const float* dy, const float* d_row_weights,
                  const std::int32_t* choice, float* dx, float* d_weights) {
  unpermute(s, dy, choice, dx);
  for (Index t = 0; t < s.tokens; ++t) {
    for (Index j = 0; j < s.top_k; ++j) {
      const Index row = choice[(t * 2 + 1) * s.top_k + j];
      d_weights[t * s.top_k + j] = row < 0 ? 0 : d_row_weights[row];
    }
  }
}

void unpermute(const PermuteShape& s, const float* y, const std::int32_t* choice, float* o) {
  for (Index t = 0; t < s.tokens; ++t) {
    float* const sum = o + t * s.width;
    std::fill_n(sum, s.width, 0.0F);
    for (Index j = 0; j < s.top_k; ++j) {
      const Index row = choice[(t * 2 + 1) * s.top_k + j];
      for (Index c = 0; c < s.width && row >= 0; ++c) sum[c] += y[row * s.width + c];
    }
  }
}

void unpermute_grad(const PermuteShape& s, const float* d_o, const std::int32_t* choice, float* dy) {
  for (Index t = 0; t < s.tokens; ++t) {
    for (Index j = 0; j < s.top_k; ++j) {
      const Index row = choice[(t * 2 + 1) * s.top_k + j];
      if (row >= 0) std::copy_n(d_o + t * s.width, s.width, dy + row * s.width);
    }
  }
}

void grouped_gemm(const GroupedGemm& g, const float* x, const float* w, const std::int32_t* counts,
                  float* u) {
  for_each_expert(g, counts, [&](Index e, Index first, Index rows, Index) {
    gemm({.m = rows, .n = g.n, .k = g.k, .transpose_b = true}, x + first * g.k, w + e * g.n * g.k, nullptr,
         u + first * g.n);
  });
}

void grouped_gemm_dx(const GroupedGemm& g, const float* du, const float* w, const std::int32_t* counts,
                     float* dx) {
  for_each_expert(g, counts, [&](Index e, Index first, Index rows, Index) {
    gemm({.m = rows, .n = g.k, .k = g.n}, du + first * g.n, w + e * g.n * g.k, nullptr, dx + first * g.k);
  });
}

void grouped_gemm_dw(const GroupedGemm& g, const float* du, const float* x, const std::int32_t* counts,
                     float* dw) {
  for_each_expert(g, counts, [&](Index e, Index first, Index rows, Index part) {
    gemm({.m = g.n, .n = g.k, .k = rows, .transpose_a = true, .accumulate = g.accumulate || part > 0},
         du + first * g.n, x + first * g.k, nullptr, dw + e * g.n * g.k);
  });
}

void expert_activation(Index rows, Index width, Act act, bool weighs_inputs, const float* u,
                       const float* row_weights, float* v) {
  const Index columns = width * (is_gated(act) ? 2 : 1);
  std::vector<float> weighed(static_cast<std::size_t>(columns));
  for (Index r = 0; r < rows; ++r) {
    const float of_inputs = weighs_inputs ? row_weights[r] : 1.0F;
    for (Index c = 0; c < columns; ++c) weighed[static_cast<std::size_t>(c)] = of_inputs * u[r * columns + c];
    activation(1, width, act, weighed.data(), v + r * width);
    if (weighs_inputs) continue;
    for (Index c = 0; c < width; ++c) v[r * width + c] *= row_weights[r];
  }
}

void expert_activation_grad(Index rows, Index width, Act act, bool weighs_inputs, const float* u,
                            const float* row_weights, const float* dv, float* du, float* d_row_weights) {
  const Index columns = width * (is_gated(act) ? 2 : 1);
  std::vector<float> v(static_cast<std::size_t>(width)), weighted(v.size()),
      inputs(static_cast<std::size_t>(columns));
  for (Index r = 0; r < rows; ++r) {
    if (weighs_inputs) {
      for (Index c = 0; c < columns; ++c)
        inputs[static_cast<std::size_t>(c)] = row_weights[r] * u[r * columns + c];
      activation_grad(1, width, act, inputs.data(), dv + r * width, du + r * columns);
      double of_weight = 0;
      for (Index c = r * columns; c < (r + 1) * columns; ++c) {
        of_weight += static_cast<double>(du[c]) * u[c];
        du[c] *= row_weights[r];
      }
      d_row_weights[r] = static_cast<float>(of_weight);
      continue;
    }
    activation(1, width, act, u + r * columns, v.data());
    double sum = 0;
    for (Index c = 0; c < width; ++c) {
      const float d = dv[r * width + c];
      sum += static_cast<double>(d) * v[static_cast<std::size_t>(c)];
      weighted[static_cast<std::size_t>(c)] = d * row_weights[r];
    }
    d_row_weights[r] = static_cast<float>(sum);
    activation_grad(1, width, act, u + r * columns, weighted.data(), du + r * columns);
  }
}

void expert_bias(const ExpertBiasShape& s, const float* bias, const std::int32_t* counts,
                 const float* row_weights, float* y) {
  const GroupedGemm rows{.n = s.width, .k = 1, .experts = s.experts, .parts = s.parts, .room = s.room};
  for_each_expert(rows, counts, [&](Index e, Index first, Index n, Index) {
    for (Index r = first; r < first + n; ++r) {
      const float weight = row_weights == nullptr ? 1.0F : row_weights[r];
      float* const to = y + r * s.columns + s.first;
      for (Index j = 0; j < s.width; ++j) to[j] += weight * bias[e * s.width + j];
    }
  });
}

void expert_bias_grad(const ExpertBiasShape& s, const float* dy, const float* bias,
                      const std::int32_t* counts, const float* row_weights, float* d_bias,
                      float* d_row_weights, bool accumulate) {
  const GroupedGemm rows{.n = s.width, .k = 1, .experts = s.experts, .parts = s.parts, .room = s.room};
  std::vector<double> sums(static_cast<std::size_t>(s.experts * s.width));
  for_each_expert(rows, counts, [&](Index e, Index first, Index n, Index) {
    double* const to = sums.data() + e * s.width;
    for (Index r = first; r < first + n; ++r) {
      const float* const d = dy + r * s.columns + s.first;
      const double weight = row_weights == nullptr ? 1.0 : row_weights[r];
      double product = 0;
      for (Index j = 0; j < s.width; ++j) {
        to[j] += weight * d[j];
        product += static_cast<double>(d[j]) * bias[e * s.width + j];
      }
      if (row_weights != nullptr) d_row_weights[r] = static_cast<float>(product);
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i)
    d_bias[i] = (accumulate ? d_bias[i] : 0.0F) + static_cast<float>(sums[i]);
}

void gate(Index rows, Index width, const float* y, const float* logits, float* o) {
  for (Index r = 0; r < rows; ++r) {
    const float g = sigmoid(logits[r]);
    for (Index c = r * width; c < (r + 1) * width; ++c) o[c] = g * y[c];
  }
}

void gate_grad(Index rows, Index width, const float* y, const float* logits, const float* d_o, float* dy,
               float* d_logits) {
  for (Index r = 0; r < rows; ++r) {
    const float g = sigmoid(logits[r]);
    double sum = 0;
    for (Index c = r * width; c < (r + 1) * width; ++c) {
      sum += static_cast<double>(d_o[c]) * y[c];
      dy[c] = g * d_o[c];
    }
    d_logits[r] = static_cast<float>(sum) * g * (1 - g);
  }
}

}  // namespace orrery::kernels::reference
