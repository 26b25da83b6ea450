// SPDX-License-Identifier: Apache-2.0
#include "sim/collective/nccl_tests.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

namespace orrery::sim {
namespace {

constexpr std::pair<const char*, CollectiveKind> kTests[] = {
    {"all_reduce", CollectiveKind::kAllReduce},
    {"all_gather", CollectiveKind::kAllGather},
    {"reduce_scatter", CollectiveKind::kReduceScatter},
    {"alltoall", CollectiveKind::kAllToAll},
    {"broadcast", CollectiveKind::kBroadcast},
    {"gather", CollectiveKind::kGather},
    {"scatter", CollectiveKind::kScatter},
    {"reduce", CollectiveKind::kReduce}};

std::optional<CollectiveKind> test_named(std::string_view text) {
  for (const auto& [name, kind] : kTests) {
    if (text.find(std::string(name) + "_perf") != std::string_view::npos) return kind;
  }
  return std::nullopt;
}

std::optional<double> number(const std::string& word) {
  double v = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), v);
  if (error != std::errc{} || end != word.data() + word.size() || !std::isfinite(v)) return std::nullopt;
  return v;
}

class NcclTestsReader {
 public:
  NcclTestsReader(const std::string& file, std::optional<CollectiveKind> kind, std::int64_t ranks)
      : file_(file), kind_(kind), ranks_(ranks) {}

  void read_text(const std::string& text) {
    std::istringstream in(text);
    std::int64_t line_number = 0, ranks = 0;
    for (std::string line; std::getline(in, line);) {
      ++line_number;
      std::istringstream words_in(line);
      std::vector<std::string> words;
      for (std::string word; words_in >> word;) words.push_back(word);
      if (words.empty()) continue;
      if (words[0] == "#") {
        ranks += words.size() > 2 && words[1] == "Rank";
        if (const auto test = test_named(line)) kind_ = test;
        continue;
      }
      // size count type redop root time algbw busbw #wrong ..; some tests have no redop or no root.
      const auto bytes = number(words[0]);
      if (!bytes) continue;
      if (words.size() < 8) fail("line " + std::to_string(line_number), "too few columns");
      std::size_t at = 3;  // after size, count and type
      while (at < words.size() && words[at].find('.') == std::string::npos) ++at;
      const auto time = at < words.size() ? number(words[at]) : std::nullopt;
      if (!time) fail("line " + std::to_string(line_number), "has no time");
      add("line " + std::to_string(line_number), *bytes, *time);
    }
    if (ranks > 0) ranks_ = ranks;
  }

  void read_json(const std::string& text) {
    const Json json = parse_json(text, file_);
    const Cursor at{file_, ""};
    if (!json.is_object() || !json.contains("results") || !json["results"].is_array())
      at.fail("has no results", "allowed: what nccl-tests writes with -J");
    if (const auto test = test_named(text)) kind_ = test;
    if (json.contains("devices") && json["devices"].is_array() && !json["devices"].empty())
      ranks_ = static_cast<std::int64_t>(json["devices"].size());
    for (std::size_t i = 0; i < json["results"].size(); ++i) {
      const Json& r = json["results"][i];
      const Cursor row = at.child("results").child(i);
      if (!r.is_object() || !r.contains("size") || !r["size"].is_number() || !r.contains("out_of_place") ||
          !r["out_of_place"].is_object() || !r["out_of_place"].contains("time") ||
          !r["out_of_place"]["time"].is_number())
        row.fail("has no size or no out_of_place/time");
      add(row.pointer, r["size"].get<double>(), r["out_of_place"]["time"].get<double>());
    }
  }

  CollectiveCurve take() {
    if (!kind_) fail("", "does not say which collective it is", "give --collective");
    if (ranks_ < 2 || ranks_ > 1024)
      fail("", "does not say how many ranks took part", "give --ranks, 2 to 1024");
    if (times_.empty()) fail("", "has no measurements");
    CollectiveCurve out;
    out.collective = *kind_;
    out.ranks = ranks_;
    for (const auto& [bytes, us] : times_) {
      out.bytes.push_back(Bytes{bytes});
      out.times.push_back(from_seconds(us * 1e-6));
    }
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& where, const std::string& problem,
                         const std::string& allowed = {}) const {
    throw InputError(file_, where, problem, allowed);
  }

  void add(const std::string& where, double bytes, double us) {
    if (bytes == 0) return;  // below a rank's element
    if (!(bytes >= 1 && bytes <= 1e15) || !(us > 0 && us <= 1e12))
      fail(where, fmt::format("{} bytes in {} us", bytes, us), "allowed: positive sizes and times");
    // The same size again: the faster run.
    const auto [found, added] = times_.try_emplace(static_cast<std::int64_t>(bytes), us);
    found->second = std::min(found->second, us);
  }

  const std::string& file_;
  std::optional<CollectiveKind> kind_;
  std::int64_t ranks_;
  std::map<std::int64_t, double> times_;
};

}  // namespace

CollectiveCurve read_nccl_tests(const std::string& text, const std::string& file,
                                std::optional<CollectiveKind> kind, std::int64_t ranks) {
  NcclTestsReader reader(file, kind, ranks);
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    reader.read_json(text);
  } else {
    reader.read_text(text);
  }
  return reader.take();
}

}  // namespace orrery::sim
