// SPDX-License-Identifier: Apache-2.0
//
// Routers and experts (reference.h). Floor, in bytes: permutation moves each row of tokens and of experts
// once; scores are read and written once. Products of experts have tiles of 32 x 32 in shared memory, without
// tensor cores: how many rows an expert has is known on the device alone.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

__device__ float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

// A warp for each token.
template <class T>
__global__ void router_scores_kernel(reference::RouterShape s, const T* logits, float* scores) {
  const Index token = thread_of_grid() / kWarp, lane = thread_of_grid() % kWarp;
  if (token >= s.tokens) return;
  const T* const of = logits + token * s.experts;
  float* const to = scores + token * s.experts;
  float largest = -3.402823466e38F, sum = 0;
  for (Index e = lane; e < s.experts; e += kWarp) largest = fmaxf(largest, widen(of[e]));
  largest = warp_max(largest);
  for (Index e = lane; e < s.experts; e += kWarp) {
    to[e] = s.sigmoid ? sigmoid(widen(of[e])) : expf(widen(of[e]) - largest);
    sum += to[e];
  }
  sum = warp_sum(sum);
  for (Index e = lane; e < s.experts && !s.sigmoid; e += kWarp) to[e] /= sum;
}

template <class T>
__global__ void router_scores_grad_kernel(reference::RouterShape s, const double* loss_scale, const T* logits,
                                          const float* scores, const float* d_scores, T* d_logits) {
  const Index token = thread_of_grid() / kWarp, lane = thread_of_grid() % kWarp;
  if (token >= s.tokens) return;
  const Index at = token * s.experts;
  float largest = -3.402823466e38F, sum = 0, mean = 0;
  for (Index e = lane; e < s.experts; e += kWarp) largest = fmaxf(largest, widen(logits[at + e]));
  largest = warp_max(largest);
  for (Index e = lane; e < s.experts; e += kWarp) {
    sum += expf(widen(logits[at + e]) - largest);
    mean += d_scores[at + e] * scores[at + e];
  }
  const float log_sum = largest + logf(warp_sum(sum)), z = s.z_loss * static_cast<float>(*loss_scale);
  mean = warp_sum(mean);
  for (Index e = lane; e < s.experts; e += kWarp) {
    const float p = scores[at + e], d = d_scores[at + e];
    const float of_scores = p * (s.sigmoid ? d * (1 - p) : d - mean);
    narrow(of_scores + 2 * z * log_sum * expf(widen(logits[at + e]) - log_sum), d_logits[at + e]);
  }
}

// Whether (a, at) comes after (b, before) in the order of largest scores, the earlier of equals first.
__device__ bool behind(float a, Index at, float b, Index before) {
  return a < b || (a == b && at > before);
}

// What a token's experts are chosen by.
template <class T>
struct Values {
  const float* scores;
  const T* biases;  // or null
  // What is no number comes last: a token has experts whatever became of its scores.
  __device__ float operator[](Index e) const {
    const float value = biases != nullptr ? scores[e] + widen(biases[e]) : scores[e];
    return value != value ? -3.402823466e38F : value;
  }
};

// The groups that a token's experts are chosen from, a bit each.
template <class T>
__device__ unsigned long long chosen_groups(const reference::RouteShape& s, Values<T> values) {
  if (s.groups == 1) return 1;
  const Index in_group = s.experts / s.groups;
  unsigned long long out = 0;
  for (Index j = 0; j < s.top_groups; ++j) {
    float best = 0;
    Index best_group = -1;
    for (Index g = 0; g < s.groups; ++g) {
      if ((out >> g & 1) != 0) continue;
      float first = values[g * in_group], second = -3.402823466e38F;
      for (Index e = g * in_group + 1; e < (g + 1) * in_group; ++e) {
        const float value = values[e];
        second = fmaxf(second, fminf(first, value));
        first = fmaxf(first, value);
      }
      const float of_group = values.biases != nullptr && in_group > 1 ? first + second : first;
      if (best_group < 0 || of_group > best) {
        best = of_group;
        best_group = g;
      }
    }
    out |= 1ULL << best_group;
  }
  return out;
}

