// SPDX-License-Identifier: Apache-2.0
//
// Compiled once for each instruction set, with ORRERY_ISA its name. Includes nothing with inline functions of
// its own: the linker keeps one copy of those, and it must not be the one for the newest processor.
#include "kernels/cpu/pointwise.h"

namespace orrery::kernels::ORRERY_ISA {
namespace {

using reference::Adam;
using reference::LossShape;
using reference::NormShape;
using reference::RopeShape;
using reference::Sgd;

constexpr int kLanes = 16;
constexpr float kLowest = -3.4028235e38F;

float smaller(float a, float b) {
  return a < b ? a : b;
}
float larger(float a, float b) {
  return a > b ? a : b;
}

// exp to 2 units in the last place: 2^n e^r with |r| <= ln 2 / 2, e^r by its series to the sixth power.
inline float exponential(float x) {
  x = larger(smaller(x, 88.3F), -87.3F);
  constexpr float kRound = 12582912.0F;  // 1.5 x 2^23: adding it leaves an integer in the low bits
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.98756915e-4F;
  p = p * r + 1.39819995e-3F;
  p = p * r + 8.33345205e-3F;
  p = p * r + 4.16657962e-2F;
  p = p * r + 1.66666667e-1F;
  p = p * r + 5.0e-1F;
  p = (p * r) * r + r + 1.0F;
  const int power = (static_cast<int>(n) + 127) << 23;
  return p * __builtin_bit_cast(float, power);
}
inline float hyperbolic_tangent(float x) {
  const float y = larger(smaller(x, 15.0F), -15.0F);
  return 1.0F - 2.0F / (exponential(2.0F * y) + 1.0F);
}

// Sums of f(i) over a row, lane by lane, then the lanes in pairs.
float sum_lanes(float* lane) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}
template <class F>
inline float sum(Index n, F f) {
  float lane[kLanes] = {};
  Index j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int i = 0; i < kLanes; ++i) lane[i] += f(j + i);
  }
  for (int i = 0; j < n; ++j, ++i) lane[i] += f(j);
  return sum_lanes(lane);
}
template <class F>
inline float largest_of(Index n, F f) {
  float lane[kLanes];
  for (float& l : lane) l = kLowest;
  Index j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int i = 0; i < kLanes; ++i) lane[i] = larger(lane[i], f(j + i));
  }
  for (; j < n; ++j) lane[0] = larger(lane[0], f(j));
  float most = kLowest;
  for (const float l : lane) most = larger(most, l);
  return most;
}

float dot(Index n, const float* a, const float* b) {
  return sum(n, [=](Index j) { return a[j] * b[j]; });
}

struct Moments {
  float mean, inverse_deviation;
};
Moments moments(const float* x, Index width, bool rms, float epsilon) {
  const auto n = static_cast<float>(width);
  const float mean = rms ? 0.0F : sum(width, [=](Index j) { return x[j]; }) / n;
  const float variance = sum(width, [=](Index j) { return (x[j] - mean) * (x[j] - mean); }) / n;
  return {mean, 1.0F / __builtin_sqrtf(variance + epsilon)};
}

void norm(const NormShape& s, const float* x, const float* w, const float* b, float* y) {
  for (Index r = 0; r < s.rows; ++r, x += s.width, y += s.width) {
    const Moments m = moments(x, s.width, s.rms, s.epsilon);
    if (b != nullptr) {
      for (Index j = 0; j < s.width; ++j) y[j] = (x[j] - m.mean) * m.inverse_deviation * w[j] + b[j];
    } else {
      for (Index j = 0; j < s.width; ++j) y[j] = (x[j] - m.mean) * m.inverse_deviation * w[j];
    }
  }
}

