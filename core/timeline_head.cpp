// SPDX-License-Identifier: Apache-2.0
#include "core/timeline_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/leb128.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostRanks = 1 << 24;

const Json& required(const Json& object, const char* key, const Cursor& at) {
  const auto found = object.find(key);
  if (found == object.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  return *found;
}

// {"compute": [names of ops], ..}: what each op is, by name.
template <class Kind>
void read_kinds(const Json& json, const Cursor& at, Interner& names, const TimelineHead& t,
                std::vector<Kind>& kinds) {
  if (!json.is_object()) at.fail(shown(json) + " is not an object of lists of ops");
  for (const auto& [key, ops] : json.items()) {
    Kind kind{};
    read_value(Json(key), at.child(key), Field{key.c_str(), ""}, kind);
    if (!ops.is_array()) at.child(key).fail(shown(ops) + " is not a list of ops");
    for (std::size_t i = 0; i < ops.size(); ++i) {
      std::string name;
      read_value(ops[i], at.child(key).child(i), Field{"op", ""}, name);
      const auto index = static_cast<std::size_t>(names(name));
      kinds.resize(t.names.size());
      kinds[index] = kind;
    }
  }
}
template <class Kind>
Json names_by_kind(const std::vector<Kind>& kinds, const std::vector<std::string>& names) {
  Json out = Json::object();
  for (std::size_t i = 0; i < kinds.size(); ++i) out[std::string(name_of(kinds[i]))].push_back(names[i]);
  return out;
}

void read_payloads(const Json& payloads, const Cursor& at, Interner& names, TimelineHead& t) {
  if (!payloads.is_object()) at.fail(shown(payloads) + " is not an object of bytes by op");
  for (const auto& [name, bytes] : payloads.items()) {
    const auto index = static_cast<std::size_t>(names(name));
    t.payloads.resize(t.names.size());
    read_value(bytes, at.child(name), Field{"bytes", "", 0, 1e18}, t.payloads[index]);
  }
  if (!t.payloads.empty()) t.payloads.resize(t.names.size());
}

void read_axes(const Json& axes, const Cursor& at, TimelineHead& t) {
  if (!axes.is_object()) at.fail(shown(axes) + " is not an object of sizes by axis");
  std::int64_t ranks = 1;
  for (const auto& [name, size] : axes.items()) {
    Axis axis{name, 1};
    read_value(size, at.child(name), Field{"size", "", 1, static_cast<double>(kMostRanks)}, axis.size);
    ranks *= axis.size;
    if (ranks > kMostRanks) at.fail("has too many ranks", fmt::format("allowed: {}", kMostRanks));
    t.axes.push_back(std::move(axis));
  }
}

// [[process, how many ranks], ...] in order of rank.
void read_process_of(const Json& runs, const Cursor& at, TimelineHead& t) {
  if (!runs.is_array()) at.fail(shown(runs) + " is not a list of [process, ranks]");
  std::int64_t ranks = 1;
  for (const Axis& a : t.axes) ranks *= a.size;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::int64_t> run;
    read_value(runs[i], at.child(i), Field{"run", "", 0, static_cast<double>(kMostRanks)}, run);
    if (run.size() != 2) at.child(i).fail(shown(runs[i]) + " is not [process, ranks]");
    if (static_cast<std::int64_t>(t.process_of.size()) + run[1] > ranks)
      at.child(i).fail("is for more ranks than the axes have", fmt::format("allowed: {}", ranks));
    t.process_of.insert(t.process_of.end(), static_cast<std::size_t>(run[1]),
                        static_cast<std::int32_t>(run[0]));
  }
  if (static_cast<std::int64_t>(t.process_of.size()) != ranks)
    at.fail(fmt::format("is for {} ranks", t.process_of.size()), fmt::format("allowed: {}", ranks));
}

// {"groups": [[ranks], ...], "tokens": [[group, layer, micro-batch, start, end, tokens by expert ...], ...]},
// times in picoseconds.
constexpr std::size_t kBeforeTokens = 5;  // numbers
Json experts_json(const ExpertCounts& experts) {
  Json rows = Json::array();
  for (const ExpertTokens& e : experts.of) {
    Json row = {e.group, e.layer, e.micro_batch, e.start.value, e.end.value};
    for (const std::int64_t n : e.tokens) row.push_back(n);
    rows.push_back(std::move(row));
  }
  Json out = {{"groups", experts.groups}, {"tokens", std::move(rows)}};
  if (experts.left_out > 0) out["left_out"] = experts.left_out;
  return out;
}

const Json& list_field(const Json& object, const char* key, const Cursor& at) {
  const Json& list = required(object, key, at);
  if (!list.is_array()) at.child(key).fail(shown(list) + " is not a list");
  return list;
}

