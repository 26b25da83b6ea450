// SPDX-License-Identifier: Apache-2.0
//
// What a simulated run costs.
//
//   nodes     on demand: (job + spares) * price * time. Reserved: the same for no less than the term.
//             Spot: without the time of nodes that were taken away and not yet replaced
//   storage   bytes * price * time * (newest kept + one of each hour of a day + one of each day of work so
//   far) energy    (nodes of job and spares) * PUE * time * (host + devices * watts * (busy ? 1 : idle
//   share))
//
// Energy is part of the price of a rented node: it is counted in kWh, and in dollars only where the scenario
// gives the price of a kWh.
#pragma once

#include <optional>
#include <string>

#include "core/reliability.h"
#include "sim/reliability/job.h"
#include "sim/reliability/run.h"

namespace orrery::sim {

struct Tariff {
  Payment payment = Payment::kOnDemand;
  double node_hour = 0;  // dollars; 0: unknown
  double term_s = 0;     // reserved
  double storage_gb_month = 0, stored_gb = 0, kept = 0;
  double busy_watts = 0, idle_watts = 0;  // of a node, at the site's meter; 0: unknown
  std::optional<double> kwh, carbon_g_per_kwh;
  std::int64_t spares = 0;  // that are paid for
  friend bool operator==(const Tariff&, const Tariff&) = default;
};

struct TariffInputs {
  double on_demand_node_hour = 0;  // of the mean node; 0: unknown
  double storage_gb_month = 0;     // the scenario's
  std::string device;              // profile's name, for its power
};
// Throws Error naming the price that the payment needs.
Tariff tariff_of(const ReliabilityAssumptions& a, const Job& job, const JobModel& model,
                 const TariffInputs& in);

struct RunCost {
  double nodes = 0, storage = 0, energy = 0;  // dollars
  double kwh = 0, carbon_kg = 0;
  double total() const { return nodes + storage + energy; }
};
RunCost cost_of(const RunOutcome& run, const RunModel& model, const Tariff& tariff);

}  // namespace orrery::sim
