// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "cli/commands.h"
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
  CLI::App cli{"Plan, simulate and run the training of large models."};
  cli.require_subcommand(1);
  cli.set_version_flag("--version", "orrery " ORRERY_VERSION);
  orrery::cli::App app;
  orrery::cli::add_plan(cli, app);
  orrery::cli::add_simulate(cli, app);
  orrery::cli::add_run(cli, app);
  orrery::cli::add_calibrate(cli, app);
  orrery::cli::add_compare(cli, app);
  orrery::cli::add_validate(cli, app);
  orrery::cli::add_export(cli, app);
  orrery::cli::add_model(cli, app);
  orrery::cli::add_collective(cli, app);
  orrery::cli::add_links(cli, app);
  orrery::cli::add_topology(cli, app);
  orrery::cli::add_schema(cli, app);
  orrery::cli::add_doctor(cli, app);
  check_values(cli);
  try {
    cli.parse(argc, argv);
    std::cout.flush();
    if (!std::cout) return fail(ExitCode::kFailure, "cannot write to standard output");
    return static_cast<int>(app.exit);
  } catch (const CLI::ParseError& e) {
    std::ostringstream message;
    const int code = cli.exit(e, std::cout, message);
    fmt::print(stderr, "{}", printable_lines(message.str()));
    return code == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  } catch (const orrery::InputError& e) {
    return fail(ExitCode::kInvalidInput, e.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kFailure, "out of memory");
  } catch (const std::exception& e) {
    return fail(ExitCode::kFailure, e.what());
  }
}
