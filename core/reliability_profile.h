// SPDX-License-Identifier: Apache-2.0
//
// Published rates of failures, by system, and what a scenario assumes: profiles/reliability. Schema
// "orrery.reliability/1".
//
//   Assumed a = load_assumptions(scenario.reliability, scenario_at, data);
//   *a.values.failures.detection;      // every field that default.json has is there
//   a.list[0];                         // {"failures/hardware_per_node_day", "0.00323", "Llama 3 ..."}
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/reliability.h"
#include "core/scenario.h"

namespace orrery {

struct ReliabilityProfile : ReliabilityAssumptions {
  std::string name, system, source, as_of;
  std::map<std::string, std::string> origin;  // of "failures/detection", or of all of "failures"
};
template <class V>
void describe(V& v, ReliabilityProfile& p) {
  v(Field{.name = "name", .help = "of the profile", .required = true}, p.name);
  v(Field{.name = "system", .help = "machines and job that the rates were seen on", .required = true},
    p.system);
  v(Field{.name = "source", .help = "where they are published", .required = true}, p.source);
  v(Field{.name = "as_of", .help = "date of the source", .required = true}, p.as_of);
  describe(v, static_cast<ReliabilityAssumptions&>(p));
  v(Field{.name = "origin", .help = "where a group or a field (\"failures/detection\") comes from"},
    p.origin);
}

struct Assumption {
  std::string field, value, source;
};
struct Assumed {
  ReliabilityAssumptions values;
  std::vector<Assumption> list;  // of all fields that have a value, in the order of their declaration
  std::string profile;           // that the scenario names, or "default"
};

// The scenario's fields over those of the profile that it names (`rates`), over
// profiles/reliability/default.json. `rates` on the command line goes before the scenario's. Throws
// InputError: at `at`, where a name is not known, or in a profile.
Assumed load_assumptions(const std::optional<Reliability>& own, const std::string& rates, const Cursor& at,
                         const DataFolders& data);

// Calls change(path, value) for each number and quantity that has a value; `path` is "failures/detection".
template <class Change>
struct NumberVisitor {
  Change& change;
  std::string path;
  template <class T>
  void operator()(const Field& field, T& value) {
    const std::string at = path.empty() ? field.name : path + "/" + field.name;
    if constexpr (IsOptional<T>::value) {
      using Value = typename T::value_type;
      if constexpr (std::same_as<Value, double> || std::same_as<Value, std::int64_t> || UnitQuantity<Value>) {
        if (value) change(at, field, *value);
      }
    } else if constexpr (Described<T>) {
      NumberVisitor inner{change, at};
      describe(inner, value);
    }
  }
};
template <class Change>
void for_each_number(ReliabilityAssumptions& a, Change change) {
  NumberVisitor<Change> visitor{change, ""};
  describe(visitor, a);
}

ORRERY_FIELDS(extern, ReliabilityProfile);

}  // namespace orrery
