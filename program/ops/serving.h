// SPDX-License-Identifier: Apache-2.0
//
// Ops of serving, where a pass computes some tokens of each sequence (all of a prompt, or one that was
// chosen) and the keys and values of the tokens before them are there in a cache.
//   CachedAttention         reads {qkv, cache}                              writes {ctx, log-sums, cache}
//   CachedLatentAttention   reads {q, latent, turned, up weight, cache}     writes {ctx, log-sums, cache}
//   LastTokens              reads {rows}                                    writes {each sequence's last}
//   BestLogit               reads {logits}                                  writes {best}
//   ChooseToken             reads {best}                                    writes {tokens}
// A cache has `room` rows for each sequence; the row of a token is its place in the sequence modulo `room`. A
// row has keys and values of all heads, or the latent of all heads and the elements that positions turn. The
// tokens before the pass are `cached` ones of each sequence, by which ops are priced; a run says at every
// pass how many there are. Nothing here has a gradient.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>

#include "program/ops/attention.h"

namespace orrery::program::ops {

// A program of passes has no backward that could ask for one.
[[noreturn]] inline void no_gradient(std::string_view name) {
  throw std::logic_error(std::string(name) + " has no gradient");
}

// Pairs of queries and keys of a sequence and head: query i of q sees the c tokens before the pass and i + 1
// of its own, at most w of them where there is a window.
//   without a window     q c + q (q + 1) / 2
constexpr double pairs_seen(std::int64_t queries, std::int64_t cached, std::int64_t window) {
  const std::int64_t whole = window > 0 ? std::clamp<std::int64_t>(window - cached, 0, queries) : queries;
  const auto n = static_cast<double>(whole);
  return n * static_cast<double>(cached) + n * (n + 1) / 2 +
         static_cast<double>(queries - whole) * static_cast<double>(window);
}

struct CachedShape {
  static constexpr Nature kNature = Nature::kAttention;
  std::int64_t batch = 0, queries = 0, cached = 0, room = 0;  // sequences; tokens of each
  std::int64_t heads = 0, kv_heads = 0, head = 0, value = 0;
  std::int64_t window = 0;         // 0: none
  double soft_cap = 0;             // of scores; 0: none
  double scale = 0;                // of scores; 0: 1 / sqrt(head)
  std::int64_t element_bytes = 2;  // of the cache
  static constexpr auto fields() {
    using S = CachedShape;
    return std::tuple(&S::batch, &S::queries, &S::cached, &S::room, &S::heads, &S::kv_heads, &S::head,
                      &S::value, &S::window, &S::soft_cap, &S::scale, &S::element_bytes);
  }
  constexpr bool fused() const { return true; }
  constexpr std::int64_t row() const { return kv_heads * (head + value); }  // of the cache
  constexpr std::int64_t qkv() const { return batch * queries * (heads * head + row()); }
  constexpr std::int64_t context() const { return batch * queries * heads * value; }
  constexpr std::int64_t cache() const { return batch * room * row(); }
  constexpr double pairs() const { return pairs_seen(queries, cached, window); }  // of a sequence and head
  // Tokens of a sequence that are read from the cache.
  constexpr std::int64_t seen() const { return window > 0 ? std::min(cached, window) : cached; }
};

struct CachedAttention : CachedShape {
  static constexpr std::string_view kName = "cached-attention";
  constexpr Operands operands() const { return {{qkv(), cache()}, {context(), 0, cache()}}; }
  constexpr double flops() const {
    return 2.0 * static_cast<double>(batch * heads) * pairs() * static_cast<double>(head + value);
  }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return (qkv() + context()) * e.activation +
           batch * (seen() + std::min(queries, room)) * row() * element_bytes;
  }
  template <class Reverse>
  void gradient(Reverse&) const {
    no_gradient(kName);
  }
};