// A thread for each token: its experts, largest value first.
template <class T>
__global__ void choose_kernel(reference::RouteShape s, const float* scores, const T* biases, float* weights,
                              std::int32_t* choice) {
  for (Index t = thread_of_grid(); t < s.tokens; t += threads_of_grid()) {
    const float* const of = scores + t * s.experts;
    const Values<T> values{of, biases};
    const unsigned long long groups = chosen_groups(s, values);
    const Index in_group = s.experts / s.groups;
    float last = 3.402823466e38F, sum = 0;
    Index last_expert = -1;
    for (Index j = 0; j < s.top_k; ++j) {
      float best = 0;
      Index expert = -1;
      for (Index e = 0; e < s.experts; ++e) {
        const float value = values[e];
        if ((groups >> (e / in_group) & 1) == 0 || !behind(value, e, last, last_expert)) continue;
        if (expert >= 0 && behind(value, e, best, expert)) continue;
        best = value;
        expert = e;
      }
      choice[t * 2 * s.top_k + j] = static_cast<std::int32_t>(expert);
      sum += of[expert];
      last = best;
      last_expert = expert;
    }
    for (Index j = 0; j < s.top_k; ++j) {
      const float score = of[choice[t * 2 * s.top_k + j]];
      weights[t * s.top_k + j] = s.scale * (s.normalised ? score / sum : score);
    }
  }
}

template <class G>
__global__ void choice_bias_grad_kernel(Index samples, Index experts, const float* load, bool accumulate,
                                        G* d_biases) {
  float all = 0;
  for (Index i = threadIdx.x; i < samples * experts; i += blockDim.x) all += load[i];
  const float mean = block_sum(all) / static_cast<float>(experts);
  for (Index e = threadIdx.x; e < experts; e += blockDim.x) {
    float tokens = 0;
    for (Index sample = 0; sample < samples; ++sample) tokens += load[sample * experts + e];
    narrow((accumulate ? widen(d_biases[e]) : 0.0F) + (tokens - mean), d_biases[e]);
  }
}

// A block for each sample and expert.
__global__ void load_kernel(reference::RouteShape s, const std::int32_t* choice, float* load) {
  const Index sample = blockIdx.y, expert = blockIdx.x;
  float count = 0;
  for (Index i = threadIdx.x; i < s.seq * s.top_k; i += blockDim.x) {
    const Index t = sample * s.seq + i / s.top_k - s.first;
    if (t >= 0 && t < s.tokens) count += choice[t * 2 * s.top_k + i % s.top_k] == expert ? 1.0F : 0.0F;
  }
  count = block_sum(count);
  if (threadIdx.x == 0) load[sample * s.experts + expert] = count;
}

__device__ std::int32_t tokens_of(const reference::RouteShape& s, const float* load, Index expert) {
  float count = 0;
  for (Index sample = 0; sample < s.samples; ++sample) count += load[sample * s.experts + expert];
  return static_cast<std::int32_t>(count < static_cast<float>(s.capacity) ? count
                                                                          : static_cast<float>(s.capacity));
}

constexpr int kPlacing = 256;

// A block for each expert; each thread has tokens that follow each other. Rows beyond a part's room share its
// last one, with weights that are no numbers, so that the loss is none.
__global__ void place_kernel(reference::RouteShape s, const float* load, std::int32_t* choice,
                             std::int32_t* counts, float* weights) {
  ORRERY_SHARED(first, Index[kPlacing]);
  const Index expert = blockIdx.x, each = (s.tokens + kPlacing - 1) / kPlacing;
  const Index begin = threadIdx.x * each, end = begin + each < s.tokens ? begin + each : s.tokens;
  Index own = 0;
  for (Index t = begin; t < end; ++t) {
    for (Index j = 0; j < s.top_k; ++j) own += choice[t * 2 * s.top_k + j] == expert ? 1 : 0;
  }
  first[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    Index before = 0;
    for (int i = 0; i < kPlacing; ++i) {
      const Index here = first[i];
      first[i] = before;
      before += here;
    }
  }
  __syncthreads();
  const Index of_part = s.experts / s.parts, part = expert / of_part;
  Index base = 0;
  for (Index e = part * of_part; e < expert; ++e) base += tokens_of(s, load, e);
  const Index room = s.parts == 1 ? s.tokens * s.top_k : s.room, left = room > base ? room - base : 0;
  const Index all = tokens_of(s, load, expert);
  if (threadIdx.x == 0) counts[expert] = static_cast<std::int32_t>(all < left ? all : left);
  Index place = first[threadIdx.x];
  for (Index t = begin; t < end; ++t) {
    for (Index j = 0; j < s.top_k; ++j) {
      if (choice[t * 2 * s.top_k + j] != expert) continue;
      const Index row = base + place < room ? base + place : room - 1;
      choice[(t * 2 + 1) * s.top_k + j] =
          static_cast<std::int32_t>(place < s.capacity ? part * s.room + row : -1);
      if (place < s.capacity && row < base + place) weights[t * s.top_k + j] = NAN;
      ++place;
    }
  }
}

