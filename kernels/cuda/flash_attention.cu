// SPDX-License-Identifier: Apache-2.0
//
// Causal attention of 16-bit floats on tensor cores, after FlashAttention-2 (Dao 2023, arXiv 2307.08691):
// scores exist for one tile of queries and keys at a time, in registers. Shapes as in reference.h. FLOP:
// forward 4 batch heads seq^2 head / 2; backward 10 of the same, of which scores and their gradients are made
// twice (14), once for the queries' gradient and once for the keys' and values': sums then have a fixed order
// without atomic additions. Floor of bytes: forward qkv and out once, backward qkv twice, out and its
// gradient.
//
// All products are A[16 R rows of a warp, head] B[kColumns rows, head]' of two tiles in shared memory, or
// (tile of scores in registers) x B[kColumns, head].
#include <type_traits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/tensor_core.h"

namespace orrery::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kColumns = 64;  // of a tile of scores
constexpr int kRowTiles = 2;  // forward: 16-row tiles of a warp
constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

// Element of a tile [rows, HEAD] in shared memory: the 16-byte chunks of a row stand in an order that lets
// eight rows be read at once without bank conflicts.
template <int HEAD>
__device__ int place(int row, int chunk) {
  return row * HEAD + (chunk ^ (row & 7)) * 8;
}

// Starts to bring rows [0, ROWS) to shared memory; those from `valid` on are zeros.
template <int ROWS, int HEAD, class T>
__device__ void bring(T* tile, const T* rows, std::int64_t stride, int valid) {
  constexpr int kChunks = HEAD / 8;
#pragma unroll
  for (int i = 0; i < ROWS * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x), row = at / kChunks, chunk = at % kChunks;
    const bool there = row < valid;
    copy_async(tile + place<HEAD>(row, chunk), there ? rows + row * stride + chunk * 8 : rows, there);
  }
}

// s = A B': rows first_row + 16 r of `a` against all rows of `b`.
template <int R, int HEAD, class T>
__device__ void multiply_tiles(Tile (&s)[R][kColumns / 8], const T* a, int first_row, const T* b) {
  const int lane = lane_of_warp();
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) s[r][n] = {};
  }
#pragma unroll
  for (int k = 0; k < HEAD / 16; ++k) {
    TileA of_a[R];
#pragma unroll
    for (int r = 0; r < R; ++r)
      load_matrices<false>(of_a[r].at, a + place<HEAD>(first_row + 16 * r + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      std::uint32_t of_b[4];
      load_matrices<false>(of_b, b + place<HEAD>(16 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply_add<T>(s[r][2 * n], of_a[r], {{of_b[0], of_b[1]}});
        multiply_add<T>(s[r][2 * n + 1], of_a[r], {{of_b[2], of_b[3]}});
      }
    }
  }
}

// c += s B, with s rounded to T.
template <int R, int HEAD, class T>
__device__ void add_product(Tile (&c)[R][HEAD / 8], const Tile (&s)[R][kColumns / 8], const T* b) {
  const int lane = lane_of_warp();
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    TileA of_s[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const Tile &low = s[r][2 * k], &high = s[r][2 * k + 1];
      of_s[r] = {{pair<T>(low.at[0], low.at[1]), pair<T>(low.at[2], low.at[3]),
                  pair<T>(high.at[0], high.at[1]), pair<T>(high.at[2], high.at[3])}};
    }
#pragma unroll
    for (int n = 0; n < HEAD / 16; ++n) {
      std::uint32_t of_b[4];
      load_matrices<true>(of_b, b + place<HEAD>(16 * k + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply_add<T>(c[r][2 * n], of_s[r], {{of_b[0], of_b[1]}});
        multiply_add<T>(c[r][2 * n + 1], of_s[r], {{of_b[2], of_b[3]}});
      }
    }
  }
}

// Row and column of a lane's element i of tile n.
__device__ int row_of(int i) {
  return lane_of_warp() / 4 + i / 2 * 8;
}
__device__ int column_of(int n, int i) {
  return 8 * n + 2 * (lane_of_warp() % 4) + i % 2;
}
// Over the four lanes that share a row.
__device__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullMask, x, 2));
}
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(kFullMask, x, 1);
  return x + __shfl_xor_sync(kFullMask, x, 2);
}

