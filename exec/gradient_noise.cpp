// SPDX-License-Identifier: Apache-2.0
#include "exec/gradient_noise.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "exec/alone.h"

namespace orrery::exec {
namespace {

template <class Element>
double squared(const std::vector<std::vector<Element>>& units) {
  double sum = 0;
  for (const auto& unit : units) {
    for (const Element x : unit) sum += static_cast<double>(x) * static_cast<double>(x);
  }
  return sum;
}

// Of one repeat.
struct Noise {
  double gradient = 0, noise = 0;
};
double ratio_of(double noise, double gradient) {
  return gradient > 0 ? noise / gradient : std::numeric_limits<double>::infinity();
}

}  // namespace

GradientNoise measure_noise(const program::Program& program, const RunOptions& options, const Dataset& data,
                            const RestoredState* state, std::int64_t batches, std::int64_t repeats) {
  if (program.mesh.ranks() != 1) throw Error("gradient noise is measured on one rank");
  Alone alone(program, options, data);
  if (state != nullptr) alone.rank.restore(*state);
  GradientNoise out{.samples = program.training.global_batch, .batches = batches, .repeats = repeats};
  const auto n = static_cast<double>(batches), b = static_cast<double>(out.samples);
  std::vector<Noise> all;
  UnitShard gradient;
  for (std::int64_t r = 0; r < repeats; ++r) {
    std::vector<std::vector<double>> mean;
    double each = 0;  // mean |g_i|^2
    for (std::int64_t i = 0; i < batches; ++i) {
      out.loss += alone.rank.compute_gradients(r * batches + i, gradient).loss /
                  (static_cast<double>(program.rows_of_loss) * n * static_cast<double>(repeats));
      each += squared(gradient) / n;
      mean.resize(gradient.size());
      for (std::size_t u = 0; u < gradient.size(); ++u) {
        mean[u].resize(gradient[u].size());
        for (std::size_t k = 0; k < gradient[u].size(); ++k)
          mean[u][k] += static_cast<double>(gradient[u][k]) / n;
      }
    }
    const double together = squared(mean);
    if (!std::isfinite(each)) throw Error("a gradient is not a finite number");
    all.push_back({(n * together - each) / (n - 1), (each - together) / (1 / b - 1 / (n * b))});
  }
  const auto m = static_cast<double>(repeats);
  for (const Noise& x : all) {
    out.gradient += x.gradient / m;
    out.noise += x.noise / m;
  }
  out.scale = ratio_of(out.noise, out.gradient);
  double spread = 0;
  for (const Noise& x : all) {
    if (repeats == 1) break;
    const double without =
        ratio_of((m * out.noise - x.noise) / (m - 1), (m * out.gradient - x.gradient) / (m - 1));
    spread += (without - out.scale) * (without - out.scale);
  }
  out.error = std::sqrt(spread * (m - 1) / m);
  return out;
}

}  // namespace orrery::exec
