// SPDX-License-Identifier: Apache-2.0
//
// Timelines from files, whoever wrote them: ours in either form, traces of the PyTorch profiler (.json, and
// .json.gz as it writes them), exports of Nsight Systems (.sqlite), Chakra execution traces (.et). Reading
// goes by content.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"
#include "trace/merge.h"

namespace orrery::trace {

// One of our timelines, which may have been merged, or any number of other software's traces, each of some
// ranks of one job.
struct Loaded {
  Merged merged;         // of one of ours, the timeline alone
  bool foreign = false;  // its names are other software's
};
Loaded load(const std::vector<std::filesystem::path>& paths);

// Whether a file is packed, a database or an execution trace, by its beginning: what only other software
// writes.
bool is_foreign(const std::filesystem::path& path);
// Whether it is one of our binary timelines, by its beginning.
bool is_binary_timeline(const std::filesystem::path& path);
// Of Chrome events that were read already, ours or the PyTorch profiler's.
Timeline of_events(const Json& trace, const std::string& file);

}  // namespace orrery::trace
