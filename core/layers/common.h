// SPDX-License-Identifier: Apache-2.0
//
// What the structs of layers share.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/fields.h"

namespace orrery {

// Where a field of the layer stands, in the file that it was read from.
using FieldPlace = std::function<Cursor(std::string_view field)>;

// A number that tensor ranks share evenly, and of what.
struct SharedCount {
  std::int64_t count = 0;
  const char* what = "";
};

// Tokens of a sample: of the layer's tower, and of the one that the layer reads beside it.
struct LayerTokens {
  std::int64_t own = 0, read = 0;
};

// Of attention, in a model of that width. Before resolve().
template <class Layer>
void check_heads(const Layer& l, std::int64_t hidden, const FieldPlace& place) {
  if (l.heads == 0) place("heads").fail("the field \"heads\" is missing");
  if (l.head_dim == 0 && hidden % l.heads != 0) {
    place("heads").fail(fmt::format("{} heads do not divide the width {}", l.heads, hidden),
                        "allowed: a divisor of the width, or an explicit head_dim");
  }
  const std::int64_t kv_heads = l.kv_heads == 0 ? l.heads : l.kv_heads;
  if (l.heads % kv_heads != 0) {
    place("kv_heads")
        .fail(fmt::format("{} key/value heads do not divide {} heads", kv_heads, l.heads),
              "allowed: a divisor of the number of heads");
  }
}

}  // namespace orrery
