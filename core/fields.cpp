// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"

namespace orrery {

Cursor Cursor::child(std::string_view key) const {
  std::string escaped;
  for (const char c : key) {
    if (c == '~')
      escaped += "~0";
    else if (c == '/')
      escaped += "~1";
    else if (static_cast<unsigned char>(c) < 0x20)
      escaped += '?';
    else
      escaped += c;
    if (escaped.size() > 80) break;
  }
  return {file, pointer + "/" + escaped};
}

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text;
  if (value.is_object())
    text = "{...}";
  else if (value.is_array())
    text = "[...]";
  else
    text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

void FieldReader::reject_unknown() const {
  for (const auto& [key, value] : object_.items()) {
    if (key == "$schema" || key == "schema" || key == "comment") continue;
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      at_.child(key).fail("there is no such field", allowed_names(key, known_));
    }
  }
}

void check_range(double value, const Json& json, const Cursor& at, const Field& field) {
  if (value >= field.min && value <= field.max) return;
  std::string allowed = "allowed: ";
  if (std::isfinite(field.min)) allowed += fmt::format("at least {}", field.min);
  if (std::isfinite(field.min) && std::isfinite(field.max)) allowed += ", ";
  if (std::isfinite(field.max)) allowed += fmt::format("at most {}", field.max);
  at.fail(shown(json) + " is out of range", allowed);
}

}  // namespace orrery
