// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <iostream>

#include "cli/commands.h"

namespace {

int fail(orrery::ExitCode code, const std::string& message) {
  fmt::print(stderr, "orrery: {}\n", message);
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
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
  try {
    cli.parse(argc, argv);
    std::cout.flush();
    if (!std::cout) return fail(ExitCode::kFailure, "cannot write to standard output");
    return static_cast<int>(app.exit);
  } catch (const CLI::ParseError& e) {
    const int code = cli.exit(e, std::cout, std::cerr);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  } catch (const orrery::InputError& e) {
    return fail(ExitCode::kInvalidInput, e.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kFailure, "out of memory");
  } catch (const std::exception& e) {
    return fail(ExitCode::kFailure, e.what());
  }
}
