// SPDX-License-Identifier: Apache-2.0
#include "cli/scenario_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/text.h"

namespace orrery::cli {
namespace {

constexpr const char* kCommandLine = "command line";

// A field of a scenario that an option stands for.
struct FieldAsked {
  std::string pointer;
  Json value;
};

// "--set training.math=fp8": the value is JSON where it can be read as such, and text otherwise.
FieldAsked field_of(const std::string& set) {
  const Cursor at{kCommandLine, "/set"};
  const std::size_t equals = set.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == set.size())
    at.fail(fmt::format("\"{}\" is no field with a value", printable(set)),
            "allowed: FIELD=VALUE, like training.math=fp8 or search.tp=[1,2]");
  FieldAsked out;
  constexpr int kMostParts = 16;
  int parts = 0;
  const std::string name = set.substr(0, equals);
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    // Names of fields; a number would be a place in a list.
    const std::string part = name.substr(begin, end - begin);
    const bool named = part.find_first_not_of("0123456789-") != std::string::npos &&
                       part.find_first_of("~/") == std::string::npos;
    if (!named || ++parts > kMostParts)
      at.fail(fmt::format("\"{}\" is no field", printable(name)), "allowed: names with dots between them");
    out.pointer += "/" + part;
    begin = end + 1;
  }
  const std::string value = set.substr(equals + 1);
  try {
    out.value = parse_json(value, kCommandLine);
  } catch (const InputError&) {
    out.value = value;
  }
  return out;
}

// A file that an option names stands where the command runs, whatever file the scenario is in.
std::string name_or_path(const std::string& name) {
  std::error_code none;
  return name.ends_with(".json") && std::filesystem::is_regular_file(name, none)
             ? std::filesystem::absolute(name).string()
             : name;
}

// A preset's name, or a file: a config.json of Hugging Face, or a model of ours.
Json model_field(const std::string& model) {
  if (!model.ends_with(".json")) return model;
  const Json file = load_json(model);
  if (!file.is_object() || !file.contains("schema")) return {{"config", name_or_path(model)}};
  Json out = file;
  for (const char* own : {"schema", "parameters", "active_parameters"}) out.erase(own);
  return out;
}

std::vector<FieldAsked> fields_asked(const ScenarioAsked& o) {
  std::vector<FieldAsked> out;
  const auto add = [&](const char* pointer, const auto& value) { out.push_back({pointer, Json(value)}); };
  if (!o.model.empty()) out.push_back({"/model", model_field(o.model)});
  if (!o.clusters.empty()) add("/cluster/topology", name_or_path(o.clusters.front()));
  if (o.nodes) add("/cluster/nodes", *o.nodes);
  if (o.batch) add("/training/global_batch", *o.batch);
  if (o.sequence) add("/training/sequence", *o.sequence);
  if (o.tokens) add("/training/tokens", *o.tokens);
  if (!o.precision.empty()) add("/training/precision", o.precision);
  if (!o.math.empty()) add("/training/math", o.math);
  if (!o.stack.empty()) add("/stack", name_or_path(o.stack));
  if (!o.deadline.empty()) {
    add("/deadline", o.deadline);
    add("/goal", "cost-by-deadline");
  }
  if (!o.budget.empty()) {
    add("/budget", o.budget.starts_with('$') ? o.budget : "$" + o.budget);  // which a shell would take
    add("/goal", "time-in-budget");
  }
  for (const std::string& set : o.set) out.push_back(field_of(set));
  return out;
}

// The value is put there, through objects that are made where there are none.
void put(Json& json, const FieldAsked& field) {
  const Json::json_pointer pointer(field.pointer);
  if (field.pointer.starts_with("/model/") && json.contains("model") && json["model"].is_string())
    json["model"] = {{"preset", json["model"]}};
  for (Json::json_pointer above = pointer.parent_pointer();; above = above.parent_pointer()) {
    const bool there = json.contains(above);
    if (there && !json[above].is_object() && !json[above].is_null()) {
      Cursor{kCommandLine, field.pointer}.fail(
          fmt::format("\"{}\" is no object, and has no such field", above.to_string()),
          "allowed: fields of objects");
    }
    if (above.empty()) break;
  }
  json[pointer] = field.value;
}

bool is_within(const std::string& where, const std::string& pointer) {
  return where.starts_with(pointer) && (where.size() == pointer.size() || where[pointer.size()] == '/');
}

}  // namespace

bool ScenarioAsked::has_options() const {
  return !model.empty() || !stack.empty() || !deadline.empty() || !budget.empty() || !precision.empty() ||
         !math.empty() || !clusters.empty() || nodes || batch || sequence || tokens || !set.empty();
}