__global__ void route_grad_kernel(reference::RouteShape s, const float* scores, const std::int32_t* choice,
                                  const float* d_weights, float* d_scores) {
  for (Index t = thread_of_grid(); t < s.tokens; t += threads_of_grid()) {
    const float *const of = scores + t * s.experts, *const dw = d_weights + t * s.top_k;
    const std::int32_t* const experts = choice + t * 2 * s.top_k;
    float* const d = d_scores + t * s.experts;
    float sum = 0, mean = 0;
    for (Index j = 0; j < s.top_k; ++j) {
      sum += of[experts[j]];
      mean += dw[j] * of[experts[j]];
    }
    for (Index e = 0; e < s.experts; ++e) d[e] = 0;
    for (Index j = 0; j < s.top_k; ++j)
      d[experts[j]] = s.scale * (s.normalised ? (dw[j] - mean / sum) / sum : dw[j]);
  }
}

// A warp for each token.
__global__ void balance_grad_kernel(reference::BalanceShape s, const double* loss_scale, const float* scores,
                                    const float* load, float* d_scores) {
  const Index token = thread_of_grid() / kWarp, lane = thread_of_grid() % kWarp;
  if (token >= s.tokens) return;
  const float each = s.factor * static_cast<float>(*loss_scale) * static_cast<float>(s.experts) /
                     static_cast<float>(s.top_k * s.seq);
  const float *const of = scores + token * s.experts, *const chose =
                                                          load + (s.first + token) / s.seq * s.experts;
  float sum = 0, mean = 0;
  for (Index e = lane; e < s.experts; e += kWarp) {
    sum += of[e];
    mean += each * chose[e] * of[e];
  }
  sum = warp_sum(sum);
  mean = warp_sum(mean);
  for (Index e = lane; e < s.experts; e += kWarp) {
    d_scores[token * s.experts + e] = s.normalises ? (each * chose[e] - mean / sum) / sum : each * chose[e];
  }
}

// From rows of tokens to rows of experts.
template <class T>
__global__ void to_rows_kernel(reference::PermuteShape s, const T* x, const float* weights,
                               const std::int32_t* choice, T* y, float* row_weights) {
  const Index chosen = s.tokens * s.top_k;
  for (Index i = thread_of_grid(); i < chosen * s.width; i += threads_of_grid()) {
    const Index of = i / s.width, t = of / s.top_k, j = of % s.top_k;
    const Index row = choice[(t * 2 + 1) * s.top_k + j];
    if (row < 0) continue;
    y[row * s.width + i % s.width] = x[t * s.width + i % s.width];
    if (row_weights != nullptr && i % s.width == 0) row_weights[row] = weights[of];
  }
}

// The sums of each token's rows.
template <class T>
__global__ void from_rows_kernel(reference::PermuteShape s, const T* y, const std::int32_t* choice, T* o) {
  for (Index i = thread_of_grid(); i < s.tokens * s.width; i += threads_of_grid()) {
    const Index t = i / s.width;
    float sum = 0;
    for (Index j = 0; j < s.top_k; ++j) {
      const Index row = choice[(t * 2 + 1) * s.top_k + j];
      if (row >= 0) sum += widen(y[row * s.width + i % s.width]);
    }
    narrow(sum, o[i]);
  }
}

__global__ void weights_from_rows_kernel(reference::PermuteShape s, const float* d_row_weights,
                                         const std::int32_t* choice, float* d_weights) {
  for (Index i = thread_of_grid(); i < s.tokens * s.top_k; i += threads_of_grid()) {
    const Index row = choice[(i / s.top_k * 2 + 1) * s.top_k + i % s.top_k];
    d_weights[i] = row < 0 ? 0.0F : d_row_weights[row];
  }
}

