// SPDX-License-Identifier: Apache-2.0
//
// The fit to published runs: it finds constants that made the runs, leaving a study out is fitting the
// others, ranges hold what they say, and the shipped profiles have what profiles/fits/published.json says.
#include "sim/calibration/fit_file.h"
#include "sim/calibration/score.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace orrery::sim {
namespace {

const std::filesystem::path kProject = ORRERY_ROOT;

const PublishedRuns& shipped() {
  static const PublishedRuns runs =
      read_published(kProject / "tests/data/training_runs.json", DataFolders(kProject));
  return runs;
}

// Every so manyth of the runs of these studies that ran.
PublishedRuns some_runs(const std::vector<std::string>& studies, std::size_t every) {
  PublishedRuns out;
  std::size_t n = 0;
  for (const PublishedRun& run : shipped().runs) {
    if (!run.ran() || std::find(studies.begin(), studies.end(), run.study) == studies.end()) continue;
    if (n++ % every == 0) out.runs.push_back(run);
  }
  return out;
}

std::vector<double> expected() {
  std::vector<double> out;
  for (const Constant& c : fitted_constants()) out.push_back(c.expected);
  return out;
}

std::size_t index_of(const std::string& name) {
  const auto& all = fitted_constants();
  const auto at = std::find_if(all.begin(), all.end(), [&](const Constant& c) { return c.name() == name; });
  EXPECT_NE(at, all.end()) << name;
  return static_cast<std::size_t>(at - all.begin());
}

PublishedFit fit(const PublishedRuns& runs) {
  return fit_published(runs, 2, [](double) {});
}

// Runs that took what is predicted with some constants. What is expected pulls each towards its value, by
// less the more runs depend on it.
TEST(PublishedFits, FindTheConstantsThatMadeTheRuns) {
  PublishedRuns runs = some_runs({"internevo", "llm_foundry", "bigscience"}, 6);
  ASSERT_GT(runs.runs.size(), 40U);
  std::vector<double> made = expected();
  made[index_of("A100.sustained")] = 0.7;
  made[index_of("H100.sustained")] = 0.95;
  made[index_of("fsdp-2023.elementwise_passes")] = 1.2;
  made[index_of("internevo.collective_sync")] = 80;
  for (PublishedRun& run : runs.runs) run.step_s = predict_seconds(run, with_constants(run.problem, made));
  const PublishedFit found = fit(runs);
  EXPECT_NEAR(found.constants[index_of("A100.sustained")].value, 0.7, 0.005);
  EXPECT_NEAR(found.constants[index_of("H100.sustained")].value, 0.95, 0.01);
  EXPECT_NEAR(found.constants[index_of("fsdp-2023.elementwise_passes")].value, 1.2, 0.05);
  EXPECT_NEAR(found.constants[index_of("internevo.collective_sync")].value, 80, 4);
  // No run has a B200: its constant is what was expected, and as unsure.
  const std::size_t b200 = index_of("B200.sustained");
  EXPECT_NEAR(found.constants[b200].value, fitted_constants()[b200].expected, 1e-9);
  for (const double r : found.residuals) EXPECT_LT(std::abs(r), 0.01);
}

TEST(PublishedFits, StayWithinBounds) {
  PublishedRuns runs = some_runs({"internevo"}, 5);
  for (PublishedRun& run : runs.runs) run.step_s /= 3;  // faster than any GPU
  const PublishedFit found = fit(runs);
  const std::size_t sustained = index_of("A100.sustained");
  EXPECT_DOUBLE_EQ(found.constants[sustained].value, fitted_constants()[sustained].high);
  EXPECT_EQ(found.constants[sustained].standard_error, 0);
  for (std::size_t c = 0; c < found.constants.size(); ++c) {
    EXPECT_GE(found.constants[c].value, fitted_constants()[c].low);
    EXPECT_LE(found.constants[c].value, fitted_constants()[c].high);
  }
}

// To leave a study out is to fit to the others.
TEST(PublishedFits, LeaveAStudyOut) {
  const PublishedRuns both = some_runs({"internevo", "llm_foundry"}, 8);
  PublishedRuns one;
  std::copy_if(both.runs.begin(), both.runs.end(), std::back_inserter(one.runs),
               [](const PublishedRun& run) { return run.study == "internevo"; });
  const PublishedFit of_both = fit(both), of_one = fit(one);
  std::vector<double> values;
  for (const FittedConstant& c : of_one.constants) values.push_back(c.value);
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < both.runs.size(); ++i) {
    const PublishedRun& run = both.runs[i];
    if (run.study == "internevo") continue;
    ++left_out;
    const double r = std::log(predict_seconds(run, with_constants(run.problem, values)) / run.step_s);
    EXPECT_NEAR(of_both.left_out[i], r, 0.003) << run.id;
    EXPECT_NE(of_both.left_out[i], of_both.residuals[i]) << run.id;
  }
  EXPECT_GT(left_out, 10U);
}

