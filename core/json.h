// SPDX-License-Identifier: Apache-2.0
//
// JSON in and out. Reading is bounded (size, depth) and answers malformed text with a byte offset;
// writing goes to a temporary name beside the target and is renamed, so a reader never sees half a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace orrery {

using Json = nlohmann::ordered_json;

inline constexpr std::int64_t kLargestInputFile = 64 << 20;
inline constexpr int kDeepestInput = 64;

// Throws InputError naming `file` and the byte offset.
Json parse_json(std::string_view text, const std::string& file, std::int64_t largest = kLargestInputFile);
Json load_json(const std::filesystem::path& path, std::int64_t largest = kLargestInputFile);

// Whole file as text; throws InputError when it is missing, unreadable or larger than `largest`.
std::string load_text(const std::filesystem::path& path, std::int64_t largest = kLargestInputFile);

// Throws Error when the file cannot be written; the target is untouched then.
void save_text(const std::filesystem::path& path, std::string_view text);

}  // namespace orrery
