// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/reference.h"

namespace orrery::kernels::reference {
namespace {

struct Moments {
  float mean, inverse_deviation;
};

Moments moments(const float* x, Index width, bool rms, float epsilon) {
  double mean = 0;
  if (!rms) {
    for (Index j = 0; j < width; ++j) mean += x[j];
    mean /= static_cast<double>(width);
  }
  double variance = 0;
  for (Index j = 0; j < width; ++j) variance += (x[j] - mean) * (x[j] - mean);
  variance /= static_cast<double>(width);
  return {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(variance + epsilon))};
}

// dx of one row, with n = (x - mean) r, g = dy w: r (g - n mean(g n) - [mean(g) unless rms]).
void norm_row_grad(const NormShape& s, const float* x, const float* w, const float* dy, float* dx, float* dw,
                   float* db) {
  const Index width = s.width;
  const Moments m = moments(x, width, s.rms, s.epsilon);
  double sum_g = 0, sum_gn = 0;
  for (Index j = 0; j < width; ++j) {
    const float n = (x[j] - m.mean) * m.inverse_deviation, g = dy[j] * w[j];
    sum_g += g;
    sum_gn += g * n;
    dw[j] += dy[j] * n;
    if (db != nullptr) db[j] += dy[j];
  }
  const auto mean_g = s.rms ? 0.0F : static_cast<float>(sum_g / static_cast<double>(width));
  const auto mean_gn = static_cast<float>(sum_gn / static_cast<double>(width));
  for (Index j = 0; j < width; ++j) {
    const float n = (x[j] - m.mean) * m.inverse_deviation;
    dx[j] = m.inverse_deviation * (dy[j] * w[j] - mean_g - n * mean_gn);
  }
}

}  // namespace

void norm(const NormShape& s, const float* x, const float* w, const float* b, float* y) {
  for (Index r = 0; r < s.rows; ++r, x += s.width, y += s.width) {
    const Moments m = moments(x, s.width, s.rms, s.epsilon);
    for (Index j = 0; j < s.width; ++j) {
      y[j] = (x[j] - m.mean) * m.inverse_deviation * w[j] + (b != nullptr ? b[j] : 0.0F);
    }
  }
}

void norm_grad(const NormShape& s, const float* x, const float* w, const float* dy, const float* residual,
               float* dx, float* dw, float* db, bool accumulate) {
  if (!accumulate) {
    std::fill_n(dw, s.width, 0.0F);
    if (db != nullptr) std::fill_n(db, s.width, 0.0F);
  }
  for (Index r = 0; r < s.rows; ++r) {
    const Index at = r * s.width;
    norm_row_grad(s, x + at, w, dy + at, dx + at, dw, db);
    if (residual == nullptr) continue;
    for (Index j = 0; j < s.width; ++j) dx[at + j] += residual[at + j];
  }
}

namespace {

// Calls use(from, width, weight) for each head that is normed: where it and its weights begin.
template <class Use>
void for_each_normed_head(const HeadNormShape& s, Use use) {
  for (Index i = 0; i < s.heads; ++i) use(i * s.head, s.head, Index{0});
  for (Index i = 0; i < s.kv; ++i) use(s.heads * s.head + i * s.kv_head, s.kv_head, s.head);
}

}  // namespace

void head_norm(const HeadNormShape& s, const float* x, const float* w, float* y) {
  const std::vector<float> ones(static_cast<std::size_t>(s.weighted ? 0 : s.head + s.kv_head), 1.0F);
  const float* const weights = s.weighted ? w : ones.data();
  for (Index r = 0; r < s.rows; ++r, x += s.width, y += s.width) {
    std::copy_n(x, s.width, y);
    for_each_normed_head(s, [&](Index from, Index width, Index weight) {
      norm({1, width, true, s.epsilon}, x + from, weights + weight, nullptr, y + from);
    });
  }
}

void head_norm_grad(const HeadNormShape& s, const float* x, const float* w, const float* dy, float* dx,
                    float* dw, bool accumulate) {
  const auto most = static_cast<std::size_t>(s.weighted ? 0 : s.head + s.kv_head);
  const std::vector<float> ones(most, 1.0F);
  std::vector<float> unused(most);
  const float* const weights = s.weighted ? w : ones.data();
  float* const d_weights = s.weighted ? dw : unused.data();
  if (s.weighted && !accumulate) std::fill_n(dw, s.weights(), 0.0F);
  for (Index r = 0; r < s.rows; ++r, x += s.width, dy += s.width, dx += s.width) {
    std::copy_n(dy, s.width, dx);
    for_each_normed_head(s, [&](Index from, Index width, Index weight) {
      norm_row_grad({1, width, true, s.epsilon}, x + from, weights + weight, dy + from, dx + from,
                    d_weights + weight, nullptr);
    });
  }
}

void rope(const RopeShape& s, const float* cosine, const float* sine, float* x) {
  const Index half = s.turned / 2;
  for (Index r = 0; r < s.rows; ++r) {
    const Index angles = s.share.position(r % s.seq) * half;
    for (Index i = 0; i < s.heads; ++i) {
      float* v = x + r * s.width + i * s.head;
      for (Index j = 0; j < half; ++j) {
        const float c = cosine[angles + j], sn = s.inverse ? -sine[angles + j] : sine[angles + j];
        const float a = v[j], b = v[j + half];
        v[j] = a * c - b * sn;
        v[j + half] = a * sn + b * c;
      }
    }
  }
}

