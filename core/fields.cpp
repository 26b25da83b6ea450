// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"

#include "core/text.h"

namespace orrery {

Cursor Cursor::child(std::string_view key) const {
  return {file, pointer_to(pointer, key)};
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
  return shortened(text, kLongest);
}

void FieldReader::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (foreign_ || key == "$schema" || key == "schema" || key == "comment") continue;
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      at_.child(key).fail("there is no such field", allowed_names(key, known_));
    }
  }
  if (!missing_.empty()) at_.fail(missing_);
}

void check_length(const std::string& text, std::size_t longest, const Cursor& at) {
  if (text.size() > longest)
    at.fail(fmt::format("{} bytes of text", text.size()), fmt::format("allowed: at most {}", longest));
}

}  // namespace orrery
