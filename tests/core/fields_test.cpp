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
          .find("/training/global_batsh: there is no such field; allowed: global_batch,"),
      std::string::npos);
  EXPECT_NE(error_of(R"({"cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 1}})")
                .find("s.json: /: the field \"model\" is missing"),
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

TEST(Fields, RangesOfQuantitiesAreSaidInUnits) {
  const auto price = [](const char* text) {
    return error_of(
        R"({"model": "llama-3-8b", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 1}, "node_hour": ")" +
        std::string(text) + "\"}");
  };
  EXPECT_EQ(price("$5"), "no error");
  EXPECT_NE(
      price("$-5").find("/node_hour: \"$-5\" is out of range; allowed: at least $0.00, at most $1000000"),
      std::string::npos);
  for (const char* large : {"$2e6", "$1e30", "$1e400", "$-1e400"})
    EXPECT_NE(price(large).find("is out of range"), std::string::npos) << price(large);
  EXPECT_EQ(price("$1e-400"), "no error");
  for (const char* wrong : {"$inf", "$nan", "$", "$1e", "1e400"})
    EXPECT_NE(price(wrong).find("is not a quantity"), std::string::npos) << price(wrong);
}

TEST(Fields, ListsAreShortAndListsOfChoicesHaveNoValueTwice) {
  const auto tp = [](const std::string& list) {
    return error_of(
        R"({"model": "llama-3-8b", "cluster": {"topology": "p4d"}, "training": {"global_batch": 8, "sequence": 1}, "search": {"tp": [)" +
        list + "]}}");
  };
  std::string numbers = "1";
  for (int i = 2; i <= 64; ++i) numbers += "," + std::to_string(i);
  EXPECT_EQ(tp(numbers), "no error");
  EXPECT_NE(tp(numbers + ",65").find("/search/tp: 65 elements are too many; allowed: 64"), std::string::npos);
  EXPECT_NE(tp("4, 8, 4").find("/search/tp/2: 4 is there twice; allowed: each value once"),
            std::string::npos);
  const Json schema = schema_fields<Search>()["properties"]["tp"];
  EXPECT_EQ(schema["maxItems"], 64);
  EXPECT_EQ(schema["uniqueItems"], true);
}

TEST(Fields, TextAndRemarksAreShort) {
  const auto links = [](const std::string& name, const std::string& origin) {
    try {
      const std::string text =
          R"({"intra_bandwidth": "1 GB/s", "name": ")" + name + R"(", "origin": {)" + origin + "}}";
      (void)read_links(parse_json(text, "l.json"), Cursor{"l.json", ""});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(links(std::string(4096, 'x'), R"("a": "b")"), "no error");
  EXPECT_EQ(links(std::string(4097, 'x'), ""), "l.json: /name: 4097 bytes of text; allowed: at most 4096");
  std::string remarks = R"("0": "")";
  for (int i = 1; i <= 1024; ++i) remarks += ",\"" + std::to_string(i) + "\": \"\"";
  EXPECT_EQ(links("x", remarks), "l.json: /origin: 1025 entries are too many; allowed: 1024");
}

TEST(Fields, MalformedTextIsAnsweredWithItsPlace) {
  EXPECT_EQ(error_of("{\"model\":\n ").substr(0, 27), "s.json: line 2, column 2: n");
  EXPECT_NE(error_of(std::string(1000, '[')).find("nested too deeply"), std::string::npos);
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
