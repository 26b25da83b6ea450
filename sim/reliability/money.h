// SPDX-License-Identifier: Apache-2.0
//
// What a simulated run costs.
//
//   nodes     on demand: (job + spares) * price * time. Reserved: the same for no less than the term.
//             Spot: without the time of nodes that were taken away and not yet replaced; where prices were
//             recorded, the mean of those of its time, from a moment of the trace that is drawn. Owned: as on
//             demand, by the hour of OwnedHour, and energy beside it
//   storage   bytes * price * time * (newest kept + one of each hour of a day + one of each day of work so
//   far) energy    (nodes of job and spares) * PUE * time * (host + devices * watts * (busy ? 1 : idle
//   share))
//
// Energy is part of the price of a rented node: it is counted in kWh, and in dollars only where the scenario
// gives the price of a kWh; where it gives the price of a bought node too, only of that payment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/reliability.h"
#include "sim/reliability/job.h"
#include "sim/reliability/run.h"
#include "sim/reliability/spot_prices.h"

namespace orrery::sim {

// Dollars of an hour in which a bought node is used. With P the price of the node and its switch ports:
//   (P (1 - residual) / lifetime + maintenance P + interest P (1 + residual) / 2 + staff + hosting kW) / used
// Written off in equal parts, the capital that is bound is P (1 + residual) / 2 in the mean.
struct OwnedHour {
  double price = 0;                                                               // dollars to buy: P
  double switch_ports = 0;                                                        // of it, so many ports
  double written_off = 0, maintenance = 0, interest = 0, staff = 0, hosting = 0;  // dollars of the hour
  double used = 1;
  double total() const { return written_off + maintenance + interest + staff + hosting; }
  friend bool operator==(const OwnedHour&, const OwnedHour&) = default;
};
// `watts` of a node at the site's meter, for its hosting.
OwnedHour owned_hour(const Ownership& ownership, double port_price, double switch_ports, double watts);

struct Tariff {
  Payment payment = Payment::kOnDemand;
  double node_hour = 0;  // dollars; 0: unknown
  double term_s = 0;     // reserved
  double storage_gb_month = 0, stored_gb = 0, kept = 0;
  double busy_watts = 0, idle_watts = 0;  // of a node, at the site's meter; 0: unknown
  std::optional<double> kwh, carbon_g_per_kwh;
  std::int64_t spares = 0;  // that are paid for
  std::optional<OwnedHour> owned;
  std::shared_ptr<const SpotPrices> spot_prices;  // null: node_hour at all times
  std::uint64_t seed = 0;                         // of the moments at which runs begin in them
  friend bool operator==(const Tariff&, const Tariff&) = default;
};

struct TariffInputs {
  double on_demand_node_hour = 0;                 // of the mean node; 0: unknown
  double storage_gb_month = 0;                    // the scenario's
  std::string device;                             // profile's name, for its power
  double port_price = 0, switch_ports = 0;        // of the fabric: to buy one; of a node
  std::shared_ptr<const SpotPrices> spot_prices;  // null: none were recorded
};
// Throws Error naming the price that the payment needs.
Tariff tariff_of(const ReliabilityAssumptions& a, const Job& job, const JobModel& model,
                 const TariffInputs& in);

struct RunCost {
  double nodes = 0, storage = 0, energy = 0;  // dollars
  double kwh = 0, carbon_kg = 0;
  double total() const { return nodes + storage + energy; }
};
// `number` of the run decides where in recorded prices it begins.
RunCost cost_of(const RunOutcome& run, const RunModel& model, const Tariff& tariff, std::uint64_t number = 0);

}  // namespace orrery::sim
