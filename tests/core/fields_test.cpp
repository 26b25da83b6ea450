// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"

#include <gtest/gtest.h>

#include "core/plan_file.h"

namespace orrery {
namespace {

std::string error_of(const std::string& text) {
  try {
    read_scenario(parse_json(text, "s.json"), Cursor{"s.json", ""});
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

const char* kGood =
    R"({"model": "llama-3-8b", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 2048}})";

TEST(Fields, AScenarioReadsBackFromWhatItWrites) {
  const Scenario s = read_scenario(parse_json(kGood, "s"), Cursor{"s", ""});
  const Json once = write_fields(s);
  const Json twice = write_fields(read_scenario(once, Cursor{"s", ""}));
  EXPECT_EQ(once.dump(), twice.dump());
  EXPECT_EQ(s.model.hidden, 4096);
}

TEST(Fields, ErrorsNameFilePointerValueAndNearestName) {
  EXPECT_EQ(
      error_of(
          R"({"model": "llama-3-70", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 1}})")
          .substr(0, 57),
      "s.json: /model: there is no model preset \"llama-3-70\"; al");
  EXPECT_NE(
      error_of(
          R"({"model": "llama-3-70", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 1}})")
          .find("did you mean \"llama-3-70b\""),
      std::string::npos);
  EXPECT_NE(
      error_of(
          R"({"model": "llama-3-8b", "cluster": {"topology": "p4d"}, "training": {"global_batch": -8, "sequence": 1}})")
          .find("/training/global_batch: -8 is out of range; allowed: at least 1"),
      std::string::npos);
  EXPECT_NE(
      error_of(
          R"({"model": "llama-3-8b", "cluster": {"topology": "p4d"}, "training": {"global_batsh": 8, "sequence": 1}})")
          .find("missing"),
      std::string::npos);
  EXPECT_NE(
      error_of(
          R"({"model": "llama-3-8b", "cluster": {"topology": "p4d", "node": 1}, "training": {"global_batch": 8, "sequence": 1}})")
          .find("/cluster/node: there is no such field; allowed: topology, nodes (did you mean \"nodes\"?)"),
      std::string::npos);
}

TEST(Fields, ADimensionedFieldNeedsItsUnit) {
  const std::string text =
      R"({"model": "llama-3-8b", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 1}, "node_hour": 32})";
  EXPECT_NE(
      error_of(text).find("/node_hour: 32 is not a quantity with its unit; allowed: text like \"$32.77\""),
      std::string::npos);
}

TEST(Fields, MalformedTextIsAnsweredWithAByteOffset) {
  EXPECT_EQ(error_of("{\"model\": ").substr(0, 15), "s.json: byte 11");
  EXPECT_NE(error_of(std::string(1000, '[')).find("nested too deeply"), std::string::npos);
  EXPECT_NE(error_of("{\"model\": \"\xff\xfe\"}").find("byte"), std::string::npos);
}

TEST(Fields, EverySchemaDescribesEachDeclaredField) {
  const Json s = schema_fields<Scenario>();
  for (const char* name : {"model", "cluster", "training", "search", "goal", "stack"})
    EXPECT_TRUE(s["properties"].contains(name)) << name;
  EXPECT_EQ(s["properties"]["goal"]["enum"].size(), 5U);
  EXPECT_EQ(s["required"].size(), 3U);
  EXPECT_FALSE(s["additionalProperties"].get<bool>());
  EXPECT_EQ(s["properties"]["training"]["properties"]["global_batch"]["minimum"], 1.0);
}

}  // namespace
}  // namespace orrery
