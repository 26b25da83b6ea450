// SPDX-License-Identifier: Apache-2.0
//
// How wrong README and docs/validation.md say that predictions are, against the errors on the published
// measurements of this repository: tests/data, and the collectives that link profiles keep as curves.
// A sentence that no longer holds fails, and the failure prints the sentence that does.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>

#include "core/published_fit.h"
#include "sim/calibration/score.h"

namespace orrery::sim {
namespace {

const std::string kRoot = ORRERY_ROOT;

// With one space where the file has any, so that a sentence may be broken anywhere.
std::string words(const std::string& file) {
  return std::regex_replace(load_text(kRoot + "/" + file), std::regex(R"(\s+)"), " ");
}
void expect_says(const std::string& file, const std::string& sentence) {
  EXPECT_NE(words(file).find(sentence), std::string::npos) << file << " does not say: " << sentence;
}

std::string percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * fraction);
}
std::string signed_percent(double fraction) {
  return (fraction < 0 ? "−" : "+") + percent(std::abs(fraction));
}
std::string thousands(std::int64_t n) {
  return n < 1000 ? std::to_string(n) : fmt::format("{},{:03}", n / 1000, n % 1000);
}

Validation runs(const DataFolders& data) {
  return validate_file(kRoot + "/tests/data/training_runs.json", data);
}
const Validation& runs() {
  static const Validation v = runs(DataFolders());
  return v;
}

// The collectives that profiles keep are rows like the others: one group a curve.
Json rows_of_curves() {
  constexpr std::pair<CollectiveKind, const char*> kNames[] = {
      {CollectiveKind::kAllReduce, "all_reduce"},
      {CollectiveKind::kAllGather, "all_gather"},
      {CollectiveKind::kReduceScatter, "reduce_scatter"},
      {CollectiveKind::kAllToAll, "alltoall"}};
  Json rows = Json::array();
  const DataFolders data;
  for (const std::string& profile : data.names("profiles/links")) {
    for (const CollectiveCurve& c : load_links(profile, Cursor{"links"}, data).measured) {
      const auto* name = std::find_if(std::begin(kNames), std::end(kNames),
                                      [&](const auto& n) { return n.first == c.collective; });
      for (std::size_t i = 0; i < c.bytes.size(); ++i)
        rows.push_back({{"system", c.system},
                        {"collective", name->second},
                        {"gpus", c.ranks},
                        {"message_bytes", c.bytes[i].value},
                        {"time_us", 1e6 * seconds(c.times[i])}});
    }
  }
  return rows;
}

const Validation& collectives() {
  static const Validation v = [] {
    Json rows = rows_of_curves();
    for (const Json& r : load_json(kRoot + "/tests/data/collectives.json")) rows.push_back(r);
    return validate_collectives(rows, "collectives", DataFolders());
  }();
  return v;
}

TEST(Accuracy, OfStepTimesIsWhatReadmeSays) {
  const ErrorSummary firm = summarise(runs().rows, {"step_time", {}, true});
  const ErrorSummary all = summarise(runs().rows, {"step_time"});
  expect_says("README.md",
              fmt::format("On {} published training runs that state their whole configuration: **{} mean "
                          "absolute error of step time** (bias {}, median {}); on all {} it can express {}.",
                          firm.n, percent(firm.mape), signed_percent(firm.bias), percent(firm.median), all.n,
                          percent(all.mape)));
}

TEST(Accuracy, OfMemoryIsWhatReadmeSays) {
  const ErrorSummary firm = summarise(runs().rows, {"memory", {}, true});
  const ErrorSummary all = summarise(runs().rows, {"memory"});
  expect_says("README.md", fmt::format("Peak memory: {} on {} such rows, {} on all {}.", percent(firm.mape),
                                       firm.n, percent(all.mape), all.n));
}

TEST(Accuracy, OfCollectivesIsWhatReadmeSays) {
  const ErrorSummary all = summarise(collectives().rows, {"time"});
  const ErrorSummary large = summarise(collectives().rows, {"time", {}, false, 64 << 20});
  expect_says("README.md", fmt::format("On {} published collectives, each predicted without its own "
                                       "measurements: {}, from 64 MiB {}.",
                                       thousands(all.n), percent(all.mape), percent(large.mape)));
  expect_says("docs/validation.md",
              fmt::format("Over all rows {} (bias {}), over messages of 64 MiB or more {}.",
                          percent(all.mape), signed_percent(all.bias), percent(large.mape)));
}

// Every GPU at the same `sustained`.
TEST(Accuracy, WithoutTheChosenConstantIsWhatReadmeSays) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / fmt::format("orrery-accuracy-{}", getpid());
  for (const char* part : {"profiles", "topologies"}) {
    fs::create_directories(folder / part);
    fs::copy(kRoot + "/" + part, folder / part, fs::copy_options::recursive);
  }
  for (const auto& entry : fs::directory_iterator(folder / "profiles")) {
    if (!entry.is_regular_file()) continue;
    Json device = load_json(entry.path());
    device["sustained"] = 0.9;
    std::ofstream(entry.path()) << device;
  }
  const Validation v = runs(DataFolders(folder));
  fs::remove_all(folder);
  const std::string firm = percent(summarise(v.rows, {"step_time", {}, true}).mape);
  const std::string all = percent(summarise(v.rows, {"step_time"}).mape);
  expect_says("README.md", fmt::format("With every GPU at the same speed they are {} and {}.", firm, all));
  expect_says(
      "docs/validation.md",
      fmt::format("with `sustained` at 0.90 everywhere the errors are {} on all rows and {} on those that "
                  "leave nothing open.",
                  all, firm));
}

