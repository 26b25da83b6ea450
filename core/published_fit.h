// SPDX-License-Identifier: Apache-2.0
//
// profiles/fits/published.json, which `orrery calibrate --published` writes: the constants that were fitted
// to published training runs, how sure the fit is of each, and how far predictions were off with constants
// that were fitted without the run's study. Schema "orrery.fit/1".
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// What runs of other studies were fitted to: the stack and the GPU type of a run, one of the two, or neither.
enum class Knowledge { kBoth, kOne, kNeither };
constexpr auto enum_names(Knowledge) {
  return std::array{std::pair{Knowledge::kBoth, "both"}, std::pair{Knowledge::kOne, "one"},
                    std::pair{Knowledge::kNeither, "neither"}};
}

// 80 % of measured runs took between these multiples of what was predicted.
struct MeasuredRange {
  Knowledge knowledge = Knowledge::kNeither;
  std::int64_t runs = 0;  // that it was seen in
  double low = 1, high = 1;
  // Of the runs, by the range of the other studies' runs.
  double covered = 0;
};
template <class V>
void describe(V& v, MeasuredRange& r) {
  v(Field{.name = "knowledge",
          .help = "whether other studies had the stack and the GPU type: both, one, neither"},
    r.knowledge);
  v(Field{.name = "runs", .help = "published runs that it comes from", .min = 0, .max = 1e9}, r.runs);
  v(Field{.name = "low", .help = "10th percentile of published over predicted", .min = 0.01, .max = 100},
    r.low);
  v(Field{.name = "high", .help = "90th percentile of published over predicted", .min = 0.01, .max = 100},
    r.high);
  v(Field{.name = "covered",
          .help = "share of the runs in the range of the other studies' runs",
          .min = 0,
          .max = 1},
    r.covered);
}

// "80 % of 621 published runs took 0.88 to 1.23 of the prediction where stack and GPU type were known from
// others"
std::string words_of(const MeasuredRange& range);

// Of the memory that runs took, whose configuration leaves nothing open: ln(measured / predicted) is normal.
struct MemorySpread {
  std::int64_t runs = 0;
  double mean = 0, deviation = 0;
  // Probability that what is predicted to need so many bytes fits into so many. Without a deviation the
  // prediction holds.
  double fits(double needs, double has) const;
};
template <class V>
void describe(V& v, MemorySpread& s) {
  constexpr double kMost = 10;
  v(Field{.name = "runs", .help = "published runs that it comes from", .min = 0, .max = 1e9}, s.runs);
  v(Field{.name = "mean", .help = "of ln(measured / predicted)", .min = -kMost, .max = kMost}, s.mean);
  v(Field{.name = "deviation", .help = "its standard deviation", .min = 0, .max = kMost}, s.deviation);
}

// Of a normal distribution, 80 % lie within so many deviations of its mean.
inline constexpr double kDeviationsOf80Percent = 1.2816;

// How predictions of plans for one question (model, GPUs, batch) err against each other.
struct PlanSpread {
  std::int64_t questions = 0, plans = 0;
  // Of ln(published / predicted) step time about its mean of the question: 80 % lie within 1.28 deviations.
  double deviation = 0;
};
template <class V>
void describe(V& v, PlanSpread& s) {
  v(Field{.name = "questions", .help = "that published plans were measured for", .min = 0, .max = 1e9},
    s.questions);
  v(Field{.name = "plans", .help = "that were measured for them", .min = 0, .max = 1e9}, s.plans);
  v(Field{.name = "deviation",
          .help = "standard deviation of ln(published / predicted) about its mean of the question",
          .min = 0,
          .max = 10},
    s.deviation);
}

// What a choice among plans risks.
struct PredictionSpread {
  MemorySpread memory;
  PlanSpread plans;
};

struct FittedValue {
  std::string name, unit;
  double value = 0, standard_error = 0, low = 0, high = 0, expected = 0, spread = 0;
};
template <class V>
void describe(V& v, FittedValue& c) {
  constexpr double kMost = 1e9;
  const auto number = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 0, .max = kMost};
  };
  v(Field{.name = "name", .help = "GPU type or stack, and field of its profiles", .required = true}, c.name);
  v(Field{.name = "unit", .help = "1: a ratio"}, c.unit);
  v(number("value", "as fitted"), c.value);
  v(number("standard_error", "of the fit; 0 at a bound"), c.standard_error);
  v(number("low", "least that is allowed"), c.low);
  v(number("high", "most that is allowed"), c.high);
  v(number("expected", "before any run is seen"), c.expected);
  v(number("spread", "of what is expected"), c.spread);
}

struct StudyErrors {
  std::string study;
  std::int64_t runs = 0;
  double in_sample = 0, left_out = 0, bias_left_out = 0;  // mean of |error|, |error|, error
};
template <class V>
void describe(V& v, StudyErrors& s) {
  v(Field{.name = "study", .help = "who published the runs", .required = true}, s.study);
  v(Field{.name = "runs", .help = "of it, that are fitted to", .min = 0, .max = 1e9}, s.runs);
  v(Field{.name = "in_sample", .help = "mean absolute error of step time", .min = 0, .max = 1e9},
    s.in_sample);
  v(Field{.name = "left_out", .help = "with constants fitted to the other studies", .min = 0, .max = 1e9},
    s.left_out);
  v(Field{.name = "bias_left_out", .help = "mean error, likewise", .min = -1, .max = 1e9}, s.bias_left_out);
}

struct PublishedFitFile {
  std::vector<std::string> data;             // files that were read
  std::vector<std::string> stacks, devices;  // of the runs that were fitted to, and the devices' siblings
  std::vector<MeasuredRange> ranges;         // by knowledge
  MemorySpread memory;
  PlanSpread plans;
  std::vector<StudyErrors> studies;
  std::vector<FittedValue> constants;
  std::vector<std::vector<double>> covariance;  // of the constants' values
};
template <class V>
void describe(V& v, PublishedFitFile& f) {
  v(Field{.name = "data", .help = "data sets that were fitted to"}, f.data);
  v(Field{.name = "stacks", .help = "stacks that some fitted run has"}, f.stacks);
  v(Field{.name = "devices", .help = "devices of the GPU types that some fitted run has"}, f.devices);
  v(Field{.name = "ranges", .help = "80 % of published over predicted, by what is known"}, f.ranges);
  v(Field{.name = "memory", .help = "how memory spreads about its prediction"}, f.memory);
  v(Field{.name = "plans", .help = "how plans for one question err against each other"}, f.plans);
  v(Field{.name = "studies", .help = "errors by study"}, f.studies);
  v(Field{.name = "constants", .help = "what was fitted"}, f.constants);
  v(Field{.name = "covariance", .help = "of the constants"}, f.covariance);
}

ORRERY_FIELDS(extern, PublishedFitFile);

}  // namespace orrery
