// SPDX-License-Identifier: Apache-2.0
//
// A value of one of several structs, each with a name: in a file the name alone, or an object with the name
// and the struct's fields.
//
//   "mlp", or {"mlp": {"ffn_hidden": 1024}}
//
// A struct like Layer { static constexpr bool kAlsoNamed = true; std::variant<..> is; } holds the value; the
// types of the variant have their names as kName.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/fields.h"

namespace orrery {

// Calls use() with a null pointer to each type of the variant.
template <class Variant, class Use>
void for_each_alternative(Use use) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (use(static_cast<std::variant_alternative_t<I, Variant>*>(nullptr)), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
}

// For writers and schemas.
template <class V, class Holder>
void describe_one_of(V& v, Holder& holder, const char* help) {
  for_each_alternative<decltype(holder.is)>([&]<class T>(T*) {
    std::optional<T> own;
    if (const T* is = std::get_if<T>(&holder.is)) own = *is;
    v(Field{.name = T::kName, .help = help}, own);
  });
}

// `standard` is called with a null pointer to the named type, and returns the value before fields are read.
template <class Holder, class Standard>
Holder read_one_of(const Json& json, const Cursor& at, const char* what, Standard standard) {
  const bool named = json.is_string(), listed = json.is_object() && json.size() == 1;
  if (!named && !listed)
    at.fail(shown(json) + " is not " + what, "allowed: a name, or an object with a name and its fields");
  const std::string name = named ? json.get<std::string>() : json.begin().key();
  std::optional<Holder> out;
  std::vector<std::string> names;
  for_each_alternative<decltype(Holder::is)>([&]<class T>(T* type) {
    names.emplace_back(T::kName);
    if (name != T::kName) return;
    T value = standard(type);
    // A name alone has no fields: it fails where one is required.
    read_fields_into(listed ? json.front() : Json::object(), at.child(name), value);
    out = Holder{value};
  });
  if (!out) {
    (named ? at : at.child(name))
        .fail(fmt::format("{} is not {}", shown(Json(name)), what), allowed_names(name, names));
  }
  return *out;
}

}  // namespace orrery
