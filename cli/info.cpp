// SPDX-License-Identifier: Apache-2.0
//
// The commands that show rather than compute: model, schema.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/weights.h"
#include "core/jobs.h"
#include "core/plan_file.h"
#include "core/reliability_profile.h"
#include "core/text.h"

namespace orrery::cli {
namespace {

Json model_json(const Model& m) {
  Json j = write_fields(m);
  j["schema"] = "orrery.model/1";
  j["parameters"] = count_parameters(m);
  j["active_parameters"] = count_active_parameters(m);
  return j;
}

// "ffn_hidden 11008, rotary (base 500000.0)": the fields that are not the usual ones.
std::string unusual(const Json& own, const Json& usual) {
  std::vector<std::string> fields;
  for (const auto& [name, value] : own.items()) {
    if (value == usual[name]) continue;
    fields.push_back(name + " " +
                     (value.is_object()   ? fmt::format("({})", unusual(value, usual[name]))
                      : value.is_string() ? value.get<std::string>()
                                          : value.dump()));
  }
  return fmt::format("{}", fmt::join(fields, ", "));
}
// "mlp (ffn_hidden 11008, activation swiglu, bias false)".
template <class T>
std::string summary(const T& layer) {
  const std::string fields = unusual(write_fields(layer), write_fields(T{}));
  return fields.empty() ? T::kName : fmt::format("{} ({})", T::kName, fields);
}
// What the other lines on a model do not say.
std::string further_fields(const Model& m) {
  const Json own = write_fields(m), usual = write_fields(Model{});
  Json shown = Json::object();
  for (const char* const name : {"embedding_scale", "residual_scale", "logit_scale", "logit_soft_cap"})
    shown[name] = own[name];
  if (m.blocks.empty() && m.form == BlockForm::kPreNorm) {
    for (const char* const name : {"qkv_bias", "qk_norm", "sliding_window", "soft_cap", "query_scale"})
      shown[name] = own[name];
  }
  return unusual(shown, usual);
}

void print_model(const App& app, const Model& m) {
  if (app.json) return print_json(model_json(m));
  const auto g = [](std::int64_t n) { return static_cast<double>(n) / 1e9; };
  const std::int64_t all = count_parameters(m), active = count_active_parameters(m);
  fmt::print("{}: {:.3f} G parameters{}\n", printable(m.name), g(all),
             active < all ? fmt::format(", {:.3f} G of them for a token", g(active)) : "");
  const std::string mtp =
      m.mtp_layers > 0 ? fmt::format(", {} behind for multi-token prediction", m.mtp_layers) : "";
  const std::string further = further_fields(m);
  if (const auto plain = plain_layers(m)) {
    const auto& [attention, mlp] = *plain;
    fmt::print("  {} layers, width {}, {} heads ({} key/value) of {}, feed-forward {}, vocabulary {}\n",
               m.layers, m.hidden, attention.heads, attention.kv_heads, attention.head_dim, mlp.ffn_hidden,
               m.vocab);
    fmt::print("  {}, {} positions, {}{}{}{}\n", name_of(m.norm), name_of(m.positions), name_of(m.activation),
               m.bias ? ", biases" : "", m.tied_embeddings ? ", tied embeddings" : "", mtp);
    if (!further.empty()) fmt::print("  {}\n", further);
    return;
  }
  const std::string ends = m.has_pair()             ? "a pair of towers"
                           : m.classes() != nullptr ? fmt::format("classes {}", m.head_rows())
                                                    : fmt::format("vocabulary {}", m.vocab);
  fmt::print("  {} blocks, width {}, {}, {}{}{}\n", m.layers, m.hidden, ends, name_of(m.norm),
             m.tied_embeddings ? ", tied embeddings" : "", mtp);
  if (!further.empty()) fmt::print("  {}\n", further);
  for (const Input& input : m.inputs)
    fmt::print("  begins with {}\n", std::visit([](const auto& i) { return summary(i); }, input.is));
  const Depth depth = depth_of(m);
  std::vector<std::int64_t> times = depth.counts();
  times[depth.kind_index(depth.blocks() - 1)] -= depth.mtp;
  for (std::size_t k = 0; k < depth.kinds.size(); ++k) {
    fmt::print("  {} x {}:", times[k], name_of(depth.kinds[k].form));
    depth.kinds[k].for_each_layer([](const auto& layer) { fmt::print("\n    {}", summary(layer)); });
    fmt::print("\n");
  }
}

}  // namespace

void add_model(CLI::App& parent, App& app) {
  CLI::App* command = parent.add_subcommand("model", "models: presets and imports");
  command->require_subcommand(1);
  CLI::App* show = subcommand(*command, app, "show", "a preset, or the list of them");
  auto name = std::make_shared<std::string>();
  show->add_option("name", *name, "preset");
  show->callback([&app, name] {
    if (!name->empty()) return print_model(app, preset_model(*name, Cursor{"command line", "/name"}));
    if (app.json) return print_json({{"schema", "orrery.models/1"}, {"presets", preset_model_names()}});
    for (const std::string& n : preset_model_names()) print_model(app, preset_model(n));
  });
  CLI::App* imports = subcommand(*command, app, "import", "a Hugging Face config.json");
  auto file = std::make_shared<std::string>();
  imports->add_option("config", *file, "config.json")->required();
  imports->callback([&app, file] {
    print_model(app, import_hugging_face(load_json(*file), Cursor{*file, ""}));
  });
  CLI::App* exports = subcommand(*command, app, "export",
                                 "the weights of a checkpoint, under the names of Hugging Face's model");
  auto o = std::make_shared<WeightsAsked>();
  exports->add_option("plan", o->plan, "plan or scenario file that was run")->required();
  exports->add_option("--checkpoints", o->checkpoints, "folder that `orrery run --checkpoints` wrote")
      ->required();
  exports->add_option("-o,--output", o->output, "a *.safetensors file; of adapters, a folder as PEFT has it")
      ->required();
  exports
      ->add_option_function<std::string>(
          "--type",
          [o](const std::string& type) {
            const std::map<std::string, DType> types{
                {"fp32", DType::kFloat32}, {"bf16", DType::kBfloat16}, {"fp16", DType::kFloat16}};
            o->type = types.at(type);
          },
          "of its elements")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->default_str("fp32");
  exports->callback([&app, o] { export_weights(app, *o); });
}

void add_schema(CLI::App& parent, App& app) {
  CLI::App* command = subcommand(parent, app, "schema", "JSON Schema of a file format");
  auto name = std::make_shared<std::string>();
  command
      ->add_option("format", *name,
                   "scenario, plan, cluster, device, links, stack, model, reliability, jobs, life or fit")
      ->required();
  command->callback([name] {
    static const std::map<std::string, Json (*)()> kFormats = {
        {"scenario", schema_fields<Scenario>},
        {"plan", schema_fields<PlanFile>},
        {"cluster", schema_fields<Cluster>},
        {"device", schema_fields<Device>},
        {"links", schema_fields<LinkProfile>},
        {"stack", schema_fields<Stack>},
        {"model", schema_fields<Model>},
        {"jobs", schema_fields<JobsFile>},
        {"life", schema_fields<RunLife>},
        {"fit", schema_fields<PublishedFitFile>},
        {"reliability", schema_fields<ReliabilityProfile>}};
    const auto format = kFormats.find(*name);
    if (format == kFormats.end()) {
      std::vector<std::string> names;
      for (const auto& [known, schema] : kFormats) names.push_back(known);
      Cursor{"command line", "/format"}.fail(shown(Json(*name)) + " is not known",
                                             allowed_names(*name, names));
    }
    Json s = format->second();
    s["$schema"] = "https://json-schema.org/draft/2020-12/schema";
    s["title"] = "orrery " + *name;
    print_json(s);
  });
}

}  // namespace orrery::cli