// Two studies on the A100 with stacks of their own: the GPU is known from the other, the stack is not.
PublishedRuns two_studies(int first, int second) {
  PublishedRuns runs;
  for (const auto& [study, stack, n] :
       {std::tuple{"a", "internevo", first}, std::tuple{"b", "fsdp-2023", second}}) {
    for (int i = 0; i < n; ++i) {
      PublishedRun run = some_runs({"internevo"}, 100).runs.front();
      run.study = study;
      run.problem.stack.name = stack;
      runs.runs.push_back(std::move(run));
    }
  }
  return runs;
}

// Ratios 1.00, 1.01, ... of 20 runs and 2.00, 2.05, ... of 40. By analysis of variance of their logarithms
// 0.944 of the variance is between the studies: a run of the first weighs 1 / (1 + 19 x 0.944) = 0.0528, of
// the second 1 / (1 + 39 x 0.944) = 0.0264, all 2.1135. A tenth of it is 4.003 runs of the first study, so
// the fifth is the percentile; nine tenths are all of the first and 32.006 of the second.
TEST(PublishedFits, RangesWeighStudiesWhoseRunsErrAlike) {
  const PublishedRuns runs = two_studies(20, 40);
  PublishedFit fit;
  for (int i = 0; i < 20; ++i) fit.left_out.push_back(-std::log(1.00 + 0.01 * i));
  for (int i = 0; i < 40; ++i) fit.left_out.push_back(-std::log(2.00 + 0.05 * i));
  fit.residuals = fit.left_out;
  fit.unfitted.assign(60, -std::log(1.5));
  const auto ranges = measured_ranges(runs, fit);
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[1].knowledge, Knowledge::kNeither);
  EXPECT_NEAR(ranges[1].low, 1.5, 1e-9);
  EXPECT_NEAR(ranges[1].covered, 1, 1e-9);
  EXPECT_EQ(ranges[0].knowledge, Knowledge::kOne);
  EXPECT_EQ(ranges[0].runs, 60);
  EXPECT_NEAR(ranges[0].low, 1.04, 1e-9);
  EXPECT_NEAR(ranges[0].high, 2.00 + 0.05 * 32, 1e-9);
  // Neither study is in the range of the other.
  EXPECT_NEAR(ranges[0].covered, 0, 1e-9);
  // Of the first study's 20 runs, the errors are those of the ratios: the largest is 1 - 1/1.19.
  const auto studies = errors_by_study(runs, fit);
  ASSERT_EQ(studies.size(), 2U);
  EXPECT_EQ(studies[1].runs, 40);
  double mean = 0;
  for (int i = 0; i < 20; ++i) mean += (1 - 1 / (1.00 + 0.01 * i)) / 20;
  EXPECT_NEAR(studies[0].left_out, mean, 1e-12);
  EXPECT_NEAR(studies[0].bias_left_out, -mean, 1e-12);
}

// 20 runs from 1.00 to 1.19 and 40 from 1.000 to 1.195: the studies have nothing of their own, and runs weigh
// alike. The sixth of 60 is 1.015 (1.000 and 1.010 are there twice), the 54th, the seventh from above, 1.175.
TEST(PublishedFits, RangesWeighRunsThatErrByThemselves) {
  PublishedFit fit;
  for (int i = 0; i < 20; ++i) fit.left_out.push_back(-std::log(1.00 + 0.01 * i));
  for (int i = 0; i < 40; ++i) fit.left_out.push_back(-std::log(1.00 + 0.005 * i));
  fit.residuals = fit.unfitted = fit.left_out;
  const auto ranges = measured_ranges(two_studies(20, 40), fit);
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_NEAR(ranges[0].low, 1.015, 1e-9);
  EXPECT_NEAR(ranges[0].high, 1.175, 1e-9);
}

