// SPDX-License-Identifier: Apache-2.0
//
// A file's field is declared once; the parser, the writer, the JSON Schema and the documentation come
// from that declaration.
//
//   struct Prices { Dollars node_hour; std::int64_t nodes = 1; };
//   template <class Visitor>
//   void describe(Visitor& v, Prices& p) {
//     v(Field{.name = "node_hour", .help = "on-demand price of one node for an hour"}, p.node_hour);
//     v(Field{.name = "nodes", .help = "nodes rented", .min = 1, .max = 1e6}, p.nodes);
//   }
//   Prices p = read_fields<Prices>(json, Cursor{"prices.json"});   // InputError: file, pointer, value
//   Json j = write_fields(p);
//   Json s = schema_fields<Prices>();
//
// Ranges of quantities are in the integers of core/units.h; core/limits.h has those in use. A list may have a
// limit of its own and distinct elements:
//   v(Field{.name = "tp", .help = "degrees to try", .min = 1, .most = 256, .distinct = true}, s.tp);
//
// Types understood: bool, integers, double, string, the quantities of core/units.h (as unit strings),
// enums with a name table, vector, optional, map<string, string>, and described structs. A field that
// is absent keeps the value the struct had before, so defaults are the struct's own initialisers. A
// described struct may also define `bool read_custom(const Json&, const Cursor&, T&)` to accept
// another form (a preset's name instead of an object); it returns true when it has read everything.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/limits.h"
#include "core/units.h"

namespace orrery {

struct Field {
  const char* name;
  const char* help;
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool required = false;
  std::size_t most = limits::kLongestList;     // elements of a list
  bool distinct = false;                       // no element of the list twice
  std::size_t longest = limits::kLongestText;  // bytes of a text
};

// Where a value stands: a file and a JSON pointer into it.
struct Cursor {
  std::string file;
  std::string pointer;

  Cursor child(std::string_view key) const;
  Cursor child(std::size_t index) const { return {file, pointer + "/" + std::to_string(index)}; }
  [[noreturn]] void fail(const std::string& problem, const std::string& allowed = {}) const {
    throw InputError(file, pointer, problem, allowed);
  }
};

// Where fields stand in the file that they were imported from, by our names ("rotary/scaling"). What is
// imported is equal wherever it comes from.
struct ImportedFields : std::map<std::string, Cursor, std::less<>> {
  friend bool operator==(const ImportedFields&, const ImportedFields&) { return true; }
};

// The value as an error message shows it: compact, ASCII, at most 60 characters.
std::string shown(const Json& value);

// enum_names(E) is found by argument-dependent lookup and returns an array of {value, name}.
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E e) {
  enum_names(e);
};

template <NamedEnum E>
std::string_view name_of(E value) {
  for (const auto& [candidate, name] : enum_names(value)) {
    if (candidate == value) return name;
  }
  return "?";
}

template <NamedEnum E>
std::vector<std::string> all_names(E) {
  std::vector<std::string> names;
  for (const auto& [candidate, name] : enum_names(E{})) names.emplace_back(name);
  return names;
}

template <NamedEnum E>
std::optional<E> enum_from(std::string_view text) {
  for (const auto& [candidate, name] : enum_names(E{})) {
    if (name == text) return candidate;
  }
  return std::nullopt;
}

struct AnyVisitor {
  template <class T>
  void operator()(const Field&, T&) {}
};
template <class T>
concept Described = std::is_class_v<T> && requires(AnyVisitor& v, T& t) {
  describe(v, t);
};
// Of other people's files: keys that are not declared are passed over, and null stands for an absent field.
template <class T>
concept Foreign = T::kForeign;
// A name alone stands for such an object with its own fields left out.
template <class T>
concept AlsoNamed = T::kAlsoNamed;
template <class T>
concept CustomRead = requires(const Json& j, const Cursor& c, T& t) {
  { read_custom(j, c, t) } -> std::same_as<bool>;
};