// With n = (x - mean) r and g = dy w: dx = r (g - n mean(g n) - [mean(g) unless rms]).
void norm_grad(const NormShape& s, const float* __restrict x, const float* __restrict w,
               const float* __restrict dy, const float* __restrict residual, float* __restrict dx,
               float* __restrict dw, float* __restrict db, bool accumulate) {
  if (!accumulate) {
    for (Index j = 0; j < s.width; ++j) dw[j] = 0;
    for (Index j = 0; db != nullptr && j < s.width; ++j) db[j] = 0;
  }
  const auto width = static_cast<float>(s.width);
  for (Index row = 0; row < s.rows; ++row, x += s.width, dy += s.width, dx += s.width) {
    const Moments m = moments(x, s.width, s.rms, s.epsilon);
    const float mean = m.mean, r = m.inverse_deviation;
    const float mean_g = s.rms ? 0.0F : sum(s.width, [=](Index j) { return dy[j] * w[j]; }) / width;
    const float mean_gn = sum(s.width, [=](Index j) { return dy[j] * w[j] * ((x[j] - mean) * r); }) / width;
    for (Index j = 0; j < s.width; ++j) {
      const float n = (x[j] - mean) * r;
      dx[j] = r * (dy[j] * w[j] - mean_g - n * mean_gn);
      dw[j] += dy[j] * n;
    }
    for (Index j = 0; db != nullptr && j < s.width; ++j) db[j] += dy[j];
    if (residual == nullptr) continue;
    for (Index j = 0; j < s.width; ++j) dx[j] += residual[j];
    residual += s.width;
  }
}

void rope(const RopeShape& s, const float* __restrict cosine, const float* __restrict sine,
          float* __restrict x) {
  const Index half = s.turned / 2;
  const float sign = s.inverse ? -1.0F : 1.0F;
  for (Index r = 0; r < s.rows; ++r) {
    const Index angles = s.share.position(r % s.seq) * half;
    const float* c = cosine + angles;
    const float* sn = sine + angles;
    for (Index i = 0; i < s.heads; ++i) {
      float* v = x + r * s.width + i * s.head;
      for (Index j = 0; j < half; ++j) {
        const float a = v[j], b = v[j + half], turn = sign * sn[j];
        v[j] = a * c[j] - b * turn;
        v[j + half] = a * turn + b * c[j];
      }
    }
  }
}

constexpr float kRoot = 0.7978845608028654F, kCubic = 0.044715F;  // sqrt(2 / pi)

// What a gate multiplies, and d times its slope.
struct PlainUp {
  static float up(float x) { return x; }
  static float up_grad(float d, float) { return d; }
};
// value(x), d times it, and d times its slope.
struct Gelu : PlainUp {
  static float tanh_of(float x) { return hyperbolic_tangent(kRoot * (x + kCubic * x * x * x)); }
  static float value(float x) { return 0.5F * x * (1.0F + tanh_of(x)); }
  static float times(float d, float x) { return d * value(x); }
  static float grad(float d, float x) {
    const float t = tanh_of(x), dt = (1.0F - t * t) * kRoot * (1.0F + 3.0F * kCubic * x * x);
    return d * (0.5F * (1.0F + t) + 0.5F * x * dt);
  }
};
struct Silu : PlainUp {
  static float sigmoid(float x) { return 1.0F / (1.0F + exponential(-x)); }
  static float value(float x) { return x / (1.0F + exponential(-x)); }
  static float times(float d, float x) { return d * x * sigmoid(x); }
  static float grad(float d, float x) {
    const float s = sigmoid(x);
    return d * s * (1.0F + x * (1.0F - s));
  }
};
struct ClampedSilu {
  static float sigmoid(float g) { return 1.0F / (1.0F + exponential(-reference::kActSteepness * g)); }
  static float held(float x) { return x > reference::kActClamp ? reference::kActClamp : x; }
  static float value(float x) { return held(x) * sigmoid(held(x)); }
  static float times(float d, float x) { return d * value(x); }
  static float grad(float d, float x) {
    const float g = held(x), s = sigmoid(g);
    return x <= reference::kActClamp ? d * s * (1.0F + reference::kActSteepness * g * (1.0F - s)) : 0.0F;
  }
  static float up(float x) { return 1.0F + (x < -reference::kActClamp ? -reference::kActClamp : held(x)); }
  static float up_grad(float d, float x) {
    return x <= reference::kActClamp && x >= -reference::kActClamp ? d : 0.0F;
  }
};
struct SquaredRelu {
  static float value(float x) { return x > 0 ? x * x : 0.0F; }
  static float grad(float d, float x) { return x > 0 ? d * 2 * x : 0.0F; }
};

