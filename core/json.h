// SPDX-License-Identifier: Apache-2.0
//
// JSON text in and out. Numbers keep their text form's precision (64-bit integers, doubles); order of keys
// is kept, so that files that we write back read as their authors left them.
//
// What is read is bounded: bytes, levels of nesting, and values, because a value takes up to 50 bytes of
// memory for the two that its text may have. A key may stand once in an object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace orrery {

using Json = nlohmann::ordered_json;

inline constexpr std::int64_t kLargestInputFile = 64 << 20;
inline constexpr std::size_t kDeepestInput = 64;
inline constexpr std::int64_t kBytesPerValue =
    16;  // a text of n bytes has at most n / 16 values, of `largest`

// Throws InputError naming `file` and the line and column, or for a key that stands twice its pointer.
Json parse_json(std::string_view text, const std::string& file, std::int64_t largest = kLargestInputFile);
Json load_json(const std::filesystem::path& path, std::int64_t largest = kLargestInputFile);

// Adds a key that `object` does not have yet. `object[key]` would look through all of its keys first.
void append(Json& object, std::string key, Json value);

// The JSON pointer to `key` of what `pointer` leads to: "/a" and "b/c" are "/a/b~1c". Long keys are cut.
std::string pointer_to(const std::string& pointer, std::string_view key);

// Whole file as text; throws InputError when it is missing, unreadable or larger than `largest`.
std::string load_text(const std::filesystem::path& path, std::int64_t largest = kLargestInputFile);

// Replaces a regular file as a whole: it has the old text or the new one. What is no regular file itself (a
// device, a pipe, a symbolic link) is written where it is. Throws Error when that fails; a regular file is
// untouched then.
void save_text(const std::filesystem::path& path, std::string_view text);

// A value on lines of at most 100 columns where its elements allow it: arrays of plain values, and elements
// of arrays that fit, are each on one. Text that is not UTF-8 is replaced.
std::string laid_out(const Json& json);
// The same into a file, as save_text.
void save_json(const std::filesystem::path& path, const Json& json);

}  // namespace orrery
