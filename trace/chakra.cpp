// SPDX-License-Identifier: Apache-2.0
#include "trace/chakra.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "core/fields.h"

namespace orrery::trace {
namespace {

constexpr std::uint64_t kLatestNodeUs = 3'976'000'000'000'000;  // 1970 to 2096, as merge.cpp takes times
constexpr std::size_t kMostNodes = 5'000'000, kMostDependencies = 40'000'000;
constexpr std::int64_t kMostExchanged = 1'000'000'000'000'000'000;  // bytes

// A message of protobuf, field by field.
class Message {
 public:
  explicit Message(std::string_view all) : left_(all) {}

  // The next field; false at the end, or where the bytes are no field, which damaged() tells.
  bool next() {
    if (left_.empty() || damaged_) return false;
    const auto key = varint();
    if (!key) return fail();
    field = static_cast<std::uint32_t>(*key >> 3);
    kind = static_cast<int>(*key & 7);
    switch (kind) {
      case 0: {
        const auto value = varint();
        if (!value) return fail();
        number = *value;
        return true;
      }
      case 1:
        return take(8);
      case 2: {
        const auto length = varint();
        return length && *length <= left_.size() ? take(static_cast<std::size_t>(*length)) : fail();
      }
      case 5:
        return take(4);
      default:
        return fail();
    }
  }
  bool damaged() const { return damaged_; }
  // Numbers of a repeated field: packed, or one alone.
  bool numbers(std::vector<std::uint64_t>& to) {
    if (kind == 0) {
      to.push_back(number);
      return true;
    }
    Message packed(bytes);
    while (kind == 2 && !packed.left_.empty()) {
      const auto value = packed.varint();
      if (!value) return fail();
      to.push_back(*value);
    }
    return kind == 2 || fail();
  }
  // Of a message that is preceded by its length; nothing where there is none.
  std::optional<std::string_view> delimited() {
    const auto length = varint();
    if (!length || *length > left_.size()) return std::nullopt;
    take(static_cast<std::size_t>(*length));
    return bytes;
  }
  bool empty() const { return left_.empty(); }

  std::uint32_t field = 0;
  int kind = 0;
  std::uint64_t number = 0;  // of kind 0
  std::string_view bytes;    // of the others

 private:
  bool fail() {
    damaged_ = true;
    return false;
  }
  bool take(std::size_t count) {
    if (count > left_.size()) return fail();
    bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return true;
  }
  std::optional<std::uint64_t> varint() {
    std::uint64_t out = 0;
    for (unsigned shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(left_.front());
      left_.remove_prefix(1);
      out |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return out;
    }
    return std::nullopt;
  }

  std::string_view left_;
  bool damaged_ = false;
};

// Of the schema; nodes of the other types compute, or move data.
enum class NodeType : std::uint64_t { kSend = 5, kReceive = 6, kCollective = 7 };

struct Node {
  std::uint64_t id = 0, type = 0, start_us = 0, duration_us = 0;
  std::string_view name;
  std::vector<std::uint64_t> after, parents;
  bool on_host = false;
  std::int64_t thread = 0, stream = -1;  // of the host, of the device; -1: not said
  std::int64_t bytes = 0, collective = -1;
  std::string_view group;