template <class F>
void alone(Index n, const float* __restrict u, float* __restrict v) {
  for (Index i = 0; i < n; ++i) v[i] = F::value(u[i]);
}
template <class F>
void gated(Index rows, Index width, const float* __restrict u, float* __restrict v) {
  for (Index r = 0; r < rows; ++r, u += 2 * width, v += width) {
    for (Index j = 0; j < width; ++j) v[j] = F::value(u[j]) * F::up(u[width + j]);
  }
}
template <class F>
void alone_grad(Index n, const float* __restrict u, const float* __restrict dv, float* __restrict du) {
  for (Index i = 0; i < n; ++i) du[i] = F::grad(dv[i], u[i]);
}
template <class F>
void gated_grad(Index rows, Index width, const float* __restrict u, const float* __restrict dv,
                float* __restrict du) {
  for (Index r = 0; r < rows; ++r, u += 2 * width, du += 2 * width, dv += width) {
    for (Index j = 0; j < width; ++j) {
      du[j] = F::grad(dv[j] * F::up(u[width + j]), u[j]);
      du[width + j] = F::up_grad(F::times(dv[j], u[j]), u[width + j]);
    }
  }
}

void activation(Index rows, Index width, reference::Act act, const float* u, float* v) {
  using enum reference::Act;
  switch (act) {
    case kGelu:
      return alone<Gelu>(rows * width, u, v);
    case kSwiglu:
      return gated<Silu>(rows, width, u, v);
    case kSquaredRelu:
      return alone<SquaredRelu>(rows * width, u, v);
    case kGeglu:
      return gated<Gelu>(rows, width, u, v);
    case kClampedSwiglu:
      return gated<ClampedSilu>(rows, width, u, v);
  }
}

void activation_grad(Index rows, Index width, reference::Act act, const float* u, const float* dv,
                     float* du) {
  using enum reference::Act;
  switch (act) {
    case kGelu:
      return alone_grad<Gelu>(rows * width, u, dv, du);
    case kSwiglu:
      return gated_grad<Silu>(rows, width, u, dv, du);
    case kSquaredRelu:
      return alone_grad<SquaredRelu>(rows * width, u, dv, du);
    case kGeglu:
      return gated_grad<Gelu>(rows, width, u, dv, du);
    case kClampedSwiglu:
      return gated_grad<ClampedSilu>(rows, width, u, dv, du);
  }
}

void scale(Index n, float factor, const float* x, float* y) {
  for (Index i = 0; i < n; ++i) y[i] = factor * x[i];
}

void soft_cap(Index n, float cap, const float* x, float* y) {
  const float inverse = 1.0F / cap;
  for (Index i = 0; i < n; ++i) y[i] = cap * hyperbolic_tangent(x[i] * inverse);
}

void soft_cap_grad(Index n, float cap, const float* y, const float* dy, float* dx) {
  const float inverse = 1.0F / cap;
  for (Index i = 0; i < n; ++i) {
    const float t = y[i] * inverse;
    dx[i] = dy[i] * (1.0F - t * t);
  }
}

void residual(Index rows, Index width, const float* __restrict x, const float* __restrict branch,
              const float* __restrict bias, float* __restrict y) {
  if (bias == nullptr) {
    for (Index i = 0; i < rows * width; ++i) y[i] = x[i] + branch[i];
    return;
  }
  for (Index r = 0; r < rows; ++r, x += width, branch += width, y += width) {
    for (Index j = 0; j < width; ++j) y[j] = x[j] + (branch[j] + bias[j]);
  }
}

void bias_grad(Index rows, Index width, const float* __restrict dy, float* __restrict db, bool accumulate) {
  for (Index j = 0; !accumulate && j < width; ++j) db[j] = 0;
  for (Index r = 0; r < rows; ++r, dy += width) {
    for (Index j = 0; j < width; ++j) db[j] += dy[j];
  }
}

void loss_statistics(const LossShape& s, const float* __restrict logits,
                     const std::int32_t* __restrict targets, float* __restrict statistics) {
  const Index valid = s.valid();
  for (Index r = 0; r < s.rows; ++r, logits += s.columns, statistics += reference::kLossStatistics) {
    const float most = largest_of(valid, [=](Index j) { return logits[j]; });
    const Index target = targets[r] - s.first;
    statistics[0] = most;
    statistics[1] = sum(valid, [=](Index j) { return exponential(logits[j] - most); });
    statistics[2] = target >= 0 && target < valid ? logits[target] : 0.0F;
  }
}