// Writes rows of c times `factor` where they are below `valid`.
template <int HEAD, class T, class Factor>
__device__ void write_rows(const Tile (&c)[HEAD / 8], int first_row, int valid, T* rows, std::int64_t stride,
                           Factor factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + row_of(2 * half);
    if (row >= valid) continue;
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(rows + row * stride + column_of(n, 0)) =
          pair<T>(c[n].at[2 * half] * factor(half), c[n].at[2 * half + 1] * factor(half));
    }
  }
}

// The tile of rows, sample and head that a block serves; the longest work comes first.
struct Block {
  int first, sample, head;
};
__device__ Block block_of(const AttentionPlaces& s, int rows, int heads, bool last_is_longest) {
  const int tiles = (s.seq + rows - 1) / rows, pairs = s.batch * heads;
  const int tile = static_cast<int>(blockIdx.x) / pairs, pair = static_cast<int>(blockIdx.x) % pairs;
  return {(last_is_longest ? tiles - 1 - tile : tile) * rows, pair / heads, pair % heads};
}

// --- forward ---------------------------------------------------------------------------------------

template <int HEAD, class T>
__global__ void __launch_bounds__(kThreads)
    flash_kernel(AttentionPlaces s, const T* qkv, T* out, float* lse) {
  constexpr int kRows = 16 * kRowTiles * kWarps, kTile = kColumns * HEAD;
  T* const q = dynamic_shared<T>();
  T* const k = q + kRows * HEAD;  // two tiles, and two of v
  T* const v = k + 2 * kTile;
  const Block at = block_of(s, kRows, s.heads, true);
  const std::int64_t width = s.width();
  const T* const sample = qkv + static_cast<std::int64_t>(at.sample) * s.seq * width;
  const int mine =
      static_cast<int>(threadIdx.x) / kWarp * 16 * kRowTiles;  // the warp's first row of the tile
  const int keys = at.first + kRows < s.seq ? at.first + kRows : s.seq;
  const int tiles = (keys + kColumns - 1) / kColumns;
  const auto bring_keys = [&](int tile) {
    const int first = tile * kColumns;
    const T* const row = sample + first * width;
    bring<kColumns, HEAD>(k + tile % 2 * kTile, row + s.k(at.head), width, s.seq - first);
    bring<kColumns, HEAD>(v + tile % 2 * kTile, row + s.v(at.head), width, s.seq - first);
    commit_copies();
  };
  bring<kRows, HEAD>(q, sample + at.first * width + s.q(at.head), width, s.seq - at.first);
  bring_keys(0);

  Tile o[kRowTiles][HEAD / 8] = {};
  float most[kRowTiles][2], sum[kRowTiles][2] = {};
  for (auto& m : most) m[0] = m[1] = -INFINITY;
  const float scale = rsqrtf(static_cast<float>(HEAD)) * kLog2E;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      bring_keys(tile + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    Tile p[kRowTiles][kColumns / 8];
    multiply_tiles<kRowTiles, HEAD>(p, q, mine, k + tile % 2 * kTile);
    const int first_key = tile * kColumns;
    const bool masks = first_key + kColumns > at.first + mine + 1;  // some key is behind some query
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (masks) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int query = at.first + mine + 16 * r + row_of(i), key = first_key + column_of(n, i);
            if (key > query || key >= s.seq) p[r][n].at[i] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = most[r][half];
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n)
          largest = fmaxf(largest, fmaxf(p[r][n].at[2 * half], p[r][n].at[2 * half + 1]));
        largest = row_max(largest);
        const float shrink = power_of_two((most[r][half] - largest) * scale);
        most[r][half] = largest;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            p[r][n].at[i] = power_of_two(p[r][n].at[i] * scale - largest * scale);
            added += p[r][n].at[i];
          }
        }
        sum[r][half] = sum[r][half] * shrink + added;  // of the lane's columns: summed over lanes at the end
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n) {
          o[r][n].at[2 * half] *= shrink;
          o[r][n].at[2 * half + 1] *= shrink;
        }
      }
    }
    add_product<kRowTiles, HEAD>(o, p, v + tile % 2 * kTile);
    __syncthreads();
  }
  T* const rows =
      out + ((static_cast<std::int64_t>(at.sample) * s.seq + at.first) * s.heads + at.head) * HEAD;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int first = mine + 16 * r;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[r][half] = row_sum(sum[r][half]);
      const int query = at.first + first + row_of(2 * half);
      if (lane_of_warp() % 4 == 0 && query < s.seq) {
        lse[(static_cast<std::int64_t>(at.sample) * s.heads + at.head) * s.seq + query] =
            most[r][half] * scale * kLn2 + logf(sum[r][half]);
      }
    }
    write_rows<HEAD>(o[r], first, s.seq - at.first, rows, static_cast<std::int64_t>(s.heads) * HEAD,
                     [&](int half) { return 1.0F / sum[r][half]; });
  }
}