constexpr int kTile = 32, kTileRows = 8;

// Which rows of which expert a block of the grid's y axis has.
struct TileOf {
  Index expert = -1, first = 0, rows = 0, tile = 0;
};
__device__ TileOf tile_of(const reference::GroupedGemm& g, const std::int32_t* counts, Index block) {
  for (Index part = 0; part < g.parts; ++part) {
    Index first = part * g.room;
    for (Index e = 0; e < g.experts; ++e, ++counts) {
      const Index tiles = (*counts + kTile - 1) / kTile;
      if (block < tiles) return {e, first, *counts, block};
      block -= tiles;
      first += *counts;
    }
  }
  return {};
}

struct TileSum {
  float of[kTile / kTileRows] = {};
};

// sum[row, column] += sum over l < inner of a(row, l) b(column, l), of a tile.
template <class A, class B>
__device__ void add_tile_product(Index row0, Index column0, Index inner, A a, B b, TileSum& sum) {
  ORRERY_SHARED(of_a, float[kTile][kTile + 1]);
  ORRERY_SHARED(of_b, float[kTile][kTile + 1]);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  for (Index l = 0; l < inner; l += kTile) {
    for (int i = y; i < kTile; i += kTileRows) {
      of_a[i][x] = a(row0 + i, l + x);
      of_b[i][x] = b(column0 + i, l + x);
    }
    __syncthreads();
    for (int i = 0; i < kTile / kTileRows; ++i) {
      for (int m = 0; m < kTile; ++m) sum.of[i] += of_a[y + i * kTileRows][m] * of_b[x][m];
    }
    __syncthreads();
  }
}

// Calls use(row, column, sum) for the elements of a tile that the thread has.
template <class Use>
__device__ void for_each_of_tile(Index row0, Index column0, const TileSum& sum, Use use) {
  for (int i = 0; i < kTile / kTileRows; ++i)
    use(row0 + threadIdx.y + i * kTileRows, column0 + threadIdx.x, sum.of[i]);
}

// c(row, column, sum over l < inner of a(row, l) b(column, l)), of a tile.
template <class A, class B, class C>
__device__ void tile_product(Index row0, Index column0, Index inner, A a, B b, C c) {
  TileSum sum;
  add_tile_product(row0, column0, inner, a, b, sum);
  for_each_of_tile(row0, column0, sum, c);
}

template <class T>
__global__ void grouped_gemm_kernel(reference::GroupedGemm g, const T* x, const T* w,
                                    const std::int32_t* counts, T* u) {
  const TileOf of = tile_of(g, counts, blockIdx.y);
  if (of.expert < 0) return;
  tile_product(
      of.tile * kTile, static_cast<Index>(blockIdx.x) * kTile, g.k,
      [=](Index r, Index l) { return r < of.rows && l < g.k ? widen(x[(of.first + r) * g.k + l]) : 0.0F; },
      [=](Index c, Index l) { return c < g.n && l < g.k ? widen(w[(of.expert * g.n + c) * g.k + l]) : 0.0F; },
      [=](Index r, Index c, float v) {
        if (r < of.rows && c < g.n) narrow(v, u[(of.first + r) * g.n + c]);
      });
}

template <class T>
__global__ void grouped_gemm_dx_kernel(reference::GroupedGemm g, const T* du, const T* w,
                                       const std::int32_t* counts, T* dx) {
  const TileOf of = tile_of(g, counts, blockIdx.y);
  if (of.expert < 0) return;
  tile_product(
      of.tile * kTile, static_cast<Index>(blockIdx.x) * kTile, g.n,
      [=](Index r, Index l) { return r < of.rows && l < g.n ? widen(du[(of.first + r) * g.n + l]) : 0.0F; },
      [=](Index c, Index l) { return c < g.k && l < g.n ? widen(w[(of.expert * g.n + l) * g.k + c]) : 0.0F; },
      [=](Index r, Index c, float v) {
        if (r < of.rows && c < g.k) narrow(v, dx[(of.first + r) * g.k + c]);
      });
}

