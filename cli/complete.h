// SPDX-License-Identifier: Apache-2.0
//
// What a shell and man know of the commands, from the same declarations that --help prints.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace orrery::cli {

// Words that may stand where the last of `words` does, which begin with it: commands, options, values of an
// option. Nothing where a file's name is meant.
std::vector<std::string> completions(const CLI::App& root, const DataFolders& data,
                                     std::vector<std::string> words);

// The commands of a tree as paths from its root, itself first: {}, {"plan"}, {"model"}, {"model", "show"}, ..
std::vector<std::vector<const CLI::App*>> command_paths(const CLI::App& root);

// The manual page of the command at the end of a path, as roff (man(7)).
std::string manual_page(const std::vector<const CLI::App*>& path, const CLI::App& root,
                        const std::string& version);
// "orrery-model-show"
std::string page_name(const std::vector<const CLI::App*>& path);

// `orrery completion SHELL`, which asks `orrery complete` for words; and `orrery man`.
void add_completion(CLI::App& root, App& app);
void add_man(CLI::App& root);

}  // namespace orrery::cli
