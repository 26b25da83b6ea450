// SPDX-License-Identifier: Apache-2.0
#include "planner/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace orrery::planner {
namespace {

std::vector<std::string> words_of(const Plan& p) {
  std::istringstream in(short_name(p));
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

// "mb1x128" and "mb2x64" say the same of two plans, "sp" says something of one.
std::string subject(const std::string& word) {
  return word.substr(0, std::min(word.find_first_of("0123456789/"), word.size()));
}

}  // namespace

std::size_t best_of_families_first(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.ranked < b.ranked; });
  std::set<Degrees> seen;
  std::vector<Candidate> first, others;
  for (Candidate& c : candidates) {
    const bool leads = seen.insert(degrees_of(c.plan)).second;
    (leads ? first : others).push_back(std::move(c));
  }
  const std::size_t leading = first.size();
  candidates = std::move(first);
  candidates.insert(candidates.end(), others.begin(), others.end());
  return leading;
}

std::vector<Ranked> folded(std::vector<Ranked> plans) {
  std::vector<Ranked> out;
  for (Ranked& r : plans) {
    const auto family = std::find_if(out.begin(), out.end(), [&](const Ranked& head) {
      return degrees_of(head.plan) == degrees_of(r.plan);
    });
    if (family == out.end())
      out.push_back(std::move(r));
    else
      family->variants.push_back({r.plan, r.predicted.step_time_s});
  }
  return out;
}

std::string differences(const Plan& plan, const Plan& than) {
  const std::vector<std::string> own = words_of(plan), others = words_of(than);
  const auto has = [](const std::vector<std::string>& words, const auto& is) {
    return std::any_of(words.begin(), words.end(), is);
  };
  std::vector<std::string> out;
  for (const std::string& word : own) {
    if (!has(others, [&](const std::string& o) { return o == word; })) out.push_back(word);
  }
  // A schedule or a placement stands in another one's place; what has nothing in its place is gone.
  std::vector<std::string> gone;
  for (const std::string& word : others) {
    if (!has(own, [&](const std::string& o) { return subject(o) == subject(word); }))
      gone.push_back("no " + word);
  }
  if (gone.size() > out.size()) out.insert(out.end(), gone.begin(), gone.end());
  return fmt::format("{}", fmt::join(out, " "));
}

}  // namespace orrery::planner
