// SPDX-License-Identifier: Apache-2.0
#include "exec/blame.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace orrery::exec {

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, " "));
}

namespace {

template <class T>
bool contains(const std::vector<T>& v, T x) {
  return std::find(v.begin(), v.end(), x) != v.end();
}

}  // namespace

std::vector<std::size_t> followed(const std::vector<Incomplete>& calls, std::size_t late) {
  std::vector<std::size_t> reached{late};
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (const std::int64_t r : calls[reached[i]].missing) {
      for (std::size_t c = 0; c < calls.size(); ++c) {
        if (contains(calls[c].present, r) && !contains(reached, c)) reached.push_back(c);
      }
    }
  }
  return reached;
}

Blame blame(const std::vector<Incomplete>& calls, std::size_t late, const std::set<std::int64_t>& silent,
            std::chrono::milliseconds deadline) {
  const std::vector<std::size_t> reached = followed(calls, late);
  const auto waits = [&](std::int64_t r) {
    return std::any_of(calls.begin(), calls.end(),
                       [&](const Incomplete& c) { return contains(c.present, r); });
  };
  const auto sentence = [&](const Incomplete& call, const std::vector<std::int64_t>& ranks,
                            const char* more) {
    return fmt::format("{} did not come to \"{}\" (call {}) within {} ms{}", ranks_text(ranks), call.name,
                       call.number, deadline.count(), more);
  };
  const auto culprits = [&](const Incomplete& call, auto guilty) {
    std::vector<std::int64_t> out;
    std::copy_if(call.missing.begin(), call.missing.end(), std::back_inserter(out), guilty);
    return out;
  };
  for (const std::size_t c : reached) {
    const auto ranks = culprits(calls[c], [&](std::int64_t r) { return silent.count(r) > 0; });
    if (!ranks.empty())
      return {
          sentence(calls[c], ranks,
                   ranks.size() == 1 ? ": its process does not answer" : ": their processes do not answer")};
  }
  for (const std::size_t c : reached) {
    const auto ranks = culprits(calls[c], [&](std::int64_t r) { return !waits(r); });
    if (!ranks.empty()) return {sentence(calls[c], ranks, "")};
  }
  return {sentence(calls[late], calls[late].missing, ""), false};
}

}  // namespace orrery::exec