ExpertTokens read_tokens(const Json& row, const Cursor& at, const ExpertCounts& experts) {
  std::vector<std::int64_t> n;
  read_value(row, at, Field{.name = "tokens", .help = "", .min = 0, .max = 1e18, .most = 1 << 17}, n);
  if (n.size() <= kBeforeTokens)
    at.fail(shown(row) + " is too short", "allowed: [group, layer, micro-batch, start, end, tokens ...]");
  constexpr std::int64_t kMostTokens = 10'000'000'000'000;
  for (std::size_t i = 0; i < n.size(); ++i) {
    const bool time = i == 3 || i == 4;
    const std::int64_t most = i < kBeforeTokens ? kMostIndex : kMostTokens;
    if (!time && n[i] > most)
      at.child(i).fail(fmt::format("{} is too large", n[i]), fmt::format("allowed: 0 to {}", most));
  }
  if (std::cmp_greater_equal(n[0], experts.groups.size()))
    at.child(std::size_t{0})
        .fail(fmt::format("{} is no group", n[0]),
              fmt::format("allowed: less than {}", experts.groups.size()));
  if (n[4] < n[3]) at.child(std::size_t{4}).fail("the end is before the start");
  ExpertTokens out{static_cast<std::int32_t>(n[0]),
                   static_cast<std::int32_t>(n[1]),
                   static_cast<std::int32_t>(n[2]),
                   Time{n[3]},
                   Time{n[4]},
                   {n.begin() + kBeforeTokens, n.end()}};
  const std::size_t ranks = experts.groups[static_cast<std::size_t>(out.group)].size();
  if (out.tokens.size() % ranks != 0)
    at.fail(fmt::format("has {} experts", out.tokens.size()),
            fmt::format("allowed: a multiple of the {} ranks of its group", ranks));
  return out;
}

void read_experts(const Json& json, const Cursor& at, TimelineHead& t) {
  constexpr std::size_t kMostGroupedRanks = 1 << 20;
  if (!json.is_object()) at.fail(shown(json) + " is not an object of groups and tokens");
  const Json& groups = list_field(json, "groups", at);
  std::size_t grouped = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Cursor here = at.child("groups").child(i);
    std::vector<std::int64_t> ranks;
    read_value(groups[i], here,
               Field{.name = "ranks",
                     .help = "",
                     .min = 0,
                     .max = static_cast<double>(kMostRanks - 1),
                     .most = 1 << 16},
               ranks);
    if (ranks.empty()) here.fail("has no ranks");
    grouped += ranks.size();
    if (grouped > kMostGroupedRanks)
      here.fail("are more ranks than are read", fmt::format("allowed: {} of all groups", kMostGroupedRanks));
    t.experts.groups.push_back(std::move(ranks));
  }
  const Json& rows = list_field(json, "tokens", at);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Cursor here = at.child("tokens").child(i);
    t.experts.of.push_back(read_tokens(rows[i], here, t.experts));
    count += std::ssize(t.experts.of.back().tokens);
    if (count > ExpertCounts::kMost)
      here.fail("are more numbers of tokens than are read", fmt::format("allowed: {}", ExpertCounts::kMost));
  }
  if (json.contains("left_out"))
    t.experts.left_out = static_cast<std::int32_t>(integer_field(json, "left_out", kMostIndex, at));
  t.experts.tidy();
}

}  // namespace

std::string put_in_order(Slice& s) {
  constexpr Time kRounding{1'000'000};  // traces are in microseconds
  const auto wrong = [](const char* first, Time a, const char* then, Time b) {
    return fmt::format("{} at {} is after {} at {}", first, format(a), then, format(b));
  };
  if (s.ready > s.start + kRounding) return wrong("ready", s.ready, "the start", s.start);
  if (s.start > s.active + kRounding) return wrong("the start", s.start, "active", s.active);
  if (s.active > s.end + kRounding) return wrong("active", s.active, "the end", s.end);
  if (s.start > s.end + kRounding) return wrong("the start", s.start, "the end", s.end);
  s.end = std::max(s.end, s.start);
  s.active = std::clamp(s.active, s.start, s.end);
  s.ready = std::min(s.ready, s.start);
  return {};
}

void name_places(Timeline& t, const Cursor& at) {
  std::int32_t processes = 0, streams = 0;
  for (const Slice& s : t.slices) {
    processes = std::max(processes, s.rank + 1);
    streams = std::max(streams, s.stream + 1);
  }
  name_places(t, processes, streams, at);
}