// --- backward --------------------------------------------------------------------------------------
//
// p = exp(score scale - lse), d_score = p (d_out v - d) scale. A block's rows are queries, and it walks over
// keys; or its rows are keys, and it walks over the queries of all heads that look at them.

constexpr int kGradRows = 16 * kWarps;

// From products of a tile (scores, and d_out v) to p and d_score. `stats` tells lse and d of an element's
// query; only where `masks` some of the tile's keys are not `seen`.
template <class Stats, class Seen>
__device__ void score_grads(float scale, bool masks, Tile (&p)[1][kColumns / 8],
                            Tile (&d_score)[1][kColumns / 8], Stats stats, Seen seen) {
  if (masks) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!seen(n, i)) p[0][n].at[i] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 of_query = stats(n, i);
      const float x = power_of_two(p[0][n].at[i] * (scale * kLog2E) - of_query.x * kLog2E);
      d_score[0][n].at[i] = x * (d_score[0][n].at[i] - of_query.y) * scale;
      p[0][n].at[i] = x;
    }
  }
}

template <int HEAD, class T>
__global__ void __launch_bounds__(kThreads)
    flash_query_grad_kernel(AttentionPlaces s, const T* qkv, const float* lse, const float* d, const T* d_out,
                            T* d_qkv) {
  constexpr int kTile = kColumns * HEAD;
  T* const q = dynamic_shared<T>();
  T* const d_o = q + kGradRows * HEAD;
  T* const k = d_o + kGradRows * HEAD;
  T* const v = k + 2 * kTile;
  const Block at = block_of(s, kGradRows, s.heads, true);
  const std::int64_t width = s.width(), out_width = static_cast<std::int64_t>(s.heads) * HEAD;
  const std::int64_t token = static_cast<std::int64_t>(at.sample) * s.seq;
  const T* const sample = qkv + token * width;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * 16, valid = s.seq - at.first;
  const int keys = at.first + kGradRows < s.seq ? at.first + kGradRows : s.seq;
  const int tiles = (keys + kColumns - 1) / kColumns;
  const auto bring_keys = [&](int tile) {
    const T* const row = sample + tile * kColumns * width;
    bring<kColumns, HEAD>(k + tile % 2 * kTile, row + s.k(at.head), width, s.seq - tile * kColumns);
    bring<kColumns, HEAD>(v + tile % 2 * kTile, row + s.v(at.head), width, s.seq - tile * kColumns);
    commit_copies();
  };
  bring<kGradRows, HEAD>(q, sample + at.first * width + s.q(at.head), width, valid);
  bring<kGradRows, HEAD>(d_o, d_out + (token + at.first) * out_width + at.head * HEAD, out_width, valid);
  bring_keys(0);

  float2 of_row[2];
  for (int half = 0; half < 2; ++half) {
    const int query = at.first + mine + row_of(2 * half);
    const std::int64_t row = (static_cast<std::int64_t>(at.sample) * s.heads + at.head) * s.seq + query;
    of_row[half] = query < s.seq ? float2{lse[row], d[row]} : float2{0, 0};
  }
  Tile dq[1][HEAD / 8] = {};
  const float scale = rsqrtf(static_cast<float>(HEAD));
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      bring_keys(tile + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    Tile p[1][kColumns / 8], d_score[1][kColumns / 8];
    multiply_tiles<1, HEAD>(p, q, mine, k + tile % 2 * kTile);
    multiply_tiles<1, HEAD>(d_score, d_o, mine, v + tile % 2 * kTile);
    const int query0 = at.first + mine;
    const bool masks = tile * kColumns + kColumns > query0 + 1 || query0 + 16 > s.seq;
    score_grads(
        scale, masks, p, d_score, [&](int, int i) { return of_row[i / 2]; },
        [&](int n, int i) {
          const int query = query0 + row_of(i);
          return tile * kColumns + column_of(n, i) <= query && query < s.seq;
        });
    add_product<1, HEAD>(dq, d_score, k + tile % 2 * kTile);
    __syncthreads();
  }
  write_rows<HEAD>(dq[0], mine, valid, d_qkv + (token + at.first) * width + s.q(at.head), width,
                   [](int) { return 1.0F; });
}

