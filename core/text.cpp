// SPDX-License-Identifier: Apache-2.0
#include "core/text.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace orrery {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // zero: not UTF-8
};

// The first character of a text that is not empty (RFC 3629: shortest forms only, no surrogates).
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

// Controls (C0, DEL, C1), line separators, and marks that change the direction of text.
bool is_hidden(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200e && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff || c == 0xfffe ||
         c == 0xffff;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_of(text);
    if (c.bytes == 0) return false;
    text.remove_prefix(c.bytes);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  const auto end = std::back_inserter(out);
  while (!text.empty()) {
    const Character c = first_of(text);
    if (c.bytes == 0)
      fmt::format_to(end, "\\x{:02x}", static_cast<std::uint8_t>(text[0]));
    else if (c.code == '\n')
      out += "\\n";
    else if (c.code == '\t')
      out += "\\t";
    else if (is_hidden(c.code) && c.code < 0x80)
      fmt::format_to(end, "\\x{:02x}", c.code);
    else if (is_hidden(c.code))
      fmt::format_to(end, "\\u{{{:04x}}}", c.code);
    else
      out += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes == 0 ? 1 : c.bytes);
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  return std::string(text.substr(0, most)) + "...";
}

}  // namespace orrery