// --- quantities -----------------------------------------------------------------------------------
template <class T>
struct UnitText;  // specialised for each quantity: parse and example
template <>
struct UnitText<Time> {
  static auto parse(std::string_view s) { return parse_time(s); }
  static constexpr const char* kExample = "2 us";
};
template <>
struct UnitText<Bytes> {
  static auto parse(std::string_view s) { return parse_bytes(s); }
  static constexpr const char* kExample = "80 GiB";
};
template <>
struct UnitText<Bandwidth> {
  static auto parse(std::string_view s) { return parse_bandwidth(s); }
  static constexpr const char* kExample = "400 Gb/s";
};
template <>
struct UnitText<FlopRate> {
  static auto parse(std::string_view s) { return parse_flop_rate(s); }
  static constexpr const char* kExample = "312 TFLOP/s";
};
template <>
struct UnitText<Dollars> {
  static auto parse(std::string_view s) { return parse_dollars(s); }
  static constexpr const char* kExample = "$32.77";
};
template <>
struct UnitText<RunTime> {
  static auto parse(std::string_view s) { return parse_run_time(s); }
  static constexpr const char* kExample = "20 days";
};
template <class T>
concept UnitQuantity = requires {
  UnitText<T>::kExample;
};

// --- reading --------------------------------------------------------------------------------------
template <class T>
void read_value(const Json& json, const Cursor& at, const Field& field, T& out);

class FieldReader {
 public:
  FieldReader(const Json& object, const Cursor& at, bool foreign = false)
      : object_(object), at_(at), foreign_(foreign) {}

  template <class T>
  void operator()(const Field& field, T& value) {
    known_.emplace_back(field.name);
    const auto found = object_.find(field.name);
    if (found != object_.end() && !(foreign_ && found->is_null()))
      read_value(*found, at_.child(field.name), field, value);
    else if (field.required && missing_.empty())
      missing_ = fmt::format("the field \"{}\" is missing ({})", field.name, field.help);
  }
  // A key that is read elsewhere.
  void allow(const char* name) { known_.emplace_back(name); }
  // To be called when all fields have been declared. Every key must be one of them ("$schema", "schema" and
  // "comment" are always allowed; in foreign files all are), and no required field may be missing. In this
  // order: one slip of a key explains both.
  void finish() const;

 private:
  const Json& object_;
  const Cursor& at_;
  bool foreign_;
  std::vector<std::string> known_;
  std::string missing_;  // what is said of the first missing field
};

template <Described T>
void read_fields_into(const Json& json, const Cursor& at, T& out) {
  if constexpr (CustomRead<T>) {
    if (read_custom(json, at, out)) return;
  }
  if (!json.is_object()) at.fail(shown(json) + " is not an object", "allowed: {...}");
  FieldReader reader(json, at, Foreign<T>);
  describe(reader, out);
  reader.finish();
}

template <Described T>
T read_fields(const Json& json, const Cursor& at) {
  T out{};
  read_fields_into(json, at, out);
  return out;
}

// "at least 1, at most 8", or nothing where the field has no range.
template <class T>
std::string range_text(const Field& field) {
  const auto bound = [](double v) {
    if constexpr (UnitQuantity<T>)
      return format(T{static_cast<typename T::Rep>(v)});
    else
      return fmt::format("{}", v);
  };
  std::string out;
  if (std::isfinite(field.min)) out += "at least " + bound(field.min);
  if (std::isfinite(field.min) && std::isfinite(field.max)) out += ", ";
  if (std::isfinite(field.max)) out += "at most " + bound(field.max);
  return out;
}

template <class T>
void check_range(double value, const Json& json, const Cursor& at, const Field& field) {
  if (value >= field.min && value <= field.max) return;
  at.fail(shown(json) + " is out of range", "allowed: " + range_text<T>(field));
}

void check_length(const std::string& text, std::size_t longest, const Cursor& at);

struct FieldFinder {
  std::string_view name;
  Field found{};
  template <class T>
  void operator()(const Field& field, T&) {
    if (name == field.name) found = field;
  }
};