template <int HEAD, class T>
__global__ void __launch_bounds__(kThreads)
    flash_key_grad_kernel(AttentionPlaces s, const T* qkv, const float* lse, const float* d, const T* d_out,
                          T* d_qkv) {
  constexpr int kTile = kColumns * HEAD;
  __shared__ float2 of_queries[2][kColumns];
  T* const k = dynamic_shared<T>();
  T* const v = k + kGradRows * HEAD;
  T* const q = v + kGradRows * HEAD;
  T* const d_o = q + 2 * kTile;
  const Block at = block_of(s, kGradRows, s.kv, false);
  const std::int64_t width = s.width(), out_width = static_cast<std::int64_t>(s.heads) * HEAD;
  const std::int64_t token = static_cast<std::int64_t>(at.sample) * s.seq;
  const T* const sample = qkv + token * width;
  const int mine = static_cast<int>(threadIdx.x) / kWarp * 16, valid = s.seq - at.first;
  const int shared_by = s.heads / s.kv, first_head = at.head * shared_by;
  const int first_tile = at.first / kColumns, of_head = (s.seq + kColumns - 1) / kColumns - first_tile;
  const int tiles = of_head * shared_by;
  const auto bring_queries = [&](int tile) {
    const int head = first_head + tile / of_head, first = (first_tile + tile % of_head) * kColumns;
    bring<kColumns, HEAD>(q + tile % 2 * kTile, sample + first * width + s.q(head), width, s.seq - first);
    bring<kColumns, HEAD>(d_o + tile % 2 * kTile, d_out + (token + first) * out_width + head * HEAD,
                          out_width, s.seq - first);
    commit_copies();
    const int thread = static_cast<int>(threadIdx.x), query = first + thread;
    if (thread < kColumns) {
      const std::int64_t row = (static_cast<std::int64_t>(at.sample) * s.heads + head) * s.seq + query;
      of_queries[tile % 2][thread] = query < s.seq ? float2{lse[row], d[row]} : float2{0, 0};
    }
  };
  bring<kGradRows, HEAD>(k, sample + at.first * width + s.k(first_head), width, valid);
  bring<kGradRows, HEAD>(v, sample + at.first * width + s.v(first_head), width, valid);
  bring_queries(0);

  Tile dk[1][HEAD / 8] = {}, dv[1][HEAD / 8] = {};
  const float scale = rsqrtf(static_cast<float>(HEAD));
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      bring_queries(tile + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const int first = (first_tile + tile % of_head) * kColumns;
    Tile p[1][kColumns / 8], d_score[1][kColumns / 8];
    multiply_tiles<1, HEAD>(p, k, mine, q + tile % 2 * kTile);
    multiply_tiles<1, HEAD>(d_score, v, mine, d_o + tile % 2 * kTile);
    const bool masks = at.first + mine + 15 > first || first + kColumns > s.seq;
    score_grads(
        scale, masks, p, d_score, [&](int n, int i) { return of_queries[tile % 2][column_of(n, i)]; },
        [&](int n, int i) {
          const int query = first + column_of(n, i);
          return at.first + mine + row_of(i) <= query && query < s.seq;
        });
    add_product<1, HEAD>(dv, p, d_o + tile % 2 * kTile);
    add_product<1, HEAD>(dk, d_score, q + tile % 2 * kTile);
    __syncthreads();
  }
  T* const rows = d_qkv + (token + at.first) * width;
  write_rows<HEAD>(dk[0], mine, valid, rows + s.k(first_head), width, [](int) { return 1.0F; });
  write_rows<HEAD>(dv[0], mine, valid, rows + s.v(first_head), width, [](int) { return 1.0F; });
}