template <class T, class G>
__global__ void grouped_gemm_dw_kernel(reference::GroupedGemm g, const T* du, const T* x,
                                       const std::int32_t* counts, G* dw) {
  const Index tiles = (g.n + kTile - 1) / kTile, expert = blockIdx.y / tiles;
  const Index row0 = blockIdx.y % tiles * kTile, column0 = static_cast<Index>(blockIdx.x) * kTile;
  TileSum sum;
  for (Index part = 0; part < g.parts; ++part, counts += g.experts) {
    Index first = part * g.room;
    for (Index e = 0; e < expert; ++e) first += counts[e];
    const Index rows = counts[expert];
    add_tile_product(
        row0, column0, rows,
        [=](Index r, Index l) { return r < g.n && l < rows ? widen(du[(first + l) * g.n + r]) : 0.0F; },
        [=](Index c, Index l) { return c < g.k && l < rows ? widen(x[(first + l) * g.k + c]) : 0.0F; }, sum);
  }
  for_each_of_tile(row0, column0, sum, [=](Index r, Index c, float v) {
    if (r >= g.n || c >= g.k) return;
    G& to = dw[(expert * g.n + r) * g.k + c];
    narrow(g.accumulate ? widen(to) + v : v, to);
  });
}

template <class T>
__global__ void gate_kernel(Index rows, Index width, const T* y, const T* logits, T* o) {
  for (Index i = thread_of_grid(); i < rows * width; i += threads_of_grid())
    narrow(sigmoid(widen(logits[i / width])) * widen(y[i]), o[i]);
}

template <class T>
__global__ void gate_grad_kernel(Index rows, Index width, const T* y, const T* logits, const T* d_o, T* dy,
                                 T* d_logits) {
  for (Index row = blockIdx.x; row < rows; row += gridDim.x) {
    const float g = sigmoid(widen(logits[row]));
    float sum = 0;
    for (Index i = row * width + threadIdx.x; i < (row + 1) * width; i += blockDim.x) {
      sum += widen(d_o[i]) * widen(y[i]);
      narrow(g * widen(d_o[i]), dy[i]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) narrow(sum * g * (1 - g), d_logits[row]);
  }
}

Grid warps(Index n) {
  return {.blocks = cover(n * kWarp, 256)};
}
Grid blocks_of_rows(Index rows, Index width) {
  return {.blocks = rows < 8192 ? rows : 8192, .threads = threads_for(width, 256)};
}

// Calls use(row, expert) for the rows of this block that experts have of a token.
template <class Use>
__device__ void for_each_row(const reference::ExpertBiasShape& s, const std::int32_t* counts, Use use) {
  for (Index part = 0; part < s.parts; ++part) {
    Index begin = 0;
    for (Index e = 0; e < s.experts; ++e) {
      const Index end = begin + counts[part * s.experts + e];
      const Index skipped = (begin + gridDim.x - 1 - blockIdx.x) / gridDim.x;
      for (Index row = blockIdx.x + skipped * gridDim.x; row < end; row += gridDim.x)
        use(part * s.room + row, e);
      begin = end;
    }
  }
}

template <class T>
__global__ void expert_bias_kernel(reference::ExpertBiasShape s, const T* bias, const std::int32_t* counts,
                                   const float* row_weights, T* y) {
  for_each_row(s, counts, [=](Index row, Index expert) {
    const float weight = row_weights == nullptr ? 1.0F : row_weights[row];
    T* const to = y + row * s.columns + s.first;
    for (Index j = threadIdx.x; j < s.width; j += blockDim.x)
      narrow(widen(to[j]) + weight * widen(bias[expert * s.width + j]), to[j]);
  });
}

template <class T>
__global__ void expert_bias_row_grad_kernel(reference::ExpertBiasShape s, const T* dy, const T* bias,
                                            const std::int32_t* counts, float* d_row_weights) {
  for_each_row(s, counts, [=](Index row, Index expert) {
    const T* const d = dy + row * s.columns + s.first;
    float sum = 0;
    for (Index j = threadIdx.x; j < s.width; j += blockDim.x)
      sum += widen(d[j]) * widen(bias[expert * s.width + j]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) d_row_weights[row] = sum;
  });
}

// A block for each expert and some of its columns.
template <class T, class G>
__global__ void expert_bias_grad_kernel(reference::ExpertBiasShape s, const T* dy, const std::int32_t* counts,
                                        const float* row_weights, bool accumulate, G* d_bias) {
  const Index expert = blockIdx.x, column = static_cast<Index>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (column >= s.width) return;
  float sum = 0;
  for (Index part = 0; part < s.parts; ++part) {
    Index first = part * s.room;
    for (Index e = 0; e < expert; ++e) first += counts[part * s.experts + e];
    for (Index row = first; row < first + counts[part * s.experts + expert]; ++row) {
      const float weight = row_weights == nullptr ? 1.0F : row_weights[row];
      sum += weight * widen(dy[row * s.columns + s.first + column]);
    }
  }
  G& to = d_bias[expert * s.width + column];
  narrow((accumulate ? widen(to) : 0.0F) + sum, to);
}

}  // namespace