// The declaration of the field of that name.
template <Described T>
Field declared(std::string_view name) {
  FieldFinder finder{name};
  T any{};
  describe(finder, any);
  return finder.found;
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
void read_value(const Json& json, const Cursor& at, const Field& field, T& out) {
  if constexpr (std::same_as<T, bool>) {
    if (!json.is_boolean()) at.fail(shown(json) + " is not a boolean", "allowed: true, false");
    out = json.get<bool>();
  } else if constexpr (std::integral<T>) {
    if (!json.is_number_integer()) at.fail(shown(json) + " is not a whole number");
    const double value = json.get<double>();
    check_range<T>(value, json, at, field);
    if (value < static_cast<double>(std::numeric_limits<T>::min()) ||
        value >= static_cast<double>(std::numeric_limits<T>::max())) {
      at.fail(shown(json) + " does not fit");
    }
    out = json.get<T>();
  } else if constexpr (std::same_as<T, double>) {
    if (!json.is_number()) at.fail(shown(json) + " is not a number");
    out = json.get<double>();
    check_range<T>(out, json, at, field);
  } else if constexpr (std::same_as<T, std::string>) {
    if (!json.is_string()) at.fail(shown(json) + " is not a string");
    out = json.get<std::string>();
    check_length(out, field.longest, at);
  } else if constexpr (UnitQuantity<T>) {
    const auto value =
        json.is_string() ? UnitText<T>::parse(json.get_ref<const std::string&>()) : std::nullopt;
    if (!value) {
      at.fail(shown(json) + " is not a quantity with its unit",
              fmt::format("allowed: text like \"{}\"", UnitText<T>::kExample));
    }
    check_range<T>(static_cast<double>(value->value), json, at, field);
    out = *value;
  } else if constexpr (NamedEnum<T>) {
    const auto names = all_names(T{});
    if (!json.is_string()) at.fail(shown(json) + " is not a name", allowed_names("", names));
    const auto& text = json.get_ref<const std::string&>();
    const auto value = enum_from<T>(text);
    if (!value) at.fail(shown(json) + " is not known", allowed_names(text, names));
    out = *value;
  } else if constexpr (IsVector<T>::value) {
    if (!json.is_array()) at.fail(shown(json) + " is not an array");
    if (json.size() > field.most)
      at.fail(fmt::format("{} elements are too many", json.size()), fmt::format("allowed: {}", field.most));
    out.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      typename T::value_type element{};
      read_value(json[i], at.child(i), field, element);
      if constexpr (std::equality_comparable<typename T::value_type>) {
        if (field.distinct && std::find(out.begin(), out.end(), element) != out.end())
          at.child(i).fail(shown(json[i]) + " is there twice", "allowed: each value once");
      }
      out.push_back(std::move(element));
    }
  } else if constexpr (IsOptional<T>::value) {
    if (json.is_null()) {
      out.reset();
    } else {
      typename T::value_type value{};
      read_value(json, at, field, value);
      out = std::move(value);
    }
  } else if constexpr (std::same_as<T, std::map<std::string, std::string>>) {
    if (!json.is_object()) at.fail(shown(json) + " is not an object of strings");
    if (json.size() > limits::kMostRemarks)
      at.fail(fmt::format("{} entries are too many", json.size()),
              fmt::format("allowed: {}", limits::kMostRemarks));
    out.clear();
    for (const auto& [key, value] : json.items()) {
      check_length(key, limits::kLongestText, at.child(key));
      read_value(value, at.child(key), field, out[key]);
    }
  } else {
    static_assert(Described<T>);
    read_fields_into(json, at, out);
  }
}

// --- writing --------------------------------------------------------------------------------------
template <class T>
Json write_value(const T& value);

struct FieldWriter {
  Json object = Json::object();
  template <class T>
  void operator()(const Field& field, T& value) {
    if constexpr (IsOptional<T>::value) {
      if (!value) return;
    }
    object[field.name] = write_value(value);
  }
};

template <Described T>
Json write_fields(const T& value) {
  FieldWriter writer;
  describe(writer, const_cast<T&>(value));  // NOLINT: a writer only reads.
  return std::move(writer.object);
}

