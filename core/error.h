// SPDX-License-Identifier: Apache-2.0
//
// Two kinds of failure cross a library boundary, both as exceptions; only the command line prints them
// and picks the exit code.
//
//   InputError   what somebody wrote is wrong: which file, where in it, the value, what is allowed
//   Error        anything else that stops a command (a file cannot be written, a rank died)
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kInvalidInput = 3,
  kNoPlanFits = 4,
  kOutOfTolerance = 5,
  kInterrupted = 130,
  kTerminated = 143,
};

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InputError : public Error {
 public:
  // `where` is a JSON pointer ("/cluster/nodes"), "line 3, column 7" or "byte 17"; `allowed` may be empty.
  // What the message has of the input is made printable (core/text.h).
  InputError(std::string file, std::string where, std::string problem, std::string allowed = {});
  const std::string& file() const { return file_; }
  const std::string& where() const { return where_; }

 private:
  std::string file_;
  std::string where_;
};

// The candidate with the smallest edit distance, when that is close enough to be a likely slip.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// "allowed: a, b, c (did you mean b?)"; of many candidates, the nearest.
std::string allowed_names(std::string_view name, std::span<const std::string> candidates);

}  // namespace orrery
