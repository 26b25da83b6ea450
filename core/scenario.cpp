// SPDX-License-Identifier: Apache-2.0
#include "core/scenario.h"

#include <cstdlib>

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
  return read_fields<Cluster>(load_json(path), Cursor{path.string(), ""});
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
  problem.scenario = std::move(scenario);
  return problem;
}

Problem load_problem(const fs::path& file, const DataFolders& data) {
  const Json json = load_json(file);
  return resolve(read_scenario(json, Cursor{file.string(), ""}), file.string(), data);
}

}  // namespace orrery
