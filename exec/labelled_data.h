// SPDX-License-Identifier: Apache-2.0
//
// Datasets whose samples have a label: images with a class, and events of two towers. Null where the model
// takes sequences of tokens (data.h has those, and the formats of files). Internal to exec/.
#pragma once

#include <memory>
#include <string>

#include "exec/data.h"

namespace orrery::exec {

std::unique_ptr<Dataset> built_in_labelled_data(std::uint64_t seed, const Model& model);
std::unique_ptr<Dataset> open_labelled_data(const std::string& path, const Model& model);

}  // namespace orrery::exec
