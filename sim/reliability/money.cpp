// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/money.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace orrery::sim {
namespace {

constexpr double kHour = 3600, kMonth = 30 * kSecondsPerDay;

double price_of(const std::optional<Dollars>& price, const char* payment, const char* field) {
  if (!price || price->value == 0)
    throw Error(fmt::format("the payment \"{}\" needs reliability/prices/{}", payment, field));
  return dollars(*price);
}

}  // namespace

Tariff tariff_of(const ReliabilityAssumptions& a, const Job& job, const JobModel& model,
                 const TariffInputs& in) {
  Tariff t;
  t.payment = a.prices.payment.value_or(Payment::kOnDemand);
  switch (t.payment) {
    case Payment::kOnDemand:
      t.node_hour = in.on_demand_node_hour;
      break;
    case Payment::kReserved:
      t.node_hour = price_of(a.prices.reserved_node_hour, "reserved", "reserved_node_hour");
      t.term_s = a.prices.reserved_term.value_or(RunTime{0}).value;
      break;
    case Payment::kSpot:
      t.node_hour = price_of(a.prices.spot_node_hour, "spot", "spot_node_hour");
      break;
  }
  t.spares = a.spares.nodes.value_or(0);
  t.storage_gb_month =
      a.prices.storage_per_gb_month ? dollars(*a.prices.storage_per_gb_month) : in.storage_gb_month;
  t.stored_gb = model.bytes / 1e9;
  t.kept = static_cast<double>(model.run.kept);

  const Energy& e = a.energy;
  std::optional<double> watts = e.device_watts;
  for (const DevicePower& d : e.devices.value_or(std::vector<DevicePower>{})) {
    if (!watts && d.device == in.device) watts = d.watts;
  }
  if (watts) {
    const double host = e.host_watts.value_or(0), devices = static_cast<double>(job.devices_per_node);
    t.busy_watts = e.pue.value_or(1) * (host + devices * *watts);
    t.idle_watts = e.pue.value_or(1) * (host + devices * *watts * e.idle_share.value_or(1));
  }
  if (e.kwh) t.kwh = dollars(*e.kwh);
  t.carbon_g_per_kwh = e.carbon_g_per_kwh;
  return t;
}

RunCost cost_of(const RunOutcome& run, const RunModel& model, const Tariff& t) {
  RunCost out;
  const double total = seconds(run.total);
  const auto job = static_cast<double>(model.nodes), spares = static_cast<double>(t.spares);
  double node_s = (job + spares) * std::max(total, t.term_s);
  if (t.payment == Payment::kSpot) node_s -= seconds(run.away);
  out.nodes = t.node_hour * node_s / kHour;
  const double work_days = days(model.work);
  const double older = std::min(24 * work_days, 24.0) + work_days / 2;  // hours, and days in the mean
  const double newest = std::min(t.kept, static_cast<double>(run.checkpoints));
  out.storage = t.storage_gb_month * t.stored_gb * (newest + older) * total / kMonth;
  const double busy = seconds(run.work + run.slow);
  out.kwh = (job * (busy * t.busy_watts + (total - busy) * t.idle_watts) + spares * total * t.idle_watts) /
            1000 / kHour;
  out.energy = out.kwh * t.kwh.value_or(0);
  out.carbon_kg = out.kwh * t.carbon_g_per_kwh.value_or(0) / 1000;
  return out;
}

}  // namespace orrery::sim