  bool exchanges() const { return type >= 5 && type <= 7; }
  // Devices' ops of traces from before streams were written have threads alone.
  std::int64_t lane() const { return on_host || stream < 0 ? thread : stream; }
};

// An attribute that we look at, into the node.
bool read_attribute(std::string_view bytes, Node& node) {
  Message m(bytes);
  std::string_view name, text;
  std::uint64_t value = 0;
  while (m.next()) {
    if (m.field == 1 && m.kind == 2)
      name = m.bytes;
    else if (m.field == 29 && m.kind == 2)  // string_val
      text = m.bytes;
    else if (m.kind == 0 && m.field >= 7 && m.field <= 27)  // integers and bool_val
      value = m.number;
  }
  const auto number = static_cast<std::int64_t>(std::min<std::uint64_t>(value, INT64_MAX));
  if (name == "is_cpu_op")
    node.on_host = value != 0;
  else if (name == "stream")
    node.stream = number;
  else if (name == "tid")
    node.thread = number;
  else if (name == "comm_size")
    node.bytes = number;
  else if (name == "comm_type")
    node.collective = number;
  else if (name == "pg_name")
    node.group = text;
  return !m.damaged();
}

std::optional<Node> read_node(std::string_view bytes) {
  Message m(bytes);
  Node n;
  bool whole = true;
  while (whole && m.next()) {
    const bool number = m.kind == 0;
    switch (m.field) {
      case 1:
        whole = number;
        n.id = m.number;
        break;
      case 2:
        whole = m.kind == 2;
        n.name = m.bytes;
        break;
      case 3:
        whole = number;
        n.type = m.number;
        break;
      case 4:
        whole = m.numbers(n.parents);
        break;
      case 5:
        whole = m.numbers(n.after);
        break;
      case 6:
        whole = number;
        n.start_us = m.number;
        break;
      case 7:
        whole = number;
        n.duration_us = m.number;
        break;
      case 10:
        whole = m.kind == 2 && read_attribute(m.bytes, n);
        break;
      case 8:  // inputs and outputs
      case 9:
        whole = m.kind == 2;
        break;
      default:
        whole = false;
    }
  }
  if (!whole || m.damaged()) return std::nullopt;
  return n;
}

// Metadata have a version and attributes alone; a node has an id or a type.
bool is_metadata(std::string_view bytes) {
  Message m(bytes);
  while (m.next()) {
    if (m.kind != 2 || (m.field != 1 && m.field != 2)) return false;
  }
  return !m.damaged();
}

// "chakra.3.et" is of rank 3.
std::int64_t rank_of(const std::string& file) {
  const std::string stem = std::filesystem::path(file).stem().string();
  const std::size_t dot = stem.rfind('.');
  if (dot == std::string::npos) return -1;
  std::int64_t rank = -1;
  const char *begin = stem.data() + dot + 1, *end = stem.data() + stem.size();
  const auto read = std::from_chars(begin, end, rank);
  return read.ec == std::errc() && read.ptr == end && rank >= 0 && rank < 1 << 24 ? rank : -1;
}

// CollectiveCommType of the schema.
OpClass class_of(const Node& n) {
  switch (static_cast<NodeType>(n.type)) {
    case NodeType::kSend:
    case NodeType::kReceive:
      return OpClass::kSendReceive;
    case NodeType::kCollective:
      break;
  }
  switch (n.collective) {
    case 0:  // all-reduce
      return OpClass::kAllReduce;
    case 2:
      return OpClass::kAllGather;
    case 6:
      return OpClass::kAllToAll;
    case 7:  // reduce-scatter, and of equal blocks
    case 8:
      return OpClass::kReduceScatter;
    case 1:  // those with a root, and barriers (9)
    case 3:
    case 4:
    case 5:
    case 9:
      return OpClass::kBroadcast;
    default:
      break;
  }
  const OpClass named = class_of_kernel(n.name);
  return communicates(named) ? named : class_of_collective(n.name);
}

class ChakraReader {
 public:
  ChakraReader(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  DeviceTrace read() {
    read_nodes();
    // Protobuf writes no zeros: the first node of a trace with times may have none.
    const bool timed =
        std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.on_host && n.start_us > 0; });
    if (timed) {
      for (const Node& n : nodes_) start_us_.push_back(n.start_us);
    } else {
      replay();
    }
    return device();
  }

 private:
  [[noreturn]] void fail(const std::string& where, const std::string& problem,
                         const std::string& allowed) const {
    throw InputError(file_, where, problem, "allowed: " + allowed);
  }
  std::string place(std::size_t i) const { return fmt::format("/node {}", nodes_[i].id); }

  void read_nodes() {
    Message all(bytes_);
    all.delimited();  // the metadata
    std::size_t dependencies = 0;
    while (!all.empty()) {
      const auto bytes = all.delimited();
      auto node = bytes ? read_node(*bytes) : std::nullopt;
      const std::string where = fmt::format("/message {}", nodes_.size() + 1);
      if (!node) fail(where, "is no node of an execution trace", "messages of et_def.proto's Node");
      if (node->start_us > kLatestNodeUs || node->duration_us > kLatestNodeUs - node->start_us)
        fail(where, "has no time that can be", fmt::format("up to {} microseconds", kLatestNodeUs));
      if (nodes_.size() == kMostNodes) fail(where, "is one too many", fmt::format("{} nodes", kMostNodes));
      if (!index_.try_emplace(node->id, nodes_.size()).second)
        fail(where, fmt::format("has the id {} of another node", node->id), "each id once");
      if (node->bytes > kMostExchanged)
        fail(where, fmt::format("exchanges {} bytes", node->bytes), fmt::format("up to {}", kMostExchanged));
      dependencies += node->after.size() + node->parents.size();
      if (dependencies > kMostDependencies)
        fail(where, "has dependencies that are too many", fmt::format("{} in a trace", kMostDependencies));
      nodes_.push_back(std::move(*node));
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node& n = nodes_[i];
      if (n.exchanges() && !n.on_host && n.duration_us == 0)
        fail(place(i), "is an exchange without a duration, which would have to be simulated",
             "traces of a run, as chakra_trace_link makes them of the PyTorch profiler's");
    }
  }

  // Data dependencies are the order of execution; control dependencies are calls, which hold up only where a
  // trace has no others. Nodes that have been taken out of the trace hold nobody up.
  template <class F>
  void for_each_before(const Node& n, F&& use) const {
    for (const std::uint64_t id : ordered_ ? n.after : n.parents) {
      if (const auto found = index_.find(id); found != index_.end()) use(found->second);
    }
  }

