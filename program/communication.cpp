// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "program/program.h"

namespace orrery::program {
namespace {

template <class Named>
std::size_t index_of(const std::vector<Named>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Named& n) { return n.name == name; });
  if (found == all.end()) throw std::logic_error(fmt::format("a program has no \"{}\"", name));
  return static_cast<std::size_t>(found - all.begin());
}

}  // namespace

int Communication::channel(StreamIndex stream) const {
  const StreamIndex first = std::min(stream, streams[stream].other_end);
  return static_cast<int>(std::count_if(streams.begin(), streams.begin() + first,
                                        [](const Stream& s) { return s.role == StreamRole::kSends; }));
}

StreamIndex Communication::stream(std::string_view name) const {
  return static_cast<StreamIndex>(index_of(streams, name));
}

GroupIndex Communication::group(std::string_view name) const {
  return static_cast<GroupIndex>(index_of(groups, name));
}

// Collectives of a whole axis have one stream, and those of experts the stream of the axis that they take the
// part of. Activations and gradients pass stages in streams of their own, as neither may wait for the other;
// nor may activations that come back up in a V wait for those that go down.
Communication communication_of(const Mesh& mesh) {
  using enum StreamRole;
  Communication c;
  c.streams.push_back({"compute", kKernels, kCompute});
  const auto collectives = [&](const char* name) {
    const auto index = static_cast<StreamIndex>(c.streams.size());
    c.streams.push_back({name, kCollectives, index});
    return index;
  };
  const StreamIndex tp = collectives("tp"), dp = collectives("dp");
  const auto transfers = [&](const char* send, const char* receive) {
    const auto index = static_cast<StreamIndex>(c.streams.size());
    c.streams.push_back({send, kSends, static_cast<StreamIndex>(index + 1)});
    c.streams.push_back({receive, kReceives, index});
  };
  transfers("pp-send", "pp-recv");
  transfers("pp-grad-send", "pp-grad-recv");
  const StreamIndex ep = collectives("ep"), cp = collectives("cp");
  for (const auto& [index, name, role] : {std::tuple{kHostStream, "host", kHost},
                                          {kToHost, "to-host", kCopies},
                                          {kFromHost, "from-host", kCopies},
                                          {kToDrives, "to-nvme", kCopies},
                                          {kFromDrives, "from-nvme", kCopies}}) {
    if (c.streams.size() != index) throw std::logic_error("streams are numbered otherwise");
    c.streams.push_back({name, role, index});
  }
  transfers("pp-back-send", "pp-back-recv");
  c.groups = {{"tp", mesh["tp"], tp},
              {"dp", mesh["copies"], dp},
              {"shard", mesh["shard"], dp},
              {"replica", mesh["replica"], dp},
              {"pp", mesh["pp"], kCompute},
              {"ep", mesh["ep"], ep, true},
              {"etp", mesh["etp"], tp, true},
              {"edp", mesh["edp"], dp, true},
              {"eshard", mesh["eshard"], dp, true},
              {"ereplica", mesh["ereplica"], dp, true},
              {"ulysses", mesh["ulysses"], cp},
              {"ring", mesh["ring"], cp},
              {"island", mesh["island"], dp}};
  return c;
}

std::vector<Axis> axes_of(const Mesh& mesh) {
  std::vector<Axis> out;
  for (const MeshAxis& axis : whole_axes(mesh)) out.push_back({std::string(axis.name), axis.size});
  return out;
}

}  // namespace orrery::program