void router_scores(Stream stream, DType type, const reference::RouterShape& s, const void* logits,
                   float* scores) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "router_scores", warps(s.tokens), router_scores_kernel<T>, s,
           static_cast<const T*>(logits), scores);
  });
}

void router_scores_grad(Stream stream, DType type, const reference::RouterShape& s, const double* loss_scale,
                        const void* logits, const float* scores, const float* d_scores, void* d_logits) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "router_scores_grad", warps(s.tokens), router_scores_grad_kernel<T>, s, loss_scale,
           static_cast<const T*>(logits), scores, d_scores, static_cast<T*>(d_logits));
  });
}

void route(Stream stream, DType type, const reference::RouteShape& s, const float* scores, const void* biases,
           float* weights, std::int32_t* choice, std::int32_t* counts, float* load) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "route", {.blocks = strided_blocks(s.tokens, 128), .threads = 128}, choose_kernel<T>, s,
           scores, static_cast<const T*>(biases), weights, choice);
  });
  launch(stream, "route", {.blocks = s.experts, .blocks_y = s.samples}, load_kernel, s, choice, load);
  launch(stream, "route", {.blocks = s.experts, .threads = kPlacing}, place_kernel, s, load, choice, counts,
         weights);
}

void choice_bias_grad(Stream stream, DType gradient, Index samples, Index experts, const float* load,
                      void* d_biases, bool accumulate) {
  with_type(gradient, [&]<class G>(G) {
    launch(stream, "choice_bias_grad", {.blocks = 1}, choice_bias_grad_kernel<G>, samples, experts, load,
           accumulate, static_cast<G*>(d_biases));
  });
}

void route_grad(Stream stream, const reference::RouteShape& s, const float* scores,
                const std::int32_t* choice, const float* d_weights, float* d_scores) {
  launch(stream, "route_grad", {.blocks = strided_blocks(s.tokens, 128), .threads = 128}, route_grad_kernel,
         s, scores, choice, d_weights, d_scores);
}

void balance_grad(Stream stream, const reference::BalanceShape& s, const double* loss_scale,
                  const float* scores, const float* load, float* d_scores) {
  launch(stream, "balance_grad", warps(s.tokens), balance_grad_kernel, s, loss_scale, scores, load, d_scores);
}

void permute(Stream stream, DType type, const reference::PermuteShape& s, const void* x, const float* weights,
             const std::int32_t* choice, void* y, float* row_weights) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "permute", {.blocks = strided_blocks(s.tokens * s.top_k * s.width, 256)},
           to_rows_kernel<T>, s, static_cast<const T*>(x), weights, choice, static_cast<T*>(y), row_weights);
  });
}

void permute_grad(Stream stream, DType type, const reference::PermuteShape& s, const void* dy,
                  const float* d_row_weights, const std::int32_t* choice, void* dx, float* d_weights) {
  unpermute(stream, type, s, dy, choice, dx);
  launch(stream, "permute_grad", {.blocks = strided_blocks(s.tokens * s.top_k, 256)},
         weights_from_rows_kernel, s, d_row_weights, choice, d_weights);
}

void unpermute(Stream stream, DType type, const reference::PermuteShape& s, const void* y,
               const std::int32_t* choice, void* o) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "unpermute", {.blocks = strided_blocks(s.tokens * s.width, 256)}, from_rows_kernel<T>, s,
           static_cast<const T*>(y), choice, static_cast<T*>(o));
  });
}