// Latent attention in the cheaper of two orders. Expanded: keys and values of all tokens are made of latents,
// 2 rank (plain + value) FLOPs for each token and head, and a pair takes 2 (turned + plain + value). Absorbed
// (DeepSeek-V2, 2405.04434, section 2.1.2): queries and what heads make of values go through the up weight,
// as many FLOPs for each query and head, and a pair takes 2 (2 rank + turned).
struct CachedLatentShape {
  static constexpr Nature kNature = Nature::kAttention;
  std::int64_t batch = 0, queries = 0, cached = 0, room = 0;
  std::int64_t heads = 0, turned = 0, plain = 0, value = 0, rank = 0;
  double scale = 0;  // of scores; 0: 1 / sqrt(turned + plain)
  std::int64_t element_bytes = 2;
  static constexpr auto fields() {
    using S = CachedLatentShape;
    return std::tuple(&S::batch, &S::queries, &S::cached, &S::room, &S::heads, &S::turned, &S::plain,
                      &S::value, &S::rank, &S::scale, &S::element_bytes);
  }
  constexpr bool fused() const { return true; }
  constexpr std::int64_t row() const { return rank + turned; }
  constexpr std::int64_t tokens() const { return batch * queries; }
  constexpr std::int64_t query_elements() const { return tokens() * heads * (turned + plain); }
  constexpr std::int64_t weight() const { return heads * (plain + value) * rank; }
  constexpr std::int64_t context() const { return tokens() * heads * value; }
  constexpr std::int64_t cache() const { return batch * room * row(); }
  constexpr double pairs() const { return pairs_seen(queries, cached, 0); }
  constexpr double expanded_flops() const {
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    return 2 * d(batch) *
           (d(cached + queries) * d(weight()) + d(heads) * pairs() * d(turned + plain + value));
  }
  constexpr double absorbed_flops() const {
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    return 2 * d(batch) * (d(queries) * d(weight()) + d(heads) * pairs() * d(2 * rank + turned));
  }
  constexpr bool absorbs() const { return absorbed_flops() <= expanded_flops(); }
};

struct CachedLatentAttention : CachedLatentShape {
  static constexpr std::string_view kName = "cached-latent-attention";
  constexpr Operands operands() const {
    return {{query_elements(), tokens() * rank, tokens() * turned, weight(), cache()},
            {context(), 0, cache()}};
  }
  constexpr double flops() const { return std::min(absorbed_flops(), expanded_flops()); }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    const std::int64_t made = absorbs() ? 0 : 2 * batch * (cached + queries) * heads * (plain + value);
    return (query_elements() + tokens() * row() + weight() + context() + made) * e.activation +
           batch * (cached + std::min(queries, room)) * row() * element_bytes;
  }
  template <class Reverse>
  void gradient(Reverse&) const {
    no_gradient(kName);
  }
};

struct LastTokens {
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr std::string_view kName = "last-tokens";
  std::int64_t batch = 0, queries = 0, width = 0;
  static constexpr auto fields() {
    return std::tuple(&LastTokens::batch, &LastTokens::queries, &LastTokens::width);
  }
  constexpr Operands operands() const { return {{batch * queries * width}, {batch * width}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const { return 2 * batch * width * e.activation; }
  template <class Reverse>
  void gradient(Reverse&) const {
    no_gradient(kName);
  }
};

// The largest of a tensor rank's logits of each row, and its place in the vocabulary: two floats, of which
// the second is whole (a vocabulary has at most 2^24 rows).
inline constexpr std::int64_t kBestNumbers = 2;
struct BestLogit {
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr std::string_view kName = "best-logit";
  std::int64_t rows = 0, columns = 0, vocabulary = 0;
  static constexpr auto fields() {
    return std::tuple(&BestLogit::rows, &BestLogit::columns, &BestLogit::vocabulary);
  }
  constexpr Operands operands() const { return {{rows * columns}, {}}; }
  constexpr std::int64_t bytes(const ElementBytes& e) const {
    return rows * columns * e.activation + rows * kBestNumbers * 4;
  }
  template <class Reverse>
  void gradient(Reverse&) const {
    no_gradient(kName);
  }
};

// Of all tensor ranks' best logits, the first of the largest.
struct ChooseToken {
  static constexpr Nature kNature = Nature::kPointwise;
  static constexpr std::string_view kName = "choose-token";
  std::int64_t rows = 0, ranks = 1;
  static constexpr auto fields() { return std::tuple(&ChooseToken::rows, &ChooseToken::ranks); }
  constexpr Operands operands() const { return {}; }
  constexpr std::int64_t bytes(const ElementBytes&) const { return rows * (kBestNumbers * ranks + 1) * 4; }
  template <class Reverse>
  void gradient(Reverse&) const {
    no_gradient(kName);
  }
};

}  // namespace orrery::program::ops
