// SPDX-License-Identifier: Apache-2.0
//
// What python/orrery/__init__.py stands on: JSON in, JSON out. The interpreter's lock is not held meanwhile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "planner/answer.h"
#include "planner/evaluate.h"

namespace py = pybind11;

namespace orrery {
namespace {

DataFolders folders(const std::string& data) {
  return data.empty() ? DataFolders() : DataFolders(std::filesystem::path(data));
}

constexpr const char* kScenario = "scenario";  // its name in messages

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The answer as JSON, and its page.
std::pair<std::string, std::string> plan(const std::string& scenario, std::int64_t top, int threads,
                                         bool sizes, const std::string& data) {
  constexpr std::int64_t kMost = 1000;
  if (top < 1 || top > kMost)
    throw InputError("orrery.plan", "/top", std::to_string(top) + " plans cannot be shown",
                     "allowed: 1 to 1000");
  const py::gil_scoped_release unlocked;
  const Cursor at{kScenario, ""};
  Problem problem = resolve(read_scenario(parse_json(scenario, kScenario), at), at, folders(data));
  check_goal(problem, at);
  if (threads <= 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const planner::Answer answer =
      planner::plan(problem, {.top = static_cast<std::size_t>(top), .threads = threads, .sizes = sizes});
  problem.cluster.nodes = problem.scenario.cluster.nodes = answer.nodes;
  return {text_of(planner::answer_json(problem, answer)),
          planner::report_page(problem, answer, "orrery.plan(..)")};
}

// What the scenario's own plan will do: Predicted.
std::string simulate(const std::string& scenario, const std::string& data) {
  const py::gil_scoped_release unlocked;
  const Cursor at{kScenario, ""};
  const Problem problem = resolve(read_scenario(parse_json(scenario, kScenario), at), at, folders(data));
  if (!problem.scenario.plan) at.child("plan").fail("is missing, and it is what is simulated");
  const Plan& p = *problem.scenario.plan;
  program::check_plan(problem.scenario.model, p, problem.scenario.training, at.child("plan"));
  check_ranks(p, problem.cluster, at.child("plan"));
  return text_of(write_fields(planner::evaluate(problem, sim::Topology(problem.cluster), p).predicted));
}

std::vector<std::string> names(const std::string& kind, const std::string& data) {
  return kind == "models" ? preset_model_names() : folders(data).names(kind);
}

}  // namespace
}  // namespace orrery

PYBIND11_MODULE(_orrery, m) {
  py::register_exception<orrery::Error>(m, "Error", PyExc_RuntimeError);
  py::register_exception<orrery::InputError>(m, "InputError",
                                             PyExc_ValueError);  // asked first: it is an Error too
  m.def("plan", &orrery::plan);
  m.def("simulate", &orrery::simulate);
  m.def("names", &orrery::names);
}
