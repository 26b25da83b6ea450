// SPDX-License-Identifier: Apache-2.0
#include "trace/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/error.h"
#include "core/fields.h"
#include "trace/pickle.h"

namespace orrery::trace {
namespace {

constexpr std::int64_t kMostRanks = 1 << 24;

std::int64_t rank_of(const std::filesystem::path& file) {
  const std::string stem =
      file.extension() == ".json" || file.extension() == ".pickle" || file.extension() == ".pkl"
          ? file.stem().string()
          : file.filename().string();
  const auto digits = stem.find_last_not_of("0123456789");
  const std::size_t from = digits == std::string::npos ? 0 : digits + 1;
  std::int64_t rank = -1;
  std::from_chars(stem.data() + from, stem.data() + stem.size(), rank);
  if (rank < 0 || rank >= kMostRanks)
    throw InputError(file.string(), "/", "does not end with the number of its rank",
                     "allowed: nccl_trace_rank_3, as PyTorch names it");
  return rank;
}

const Json& member(const Json& object, const char* key, const Cursor& at) {
  const auto found = object.find(key);
  if (found == object.end()) at.fail(fmt::format("the field \"{}\" is missing", key));
  return *found;
}
std::string text(const Json& object, const char* key, const Cursor& at) {
  std::string out;
  read_value(member(object, key, at), at.child(key), Field{key, ""}, out);
  return out;
}
std::int64_t number(const Json& object, const char* key, const Cursor& at) {
  std::int64_t out = 0;
  read_value(member(object, key, at), at.child(key), Field{key, "", 0, 9e18}, out);
  return out;
}

// "[0, 1]", or a list.
std::vector<std::int64_t> ranks_in(const Json& json, const Cursor& at) {
  std::vector<std::int64_t> out;
  const Json list = json.is_string() ? Json::parse(json.get_ref<const std::string&>(), nullptr, false) : json;
  if (!list.is_array()) at.fail(shown(json) + " is no list of ranks", "allowed: \"[0, 1]\"");
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_integer()) at.fail(shown(json) + " is no list of ranks", "allowed: \"[0, 1]\"");
    out.push_back(list[i].get<std::int64_t>());
    if (out.back() < 0 || out.back() >= kMostRanks) at.fail(shown(list[i]) + " is no rank");
  }
  std::sort(out.begin(), out.end());
  return out;
}

void read_groups(const Json& config, const Cursor& at, RankDump& out) {
  if (!config.is_object()) at.fail("is not an object of process groups");
  for (const auto& [name, group] : config.items()) {
    const Cursor here = at.child(name);
    if (!group.is_object()) here.fail("is not an object");
    GroupConfig g;
    g.name = text(group, "name", here);
    if (const auto said = group.find("desc"); said != group.end() && said->is_string())
      g.description = said->get<std::string>();
    g.ranks = ranks_in(member(group, "ranks", here), here.child("ranks"));
    out.groups.push_back(std::move(g));
  }
}

// Sends and receives are of two ranks, and are numbered apart.
bool between_two(const Json& entry) {
  const auto said = entry.find("is_p2p");
  return said != entry.end() && said->is_boolean() && said->get<bool>();
}