// Calls f with the type and the constant of the head's size.
template <class F>
void with_head(DType type, std::int64_t head, F f) {
  const auto of_type = [&](auto t) {
    if (head == 64) return f(t, std::integral_constant<int, 64>{});
    f(t, std::integral_constant<int, 128>{});
  };
  if (type == DType::kBfloat16) return of_type(BFloat16{});
  of_type(Float16{});
}

}  // namespace

bool has_flash(DType type, const reference::AttentionShape& s) {
  return is_half(type) && (s.head == 64 || s.head == 128) && !s.materialised && !s.drops() && s.plain();
}

void flash_attention(Stream stream, DType type, const reference::AttentionShape& s, const void* qkv,
                     void* out, float* lse) {
  with_head(type, s.head, [&]<class T, int HEAD>(T, std::integral_constant<int, HEAD>) {
    constexpr int kRows = 16 * kRowTiles * kWarps;
    const Grid grid{.blocks = cover(s.seq, kRows) * s.batch * s.heads,
                    .threads = kThreads,
                    .shared = (kRows + 4 * kColumns) * HEAD * sizeof(T)};
    launch(stream, "attention", grid, flash_kernel<HEAD, T>, places_of(s), static_cast<const T*>(qkv),
           static_cast<T*>(out), lse);
  });
}

void flash_attention_grad(Stream stream, DType type, const reference::AttentionShape& s, const void* qkv,
                          const float* lse, const void* d_out, void* d_qkv, const float* d) {
  with_head(type, s.head, [&]<class T, int HEAD>(T, std::integral_constant<int, HEAD>) {
    const auto run = [&](auto kernel, std::int64_t heads) {
      const Grid grid{.blocks = cover(s.seq, kGradRows) * s.batch * heads,
                      .threads = kThreads,
                      .shared = (2 * kGradRows + 4 * kColumns) * HEAD * sizeof(T)};
      launch(stream, "attention_grad", grid, kernel, places_of(s), static_cast<const T*>(qkv), lse, d,
             static_cast<const T*>(d_out), static_cast<T*>(d_qkv));
    };
    run(flash_query_grad_kernel<HEAD, T>, s.heads);
    run(flash_key_grad_kernel<HEAD, T>, s.kv);
  });
}

}  // namespace orrery::kernels::cuda
