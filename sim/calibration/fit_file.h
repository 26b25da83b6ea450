// SPDX-License-Identifier: Apache-2.0
//
// What a fit to published runs is kept as: errors by study, how sure a prediction is, and the constants in
// the profiles.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/published_fit.h"
#include "sim/calibration/fit_published.h"

namespace orrery::sim {

// How far runs were from predictions by the other studies' constants, by what these knew of the run's stack
// and GPU type: the 10th and the 90th percentile, in which runs of a study that err alike count as fewer
// (fit_file.cpp). Where neither is known, from predictions with what is expected of every constant.
std::vector<MeasuredRange> measured_ranges(const PublishedRuns& runs, const PublishedFit& fit);
std::vector<StudyErrors> errors_by_study(const PublishedRuns& runs, const PublishedFit& fit);

// profiles/fits/published.json; `data`: where the runs come from.
PublishedFitFile fit_file(const PublishedRuns& runs, const PublishedFit& fit,
                          const std::vector<std::string>& data);

// Throws InputError for a data folder without one of the profiles that have constants.
void require_profiles(const std::filesystem::path& folder);
// Writes the constants into the profiles of a data folder, and the fit beside them. Throws as
// require_profiles, with nothing written, and Error when a file cannot be written.
void save_fit(const PublishedFitFile& fit, const std::filesystem::path& folder);

}  // namespace orrery::sim