PublishedFitFile shipped_fit() {
  return read_fields<PublishedFitFile>(load_json(kProject / "profiles/fits/published.json"),
                                       Cursor{"published.json", ""});
}

// So that a saved profile differs in its constants alone.
TEST(PublishedFits, FindProfilesLaidOutAsTheyAreSaved) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kProject / "profiles")) {
    if (!entry.is_regular_file() || entry.path().parent_path().filename() == "links") continue;
    EXPECT_EQ(laid_out(load_json(entry.path())), load_text(entry.path())) << entry.path();
  }
}

// What is saved is read back, and profiles keep everything else.
TEST(PublishedFits, AreSavedIntoTheProfiles) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / fmt::format("orrery-fit-{}", getpid());
  fs::create_directories(folder);
  fs::copy(kProject / "profiles", folder / "profiles", fs::copy_options::recursive);
  PublishedFitFile fit = shipped_fit();
  const std::size_t sustained = index_of("H100.sustained");
  fit.constants[sustained].value = 0.512345;
  save_fit(fit, folder);
  for (const auto& entry : fs::recursive_directory_iterator(kProject / "profiles")) {
    if (!entry.is_regular_file()) continue;
    const fs::path file = fs::relative(entry.path(), kProject);
    Json before = load_json(entry.path()), after = load_json(folder / file);
    const auto& names = fitted_constants()[sustained].devices;
    if (std::find(names.begin(), names.end(), file.stem()) != names.end()) {
      EXPECT_EQ(after["sustained"], 0.512) << file;
      before["sustained"] = 0.512;
    }
    if (file.parent_path() != "profiles/fits") {
      EXPECT_EQ(before, after) << file;
    }
  }
  const auto saved =
      read_fields<PublishedFitFile>(load_json(folder / "profiles/fits/published.json"), Cursor{});
  EXPECT_EQ(saved.constants[sustained].value, 0.512345);
  EXPECT_EQ(saved.ranges.size(), fit.ranges.size());
  fs::remove(folder / "profiles/gb200.json");
  EXPECT_THROW(require_profiles(folder), InputError);
  fs::remove_all(folder);
}

// The profiles have the constants that the shipped fit found, each in its bounds, and the ranges hold about
// what they say of the studies that were left out.
TEST(PublishedFits, AreWhatProfilesHave) {
  const PublishedFitFile fit = shipped_fit();
  ASSERT_EQ(fit.constants.size(), fitted_constants().size());
  for (std::size_t i = 0; i < fit.constants.size(); ++i) {
    const Constant& c = fitted_constants()[i];
    EXPECT_EQ(fit.constants[i].name, c.name());
    EXPECT_GE(fit.constants[i].value, c.low) << c.name();
    EXPECT_LE(fit.constants[i].value, c.high) << c.name();
    const auto expect_in = [&](const std::filesystem::path& file) {
      EXPECT_EQ(load_json(file)[Json::json_pointer(c.field)], constant_json(c, fit.constants[i].value))
          << file;
    };
    for (const std::string& name : c.devices) expect_in(kProject / "profiles" / (name + ".json"));
    for (const std::string& name : c.stacks) expect_in(kProject / "profiles/stacks" / (name + ".json"));
  }
  std::int64_t per_gpu = 0, per_stack = 0;
  for (const Constant& c : fitted_constants()) {
    const auto alike = std::count_if(fitted_constants().begin(), fitted_constants().end(),
                                     [&](const Constant& o) { return o.of == c.of; });
    (c.stacks.empty() ? per_gpu : per_stack) =
        std::max<std::int64_t>(c.stacks.empty() ? per_gpu : per_stack, alike);
  }
  EXPECT_LE(per_gpu, 8);
  EXPECT_LE(per_stack, 4);
  ASSERT_EQ(fit.ranges.size(), 3U);
  for (const MeasuredRange& r : fit.ranges) {
    EXPECT_LT(r.low, 1) << name_of(r.knowledge);
    EXPECT_GT(r.high, 1) << name_of(r.knowledge);
  }
}

