// SPDX-License-Identifier: Apache-2.0
//
// Predicted against published as documents: a report in Markdown, and a scatter plot in SVG of each quantity.
#pragma once

#include <filesystem>

#include "core/published_fit.h"
#include "sim/calibration/validate.h"

namespace orrery::sim {

// Points of rows on logarithmic axes, with the diagonal and lines 20 % off. GPUs have a colour each, or
// sources where rows name no GPU. Rows of other quantities are left out.
std::string scatter_plot(const std::vector<ValidationRow>& rows, const std::string& quantity);

// report.md and its plots, into a folder that is made where it is missing. Throws Error when one cannot be
// written.
void write_report(const Validation& all, const PublishedFitFile& fit, const std::filesystem::path& folder);

}  // namespace orrery::sim
