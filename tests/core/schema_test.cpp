// SPDX-License-Identifier: Apache-2.0
//
// The JSON Schemas we print, by a validator that knows nothing of us: shipped files satisfy them, files with
// an unknown field or a value of another type do not.
#include <gtest/gtest.h>

#include <filesystem>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

#include "core/json.h"
#include "core/plan_file.h"
#include "core/reliability_profile.h"
#include "core/scenario.h"

namespace orrery {
namespace {

bool satisfies(const Json& value, const Json& schema) {
  valijson::Schema parsed;
  valijson::SchemaParser parser;
  parser.populateSchema(valijson::adapters::NlohmannJsonAdapter(schema), parsed);
  valijson::Validator validator;
  return validator.validate(parsed, valijson::adapters::NlohmannJsonAdapter(value), nullptr);
}

void check_folder(const char* folder, const Json& schema, int fewest = 6) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(ORRERY_ROOT "/") + folder)) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const Json file = load_json(entry.path());
    EXPECT_TRUE(satisfies(file, schema)) << entry.path();
    Json unknown = file;
    unknown["colour"] = "blue";
    EXPECT_FALSE(satisfies(unknown, schema)) << entry.path() << " with an unknown field";
    for (const auto& [name, value] : file.items()) {
      Json wrong = file;
      wrong[name] = value.is_array() ? Json(true) : Json::array({value});
      EXPECT_FALSE(satisfies(wrong, schema)) << entry.path() << " with another type at /" << name;
    }
  }
  EXPECT_GE(files, fewest) << folder;
}

TEST(Schema, Scenarios) {
  check_folder("scenarios", schema_fields<Scenario>());
}
TEST(Schema, Topologies) {
  check_folder("topologies", schema_fields<Cluster>());
}
TEST(Schema, Devices) {
  check_folder("profiles", schema_fields<Device>());
}
TEST(Schema, Links) {
  check_folder("profiles/links", schema_fields<LinkProfile>());
}
TEST(Schema, Reliability) {
  check_folder("profiles/reliability", schema_fields<ReliabilityProfile>());
}
TEST(Schema, Stacks) {
  check_folder("profiles/stacks", schema_fields<Stack>());
  check_folder("profiles/serving", schema_fields<Stack>(), 3);
}

TEST(Schema, Fits) {
  const Json schema = schema_fields<PublishedFitFile>();
  Json file = load_json(ORRERY_ROOT "/profiles/fits/published.json");
  file.erase("schema");
  EXPECT_TRUE(satisfies(file, schema));
  file["covariance"][0] = 1;
  EXPECT_FALSE(satisfies(file, schema));
}

TEST(Schema, PlanFiles) {
  PlanFile f;
  f.scenario = load_problem(ORRERY_ROOT "/scenarios/llama3-70b-p4d.json", DataFolders()).scenario;
  f.plan = {.tp = 8, .pp = 2, .dp = 4, .zero = 1, .micro_batches = 128, .chunk_layers = {40, 40}};
  f.predicted.memory = {{.stage = 0, .total = 1}};
  const Json schema = schema_fields<PlanFile>();
  Json file = write_fields(f);
  EXPECT_TRUE(satisfies(file, schema));
  file["plan"]["tp"] = "eight";
  EXPECT_FALSE(satisfies(file, schema));
}

// The same plan again from its file; and its name.
TEST(Schema, NumbersOfRecomputedLayersGoThroughAPlanFile) {
  Plan p{.pp = 2, .vpp = 2, .schedule = Schedule::kInterleaved, .recompute = Recompute::kFull};
  p.recompute_by_chunk = {4, 4, 2, 0};
  const Json file = write_fields(p);
  EXPECT_EQ(file["recompute_by_chunk"], Json({4, 4, 2, 0}));
  EXPECT_EQ(read_fields<Plan>(file, Cursor{"p.json", ""}), p);
  EXPECT_NE(short_name(p).find(" full by chunk 4x2,2,0"), std::string::npos) << short_name(p);
  p.recompute_by_chunk = {8, 1, 7, 2, 6, 3, 5};
  EXPECT_NE(short_name(p).find(" full by chunk 8..1"), std::string::npos) << short_name(p);
}

// What the plan's other fields say is said by them.
TEST(Plan, RecomputedLayersHaveOneForm) {
  const Plan p{.pp = 2, .vpp = 2};  // of 10 layers: 3, 3, 2, 2
  const auto form = [&](std::vector<std::int64_t> by_chunk) {
    const Plan out = with_recomputed(p, by_chunk, 10);
    for (std::size_t c = 0; c < by_chunk.size(); ++c)
      EXPECT_EQ(recomputed_layers(out, static_cast<std::int64_t>(c), c < 2 ? 3 : 2), by_chunk[c]);
    return std::tuple(out.recompute, out.recompute_first, out.recompute_by_chunk.size());
  };
  EXPECT_EQ(form({0, 0, 0, 0}), std::tuple(Recompute::kNone, 0, 0U));
  EXPECT_EQ(form({3, 3, 2, 2}), std::tuple(Recompute::kFull, 0, 0U));
  EXPECT_EQ(form({1, 1, 1, 1}), std::tuple(Recompute::kFull, 1, 0U));
  EXPECT_EQ(form({2, 2, 2, 2}), std::tuple(Recompute::kFull, 2, 0U));
  EXPECT_EQ(form({3, 2, 2, 2}), std::tuple(Recompute::kFull, 0, 4U));
  EXPECT_EQ(form({1, 0, 0, 0}), std::tuple(Recompute::kFull, 0, 4U));
}

}  // namespace
}  // namespace orrery
