// SPDX-License-Identifier: Apache-2.0
//
// Time of a compute op on a device.
//
// Matrix product [m,n] = [m,k][k,n], on U units with dense peak P: the best over tile shapes (T_m, T_n) of
//
//   x = ceil(m/T_m) ceil(n/T_n) / U                 tiles per unit
//   w = 1 if x < 1, else (1-a) ceil(x) + a x        waves, smoothed by split-k and stream-k kernels
//   t = latency + max( w T_m T_n 2 (k + k0) / (P/U e r), 2 (mk + kn + mn) / (B e_m) )
//
// and with a GELU epilogue mn / (B e_m) more for the matrix that is written or read beside the result.
// e efficiency, r the tile's relative efficiency, k0 k_overhead, a wave_smoothing, B memory bandwidth.
// With operands in fewer bits P is that peak, and an element of them r bytes (core/rounding.h); e and k0
// stay: on published training runs that is closest (docs/validation.md). What rounds both of them before
// reads b bytes an element, i times, and writes r, as often as the stack's rounding_reads R and
// rounding_writes W say:
//
//   t = f 2 i latency + (mk + kn) (i b R + r W) / (B memory_efficiency),  f = (i b R + r W) / (i b + r)
//
// Fused causal attention, forward work F = 2 b a s^2 d, with x = b a ceil(s/128) / U:
//
//   t = latency + F / (P e) (1 + s0/s) w/x          backward: 2.5 F at e * backward
//
// where F has heads of whole 32s, as kernels do, and e is that of the stack's generation of kernels.
// Attention with its scores in memory is products of each head, and the passes over the scores; with heads
// that are no multiple of 8 the products have `odd_head` of their rate.
//
// Everything else moves bytes: t = kernel_gap + bytes / (B memory_efficiency). Curves were fitted to the
// measured kernel times described in docs/models.md; `orrery validate` prints the residuals.
#pragma once

#include "core/device.h"
#include "core/timeline.h"
#include "core/training.h"
#include "program/program.h"

namespace orrery::sim {

// The dense peak for a number format; TF32 and half fall back to fp32 where the device has none.
FlopRate peak(const Device& d, Math math);

// Warm, isolated kernel times in seconds, as a micro-benchmark would measure them. With formats that round,
// the operands are there rounded; elements of the result have `element_bytes`.
double gemm_seconds(const Device& d, Math math, std::int64_t m, std::int64_t n, std::int64_t k,
                    std::int64_t element_bytes, double groups = 1);
struct AttentionWork {
  std::int64_t batch, seq, heads, kv_heads, head;
  bool backward = false;
  double seen = 0.5;      // of all pairs of tokens
  std::int64_t keys = 0;  // of another sequence; 0: as many as queries
};
double attention_seconds(const Device& d, Math math, const AttentionWork& w,
                         AttentionKernels kernels = AttentionKernels::kNewest);

// Of few queries for each sequence, `keys` tokens of which are in a cache: with R rows of queries of all
// query heads of a KV head, filled up to whole blocks of 64, and `bytes` that are read and written,
//
//   t = 2 latency + max( 4 b kv_heads R seen keys d / (P e), bytes / (B e_m) )
double decode_seconds(const Device& d, Math math, const AttentionWork& w, double bytes);

// What limits an op: the longer of its arithmetic at the rate that such ops reach, and its traffic at
// memory's.
Bound bound_of(const Device& d, Math training, const program::Op& op);

// An op inside a training step: `sustained` and the gap to the next kernel included.
Time compute_time(const Device& d, Math training, std::int64_t element_bytes, const program::Op& op,
                  AttentionKernels kernels = AttentionKernels::kNewest);

}  // namespace orrery::sim
