// SPDX-License-Identifier: Apache-2.0
//
// Rows of a table [rows, width] by token, and their gradient; learned positions likewise. Floor, in elements:
// embedding 2 tokens width; its gradient reads tokens width and reads and writes a row for each different
// token; positions 3 rows width, their gradient 1.
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace orrery::kernels::cuda {
namespace {

template <class T, int V>
__global__ void embedding_kernel(std::int64_t tokens, std::int64_t width, std::int64_t first,
                                 std::int64_t rows, const std::int32_t* ids, const T* table, T* y) {
  const std::int64_t of_row = width / V;
  for (std::int64_t i = thread_of_grid(); i < tokens * of_row; i += threads_of_grid()) {
    const std::int64_t row = ids[i / of_row] - first, column = i % of_row * V;
    float x[V] = {};
    if (row >= 0 && row < rows) load(table + row * width + column, x);
    store(x, y + i * V);
  }
}

constexpr int kRows = 16;  // of the table that a block serves: their sums stand in shared memory
constexpr int kThreads = 256;
constexpr int kIds = 8;  // that a thread looks at in a pass

// A sample has `per` ids of the table, `stride` ids after the sample before; all are of its row of dy.
struct IdsOfSamples {
  const std::int32_t* ids;
  std::int64_t per, stride;
};
template <bool kOneId>
__device__ std::int32_t id_of(const IdsOfSamples& of, std::int64_t t) {
  return of.ids[kOneId ? t * of.stride : t / of.per * of.stride + t % of.per];
}

// Block (rows of the table, tile of columns): looks through all tokens and sums the gradients of those that
// are its rows', in their order; then adds each sum to the table's gradient. The tokens are read once by each
// block, from the second-level cache.
template <class T, class G, bool kOneId>
__global__ void embedding_grad_kernel(std::int64_t tokens, int width, std::int64_t first, std::int64_t rows,
                                      IdsOfSamples ids, const T* dy, std::int64_t dy_width, G* d_table,
                                      bool accumulate) {
  ORRERY_SHARED(sums, float[kRows][kThreads]);
  ORRERY_SHARED(found, int[kThreads * kIds]);         // tokens of this pass, in their order: token, row
  ORRERY_SHARED(of_warps, int[2][kThreads / kWarp]);  // of this pass and the one before
  ORRERY_SHARED(seen, unsigned);                      // rows that have any
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const int column = static_cast<int>(blockIdx.y) * kThreads + thread;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const std::int64_t valid = rows - row0 < kRows ? rows - row0 : kRows;
  for (int r = 0; r < kRows; ++r) sums[r][thread] = 0;
  if (thread == 0) seen = 0;
  int parity = 0;
  for (std::int64_t pass = 0; pass < tokens; pass += kThreads * kIds, parity ^= 1) {
    std::int64_t row[kIds];
    int before = 0, of_warp = 0;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      const std::int64_t t = pass + thread * kIds + i;
      row[i] = t < tokens ? id_of<kOneId>(ids, t) - first - row0 : -1;
      if (row[i] >= valid) row[i] = -1;
      const unsigned mine = __ballot_sync(kFullMask, row[i] >= 0);
      before += __popc(mine & ((1U << lane_of_warp()) - 1));
      of_warp += __popc(mine);
    }
    if (lane_of_warp() == 0) of_warps[parity][warp] = of_warp;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      before += w < warp ? of_warps[parity][w] : 0;
      all += of_warps[parity][w];
    }
    if (all == 0) continue;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (row[i] >= 0) found[before++] = (thread * kIds + i) << 4 | static_cast<int>(row[i]);
    }
    __syncthreads();
    for (int i = 0; i < all; ++i) {
      const int r = found[i] & (kRows - 1);
      const std::int64_t token = pass + (found[i] >> 4);
      if (column < width)
        sums[r][thread] += widen(dy[(kOneId ? token : token / ids.per) * dy_width + column]);
      if (thread == 0) seen |= 1U << r;
    }
    __syncthreads();  // found is read
  }
  __syncthreads();
  if (column >= width) return;
  for (int r = 0; r < kRows; ++r) {
    if (row0 + r >= rows || (accumulate && (seen >> r & 1) == 0)) continue;
    G& to = d_table[(row0 + r) * width + column];
    narrow(accumulate ? widen(to) + sums[r][thread] : sums[r][thread], to);
  }
}