template <class T>
Json write_value(const T& value) {
  if constexpr (UnitQuantity<T>) {
    return to_text(value);
  } else if constexpr (NamedEnum<T>) {
    return std::string(name_of(value));
  } else if constexpr (IsVector<T>::value) {
    Json array = Json::array();
    for (const auto& element : value) array.push_back(write_value(element));
    return array;
  } else if constexpr (IsOptional<T>::value) {
    return value ? write_value(*value) : Json(nullptr);
  } else if constexpr (Described<T>) {
    return write_fields(value);
  } else {
    return Json(value);
  }
}

// --- JSON Schema (draft 2020-12) ------------------------------------------------------------------
template <class T>
Json schema_value(const Field& field);

struct FieldSchema {
  Json properties = Json::object();
  Json required = Json::array();
  template <class T>
  void operator()(const Field& field, T& value) {
    Json schema = schema_value<T>(field);
    schema["description"] = field.help;
    // JSON Schema knows no order of unit strings.
    if constexpr (UnitQuantity<T>) {
      if (const std::string range = range_text<T>(field); !range.empty())
        schema["description"] = fmt::format("{} ({})", field.help, range);
    }
    if constexpr (!Described<T> && !IsVector<T>::value && !IsOptional<T>::value) {
      if (!field.required) schema["default"] = write_value(value);
    }
    if (field.required) required.push_back(field.name);
    properties[field.name] = std::move(schema);
  }
};

template <Described T>
Json schema_fields() {
  T defaults{};
  FieldSchema schema;
  describe(schema, defaults);
  for (const char* name : {"$schema", "schema", "comment"}) {
    if (!schema.properties.contains(name)) schema.properties[name] = {{"type", "string"}};
  }
  Json out = {
      {"type", "object"}, {"properties", std::move(schema.properties)}, {"additionalProperties", false}};
  if (!schema.required.empty()) out["required"] = std::move(schema.required);
  if constexpr (CustomRead<T>) {
    for (const char* name : base_fields(defaults)) out["properties"][name] = {{"type", "string"}};
  }
  if constexpr (CustomRead<T> || AlsoNamed<T>) {
    return Json{{"anyOf", Json::array({Json{{"type", "string"}}, std::move(out)})}};
  }
  return out;
}

template <class T>
Json schema_value(const Field& field) {
  Json out = Json::object();
  if constexpr (std::same_as<T, bool>) {
    out["type"] = "boolean";
  } else if constexpr (std::integral<T> || std::same_as<T, double>) {
    out["type"] = std::integral<T> ? "integer" : "number";
    if (std::isfinite(field.min)) out["minimum"] = field.min;
    if (std::isfinite(field.max)) out["maximum"] = field.max;
  } else if constexpr (std::same_as<T, std::string>) {
    out["type"] = "string";
    out["maxLength"] = field.longest;
  } else if constexpr (UnitQuantity<T>) {
    out["type"] = "string";
    out["examples"] = Json::array({UnitText<T>::kExample});
  } else if constexpr (NamedEnum<T>) {
    out["enum"] = all_names(T{});
  } else if constexpr (IsVector<T>::value) {
    out["type"] = "array";
    out["maxItems"] = field.most;
    if (field.distinct) out["uniqueItems"] = true;
    out["items"] = schema_value<typename T::value_type>(field);
  } else if constexpr (IsOptional<T>::value) {
    return schema_value<typename T::value_type>(field);
  } else if constexpr (Described<T>) {
    return schema_fields<T>();
  } else {
    out["type"] = "object";
    out["maxProperties"] = limits::kMostRemarks;
    out["additionalProperties"] = {{"type", "string"}, {"maxLength", limits::kLongestText}};
  }
  return out;
}

// --- compiled once --------------------------------------------------------------------------------
// What is long to compile for the types of files is in core/fields_of_*.cpp alone, with an empty `where`. A
// header that declares such a type ends in ORRERY_FIELDS(extern, T).
#define ORRERY_FIELDS(where, T)                                         \
  where template void read_fields_into(const Json&, const Cursor&, T&); \
  where template T read_fields<T>(const Json&, const Cursor&);          \
  where template Json write_fields(const T&);                           \
  where template Json schema_fields<T>()

}  // namespace orrery
