// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/text.h"

namespace orrery {
namespace {

std::string compose(const std::string& file, const std::string& where, const std::string& problem,
                    const std::string& allowed) {
  std::string text = file.empty() ? std::string() : file + ": ";
  text += where.empty() ? std::string("/") : where;
  text += ": " + problem;
  if (!allowed.empty()) text += "; " + allowed;
  return printable(text);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

void sort_by_distance(std::string_view name, std::vector<std::string>& candidates) {
  std::vector<std::pair<std::size_t, std::string>> by_distance;
  for (std::string& c : candidates) by_distance.emplace_back(edit_distance(name, c), std::move(c));
  std::stable_sort(by_distance.begin(), by_distance.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(by_distance.begin(), by_distance.end(), candidates.begin(),
                 [](auto& c) { return std::move(c.second); });
}

constexpr std::size_t kLongestComparedName = 64;  // Keeps the answer to hostile input cheap.
constexpr std::size_t kNamesShown = 24;

}  // namespace

InputError::InputError(std::string file, std::string where, std::string problem, std::string allowed)
    : Error(compose(file, where, problem, allowed)), file_(std::move(file)), where_(std::move(where)) {}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > kLongestComparedName) return {};
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string allowed_names(std::string_view name, std::span<const std::string> candidates) {
  std::vector<std::string> shown(candidates.begin(), candidates.end());
  if (shown.size() > kNamesShown) {
    if (name.size() <= kLongestComparedName) sort_by_distance(name, shown);
    shown.resize(kNamesShown);
  }
  std::string text = fmt::format("allowed: {}", fmt::join(shown, ", "));
  if (shown.size() < candidates.size()) {
    text += fmt::format(" and {} more", candidates.size() - shown.size());
  }
  if (const std::string best = nearest_name(name, candidates); !best.empty()) {
    text += fmt::format(" (did you mean \"{}\"?)", best);
  }
  return text;
}

}  // namespace orrery