void read_call(const Json& entry, const Cursor& at, RankDump& out) {
  if (!entry.is_object()) at.fail(shown(entry) + " is not a call");
  if (between_two(entry)) return;
  Call c;
  const Json& group = member(entry, "process_group", at);
  if (!group.is_array() || group.empty() || !group[0].is_string())
    at.child("process_group").fail(shown(group) + " is no process group", "allowed: [name, description]");
  c.group = group[0].get<std::string>();
  c.sequence = number(entry, "collective_seq_id", at);
  c.name = text(entry, "profiling_name", at);
  if (const auto colon = c.name.find(':'); colon != std::string::npos) c.name.erase(0, colon + 1);
  for (const char* key : {"input_sizes", "input_dtypes"}) {
    if (const auto said = entry.find(key); said != entry.end())
      c.what += (c.what.empty() ? "" : " ") + said->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  read_value(member(entry, "state", at), at.child("state"), Field{"state", ""}, c.state);
  if (entry.contains("time_created_ns")) c.created_ns = number(entry, "time_created_ns", at);
  out.calls.push_back(std::move(c));
}

// The newest state of each number: a member calls each once.
using Calls = std::map<std::int64_t, const Call*>;

class Finding {
 public:
  explicit Finding(const std::vector<RankDump>& dumps) {
    for (const RankDump& d : dumps) {
      if (!by_rank_.try_emplace(d.rank, &d).second)
        throw InputError(d.file, "/",
                         fmt::format("is of rank {}, as is {}", d.rank, by_rank_.at(d.rank)->file),
                         "allowed: a dump for each rank");
      for (const GroupConfig& g : d.groups) groups_.try_emplace({g.name, g.ranks}, g);
    }
  }

  Hang hang() {
    Hang out;
    for (const auto& [key, group] : groups_) {
      if (auto stuck = look(group)) out.groups.push_back(std::move(*stuck));
    }
    std::stable_sort(out.groups.begin(), out.groups.end(),
                     [](const StuckGroup& a, const StuckGroup& b) { return a.created_ns < b.created_ns; });
    std::set<std::int64_t> missing, waiting;
    for (const StuckGroup& g : out.groups) {
      missing.insert(g.missing.begin(), g.missing.end());
      waiting.insert(g.waiting.begin(), g.waiting.end());
      for (const auto& [rank, what] : g.others) missing.insert(rank);
    }
    std::set_difference(missing.begin(), missing.end(), waiting.begin(), waiting.end(),
                        std::back_inserter(out.look_at));
    return out;
  }

 private:
  Calls calls_of(std::int64_t rank, const std::string& group) const {
    Calls out;
    for (const Call& c : by_rank_.at(rank)->calls) {
      if (c.group == group) out[c.sequence] = &c;
    }
    return out;
  }

  std::optional<StuckGroup> look(const GroupConfig& group) const {
    std::map<std::int64_t, Calls> all;  // by rank
    std::optional<std::int64_t> at;
    StuckGroup out{.group = group};
    for (const std::int64_t rank : group.ranks) {
      if (!by_rank_.contains(rank)) {
        out.unknown.push_back(rank);
        continue;
      }
      const Calls& calls = all[rank] = calls_of(rank, group.name);
      for (const auto& [sequence, call] : calls) {
        if (call->state == CallState::kCompleted) continue;
        at = std::min(at.value_or(sequence), sequence);
        break;
      }
    }
    if (!at) return std::nullopt;
    out.sequence = *at;
    std::map<std::pair<std::string, std::string>, std::vector<std::int64_t>> by_what;
    for (const auto& [rank, calls] : all) {
      const auto call = calls.find(*at);
      if (call == calls.end()) {
        // The recorder keeps the last calls alone: a rank that is beyond it has completed it.
        if (calls.empty() || calls.rbegin()->first < *at) out.missing.push_back(rank);
        continue;
      }
      by_what[{call->second->name, call->second->what}].push_back(rank);
      if (call->second->state == CallState::kCompleted) continue;
      out.waiting.push_back(rank);
      if (call->second->state == CallState::kStarted) out.begun.push_back(rank);
      if (call->second->created_ns > 0 && (out.created_ns == 0 || call->second->created_ns < out.created_ns))
        out.created_ns = call->second->created_ns;
    }
    const auto most = std::max_element(by_what.begin(), by_what.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    std::tie(out.name, out.what) = most->first;
    for (const auto& [what, ranks] : by_what) {
      if (what == most->first) continue;
      for (const std::int64_t r : ranks) out.others.emplace_back(r, what.first + " " + what.second);
    }
    for (const auto& [rank, what] : out.others) std::erase(out.waiting, rank);
    return out;
  }

  std::map<std::int64_t, const RankDump*> by_rank_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, GroupConfig> groups_;
};

}  // namespace

RankDump load_dump(const std::filesystem::path& file) {
  RankDump out{.file = file.string(), .rank = rank_of(file)};
  const std::string bytes = load_text(file);
  const Json dump = is_pickle(bytes) ? from_pickle(bytes, out.file) : parse_json(bytes, out.file);
  const Cursor at{out.file, ""};
  if (!dump.is_object()) at.fail("is no dump of the flight recorder", "allowed: an object with entries");
  const std::string version = text(dump, "version", at);
  if (!version.starts_with("2."))
    at.child("version").fail(fmt::format("\"{}\" is not known", version), "allowed: 2.0 to 2.10");
  read_groups(member(dump, "pg_config", at), at.child("pg_config"), out);
  // JSON leaves out what is empty.
  const auto entries = dump.find("entries");
  if (entries == dump.end()) return out;
  if (!entries->is_array()) at.child("entries").fail("is not a list of calls");
  for (std::size_t i = 0; i < entries->size(); ++i)
    read_call((*entries)[i], at.child("entries").child(i), out);
  return out;
}

Hang find_hang(const std::vector<RankDump>& dumps) {
  return Finding(dumps).hang();
}

}  // namespace orrery::trace
