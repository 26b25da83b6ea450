// SPDX-License-Identifier: Apache-2.0
#include "core/scenario.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

namespace orrery {
namespace fs = std::filesystem;

DataFolders::DataFolders() {
  if (const char* root = std::getenv("ORRERY_DATA"); root != nullptr && *root != '\0') {
    roots_.emplace_back(root);
  }
  roots_.emplace_back(ORRERY_SOURCE_DIR);
  roots_.emplace_back(ORRERY_INSTALL_DATA_DIR);
}

std::vector<std::string> DataFolders::names(const std::string& folder) const {
  std::vector<std::string> out;
  for (const fs::path& root : roots_) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root / folder, error)) {
      if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

fs::path DataFolders::find(const std::string& folder, const std::string& name, const fs::path& base,
                           const Cursor& at) const {
  if (name.empty() || name.size() > 4096 || name.find('\0') != std::string::npos) {
    at.fail(shown(Json(name)) + " is not a name or a path");
  }
  std::error_code error;
  if (name.ends_with(".json")) {
    const fs::path path = base / name;
    if (fs::exists(path, error)) return path;
  }
  if (name.find('/') == std::string::npos) {
    for (const fs::path& root : roots_) {
      const fs::path path = root / folder / (name + ".json");
      if (fs::exists(path, error)) return path;
    }
  }
  at.fail(shown(Json(name)) + " is not in " + folder, allowed_names(name, names(folder)));
}

Scenario read_scenario(const Json& json, const Cursor& at) {
  return read_fields<Scenario>(json, at);
}

Cluster load_cluster(const std::string& name, const fs::path& base, const Cursor& at,
                     const DataFolders& data) {
  const fs::path path = data.find("topologies", name, base, at);
  const Json json = load_json(path);
  const Cursor file{path.string(), ""};
  Cluster out;
  if (const auto links = json.find("links"); json.is_object() && links != json.end() && links->is_string() &&
                                             !links->get_ref<const std::string&>().empty()) {
    const Cursor named = file.child("links");
    out.measured = load_links(links->get<std::string>(), named, data, path.parent_path());
    static_cast<ScaleUp&>(out) = out.measured;
  }
  read_fields_into(json, file, out);
  out.file = file.file;
  if (out.intra_bandwidth.value == 0 && out.inside.empty())
    file.fail(
        "neither \"intra_bandwidth\", \"links\" nor \"inside\" says how fast devices of a node reach each "
        "other");
  return out;
}

LinkProfile read_links(const Json& json, const Cursor& at) {
  LinkProfile out = read_fields<LinkProfile>(json, at);
  if (out.intra_bandwidth.value == 0) at.fail("the field \"intra_bandwidth\" is missing");
  for (std::size_t i = 0; i < out.measured.size(); ++i) {
    const CollectiveCurve& c = out.measured[i];
    const Cursor curve = at.child("measured").child(i);
    if (c.bytes.empty() || c.bytes.size() != c.times.size())
      curve.fail(fmt::format("{} sizes and {} times", c.bytes.size(), c.times.size()),
                 "allowed: one time for each size");
    if (std::adjacent_find(c.bytes.begin(), c.bytes.end(), std::greater_equal<>{}) != c.bytes.end())
      curve.child("bytes").fail("sizes do not ascend");
  }
  return out;
}

LinkProfile load_links(const std::string& name, const Cursor& at, const DataFolders& data,
                       const fs::path& base) {
  const fs::path path = data.find("profiles/links", name, base, at);
  return read_links(load_json(path), Cursor{path.string(), ""});
}

Device load_device(const std::string& name, const Cursor& at, const DataFolders& data, const fs::path& base) {
  const fs::path path = data.find("profiles", name, base, at);
  return read_fields<Device>(load_json(path), Cursor{path.string(), ""});
}

Stack load_stack(const std::string& name, const Cursor& at, const DataFolders& data) {
  const fs::path path = data.find("profiles/stacks", name, fs::path(at.file).parent_path(), at);
  return read_fields<Stack>(load_json(path), Cursor{path.string(), ""});
}

Problem resolve(Scenario scenario, const std::string& file, const DataFolders& data) {
  const Cursor at{file, ""};
  Problem problem;
  problem.cluster = load_cluster(scenario.cluster.topology, fs::path(file).parent_path(),
                                 at.child("cluster").child("topology"), data);
  if (scenario.cluster.nodes > 0) problem.cluster.nodes = scenario.cluster.nodes;
  if (scenario.node_hour) problem.cluster.node_hour = *scenario.node_hour;
  const Cursor named = at.child("cluster").child("topology");
  const fs::path cluster =
      data.find("topologies", scenario.cluster.topology, fs::path(file).parent_path(), named);
  problem.device = load_device(problem.cluster.device, named, data, cluster.parent_path());
  problem.stack = load_stack(scenario.stack, at.child("stack"), data);
  if (scenario.model.positions == Positions::kLearned &&
      scenario.training.sequence > scenario.model.max_positions) {
    at.child("training")
        .child("sequence")
        .fail(fmt::format("{} is longer than the model's {} learned positions", scenario.training.sequence,
                          scenario.model.max_positions));
  }
  const Training& t = scenario.training;
  if (t.stochastic_rounding && (t.precision != Precision::kNoMaster || t.math != Math::kBf16)) {
    at.child("training")
        .child("stochastic_rounding")
        .fail(fmt::format("precision \"{}\" with math \"{}\" has nothing to round so", name_of(t.precision),
                          name_of(t.math)),
              "allowed: precision no-master with math bf16");
  }
  if (t.lamb && t.precision == Precision::kSgd) {
    at.child("training")
        .child("lamb")
        .fail("LAMB scales an update of Adam, and precision \"sgd\" has none",
              "allowed: precision mixed, megatron, no-master, fp32, adam-8bit");
  }
  // A processor has neither, and emulates both.
  if (t.math == Math::kFp8 && problem.device.half > FlopRate{0} && problem.device.fp8 == FlopRate{0}) {
    at.child("training")
        .child("math")
        .fail(fmt::format("\"{}\" has no products of 8-bit floats", problem.device.name),
              "allowed: bf16, fp16, tf32, fp32");
  }
  problem.scenario = std::move(scenario);
  return problem;
}

Problem load_problem(const fs::path& file, const DataFolders& data) {
  const Json json = load_json(file);
  return resolve(read_scenario(json, Cursor{file.string(), ""}), file.string(), data);
}

}  // namespace orrery