// Two questions. Of the first, predictions of two plans err by e^0.1 and e^-0.1 beside their mean, whatever
// both err by; of the second by nothing. With one degree of freedom of two the errors are 0, 0, and
// 0.1 sqrt(2) twice; 80 % of four plans are all of them.
TEST(PublishedFits, PlansOfOneQuestionErrAgainstEachOther) {
  const auto row = [](const char* asked, const char* tp, double predicted, double published) {
    return ValidationRow{"r", "s", "step_time", predicted, published, {}, 0, {{"gpus", asked}}, {{"tp", tp}}};
  };
  const PlanSpread s = plan_spread({row("8", "1", 1, 3 * std::exp(0.1)), row("8", "2", 1, 3 * std::exp(-0.1)),
                                    row("16", "1", 1, 2), row("16", "2", 2, 4), row("32", "1", 1, 9)});
  EXPECT_EQ(s.questions, 2);
  EXPECT_EQ(s.plans, 4);
  EXPECT_NEAR(s.deviation, 0.1 * std::sqrt(2.0) / 1.2816, 1e-12);
}

// A run of a known stack on a known GPU type has their range, and others wider ones.
TEST(PublishedFits, RangesFollowWhatIsKnown) {
  const DataFolders data(kProject);
  const auto range = [&](const char* stack, const char* device) {
    return measured_range(load_stack(stack, {}, data), {load_device(device, {}, data)},
                          load_published_fit(data));
  };
  EXPECT_EQ(range("megatron-core-2024", "h800").knowledge, Knowledge::kBoth);
  EXPECT_EQ(range("megatron-core-2024", "mi300x").knowledge, Knowledge::kOne);
  EXPECT_EQ(range("fsdp", "h100-sxm").knowledge, Knowledge::kOne);
  EXPECT_EQ(range("torchtitan", "mi300x").knowledge, Knowledge::kNeither);
  EXPECT_EQ(range("orrery", "cpu-reference").high, 3);  // what the stack says
}

// Half of the plans that need what there is fit where predictions have no bias; one standard deviation less
// fits in 0.8413 of cases.
TEST(WhichPlansFit, IsANormalDistributionOfLogarithms) {
  const double sigma = 0.2;
  const MemorySpread even{.mean = 0, .deviation = sigma}, low{.mean = sigma, .deviation = sigma};
  EXPECT_NEAR(even.fits(80, 80), 0.5, 1e-12);
  EXPECT_NEAR(even.fits(80 * std::exp(-sigma), 80), 0.841345, 1e-6);
  EXPECT_NEAR(low.fits(80, 80), 0.158655, 1e-6);
  EXPECT_EQ(MemorySpread{}.fits(80, 80), 1);  // without a deviation the prediction holds
  EXPECT_EQ(MemorySpread{}.fits(80.1, 80), 0);
}

// Two memory rows of ratios e^0.1 and e^-0.1: mean 0, deviation 0.1; one that leaves something open has no
// say. A plan that needs half of what there is fits for sure; one that needs as much as there is, in half of
// all cases, and ran out: (0.5 - 0)^2 / 2.
TEST(WhichPlansFit, IsScored) {
  Validation v;
  v.rows = {{"a", "s", "memory", 1, std::exp(0.1), {}},
            {"b", "s", "memory", 1, std::exp(-0.1), {}},
            {"c", "s", "memory", 1, 9, {"recompute"}}};
  v.fits = {{"a", "s", 40, 80, true}, {"c", "s", 80, 80, false}};
  const auto f = summarise_fits(v);
  ASSERT_TRUE(f);
  EXPECT_NEAR(f->spread.deviation, 0.1, 1e-12);
  EXPECT_NEAR(f->brier, 0.125, 1e-9);
  EXPECT_EQ(f->fitted_told, 1);
  EXPECT_EQ(f->out_of_memory, 1);
  v.fits.pop_back();
  EXPECT_FALSE(summarise_fits(v));
}

}  // namespace
}  // namespace orrery::sim
