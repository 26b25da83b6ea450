// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "cli/commands.h"

namespace orrery::cli {

CLI::App* subcommand(CLI::App& parent, App& app, const char* name, const char* help) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->add_flag("--json", app.json, "machine-readable output with a \"schema\" field");
  return command;
}

void print_json(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace orrery::cli
