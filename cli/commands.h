// SPDX-License-Identifier: Apache-2.0
//
// The commands of `orrery`. Each registers its options on a CLI11 subcommand and sets a callback.
// Data goes to stdout, progress and notes to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan_file.h"
#include "exec/run.h"
#include "sim/cost.h"

namespace orrery::cli {

struct App {
  DataFolders data;
  std::string command;  // as it was given
  bool json = false;
  ExitCode exit = ExitCode::kOk;
};

void add_plan(CLI::App& parent, App& app);
void add_new(CLI::App& parent, App& app);
void add_simulate(CLI::App& parent, App& app);
void add_run(CLI::App& parent, App& app);
void add_calibrate(CLI::App& parent, App& app);
void add_compare(CLI::App& parent, App& app);
void add_merge(CLI::App& parent, App& app);
void add_flight_recorder(CLI::App& parent, App& app);
void add_validate(CLI::App& parent, App& app);
void add_export(CLI::App& parent, App& app);
void add_model(CLI::App& parent, App& app);
void add_topology(CLI::App& parent, App& app);
void add_collective(CLI::App& parent, App& app);
void add_links(CLI::App& parent, App& app);
void add_schema(CLI::App& parent, App& app);
void add_reliability(CLI::App& parent, App& app);
void add_serve(CLI::App& parent, App& app);
void add_generate(CLI::App& parent, App& app);
void add_gradient_noise(CLI::App& parent, App& app);
void add_documents(CLI::App& parent, App& app);
void add_parameter_server(CLI::App& parent, App& app);
void add_schedule(CLI::App& parent, App& app);
void add_doctor(CLI::App& parent, App& app);

// A subcommand with --json.
CLI::App* subcommand(CLI::App& parent, App& app, const char* name, const char* help);

// A plan file, or a scenario: its own plan if it has one, else the planner's best by the estimate.
struct Chosen {
  Problem problem;
  Plan plan;
  Cursor scenario;  // where the scenario stands; its plan is at "/plan" of the same file
};
Chosen load_plan_or_scenario(const std::string& file, const App& app);

// The plan as it runs: with room for whatever its routers choose, unless it says for how much.
Plan with_room(Plan plan, const Model& model);
// Its program, which `backend` runs on this machine. Throws InputError when the plan is not for it.
program::Program runnable_program(const Chosen& chosen, exec::Backend backend);
// Throws Error when `backend` has no device here.
void require_device(exec::Backend backend);

// Nothing where the text is not a whole number of 64 bits.
std::optional<std::int64_t> whole_number(std::string_view text);

// "3:1.3": rank 3 computes 1.3 times slower; by rank of a plan of so many.
std::map<std::int64_t, double> slow_ranks(const std::vector<std::string>& texts, std::int64_t ranks);

// An option ("--goal") that takes the name of one of an enum's values.
template <class Enum, class Value>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Value& value, const std::string& help) {
  const auto read = [&value, at = Cursor{"command line", "/" + name.substr(2)}](const std::string& given) {
    Enum chosen{};
    read_value(Json(given), at, Field{}, chosen);
    value = chosen;
  };
  return command.add_option_function<std::string>(name, read, help)
      ->type_name(fmt::format("{{{}}}", fmt::join(all_names(Enum{}), ",")));
}

// `orrery calibrate --published`: fits constants of profiles to published runs, and writes them into the
// profiles of a data folder, where one is given.
void calibrate_published(const App& app, const std::vector<std::string>& files, const std::string& folder);

void print_json(const Json& json);

// Tries to write where an option ("/trace") says, before the work whose result goes there. An empty path is
// not given. Throws InputError with what the system says; leaves nothing behind, but for the folder.
void require_writable(const char* option, const std::filesystem::path& file);
void require_folder(const char* option, const std::filesystem::path& folder);

}  // namespace orrery::cli
