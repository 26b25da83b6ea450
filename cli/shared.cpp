// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "cli/commands.h"
#include "exec/gpus.h"

namespace orrery::cli {
namespace fs = std::filesystem;

CLI::App* subcommand(CLI::App& parent, App& app, const char* name, const char* help) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->add_flag("--json", app.json, "machine-readable output with a \"schema\" field");
  return command;
}

Plan with_room(Plan plan, const Model& model) {
  if (plan.ep > 1 && !plan.expert_room) plan.expert_room = most_expert_shares(model, plan.ep);
  return plan;
}

program::Program runnable_program(const Chosen& chosen, exec::Backend backend) {
  const Problem& p = chosen.problem;
  if (!p.stack.executable) {
    chosen.scenario.child("stack").fail(fmt::format("the stack \"{}\" can be predicted only", p.stack.name),
                                        "allowed: orrery, orrery-graph");
  }
  auto program = program::compile(p.scenario.model, chosen.plan, p.scenario.training, p.stack);
  if (const auto problem = exec::run_problem(program, backend, p.stack.launch); !problem.empty())
    throw InputError(chosen.scenario.file, "/plan", problem);
  return program;
}

void require_device(exec::Backend backend) {
  if (backend != exec::Backend::kCuda) return;
  if (const std::string problem = exec::find_gpus().problem; !problem.empty())
    throw Error(fmt::format("--backend cuda: {}", problem));
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (wrong != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::map<std::int64_t, double> slow_ranks(const std::vector<std::string>& texts, std::int64_t ranks) {
  std::map<std::int64_t, double> out;
  for (const std::string& s : texts) {
    std::int64_t rank = -1;
    double factor = 0;
    const char* const end = s.data() + s.size();
    const auto [colon, bad_rank] = std::from_chars(s.data(), end, rank);
    const bool separated = bad_rank == std::errc() && colon != end && *colon == ':';
    if (!separated || std::from_chars(colon + 1, end, factor).ptr != end || rank < 0 || rank >= ranks ||
        !(factor >= 1 && factor <= 100))
      throw InputError("command line", "/slow", fmt::format("\"{}\" is not RANK:FACTOR", s),
                       fmt::format("allowed: a rank from 0 to {}, a factor from 1 to 100", ranks - 1));
    out[rank] = factor;
  }
  return out;
}

void print_json(const Json& json) {
  constexpr bool kAscii = true;  // a terminal acts on some characters beyond
  fmt::print("{}\n", json.dump(2, ' ', kAscii, Json::error_handler_t::replace));
}

void require_writable(const char* option, const fs::path& file) {
  if (file.empty()) return;
  const auto fail = [&](int error) {
    throw InputError("command line", option,
                     fmt::format("\"{}\" cannot be written: {}", file.string(), std::strerror(error)));
  };
  struct stat about {};
  fs::path target = file;
  if (::stat(file.c_str(), &about) == 0) {
    if (S_ISDIR(about.st_mode)) fail(EISDIR);
    if (!S_ISREG(about.st_mode) || fs::is_symlink(file)) {  // it is written in place
      if (::access(file.c_str(), W_OK) != 0) fail(errno);
      return;
    }
  } else if (errno != ENOENT) {
    fail(errno);
  } else {  // a link that leads nowhere yet makes its target
    while (fs::is_symlink(target)) target = target.parent_path() / fs::read_symlink(target);
  }
  std::string trial = fmt::format("{}.XXXXXX", target.string());
  const int made = ::mkstemp(trial.data());
  if (made < 0) fail(errno);
  ::close(made);
  ::unlink(trial.c_str());
}

void require_folder(const char* option, const fs::path& folder) {
  if (folder.empty()) return;
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw InputError("command line", option,
                     fmt::format("the folder \"{}\" cannot be made: {}", folder.string(), failed.message()));
  }
  require_writable(option, folder / "trial");
}

}  // namespace orrery::cli