void unpermute_grad(Stream stream, DType type, const reference::PermuteShape& s, const void* d_o,
                    const std::int32_t* choice, void* dy) {
  permute(stream, type, s, d_o, nullptr, choice, dy, nullptr);
}

void grouped_gemm(Stream stream, DType type, const reference::GroupedGemm& g, const void* x, const void* w,
                  const std::int32_t* counts, void* u) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "grouped_gemm",
           {.blocks = cover(g.n, kTile),
            .blocks_y = cover(g.parts * g.room, kTile) + g.parts * g.experts,
            .threads = kTile,
            .threads_y = kTileRows},
           grouped_gemm_kernel<T>, g, static_cast<const T*>(x), static_cast<const T*>(w), counts,
           static_cast<T*>(u));
  });
}

void grouped_gemm_dx(Stream stream, DType type, const reference::GroupedGemm& g, const void* du,
                     const void* w, const std::int32_t* counts, void* dx) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "grouped_gemm_dx",
           {.blocks = cover(g.k, kTile),
            .blocks_y = cover(g.parts * g.room, kTile) + g.parts * g.experts,
            .threads = kTile,
            .threads_y = kTileRows},
           grouped_gemm_dx_kernel<T>, g, static_cast<const T*>(du), static_cast<const T*>(w), counts,
           static_cast<T*>(dx));
  });
}

void grouped_gemm_dw(Stream stream, DType type, DType gradient, const reference::GroupedGemm& g,
                     const void* du, const void* x, const std::int32_t* counts, void* dw) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    launch(stream, "grouped_gemm_dw",
           {.blocks = cover(g.k, kTile),
            .blocks_y = cover(g.n, kTile) * g.experts,
            .threads = kTile,
            .threads_y = kTileRows},
           grouped_gemm_dw_kernel<T, G>, g, static_cast<const T*>(du), static_cast<const T*>(x), counts,
           static_cast<G*>(dw));
  });
}

void expert_bias(Stream stream, DType type, const reference::ExpertBiasShape& s, const void* bias,
                 const std::int32_t* counts, const float* row_weights, void* y) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "expert_bias",
           {.blocks = std::min<std::int64_t>(s.parts * s.room, 8192), .threads = threads_for(s.width, 256)},
           expert_bias_kernel<T>, s, static_cast<const T*>(bias), counts, row_weights, static_cast<T*>(y));
  });
}

void expert_bias_grad(Stream stream, DType type, DType gradient, const reference::ExpertBiasShape& s,
                      const void* dy, const void* bias, const std::int32_t* counts, const float* row_weights,
                      void* d_bias, float* d_row_weights, bool accumulate) {
  const int threads = threads_for(s.width, 256);
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    launch(stream, "expert_bias_grad",
           {.blocks = s.experts, .blocks_y = cover(s.width, threads), .threads = threads},
           expert_bias_grad_kernel<T, G>, s, static_cast<const T*>(dy), counts, row_weights, accumulate,
           static_cast<G*>(d_bias));
    if (row_weights == nullptr) return;
    launch(stream, "expert_bias_row_grad",
           {.blocks = std::min<std::int64_t>(s.parts * s.room, 8192), .threads = threads},
           expert_bias_row_grad_kernel<T>, s, static_cast<const T*>(dy), static_cast<const T*>(bias), counts,
           d_row_weights);
  });
}

void gate(Stream stream, DType type, Index rows, Index width, const void* y, const void* logits, void* o) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "gate", {.blocks = strided_blocks(rows * width, 256)}, gate_kernel<T>, rows, width,
           static_cast<const T*>(y), static_cast<const T*>(logits), static_cast<T*>(o));
  });
}

void gate_grad(Stream stream, DType type, Index rows, Index width, const void* y, const void* logits,
               const void* d_o, void* dy, void* d_logits) {
  with_type(type, [&]<class T>(T) {
    launch(stream, "gate_grad", blocks_of_rows(rows, width), gate_grad_kernel<T>, rows, width,
           static_cast<const T*>(y), static_cast<const T*>(logits), static_cast<const T*>(d_o),
           static_cast<T*>(dy), static_cast<T*>(d_logits));
  });
}

}  // namespace orrery::kernels::cuda
