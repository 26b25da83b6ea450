// SPDX-License-Identifier: Apache-2.0
#include "trace/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "core/error.h"
#include "core/timeline_head.h"
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
std::int64_t number(const Json& object, const char* key, const Cursor& at) {
  return integer_field(object, key, std::int64_t{1} << 62, at);
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
    g.name = text_field(group, "name", here);
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

bool is_positive(const Json& entry, const char* key) {
  const auto said = entry.find(key);
  return said != entry.end() && said->is_number_integer() && said->get<std::int64_t>() > 0;
}

// A number, or a text of one: JSON has texts where pickles have numbers.
std::int64_t count_in(const Json& status, const char* key, const Cursor& at) {
  const auto said = status.find(key);
  if (said == status.end()) return -1;
  std::int64_t out = -1;
  if (said->is_number_integer()) return said->get<std::int64_t>();
  const bool text = said->is_string();
  const std::string digits = text ? said->get<std::string>() : std::string();
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (!text || error != std::errc() || end != digits.data() + digits.size())
    at.child(key).fail(shown(*said) + " is not a number");
  return out;
}

void read_status(const Json& all, const Cursor& at, const std::map<std::string, std::string>& group_of,
                 RankDump& out) {
  if (!all.is_object()) at.fail("is not an object of groups");
  for (const auto& [id, status] : all.items()) {
    const Cursor here = at.child(id);
    if (!status.is_object()) here.fail("is not an object");
    const auto group = group_of.find(id);
    out.status[group == group_of.end() ? id : group->second] = {
        count_in(status, "last_enqueued_collective", here),
        count_in(status, "last_completed_collective", here)};
  }
}

void read_call(const Json& entry, const Cursor& at, RankDump& out) {
  if (!entry.is_object()) at.fail(shown(entry) + " is not a call");
  Call c;
  const Json& group = member(entry, "process_group", at);
  if (!group.is_array() || group.empty() || !group[0].is_string())
    at.child("process_group").fail(shown(group) + " is no process group", "allowed: [name, description]");
  c.group = group[0].get<std::string>();
  c.sequence = number(entry, "collective_seq_id", at);
  c.name = text_field(entry, "profiling_name", at);
  if (const auto colon = c.name.find(':'); colon != std::string::npos) c.name.erase(0, colon + 1);
  for (const char* key : {"input_sizes", "input_dtypes"}) {
    if (const auto said = entry.find(key); said != entry.end())
      c.what += (c.what.empty() ? "" : " ") + said->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  read_value(member(entry, "state", at), at.child("state"), Field{"state", ""}, c.state);
  if (entry.contains("time_created_ns")) c.created_ns = number(entry, "time_created_ns", at);
  out.timed = out.timed || is_positive(entry, "time_discovered_started_ns");
  (between_two(entry) ? out.transfers : out.calls).push_back(std::move(c));
}

// Whether members call it with the same sizes.
bool has_equal_sizes(const std::string& name) {
  constexpr std::array<std::string_view, 6> kEqual{"all_reduce",      "broadcast",  "reduce",
                                                   "_allgather_base", "all_gather", "_reduce_scatter_base"};
  return std::find(kEqual.begin(), kEqual.end(), name) != kEqual.end();
}

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
    for (const auto& [rank, dump] : by_rank_) out.timed = out.timed || dump->timed;
    for (const auto& [key, group] : groups_) add(group, true, out);
    for (const GroupConfig& group : without_configuration()) add(group, false, out);
    std::stable_sort(out.groups.begin(), out.groups.end(),
                     [](const StuckGroup& a, const StuckGroup& b) { return a.created_ns < b.created_ns; });
    for (const auto& [rank, dump] : by_rank_) add_transfers(*dump, out);
    conclude(out);
    return out;
  }

 private:
  enum class Reach { kMissing, kCalled, kBegun, kCompleted, kLost };

  void add(const GroupConfig& group, bool configured, Hang& out) const {
    if (auto stuck = look(group)) {
      stuck->configured = configured;
      out.groups.push_back(std::move(*stuck));
    }
  }

  // Groups with calls of which no configuration with that rank is in any dump.
  std::vector<GroupConfig> without_configuration() const {
    std::map<std::string, GroupConfig> out;
    for (const auto& [rank, dump] : by_rank_) {
      for (const Call& c : dump->calls) {
        const bool known = std::any_of(groups_.begin(), groups_.end(), [&, r = rank](const auto& g) {
          return g.first.first == c.group &&
                 std::binary_search(g.second.ranks.begin(), g.second.ranks.end(), r);
        });
        if (known) continue;
        GroupConfig& g = out[c.group];
        g.name = c.group;
        if (g.ranks.empty() || g.ranks.back() != rank) g.ranks.push_back(rank);
      }
    }
    std::vector<GroupConfig> groups;
    for (auto& [name, g] : out) groups.push_back(std::move(g));
    return groups;
  }

  // The last call of a number stands for it: of a coalesced batch that is the batch itself.
  static const Call* call_of(const RankDump& d, const std::string& group, std::int64_t sequence) {
    const auto at = std::find_if(d.calls.rbegin(), d.calls.rend(),
                                 [&](const Call& c) { return c.group == group && c.sequence == sequence; });
    return at == d.calls.rend() ? nullptr : &*at;
  }
  static std::int64_t newest_completed(const RankDump& d, const std::string& group) {
    std::int64_t out = -1;
    if (const auto s = d.status.find(group); s != d.status.end()) out = s->second.completed;
    for (const Call& c : d.calls) {
      if (c.group == group && c.state == CallState::kCompleted) out = std::max(out, c.sequence);
    }
    return out;
  }

  // Calls complete in order, so whatever comes before a completed one is completed.
  std::optional<std::int64_t> first_incomplete(const RankDump& d, const std::string& group) const {
    const std::int64_t completed = newest_completed(d, group);
    std::optional<std::int64_t> out;
    for (const Call& c : d.calls) {
      if (c.group == group && c.sequence > completed) out = std::min(out.value_or(c.sequence), c.sequence);
    }
    return out;
  }

  Reach reach(const RankDump& d, const std::string& group, std::int64_t sequence) const {
    if (newest_completed(d, group) >= sequence) return Reach::kCompleted;
    if (const Call* c = call_of(d, group, sequence))
      return c->state == CallState::kStarted ? Reach::kBegun : Reach::kCalled;
    if (const auto s = d.status.find(group); s != d.status.end() && s->second.called >= 0)
      return s->second.called >= sequence ? Reach::kCalled : Reach::kMissing;
    bool before = false, beyond = false;
    for (const Call& c : d.calls) {
      if (c.group != group) continue;
      before = before || c.sequence < sequence;
      beyond = beyond || c.sequence > sequence;
    }
    if (beyond) return Reach::kCalled;
    return before || d.whole ? Reach::kMissing : Reach::kLost;
  }

  std::optional<StuckGroup> look(const GroupConfig& group) const {
    std::optional<std::int64_t> at;
    StuckGroup out{.group = group};
    for (const std::int64_t rank : group.ranks) {
      const auto dump = by_rank_.find(rank);
      if (dump == by_rank_.end()) {
        out.no_dump.push_back(rank);
      } else if (const auto first = first_incomplete(*dump->second, group.name)) {
        at = std::min(at.value_or(*first), *first);
      }
    }
    if (!at) return std::nullopt;
    out.sequence = *at;
    std::map<std::string, std::map<std::string, std::vector<std::int64_t>>> callers;  // by name and sizes
    for (const std::int64_t rank : group.ranks) {
      const auto dump = by_rank_.find(rank);
      if (dump == by_rank_.end()) continue;
      const Reach reached = reach(*dump->second, group.name, *at);
      if (reached == Reach::kMissing) out.missing.push_back(rank);
      if (reached == Reach::kLost) out.lost.push_back(rank);
      if (reached == Reach::kCalled || reached == Reach::kBegun) out.waiting.push_back(rank);
      if (reached == Reach::kBegun) out.begun.push_back(rank);
      const Call* c = call_of(*dump->second, group.name, *at);
      if (c == nullptr) continue;
      callers[c->name][has_equal_sizes(c->name) ? c->what : ""].push_back(rank);
      if (out.what.empty()) out.what = c->what;
      if (c->created_ns > 0 && (out.created_ns == 0 || c->created_ns < out.created_ns))
        out.created_ns = c->created_ns;
    }
    tell_apart(callers, out);
    return out;
  }

  // What most members called is the call; without a majority the members disagree, and each is told.
  void tell_apart(const std::map<std::string, std::map<std::string, std::vector<std::int64_t>>>& callers,
                  StuckGroup& out) const {
    struct Way {
      std::string name, what;
      std::vector<std::int64_t> ranks;
    };
    std::vector<Way> ways;
    std::size_t all = 0;
    for (const auto& [name, by_what] : callers) {
      for (const auto& [what, ranks] : by_what) {
        ways.push_back({name, what, ranks});
        all += ranks.size();
      }
    }
    std::stable_sort(ways.begin(), ways.end(),
                     [](const Way& a, const Way& b) { return a.ranks.size() > b.ranks.size(); });
    const bool most = 2 * ways.front().ranks.size() > all;
    out.name = ways.front().name;
    if (!ways.front().what.empty()) out.what = ways.front().what;
    for (std::size_t i = most ? 1 : 0; i < ways.size(); ++i) {
      for (const std::int64_t r : ways[i].ranks) {
        out.others.emplace_back(r, ways[i].name + (ways[i].what.empty() ? "" : " " + ways[i].what));
        std::erase(out.waiting, r);
        std::erase(out.begun, r);
      }
    }
    std::sort(out.others.begin(), out.others.end());
  }

  // Sends and receives after the last that is completed: those of a batch are not completed one by one.
  void add_transfers(const RankDump& d, Hang& out) const {
    std::map<std::string, std::vector<const Call*>> open;
    for (const Call& c : d.transfers) {
      if (c.state == CallState::kCompleted)
        open[c.group].clear();
      else
        open[c.group].push_back(&c);
    }
    for (const auto& [group, calls] : open) {
      for (const Call* c : calls) out.transfers.push_back({d.rank, peer_of(d.rank, *c), group, c->name});
    }
  }

  // "send 0->1" and "recv 1<-0" name ranks of the group.
  std::optional<std::int64_t> peer_of(std::int64_t rank, const Call& c) const {
    const auto arrow = c.name.find("->") != std::string::npos ? c.name.find("->") : c.name.find("<-");
    if (arrow == std::string::npos) return std::nullopt;
    std::size_t peer = 0;
    const auto [end, error] = std::from_chars(c.name.data() + arrow + 2, c.name.data() + c.name.size(), peer);
    if (error != std::errc()) return std::nullopt;
    for (const auto& [key, group] : groups_) {
      if (group.name == c.group && std::binary_search(group.ranks.begin(), group.ranks.end(), rank) &&
          peer < group.ranks.size())
        return group.ranks[peer];
    }
    return std::nullopt;
  }

  static void conclude(Hang& out) {
    std::set<std::int64_t> waited_for, waiting;
    for (const StuckGroup& g : out.groups) {
      waited_for.insert(g.missing.begin(), g.missing.end());
      waited_for.insert(g.no_dump.begin(), g.no_dump.end());
      waiting.insert(g.waiting.begin(), g.waiting.end());
      for (const auto& [rank, what] : g.others) waited_for.insert(rank);
    }
    std::set<std::pair<std::int64_t, std::int64_t>> between;  // rank and peer
    for (const StuckTransfer& t : out.transfers) {
      if (t.peer) between.emplace(t.rank, *t.peer);
    }
    for (const StuckTransfer& t : out.transfers) {
      waiting.insert(t.rank);
      // Where both have called it, a device or the network does not finish it.
      if (t.peer && !between.contains({*t.peer, t.rank})) waited_for.insert(*t.peer);
    }
    std::set_difference(waited_for.begin(), waited_for.end(), waiting.begin(), waiting.end(),
                        std::back_inserter(out.look_at));
    if (out.look_at.empty()) out.circle.assign(waited_for.begin(), waited_for.end());
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
  const std::string version = text_field(dump, "version", at);
  if (!version.starts_with("2."))
    at.child("version").fail(fmt::format("\"{}\" is not known", version), "allowed: 2.0 to 2.10");
  read_groups(member(dump, "pg_config", at), at.child("pg_config"), out);
  // JSON leaves out what is empty.
  std::map<std::string, std::string> group_of;  // by pg_id
  if (const auto entries = dump.find("entries"); entries != dump.end()) {
    if (!entries->is_array()) at.child("entries").fail("is not a list of calls");
    for (std::size_t i = 0; i < entries->size(); ++i) {
      const Json& entry = (*entries)[i];
      read_call(entry, at.child("entries").child(i), out);
      if (i == 0) out.whole = !is_positive(entry, "record_id");
      if (entry.contains("pg_id") && entry["pg_id"].is_number_integer())
        group_of[std::to_string(entry["pg_id"].get<std::int64_t>())] =
            entry["process_group"][0].get<std::string>();
    }
  }
  if (const auto status = dump.find("pg_status"); status != dump.end())
    read_status(*status, at.child("pg_status"), group_of, out);
  return out;
}

Hang find_hang(const std::vector<RankDump>& dumps) {
  return Finding(dumps).hang();
}

}  // namespace orrery::trace
