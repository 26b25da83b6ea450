// SPDX-License-Identifier: Apache-2.0
#include "core/reliability_profile.h"

#include <filesystem>

namespace orrery {
namespace {

ReliabilityProfile load_profile(const std::string& name, const std::filesystem::path& base, const Cursor& at,
                                const DataFolders& data) {
  const std::filesystem::path path = data.find("profiles/reliability", name, base, at);
  return read_fields<ReliabilityProfile>(load_json(path), Cursor{path.string(), ""});
}

std::string text_of(double v) {
  return fmt::format("{:.4g}", v);
}
std::string text_of(bool v) {
  return v ? "yes" : "no";
}
std::string text_of(const std::string& v) {
  return v;
}
std::string text_of(std::int64_t v) {
  return std::to_string(v);
}
std::string text_of(const std::vector<double>& v) {
  return fmt::format("{:.4g}", fmt::join(v, ", "));
}
std::string text_of(const std::vector<DevicePower>& v) {
  return fmt::format("{} devices", v.size());
}
template <UnitQuantity T>
std::string text_of(const T& v) {
  return format(v);
}
template <NamedEnum T>
std::string text_of(const T& v) {
  return std::string(name_of(v));
}

// Every field with a value, and the layer that it comes from: the last one whose JSON has it.
struct Lister {
  const std::vector<std::pair<const Json*, const ReliabilityProfile*>>& layers;  // null: the scenario
  std::vector<Assumption>& out;
  std::string group;

  std::string source(const char* field) const {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      const auto fields = layer->first->find(group);
      if (fields == layer->first->end() || !fields->contains(field)) continue;
      const ReliabilityProfile* profile = layer->second;
      if (profile == nullptr) return "the scenario";
      for (const std::string& key : {group + "/" + field, group}) {
        if (const auto found = profile->origin.find(key); found != profile->origin.end())
          return found->second;
      }
      return fmt::format("{} ({})", profile->source, profile->as_of);
    }
    return {};
  }
  template <class T>
  void operator()(const Field& field, T& value) {
    if constexpr (IsOptional<T>::value) {
      if (value) out.push_back({group + "/" + field.name, text_of(*value), source(field.name)});
    } else {
      Lister inner{layers, out, field.name};
      describe(inner, value);
    }
  }
};

}  // namespace

Assumed load_assumptions(const std::optional<Reliability>& own, const std::string& rates, const Cursor& at,
                         const DataFolders& data) {
  Assumed out;
  const std::filesystem::path base = std::filesystem::path(at.file).parent_path();
  const ReliabilityProfile usual = load_profile("default", {}, at, data);
  const Json usual_fields = write_fields(static_cast<const ReliabilityAssumptions&>(usual));
  std::vector<std::pair<const Json*, const ReliabilityProfile*>> layers{{&usual_fields, &usual}};
  ReliabilityProfile named;
  Json named_fields = Json::object(), own_fields = Json::object();
  out.profile = usual.name;
  const Cursor own_at = at.child("reliability");
  const std::string name = !rates.empty() ? rates : own ? own->rates.value_or("") : "";
  if (!name.empty()) {
    named = rates.empty() ? load_profile(name, base, own_at.child("rates"), data)
                          : load_profile(name, ".", Cursor{"command line", "/rates"}, data);
    named_fields = write_fields(static_cast<const ReliabilityAssumptions&>(named));
    layers.emplace_back(&named_fields, &named);
    out.profile = named.name;
  }
  if (own) {
    own_fields = write_fields(static_cast<const ReliabilityAssumptions&>(*own));
    layers.emplace_back(&own_fields, nullptr);
  }
  for (const auto& [fields, profile] : layers) read_fields_into(*fields, own_at, out.values);
  Lister lister{layers, out.list, ""};
  describe(lister, out.values);
  return out;
}

}  // namespace orrery
