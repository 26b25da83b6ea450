// SPDX-License-Identifier: Apache-2.0
//
// Attention of ranks that share sequences against attention over whole sequences: what every rank gets is its
// part of the whole, and their gradients of keys add up to the whole's. For kernels on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/reference.h"

namespace orrery::kernels {

using Floats = std::vector<float>;

struct ContextKernels {
  // `sums` may be what `out` gives; lse goes on.
  std::function<void(const ContextShape&, const Floats& q, const Floats& kv, const Floats& sums, Floats& out,
                     Floats& lse)>
      forward;
  std::function<void(const ContextShape&, const Floats& q, const Floats& kv, const Floats& out,
                     const Floats& lse, const Floats& d_out, Floats& dq, Floats& dkv)>
      backward;
};

struct ContextCase {
  const char* name;
  Index ring, ulysses;
  bool steps;  // around the ring, and not gathered
  Index window = 0;
  bool sees_all = false;
  float cap = 0;
  Index value = 6;
  double dropout = 0;
  bool packed = false;  // from documents
  friend void PrintTo(const ContextCase& c, std::ostream* out) { *out << c.name; }
};
inline const ContextCase kContextCases[] = {
    {"ring_2", 2, 1, true},
    {"ring_4", 4, 1, true},
    {"ring_3_window", 3, 1, true, 7},
    {"ring_4_sees_all_capped", 4, 1, true, 0, true, 0.7F},
    {"ring_2_narrow_values", 2, 1, true, 0, false, 0, 4},
    {"gathered_4", 4, 1, false},
    {"gathered_2_window_capped", 2, 1, false, 11, false, 0.7F},
    {"heads_2", 1, 2, false},
    {"heads_4", 1, 4, false},
    {"heads_2_ring_3", 3, 2, true},
    {"heads_2_gathered_2", 2, 2, false, 9},
    {"ring_2_dropout", 2, 1, true, 0, false, 0, 6, 0.3},
    {"heads_2_gathered_2_dropout", 2, 2, false, 0, false, 0, 6, 0.3},
    {"ring_4_packed", 4, 1, true, 0, false, 0, 6, 0, true},
    {"ring_2_window_packed_dropout", 2, 1, true, 7, false, 0, 6, 0.3, true},
    {"gathered_4_packed", 4, 1, false, 0, false, 0, 6, 0, true},
    {"heads_2_ring_3_packed", 3, 2, true, 0, false, 0, 6, 0, true},
};

// How far the ranks' results are from the whole's, relative to the largest: outputs and gradients. `shift`:
// ranks take the keys of a step for those of so many ranks further; 0 is right.
struct ContextErrors {
  double out = 0, dq = 0, dkv = 0;
};
// Documents of 1, 2, 3, .. tokens, one behind the other through all samples.
inline std::vector<std::int32_t> document_starts(Index batch, Index sequence) {
  std::vector<std::int32_t> out;
  Index begin = 0, length = 1;
  for (Index t = 0; t < batch * sequence; ++t) {
    if (t - begin == length) {
      begin = t;
      ++length;
    }
    const Index sample = t / sequence * sequence;
    out.push_back(static_cast<std::int32_t>(std::max<Index>(0, begin - sample)));
  }
  return out;
}

inline ContextErrors context_errors(const ContextCase& c, const ContextKernels& kernels, Index shift = 0) {
  constexpr Index kBatch = 2, kHeads = 8, kKeyHeads = 4, kHead = 6, kTokens = 10;
  constexpr unsigned kNumbers = 20261126;
  const Index sequence = kTokens * c.ring * c.ulysses;
  const Dropout dropout{.probability = c.dropout, .seed = 5, .site = 3, .first_sample = 1};
  const std::vector<std::int32_t> starts = document_starts(kBatch, sequence);
  const reference::AttentionShape whole{.batch = kBatch,
                                        .seq = sequence,
                                        .heads = kHeads,
                                        .kv = kKeyHeads,
                                        .head = kHead,
                                        .dropout = dropout,
                                        .window = c.window,
                                        .sees_all = c.sees_all,
                                        .cap = c.cap,
                                        .value = c.value,
                                        .packed = c.packed,
                                        .document = starts.data()};
  std::mt19937 random(kNumbers);
  const auto numbers = [&](Index n) {
    Floats v(static_cast<std::size_t>(n));
    for (float& x : v) x = static_cast<float>(random() % 2000001) / 1000000.0F - 1.0F;
    return v;
  };
  const Index rows = kBatch * sequence, width = whole.width();
  const Floats qkv = numbers(rows * width), d_out = numbers(rows * kHeads * c.value);
  Floats out(d_out.size()), lse(static_cast<std::size_t>(rows * kHeads)), d_qkv(qkv.size());
  reference::attention(whole, qkv.data(), out.data(), lse.data(), nullptr);
  reference::attention_grad(whole, qkv.data(), out.data(), lse.data(), nullptr, d_out.data(), d_qkv.data());

  ContextShape s{.batch = kBatch,
                 .tokens = kTokens,
                 .heads = kHeads / c.ulysses,
                 .kv = kKeyHeads / c.ulysses,
                 .head = kHead,
                 .value = c.value,
                 .ring = c.ring,
                 .ulysses = c.ulysses,
                 .rank = 0,
                 .gathered = !c.steps,
                 .window = c.window,
                 .sees_all = c.sees_all,
                 .cap = c.cap,
                 .dropout = dropout,
                 .packed = c.packed,
                 .document = starts.data()};
  // Calls use(row of a rank, row of the whole) for the rows of one place in the ring, by heads.
  const auto for_each_row = [&](Index place, auto use) {
    for (Index row = 0; row < s.rows(); ++row) {
      const Index part = row / (kBatch * kTokens), sample = row / kTokens % kBatch;
      const TokenShare share = token_share(kTokens, c.ring, c.ulysses, place, part);
      use(row, sample * sequence + share.position(row % kTokens));
    }
  };
  // Copies `n` columns of the whole from `column` on, or adds to them.
  const auto take = [&](const Floats& from, Index columns, Index column, Index n, Index place, Floats& to) {
    for_each_row(place, [&](Index, Index row) {
      for (Index j = 0; j < n; ++j) to.push_back(from[static_cast<std::size_t>(row * columns + column + j)]);
    });
  };
  const auto keys_of = [&](const Floats& from, Index place, Index heads_of) {
    Floats to;
    for_each_row(place, [&](Index, Index row) {
      const auto add = [&](Index first, Index n) {
        for (Index j = 0; j < n; ++j) to.push_back(from[static_cast<std::size_t>(row * width + first + j)]);
      };
      add(kHeads * kHead + heads_of * s.kv * kHead, s.kv * kHead);
      add((kHeads + kKeyHeads) * kHead + heads_of * s.kv * c.value, s.kv * c.value);
    });
    return to;
  };
  ContextErrors errors;
  const auto compare = [](const Floats& actual, const Floats& expected, double& worst) {
    ASSERT_EQ(actual.size(), expected.size());
    double largest = 1e-30, off = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(expected[i])));
      off = std::max(off, static_cast<double>(std::abs(actual[i] - expected[i])));
    }
    worst = std::max(worst, off / largest);
  };
  for (Index heads_of = 0; heads_of < c.ulysses; ++heads_of) {
    std::vector<Floats> keys, d_keys;
    for (Index place = 0; place < c.ring; ++place) {
      keys.push_back(keys_of(qkv, place, heads_of));
      d_keys.emplace_back(keys.back().size());
    }
    s.first_head = heads_of * s.heads;
    for (s.rank = 0; s.rank < c.ring; ++s.rank) {
      Floats q, expected, d, expected_dq;
      take(qkv, width, heads_of * s.heads * kHead, s.heads * kHead, s.rank, q);
      take(out, kHeads * c.value, heads_of * s.heads * c.value, s.heads * c.value, s.rank, expected);
      take(d_out, kHeads * c.value, heads_of * s.heads * c.value, s.heads * c.value, s.rank, d);
      take(d_qkv, width, heads_of * s.heads * kHead, s.heads * kHead, s.rank, expected_dq);
      Floats own(expected.size()), own_lse(static_cast<std::size_t>(s.rows() * s.heads)), dq(q.size());
      const Index steps = c.steps ? c.ring : 1;
      const auto keys_at = [&](Index step) {
        if (c.steps) return keys[static_cast<std::size_t>((s.rank - step + c.ring) % c.ring)];
        Floats all;
        for (const Floats& k : keys) all.insert(all.end(), k.begin(), k.end());
        return all;
      };
      const auto at_step = [&](Index step) {
        ContextShape of = s;
        of.source = (s.rank - step + shift + c.ring) % c.ring;
        of.more = step > 0;
        return of;
      };
      for (Index step = 0; step < steps; ++step)
        kernels.forward(at_step(step), q, keys_at(step), own, own, own_lse);
      compare(own, expected, errors.out);
      for (Index step = 0; step < steps; ++step) {
        const Floats kv = keys_at(step);
        Floats d_kv(kv.size());
        kernels.backward(at_step(step), q, kv, own, own_lse, d, dq, d_kv);
        std::size_t i = 0;
        for (Index place = 0; place < c.ring; ++place) {
          if (c.steps && place != (s.rank - step + c.ring) % c.ring) continue;
          for (float& x : d_keys[static_cast<std::size_t>(place)]) x += d_kv[i++];
        }
      }
      compare(dq, expected_dq, errors.dq);
    }
    for (Index place = 0; place < c.ring; ++place)
      compare(d_keys[static_cast<std::size_t>(place)], keys_of(d_qkv, place, heads_of), errors.dkv);
  }
  return errors;
}

}  // namespace orrery::kernels