  void replay() {
    ordered_ = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.after.empty(); });
    std::vector<std::int32_t> waits(nodes_.size());
    std::vector<std::vector<std::size_t>> then(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for_each_before(nodes_[i], [&](std::size_t before) {
        then[before].push_back(i);
        ++waits[i];
      });
    }
    std::vector<std::uint64_t> ready(nodes_.size());
    std::map<std::pair<bool, std::int64_t>, std::uint64_t> free;  // of a thread or a stream
    using Entry = std::pair<std::uint64_t, std::size_t>;          // since when, which
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> next;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (waits[i] == 0) next.emplace(0, i);
    }
    start_us_.resize(nodes_.size());
    std::size_t done = 0;
    for (; !next.empty(); ++done) {
      const auto [since, i] = next.top();
      next.pop();
      std::uint64_t& until = free[{nodes_[i].on_host, nodes_[i].lane()}];
      start_us_[i] = std::max(since, until);
      until = start_us_[i] + nodes_[i].duration_us;
      if (until > kLatestNodeUs)
        fail(place(i), "ends later than can be", fmt::format("up to {} microseconds", kLatestNodeUs));
      for (const std::size_t later : then[i]) {
        ready[later] = std::max(ready[later], until);
        if (--waits[later] == 0) next.emplace(ready[later], later);
      }
    }
    if (done == nodes_.size()) return;
    const auto held = std::find_if(waits.begin(), waits.end(), [](std::int32_t n) { return n > 0; });
    fail(place(static_cast<std::size_t>(held - waits.begin())), "waits for nodes that wait for it",
         "dependencies without a circle");
  }

  // The step of the training that a node was called in: the name of the nearest caller that names one. Each
  // node is walked over once.
  std::string_view step_of(std::size_t i) {
    std::vector<std::size_t> path;
    std::string_view step;
    for (std::size_t at = i;;) {
      const auto [known, first] = steps_.try_emplace(at);
      if (!first) {  // of the path itself, where callers go round in a circle
        step = known->second;
        break;
      }
      path.push_back(at);
      if (names_step(nodes_[at].name)) {
        step = nodes_[at].name;
        break;
      }
      const std::vector<std::uint64_t>& parents = nodes_[at].parents;
      const auto parent = parents.empty() ? index_.end() : index_.find(parents.front());
      if (parent == index_.end()) break;
      at = parent->second;
    }
    for (const std::size_t at : path) steps_[at] = step;
    return step;
  }

  DeviceTrace device() {
    DeviceTrace out;
    out.file = file_;
    out.source = "measured: Chakra execution trace";
    out.rank = rank_of(file_);
    out.steps = true;
    std::map<std::string, std::int32_t> names, segments;
    const auto interned = [](std::map<std::string, std::int32_t>& in, std::string name) {
      return in.try_emplace(std::move(name), static_cast<std::int32_t>(in.size())).first->second;
    };
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].on_host && (nodes_[i].duration_us > 0 || start_us_[i] > 0)) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return start_us_[a] < start_us_[b]; });
    constexpr std::size_t kMostName = 300;
    for (const std::size_t i : order) {
      const Node& n = nodes_[i];
      Activity a;
      a.stream = static_cast<std::int32_t>(std::clamp<std::int64_t>(n.lane(), 0, 1 << 30));
      a.start_ns = static_cast<std::int64_t>(start_us_[i]) * 1000;
      a.end_ns = a.start_ns + static_cast<std::int64_t>(n.duration_us) * 1000;
      a.launch = a.start_ns;
      a.is = n.exchanges() ? class_of(n) : class_of_kernel(n.name);
      std::string name(n.name.substr(0, kMostName));
      if (n.exchanges()) {
        a.exchange = static_cast<std::int32_t>(out.exchanges.size());
        // The size is that of what goes in; of an all-gather more comes out, by members that are not said.
        const std::int64_t bytes = a.is == OpClass::kAllGather ? 0 : n.bytes;
        out.exchanges.push_back({.group = std::string(n.group), .bytes = bytes});
        if (n.bytes > 0)
          name = fmt::format("{}, {} B ({})", name_of(a.is), n.bytes, name.substr(0, name.find('(')));
      }
      a.name = interned(names, std::move(name));
      const std::string_view step = step_of(i);
      out.steps &= !step.empty();
      a.segment = interned(segments, std::string(step.empty() ? "outside of steps" : step));
      out.activities.push_back(a);
    }
    const auto listed = [](const std::map<std::string, std::int32_t>& in) {
      std::vector<std::string> all(in.size());
      for (const auto& [name, number] : in) all[static_cast<std::size_t>(number)] = name;
      return all;
    };
    out.names = listed(names);
    out.segments = listed(segments);
    return out;
  }

  std::string_view bytes_;
  const std::string& file_;
  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, std::size_t> index_;  // by id
  std::unordered_map<std::size_t, std::string_view> steps_;
  std::vector<std::uint64_t> start_us_;
  bool ordered_ = false;  // by data dependencies
};

}  // namespace

bool is_chakra(std::string_view bytes) {
  Message all(bytes);
  const auto metadata = all.delimited();
  if (!metadata || metadata->empty() || !is_metadata(*metadata)) return false;
  const auto node = all.delimited();
  return node && !node->empty() && read_node(*node).has_value();
}

DeviceTrace from_chakra(std::string_view bytes, const std::string& file) {
  return ChakraReader(bytes, file).read();
}

}  // namespace orrery::trace