void add_scenario_options(CLI::App& command, ScenarioAsked& o, bool several) {
  command.add_option("scenario", o.file, "scenario file; or --model, --cluster, --batch and --sequence");
  command.add_option("--model", o.model, "a preset's name, or a config.json of Hugging Face");
  CLI::Option* const clusters =
      command.add_option("--cluster", o.clusters,
                         several ? "a topology's name or file; several, with commas, are compared"
                                 : "a topology's name or file");
  clusters->allow_extra_args(false);  // a scenario file may follow
  if (several) clusters->delimiter(',');
  command.add_option("--nodes", o.nodes, "nodes of it; absent: as many as it has")
      ->check(CLI::Range(1, static_cast<int>(limits::kMostNodes)));
  command.add_option("--batch", o.batch, "sequences of a step");
  command.add_option("--sequence", o.sequence, "tokens of a sequence");
  command.add_option("--tokens", o.tokens, "tokens of the whole run, like 15e12: for days and dollars");
  command.add_option("--stack", o.stack,
                     fmt::format("software that will run the plan; without a file: {}", Scenario{}.stack));
  command.add_option("--precision", o.precision,
                     fmt::format("recipe of numbers; without a file: {}", name_of(Training{}.precision)));
  command.add_option("--math", o.math,
                     fmt::format("format of matrix products; without a file: {}", name_of(Training{}.math)));
  command.add_option("--deadline", o.deadline, "like \"30 days\": the cheapest plan that meets it");
  command.add_option("--budget", o.budget, "dollars, like 2000000: the fastest plan that keeps to it")
      ->excludes("--deadline");
  command.add_option("--set", o.set, "FIELD=VALUE of the scenario, like training.clip=0; may be given again")
      ->allow_extra_args(false);
}

AskedScenario asked_scenario(const ScenarioAsked& o) {
  AskedScenario out{Json::object(), {kCommandLine, ""}};
  if (!o.file.empty()) {
    out.json = load_json(o.file);
    out.at = {o.file, ""};
    if (o.has_options() && !out.json.is_object())
      out.at.fail("is no scenario, whose fields options could replace", "allowed: an object");
  } else {
    std::vector<const char*> missing;
    if (o.model.empty()) missing.push_back("--model");
    if (o.clusters.empty()) missing.push_back("--cluster");
    if (!o.batch) missing.push_back("--batch");
    if (!o.sequence) missing.push_back("--sequence");
    if (!missing.empty()) {
      out.at.fail(fmt::format("{} {} missing", fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are"),
                  "allowed: a scenario file, or --model, --cluster, --batch and --sequence");
    }
  }
  for (const FieldAsked& field : fields_asked(o)) put(out.json, field);
  return out;
}

AskedScenario on_cluster(AskedScenario scenario, const std::string& cluster) {
  put(scenario.json, {"/cluster/topology", name_or_path(cluster)});
  return scenario;
}

Problem load_asked(const ScenarioAsked& o, const AskedScenario& scenario, const DataFolders& data) {
  try {
    return resolve(read_scenario(scenario.json, scenario.at), scenario.at, data);
  } catch (const InputError& e) {
    if (e.file() != scenario.at.file || scenario.at.file == kCommandLine) throw;
    const std::vector<FieldAsked> fields = fields_asked(o);
    const auto from_option = std::find_if(fields.begin(), fields.end(), [&](const FieldAsked& field) {
      return is_within(e.where(), field.pointer);
    });
    if (from_option == fields.end()) throw;
    // The message begins with the file and the place.
    const std::string before = printable(e.file() + ": " + e.where() + ": ");
    throw InputError(kCommandLine, e.where(), std::string(e.what()).substr(before.size()));
  }
}

Json as_file(const AskedScenario& scenario) {
  Json out = {{"schema", "orrery.scenario/1"}};
  out.update(scenario.json);
  // Files that the scenario's own file names stand beside that.
  const auto folder = std::filesystem::path(scenario.at.file).parent_path();
  for (const char* pointer : {"/cluster/topology", "/stack", "/model/config"}) {
    const Json::json_pointer at(pointer);
    if (!out.contains(at) || !out[at].is_string()) continue;
    const auto path = folder / out[at].get<std::string>();
    if (std::error_code none; path.extension() == ".json" && std::filesystem::is_regular_file(path, none))
      out[at] = std::filesystem::absolute(path).lexically_normal().string();
  }
  return out;
}

}  // namespace orrery::cli