void loss_grad(const LossShape& s, const float* logits, const float* normalizers, const std::int32_t* targets,
               float scale, float* d_logits) {
  const Index valid = s.valid();
  for (Index r = 0; r < s.rows; ++r, logits += s.columns, d_logits += s.columns) {
    const float most = normalizers[2 * r], factor = scale / normalizers[2 * r + 1];
#pragma GCC ivdep
    for (Index j = 0; j < valid; ++j) d_logits[j] = factor * exponential(logits[j] - most);
    for (Index j = valid; j < s.columns; ++j) d_logits[j] = 0;
    const Index target = targets[r] - s.first;
    if (target >= 0 && target < s.columns) d_logits[target] -= scale;
  }
}

float power(float base, Index exponent) {
  double result = 1;
  for (double b = base; exponent > 0; exponent /= 2, b *= b) {
    if (exponent % 2 == 1) result *= b;
  }
  return static_cast<float>(result);
}

struct AdamRule {
  float beta1, beta2, other1, other2, correct1, correct2, epsilon, decay, scale;
  explicit AdamRule(const Adam& a)
      : beta1(a.beta1),
        beta2(a.beta2),
        other1(1 - a.beta1),
        other2(1 - a.beta2),
        correct1(1.0F / (1.0F - power(a.beta1, a.step))),
        correct2(1.0F / (1.0F - power(a.beta2, a.step))),
        epsilon(a.epsilon),
        decay(a.decay),
        scale(a.scale) {}
  float first(float m, float g) const { return beta1 * m + other1 * g; }
  float second(float v, float g) const { return beta2 * v + other2 * g * g; }
  float update(float m, float v, float parameter) const {
    return (m * correct1) / (__builtin_sqrtf(v * correct2) + epsilon) + decay * parameter;
  }
};

void adam(const Adam& a, Index n, const float* __restrict gradient, float* __restrict parameter,
          float* __restrict m, float* __restrict v) {
  const AdamRule rule(a);
  const float rate = a.lr;
  for (Index i = 0; i < n; ++i) {
    const float g = gradient[i] * rule.scale;
    m[i] = rule.first(m[i], g);
    v[i] = rule.second(v[i], g);
    parameter[i] -= rate * rule.update(m[i], v[i], parameter[i]);
  }
}

void adam_update(const Adam& a, Index n, const float* __restrict gradient, const float* __restrict parameter,
                 const float* __restrict m, const float* __restrict v, float* __restrict update) {
  const AdamRule rule(a);
  for (Index i = 0; i < n; ++i) {
    const float g = gradient[i] * rule.scale;
    update[i] = rule.update(rule.first(m[i], g), rule.second(v[i], g), parameter[i]);
  }
}

void sgd(const Sgd& s, Index n, const float* __restrict gradient, float* __restrict parameter,
         float* __restrict velocity) {
  const float lr = s.lr, momentum = s.momentum, scale = s.scale;
  for (Index i = 0; i < n; ++i) {
    velocity[i] = momentum * velocity[i] + gradient[i] * scale;
    parameter[i] -= lr * velocity[i];
  }
}

void add_squares_of_block(Index n, const float* __restrict x, double* __restrict bins) {
  const float most = largest_of(n, [=](Index j) { return x[j] < 0 ? -x[j] : x[j]; });
  int exponent = -298;  // the largest square is below 2^exponent
  if (most > 0) (void)__builtin_frexp(static_cast<double>(most) * static_cast<double>(most), &exponent);
  const int first = exponent > 256 ? 0 : (256 - exponent) / 20;
  constexpr int kBins = 4;
  double anchor[kBins], part[kBins][kLanes] = {};
  for (int b = 0; b < kBins; ++b) anchor[b] = 1.5 * __builtin_ldexp(1.0, 289 - 20 * (first + b));
  const auto add = [&](Index j, int lane) {
    double rest = static_cast<double>(x[j]) * static_cast<double>(x[j]);
    for (int b = 0; b < kBins; ++b) {
      const double p = (rest + anchor[b]) - anchor[b];
      part[b][lane] += p;
      rest -= p;
    }
  };
  Index j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(j + lane, lane);
  }
  for (; j < n; ++j) add(j, 0);
  for (int b = 0; b < kBins; ++b) {
    for (const double p : part[b]) bins[first + b] += p;
  }
}