// The gradient of rows [first, first + rows) of a table.
template <class T, class G>
void table_grad(Stream stream, const char* name, std::int64_t tokens, std::int64_t width, std::int64_t first,
                std::int64_t rows, const IdsOfSamples& ids, const T* dy, std::int64_t dy_width, G* d_table,
                bool accumulate) {
  const Grid grid{.blocks = cover(rows, kRows), .blocks_y = cover(width, kThreads), .threads = kThreads};
  const auto run = [&](auto kernel) {
    launch(stream, name, grid, kernel, tokens, static_cast<int>(width), first, rows, ids, dy, dy_width,
           d_table, accumulate);
  };
  if (ids.per == 1) return run(embedding_grad_kernel<T, G, true>);
  run(embedding_grad_kernel<T, G, false>);
}

template <class T, int V>
__global__ void positions_kernel(reference::PositionsShape s, const T* table, T* x) {
  const std::int64_t of_row = s.width / V;
  for (std::int64_t i = thread_of_grid(); i < s.rows * of_row; i += threads_of_grid()) {
    const std::int64_t row = i / of_row, column = (i - row * of_row) * V;
    float sum[V], position[V];
    load(x + row * s.width + column, sum);
    load(table + s.share.position((s.first_token + row) % s.seq) * s.width + column, position);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += position[k];
    store(sum, x + row * s.width + column);
  }
}

// A thread for each position that the rows have, and column.
template <class T, class G>
__global__ void positions_grad_kernel(reference::PositionsShape s, const T* dy, G* d_table, bool accumulate) {
  const std::int64_t width = s.width, positions = s.rows < s.seq ? s.rows : s.seq;
  for (std::int64_t i = thread_of_grid(); i < positions * width; i += threads_of_grid()) {
    float sum = 0;
    for (std::int64_t at = i; at < s.rows * width; at += s.seq * width) sum += widen(dy[at]);
    G& to = d_table[s.share.position((s.first_token + i / width) % s.seq) * width + i % width];
    narrow(accumulate ? widen(to) + sum : sum, to);
  }
}

}  // namespace

void embedding(Stream stream, DType type, Index tokens, Index width, Index first, Index rows,
               const std::int32_t* ids, const void* table, void* y) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(width, {table, y}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "embedding", {.blocks = strided_blocks(tokens * width / V, 256)}, embedding_kernel<T, V>,
             tokens, width, first, rows, ids, static_cast<const T*>(table), static_cast<T*>(y));
    });
  });
}

void embedding_grad(Stream stream, DType type, DType gradient, Index tokens, Index width, Index first,
                    Index rows, const std::int32_t* ids, const void* dy, void* d_table, bool accumulate) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    table_grad(stream, "embedding_grad", tokens, width, first, rows, {ids, 1, 1}, static_cast<const T*>(dy),
               width, static_cast<G*>(d_table), accumulate);
  });
}

void bags_grad(Stream stream, DType type, DType gradient, const reference::BagsShape& s,
               const std::int32_t* ids, const void* dy, void* d_weight, bool accumulate) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    for (Index table = 0; table < s.tables; ++table) {
      table_grad(stream, "bags_grad", s.batch * s.ids, s.columns, s.first_row, s.rows,
                 {ids + (s.first_table + table) * s.ids, s.ids, s.all_tables * s.ids},
                 static_cast<const T*>(dy) + s.first_column, s.width,
                 static_cast<G*>(d_weight) + table * s.rows * s.columns, accumulate);
    }
  });
}

void positions(Stream stream, DType type, const reference::PositionsShape& s, const void* table, void* x) {
  with_type(type, [&]<class T>(T) {
    with_vectors<T>(takes_vectors<T>(s.width, {table, x}), [&]<int V>(std::integral_constant<int, V>) {
      launch(stream, "positions", {.blocks = strided_blocks(s.rows * s.width / V, 256)},
             positions_kernel<T, V>, s, static_cast<const T*>(table), static_cast<T*>(x));
    });
  });
}

void positions_grad(Stream stream, DType type, DType gradient, const reference::PositionsShape& s,
                    Index table_rows, const void* dy, void* d_table, bool accumulate) {
  with_types(type, gradient, [&]<class T, class G>(T, G) {
    if (!accumulate) {
      check(cudaMemsetAsync(d_table, 0, static_cast<std::size_t>(table_rows * s.width) * sizeof(G), stream),
            "positions_grad");
    }
    launch(stream, "positions_grad", {.blocks = strided_blocks(std::min(s.rows, s.seq) * s.width, 256)},
           positions_grad_kernel<T, G>, s, static_cast<const T*>(dy), static_cast<G*>(d_table), accumulate);
  });
}

}  // namespace orrery::kernels::cuda