// The table of docs/validation.md, a line a source.
TEST(Accuracy, OfEachSourceIsWhatTheTableSays) {
  struct Line {
    const char *name, *source;
  };
  const Line lines[] = {{"Megatron, Korthikanti et al.", "korthikanti"},
                        {"Megatron SC21", "megatron_sc21"},
                        {"DGX Cloud (NeMo, PaxML, MaxText)", "dgxc"},
                        {"InternEvo", "internevo"},
                        {"LLM Foundry (FSDP)", "llm_foundry"},
                        {"zero-bubble paper", "zero_bubble"},
                        {"BigScience A100", "bigscience"},
                        {"BigScience V100", "bigscience_v100"},
                        {"Sailor (GH200, and mixed RTX GPUs)", "sailor"},
                        {"torchtitan", "torchtitan"},
                        {"DGX Cloud, fp8", "dgxc fp8"},
                        {"torchtitan, fp8", "torchtitan fp8"},
                        {"LLM Foundry (FSDP), fp8, H100", "llm_foundry fp8"},
                        {"Megatron Bridge, fp8, H100 to GB300", "mbridge fp8"},
                        {"DGX Cloud, context-parallel", "dgxc cp"},
                        {"DGX Cloud, context-parallel, fp8", "dgxc cp fp8"},
                        {"DGX Cloud, sparse", "dgxc sparse"},
                        {"DGX Cloud, sparse, fp8", "dgxc sparse fp8"},
                        {"DGX Cloud, sparse and context-parallel", "dgxc sparse cp"},
                        {"DGX Cloud, sparse and context-parallel, fp8", "dgxc sparse cp fp8"},
                        {"Megatron Bridge, sparse, fp8", "mbridge sparse fp8"},
                        {"Megatron Bridge, context-parallel, fp8", "mbridge cp fp8"},
                        {"SimuMax, B200", "simumax"},
                        {"SimuMax, sparse", "simumax sparse"}};
  for (const Line& line : lines) {
    const ErrorSummary s = summarise(runs().rows, {"step_time", line.source});
    expect_says("docs/validation.md",
                fmt::format("| {} | {} | {} | {} | {} |", line.name, s.n, percent(s.mape),
                            signed_percent(s.bias), percent(s.median)));
  }
  for (const bool firm : {false, true}) {
    const ErrorSummary s = summarise(runs().rows, {"step_time", {}, firm});
    const ErrorSummary m = summarise(runs().rows, {"memory", {}, firm});
    expect_says("docs/validation.md",
                fmt::format("| **{}** | **{}** | **{}** | **{}** | **{}** |",
                            firm ? "rows that leave nothing open" : "all", s.n, percent(s.mape),
                            signed_percent(s.bias), percent(s.median)));
    expect_says("docs/validation.md",
                fmt::format("| {} | {} | {} | {} |", firm ? "rows that leave nothing open" : "all", m.n,
                            percent(m.mape), signed_percent(m.bias)));
  }
}

// Constants and studies of profiles/fits/published.json, a line each.
TEST(Accuracy, OfTheFitIsWhatTheTablesSay) {
  const auto fit =
      read_fields<PublishedFitFile>(load_json(kRoot + "/profiles/fits/published.json"), Cursor{});
  for (const FittedValue& c : fit.constants) {
    const std::string unit = c.unit == "1" ? "" : " " + c.unit;
    const std::string error = c.standard_error == 0 ? "−" : fmt::format("{:.2g}", c.standard_error);
    expect_says("docs/validation.md",
                fmt::format("| {} | {:.3g}{} | {} | {:.3g} to {:.3g}{} | {:.3g} |", c.name, c.value, unit,
                            error, c.low, c.high, unit, c.expected));
  }
  for (const StudyErrors& s : fit.studies)
    expect_says("docs/validation.md",
                fmt::format("| {} | {} | {} | {} | {} |", s.study, s.runs, percent(s.in_sample),
                            percent(s.left_out), signed_percent(s.bias_left_out)));
  for (const MeasuredRange& r : fit.ranges)
    expect_says("docs/validation.md",
                fmt::format("| {} | {} | {:.2f} to {:.2f} | {:.0f} % |", name_of(r.knowledge), r.runs, r.low,
                            r.high, 100 * r.covered));
}

TEST(Accuracy, OfWhichPlansFitIsWhatTheDocumentSays) {
  const auto f = summarise_fits(runs());
  ASSERT_TRUE(f);
  expect_says(
      "docs/validation.md",
      fmt::format("{} of {} runs that ran out of memory have a probability of fitting below 0.5, {} of {} "
                  "that ran have one above it; the Brier score is {:.3f}.",
                  f->told, f->out_of_memory, f->fitted_told, f->fitted, f->brier));
}

}  // namespace
}  // namespace orrery::sim