void add_squares(Index n, const float* x, double* bins) {
  constexpr Index kBlock = 4096;
  for (Index at = 0; at < n; at += kBlock)
    add_squares_of_block(n - at < kBlock ? n - at : kBlock, x + at, bins);
}

void add(Index n, const float* __restrict x, float* __restrict total) {
  for (Index i = 0; i < n; ++i) total[i] += x[i];
}

float softmax_row(Index valid, Index width, float* x, float* largest) {
  const float most = largest_of(valid, [=](Index j) { return x[j]; });
  *largest = most;
  for (Index j = 0; j < valid; ++j) x[j] = exponential(x[j] - most);
  for (Index j = valid; j < width; ++j) x[j] = 0;
  return sum(valid, [=](Index j) { return x[j]; });
}

void probabilities_row(Index valid, Index width, float lse, float* x) {
  for (Index j = 0; j < valid; ++j) x[j] = exponential(x[j] - lse);
  for (Index j = valid; j < width; ++j) x[j] = 0;
}

void score_grad_row(Index width, float d, float scale, const float* __restrict p, float* __restrict d_p) {
  for (Index j = 0; j < width; ++j) d_p[j] = p[j] * (d_p[j] - d) * scale;
}

void scale_row(Index width, float factor, float* x) {
  for (Index j = 0; j < width; ++j) x[j] *= factor;
}

// Without branches, so that loops over these are vectors.
std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

void from_bfloat16(Index n, const std::uint16_t* __restrict x, float* __restrict y) {
  for (Index i = 0; i < n; ++i) y[i] = float_of(static_cast<std::uint32_t>(x[i]) << 16);
}

void to_bfloat16(Index n, const float* __restrict x, std::uint16_t* __restrict y) {
  for (Index i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(x[i]);
    const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    y[i] = static_cast<std::uint16_t>(nan ? bits >> 16 | 0x40 : rounded);
  }
}

void from_float16(Index n, const std::uint16_t* __restrict x, float* __restrict y) {
  for (Index i = 0; i < n; ++i) {
    const std::uint32_t bits = x[i], magnitude = (bits & 0x7fff) << 13;
    // The exponent's bias grows from 15 to 127, exactly, by a product: subnormals become normal.
    const std::uint32_t finite = bits_of(float_of(magnitude) * float_of(0x77800000));
    const bool special = magnitude >= 0x0f800000;  // infinite, or no number
    y[i] = float_of((special ? magnitude | 0x7f800000 : finite) | (bits & 0x8000) << 16);
  }
}

void to_float16(Index n, const float* __restrict x, std::uint16_t* __restrict y) {
  for (Index i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(x[i]), magnitude = bits & 0x7fffffff;
    // 13 bits less, the exponent's bias from 127 to 15; below 2^-14 adding 1/2 leaves the steps in the low
    // bits.
    const std::uint32_t normal = (magnitude + 0xc8000fff + (magnitude >> 13 & 1)) >> 13;
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - 0x3f000000;
    const std::uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const std::uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    y[i] = static_cast<std::uint16_t>((magnitude >= 0x477ff000 ? special : finite) | (bits >> 16 & 0x8000));
  }
}

#define ORRERY_TEXT(x) #x
#define ORRERY_NAME(x) ORRERY_TEXT(x)
}  // namespace

extern const Pointwise kPointwise;
const Pointwise kPointwise{.isa = ORRERY_NAME(ORRERY_ISA),
                           .norm = norm,
                           .norm_grad = norm_grad,
                           .rope = rope,
                           .activation = activation,
                           .activation_grad = activation_grad,
                           .scale = scale,
                           .soft_cap = soft_cap,
                           .soft_cap_grad = soft_cap_grad,
                           .residual = residual,
                           .bias_grad = bias_grad,
                           .loss_statistics = loss_statistics,
                           .loss_grad = loss_grad,
                           .adam = adam,
                           .adam_update = adam_update,
                           .sgd = sgd,
                           .add = add,
                           .from_bfloat16 = from_bfloat16,
                           .from_float16 = from_float16,
                           .to_bfloat16 = to_bfloat16,
                           .to_float16 = to_float16,
                           .add_squares = add_squares,
                           .softmax_row = softmax_row,
                           .probabilities_row = probabilities_row,
                           .score_grad_row = score_grad_row,
                           .scale_row = scale_row,
                           .dot = dot};

}  // namespace orrery::kernels::ORRERY_ISA
