// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "cli/commands.h"
#include "cli/complete.h"
#include "cli/version.h"
#include "core/text.h"

namespace {

// CLI11's messages have several lines, and each may have names of the input.
std::string printable_lines(std::string_view message) {
  std::string out;
  while (!message.empty()) {
    const std::size_t end = std::min(message.find('\n'), message.size());
    out += orrery::printable(message.substr(0, end)) + "\n";
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return out;
}

// A word as a shell reads it.
std::string in_shell(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

int fail(orrery::ExitCode code, const std::string& message) {
  std::fputs(fmt::format("orrery: {}\n", orrery::printable(message)).c_str(), stderr);
  return static_cast<int>(code);
}

// An empty value means a mistake in a script, not that the option is absent; and NaN is in every range.
std::string value_problem(const std::string& value) {
  if (value.empty()) return "the value is empty";
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size() && std::isnan(number))
    return "\"" + value + "\" is not a number";
  return {};
}

// An option or a subcommand that the command has not, what it has, and the nearest; empty when something else
// is wrong.
std::string unknown_word(const CLI::App& cli) {
  const CLI::App* command = &cli;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::string name = command == &cli ? "orrery" : command->get_name();
  const std::vector<std::string> words = cli.remaining(true);
  std::vector<std::string> known;
  const auto option =
      std::find_if(words.begin(), words.end(), [](const auto& w) { return w.starts_with("--"); });
  if (option != words.end()) {
    for (const CLI::Option* o : command->get_options()) {
      for (const std::string& long_name : o->get_lnames()) known.push_back("--" + long_name);
    }
    const std::string given = option->substr(0, option->find('='));
    return fmt::format("{} has no option \"{}\"; {}", name, given, orrery::allowed_names(given, known));
  }
  for (const CLI::App* c : command->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(c->get_name());
  if (words.empty() || known.empty()) return {};
  return fmt::format("{} has no command \"{}\"; {}", name, words.front(),
                     orrery::allowed_names(words.front(), known));
}

// What is still in a buffer may not fit on a full device.
int finish(orrery::ExitCode code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return static_cast<int>(code);
  return fail(orrery::ExitCode::kFailure,
              fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

void check_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() > 0) option->check(value_problem);
  }
  for (CLI::App* nested : command.get_subcommands([](CLI::App*) { return true; })) check_values(*nested);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of whoever writes it
  using orrery::ExitCode;
  CLI::App cli{"Plan, simulate and run the training of large models, and plan how they are served."};
  cli.require_subcommand(1);
  cli.set_version_flag("--version", "orrery " + orrery::cli::version());
  orrery::cli::App app;
  for (int i = 0; i < argc; ++i) app.command += (i > 0 ? " " : "") + in_shell(argv[i]);
  orrery::cli::add_plan(cli, app);
  orrery::cli::add_new(cli, app);
  orrery::cli::add_simulate(cli, app);
  orrery::cli::add_run(cli, app);
  orrery::cli::add_calibrate(cli, app);
  orrery::cli::add_compare(cli, app);
  orrery::cli::add_merge(cli, app);
  orrery::cli::add_flight_recorder(cli, app);
  orrery::cli::add_validate(cli, app);
  orrery::cli::add_export(cli, app);
  orrery::cli::add_model(cli, app);
  orrery::cli::add_collective(cli, app);
  orrery::cli::add_links(cli, app);
  orrery::cli::add_topology(cli, app);
  orrery::cli::add_reliability(cli, app);
  orrery::cli::add_serve(cli, app);
  orrery::cli::add_generate(cli, app);
  orrery::cli::add_gradient_noise(cli, app);
  orrery::cli::add_documents(cli, app);
  orrery::cli::add_parameter_server(cli, app);
  orrery::cli::add_schedule(cli, app);
  orrery::cli::add_schema(cli, app);
  orrery::cli::add_doctor(cli, app);
  check_values(cli);
  orrery::cli::add_completion(cli, app);
  orrery::cli::add_man(cli);
  try {
    cli.parse(argc, argv);
    return finish(app.exit);
  } catch (const CLI::ParseError& e) {
    std::ostringstream help, message;
    const int code = cli.exit(e, help, message);
    std::fputs(help.str().c_str(), stdout);
    if (code == 0) return finish(ExitCode::kOk);
    if (const std::string unknown = unknown_word(cli); !unknown.empty())
      return fail(ExitCode::kUsage, unknown);
    fmt::print(stderr, "{}", printable_lines(message.str()));
    return static_cast<int>(ExitCode::kUsage);
  } catch (const orrery::InputError& e) {
    return fail(ExitCode::kInvalidInput, e.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kFailure, "out of memory");
  } catch (const std::exception& e) {
    return fail(ExitCode::kFailure, e.what());
  }
}
