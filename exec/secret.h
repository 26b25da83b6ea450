// SPDX-License-Identifier: Apache-2.0
//
// The secret of a job over TCP: all ranks know it, and nobody else does. A rank and rank 0 prove to each
// other that they know it (HMAC-SHA-256, RFC 2104) without sending it. Internal to exec/ and cli/.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "exec/launch.h"

namespace orrery::exec {

using Nonce = std::array<std::byte, 32>;   // random, used once
using Digest = std::array<std::byte, 32>;  // of HMAC-SHA-256

class Secret {
 public:
  // 16 to 4096 characters. Throws Error that names `source` when there are fewer or more.
  Secret(std::string text, const std::string& source);
  static Secret random();

  const std::string& text() const { return text_; }
  Digest sign(std::span<const std::byte> message) const;
  // Takes the same time wherever the digests differ.
  bool verify(std::span<const std::byte> message, const Digest& digest) const;

 private:
  std::string text_;
};

Nonce random_nonce();

// The user's secret: the text in ORRERY_JOB_SECRET, or the first line of `file` unless its name is empty.
// Throws InputError when both are given, when others may read the file, or when the secret is too short.
std::optional<Secret> read_secret(const std::string& file, const Environment& environment);

// The text of a file of at most 8 KiB that belongs to this user (or to root) and that nobody else may read.
// Throws Error.
std::string read_private_file(const std::filesystem::path& file);
// Replaces a file, whole or not at all; only this user may read it. Throws Error.
void write_private_file(const std::filesystem::path& file, const std::string& text);

}  // namespace orrery::exec