namespace {

// An activation's value and slope.
struct Point {
  float value, slope;
};
// What a gate multiplies.
Point up_of(Act act, float x) {
  if (act != Act::kClampedSwiglu) return {x, 1};
  return {1 + std::clamp(x, -kActClamp, kActClamp), std::abs(x) <= kActClamp ? 1.0F : 0.0F};
}
Point point_of(Act act, float x) {
  if (act == Act::kSquaredRelu) return x > 0 ? Point{x * x, 2 * x} : Point{0, 0};
  if (act == Act::kSwiglu) {
    const float sigmoid = 1.0F / (1.0F + std::exp(-x));
    return {x * sigmoid, sigmoid * (1.0F + x * (1.0F - sigmoid))};
  }
  if (act == Act::kClampedSwiglu) {
    const float g = x > kActClamp ? kActClamp : x, sigmoid = 1.0F / (1.0F + std::exp(-kActSteepness * g));
    return {g * sigmoid, x <= kActClamp ? sigmoid * (1.0F + kActSteepness * g * (1.0F - sigmoid)) : 0.0F};
  }
  constexpr float kRoot = 0.7978845608028654F;  // sqrt(2 / pi)
  const float t = std::tanh(kRoot * (x + 0.044715F * x * x * x));
  const float dt = (1.0F - t * t) * kRoot * (1.0F + 3.0F * 0.044715F * x * x);
  return {0.5F * x * (1.0F + t), 0.5F * (1.0F + t) + 0.5F * x * dt};
}

}  // namespace

void activation(Index rows, Index width, Act act, const float* u, float* v) {
  const Index of_u = is_gated(act) ? 2 * width : width;
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < width; ++j) {
      const float x = point_of(act, u[r * of_u + j]).value;
      v[r * width + j] = is_gated(act) ? x * up_of(act, u[r * of_u + width + j]).value : x;
    }
  }
}

void activation_grad(Index rows, Index width, Act act, const float* u, const float* dv, float* du) {
  const Index of_u = is_gated(act) ? 2 * width : width;
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < width; ++j) {
      const Index at = r * of_u + j;
      const Point x = point_of(act, u[at]);
      const float d = dv[r * width + j];
      const Point up = is_gated(act) ? up_of(act, u[at + width]) : Point{1, 0};
      du[at] = d * up.value * x.slope;
      if (is_gated(act)) du[at + width] = d * x.value * up.slope;
    }
  }
}

void scale(Index n, float factor, const float* x, float* y) {
  for (Index i = 0; i < n; ++i) y[i] = factor * x[i];
}

void soft_cap(Index n, float cap, const float* x, float* y) {
  for (Index i = 0; i < n; ++i) y[i] = cap * std::tanh(x[i] / cap);
}

void soft_cap_grad(Index n, float cap, const float* y, const float* dy, float* dx) {
  for (Index i = 0; i < n; ++i) dx[i] = dy[i] * (1.0F - y[i] / cap * (y[i] / cap));
}

void loss_statistics(const LossShape& s, const float* logits, const std::int32_t* targets,
                     float* statistics) {
  for (Index r = 0; r < s.rows; ++r) {
    const float* const row = logits + r * s.columns;
    float most = -std::numeric_limits<float>::max();
    for (Index j = 0; j < s.valid(); ++j) most = std::max(most, row[j]);
    double sum = 0;
    for (Index j = 0; j < s.valid(); ++j) sum += std::exp(row[j] - most);
    const Index target = targets[r] - s.first;
    float* const to = statistics + r * kLossStatistics;
    to[0] = most;
    to[1] = static_cast<float>(sum);
    to[2] = target >= 0 && target < s.valid() ? row[target] : 0.0F;
  }
}

double loss(Index rows, Index ranks, const float* statistics, float* normalizers) {
  double total = 0;
  for (Index r = 0; r < rows; ++r) {
    const auto of_rank = [&](Index rank) { return statistics + (rank * rows + r) * kLossStatistics; };
    float most = of_rank(0)[0];
    for (Index rank = 1; rank < ranks; ++rank) most = std::max(most, of_rank(rank)[0]);
    double sum = 0, target = 0;
    for (Index rank = 0; rank < ranks; ++rank) {
      sum += of_rank(rank)[1] * std::exp(of_rank(rank)[0] - most);
      target += of_rank(rank)[2];
    }
    normalizers[2 * r] = most;
    normalizers[2 * r + 1] = static_cast<float>(sum);
    total += std::log(sum) - (target - most);
  }
  return total;
}

void loss_grad(const LossShape& s, const float* logits, const float* normalizers, const std::int32_t* targets,
               float scale, float* d_logits) {
  for (Index r = 0; r < s.rows; ++r) {
    const Index target = targets[r] - s.first;
    for (Index j = 0; j < s.columns; ++j) {
      const Index at = r * s.columns + j;
      const float p =
          j < s.valid() ? std::exp(logits[at] - normalizers[2 * r]) / normalizers[2 * r + 1] : 0.0F;
      d_logits[at] = scale * (p - (j == target ? 1.0F : 0.0F));
    }
  }
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float from_float16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float magnitude = 0;
  if (exponent == 31)
    magnitude =
        mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else
    magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
}

std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::uint16_t to_float16(float x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (magnitude >= 65520.0F) return sign | 0x7c00;  // halfway beyond the largest
  // Steps of the result: 2^-24 below 2^-14, then 1024 to each power of two.
  const int exponent = magnitude < std::ldexp(1.0F, -14) ? -14 : std::ilogb(magnitude);
  const auto steps = static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign + ((exponent + 14) << 10) + steps);
}

}  // namespace orrery::kernels::reference
