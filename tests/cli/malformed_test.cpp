// SPDX-License-Identifier: Apache-2.0
//
// Malformed input never crashes, hangs or eats memory: each of several hundred mutations of real files
// either works or throws InputError with a place. In-process, so a crash fails the test.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "core/timeline.h"
#include "planner/search.h"
#include "program/program.h"
#include "sim/calibration/validate.h"
#include "sim/topology/network.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> shipped(const char* folder) {
  std::vector<fs::path> out;
  for (const auto& e : fs::directory_iterator(fs::path(ORRERY_ROOT) / folder)) {
    if (e.path().extension() == ".json") out.push_back(e.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Reads `text` as the file it came from; true when refused with InputError.
bool refused(const std::string& text, const std::string& folder) {
  const Cursor at{"mutated.json", ""};
  try {
    const Json json = parse_json(text, at.file);
    if (folder == "scenarios") {
      const Problem p =
          resolve(read_scenario(json, at), Cursor{ORRERY_ROOT "/scenarios/mutated.json", ""}, DataFolders());
      if (p.scenario.plan) program::check_plan(p.scenario.model, *p.scenario.plan, p.scenario.training, at);
    } else if (folder == "topologies") {
      (void)read_fields<Cluster>(json, at);
    } else if (folder == "profiles/links") {
      (void)read_links(json, at);
    } else {
      (void)read_fields<Device>(json, at);
    }
  } catch (const InputError& e) {
    EXPECT_FALSE(e.where().empty() && std::string(e.what()).empty());
    return true;
  }
  return false;
}

void visit(Json& json, const std::function<void(Json&)>& f) {
  f(json);
  if (json.is_structured()) {
    for (auto& child : json) visit(child, f);
  }
}

TEST(Malformed, EveryValueReplacedBySomethingElse) {
  const std::vector<Json> replacements = {nullptr,
                                          true,
                                          -1,
                                          0,
                                          1e300,
                                          9223372036854775807LL,
                                          -9223372036854775807LL,
                                          0.5,
                                          "",
                                          "x",
                                          "80 GiB",
                                          "-5 GiB",
                                          "1e400 s",
                                          "\u0000",
                                          std::string(100000, 'a'),
                                          Json::array(),
                                          Json::object(),
                                          Json::array({1, "a", nullptr})};
  int cases = 0, refusals = 0;
  for (const char* folder : {"scenarios", "topologies", "profiles", "profiles/links"}) {
    for (const fs::path& path : {shipped(folder).front(), shipped(folder).back()}) {
      Json original = load_json(path);
      int values = 0;
      visit(original, [&](Json&) { ++values; });
      for (int i = 0; i < values; ++i) {
        Json mutated = original;
        int at = 0;
        const Json& replacement = replacements[static_cast<std::size_t>(cases) % replacements.size()];
        visit(mutated, [&](Json& v) {
          if (at++ == i) v = replacement;
        });
        ++cases;
        refusals += refused(mutated.dump(), folder);
      }
    }
  }
  EXPECT_GT(cases, 150);
  EXPECT_GT(refusals, cases / 2);
}

TEST(Malformed, TruncatedFlippedAndRepeatedBytes) {
  constexpr unsigned kSeed = 11;
  std::mt19937 random(kSeed);
  int refusals = 0;
  for (int i = 0; i < 400; ++i) {
    const char* folder = i % 2 == 0 ? "scenarios" : "topologies";
    const auto files = shipped(folder);
    std::string text = load_text(files[random() % files.size()]);
    switch (i % 4) {
      case 0:
        text.resize(random() % text.size());
        break;
      case 1:
        text[random() % text.size()] = static_cast<char>(random() % 256);
        break;
      case 2:
        text.insert(random() % text.size(), std::string(1 + random() % 50, "[{\"\\,"[random() % 5]));
        break;
      default:
        text += text;
    }
    refusals += refused(text, folder);
  }
  EXPECT_GT(refusals, 200) << "seed " << kSeed;
}

TEST(Malformed, NestingSizeAndEncoding) {
  EXPECT_TRUE(refused(std::string(1 << 20, '['), "scenarios"));
  EXPECT_TRUE(refused("{\"a\":" + std::string(100, '{'), "scenarios"));
  EXPECT_TRUE(refused("\xff\xfe{\"model\"", "scenarios"));
  EXPECT_TRUE(refused("{\"model\": \"\xc3\x28\"}", "scenarios"));
  EXPECT_TRUE(refused(std::string(65 << 20, ' '), "scenarios"));
  EXPECT_TRUE(refused("", "scenarios"));
}

// Networks that no memory holds are refused before they are built.
TEST(Malformed, ANetworkTooLargeToBuildIsRefused) {
  Cluster c =
      read_fields<Cluster>(load_json(std::string(ORRERY_ROOT) + "/topologies/dgx-h100.json"), Cursor{""});
  c.nodes = 1 << 20;
  c.devices_per_node = 1024;
  EXPECT_THROW(sim::Network{c}, InputError);
  c.devices_per_node = 1;
  c.fabric.kind = FabricKind::kDragonfly;
  c.fabric.routing = Routing::kMinimal;
  c.fabric.router_nodes = 1;
  c.fabric.group_routers = 4096;
  EXPECT_THROW(sim::Network{c}, InputError);
  c.nodes = 1;
  EXPECT_THROW(sim::Network{c}, InputError);
}

// A config that includes itself must not recurse for ever.
TEST(Malformed, ACyclicReferenceIsRefused) {
  const fs::path file = fs::temp_directory_path() / "orrery-cyclic.json";
  save_text(
      file,
      R"({"model": {"config": "orrery-cyclic.json"}, "cluster": {"topology": "p4d"}, "training": {"global_batch": 1, "sequence": 1}})");
  EXPECT_THROW(load_problem(file, DataFolders()), InputError);
  fs::remove(file);
}

TEST(Malformed, TracesAndDataSets) {
  const DataFolders data;
  for (const char* text :
       {"[]", "{}", "[1]", "[{}]", R"({"traceEvents": 3})", R"({"traceEvents": [{"ph": "X"}]})",
        R"({"traceEvents": [{"ph": 1, "name": 2}]})"}) {
    try {
      (void)from_chrome_trace(parse_json(text, "t"), "t");
    } catch (const InputError&) {
    }
  }
  for (const char* text : {"[{\"parallel\": 1}]", "[{\"outcome\": \"ok\"}]", "[{\"outcome\": 3}]", "[[]]",
                           "[null]", "[{\"outcome\": \"ok\", \"unverified_fields\": 3}]"}) {
    try {
      (void)sim::validate_training(parse_json(text, "d"), "d", data);
    } catch (const InputError&) {
    }
    try {
      (void)sim::validate_collectives(parse_json(text, "d"), "d", data);
    } catch (const InputError&) {
    }
  }
  for (const char* text : {"", "x", "gpu,dtype,m,n,k,ms,kernel\nA100-SXM4-80GB,bf16,1",
                           "gpu,dtype,m,n,k,ms,kernel\nA100-SXM4-80GB,bf16,-1,2,3,nan,k"}) {
    EXPECT_THROW((void)sim::validate_kernels(text, "k.csv", data), InputError);
  }
}

}  // namespace
}  // namespace orrery