void name_places(TimelineHead& t, std::int32_t processes, std::int32_t streams, const Cursor& at) {
  constexpr std::int32_t kMostProcesses = 1 << 20;
  processes = std::max(processes, static_cast<std::int32_t>(t.rank_labels.size()));
  streams = std::max(streams, static_cast<std::int32_t>(t.streams.size()));
  for (const MemoryPoint& p : t.memory) processes = std::max(processes, p.rank + 1);
  if (processes > kMostProcesses)
    at.fail(fmt::format("has slices of process {}", processes - 1),
            fmt::format("allowed: 0 to {}", kMostProcesses - 1));
  for (auto i = static_cast<std::int32_t>(t.rank_labels.size()); i < processes; ++i)
    t.rank_labels.push_back(fmt::format("rank {}", i));
  for (auto i = static_cast<std::int32_t>(t.streams.size()); i < streams; ++i)
    t.streams.push_back(fmt::format("stream {}", i));
  for (const std::int32_t p : t.process_of) {
    if (p < 0 || p >= processes)
      at.fail(fmt::format("has ranks of process {}", p), fmt::format("allowed: 0 to {}", processes - 1));
  }
  const std::int64_t ranks = t.process_of.empty() ? processes : std::ssize(t.process_of);
  for (const std::vector<std::int64_t>& group : t.experts.groups) {
    for (const std::int64_t rank : group) {
      if (rank >= ranks)
        at.fail(fmt::format("has experts of rank {}", rank), fmt::format("allowed: 0 to {}", ranks - 1));
    }
  }
}

std::string text_field(const Json& object, const char* key, const Cursor& at) {
  std::string out;
  read_value(required(object, key, at), at.child(key), Field{key, ""}, out);
  return out;
}

std::int64_t integer_field(const Json& object, const char* key, std::int64_t most, const Cursor& at) {
  std::int64_t out = 0;
  read_value(required(object, key, at), at.child(key), Field{key, "", 0, static_cast<double>(most)}, out);
  return out;
}

std::vector<std::string> text_list(const Json& object, const char* key, const Cursor& at) {
  constexpr std::size_t kMost = 1 << 24;  // names of ops, which are as many as layers times ops of a layer
  std::vector<std::string> out;
  read_value(required(object, key, at), at.child(key), Field{.name = key, .help = "", .most = kMost}, out);
  return out;
}

Json timeline_head(const TimelineHead& t) {
  Json head = {{"source", t.source}, {"program_hash", std::to_string(t.program_hash)}};
  head["bounds"] = names_by_kind(t.bounds, t.names);
  if (!t.classes.empty()) head["classes"] = names_by_kind(t.classes, t.names);
  if (!t.payloads.empty()) {
    Json& payloads = head["payloads"] = Json::object();
    for (std::size_t i = 0; i < t.payloads.size(); ++i) {
      if (t.payloads[i] > 0) append(payloads, t.names[i], t.payloads[i]);  // names are distinct
    }
  }
  for (const Axis& a : t.axes) head["axes"][a.name] = a.size;
  if (t.node_ranks > 0) head["node_ranks"] = t.node_ranks;
  if (!t.experts.of.empty()) head["experts"] = experts_json(t.experts);
  for (std::size_t r = 0; r < t.process_of.size();) {
    const std::size_t first = r;
    while (r < t.process_of.size() && t.process_of[r] == t.process_of[first]) ++r;
    head["process_of"].push_back({t.process_of[first], r - first});
  }
  return head;
}

void read_timeline_head(const Json& head, const Cursor& at, TimelineHead& t) {
  t.source = text_field(head, "source", at);
  const std::string hash = text_field(head, "program_hash", at);
  const auto [end, bad] = std::from_chars(hash.data(), hash.data() + hash.size(), t.program_hash);
  if (bad != std::errc() || end != hash.data() + hash.size())
    at.child("program_hash").fail(fmt::format("\"{}\" is not a number", hash));
  Interner names(t.names);
  if (const auto found = head.find("bounds"); found != head.end())
    read_kinds(*found, at.child("bounds"), names, t, t.bounds);
  if (const auto found = head.find("classes"); found != head.end())
    read_kinds(*found, at.child("classes"), names, t, t.classes);
  if (const auto found = head.find("payloads"); found != head.end())
    read_payloads(*found, at.child("payloads"), names, t);
  if (!t.bounds.empty()) t.bounds.resize(t.names.size());
  if (!t.classes.empty()) t.classes.resize(t.names.size());
  if (const auto found = head.find("axes"); found != head.end()) read_axes(*found, at.child("axes"), t);
  if (head.contains("node_ranks")) t.node_ranks = integer_field(head, "node_ranks", kMostRanks, at);
  if (const auto found = head.find("process_of"); found != head.end())
    read_process_of(*found, at.child("process_of"), t);
  if (const auto found = head.find("experts"); found != head.end())
    read_experts(*found, at.child("experts"), t);
}

}  // namespace orrery
