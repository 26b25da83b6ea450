// SPDX-License-Identifier: Apache-2.0
#include "sim/reliability/money.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/random.h"

namespace orrery::sim {
namespace {

// Of random numbers, that no process of a run has (run.h).
constexpr std::uint64_t kPriceProcess = 1'000;
constexpr double kHour = 3600, kMonth = 30 * kSecondsPerDay;

double price_of(const std::optional<Dollars>& price, const char* payment, const char* field) {
  if (!price || price->value == 0)
    throw Error(fmt::format("the payment \"{}\" needs reliability/prices/{}", payment, field));
  return dollars(*price);
}

}  // namespace

OwnedHour owned_hour(const Ownership& o, double port_price, double switch_ports, double watts) {
  constexpr double kYear = 365.25 * kSecondsPerDay;
  OwnedHour out;
  out.used = o.used.value_or(1);
  out.switch_ports = o.switch_ports.value_or(switch_ports);
  out.price = dollars(o.node.value_or(Dollars{0})) +
              out.switch_ports * (o.switch_port ? dollars(*o.switch_port) : port_price);
  const double residual = o.residual.value_or(0), hours = kYear / kHour * out.used;  // used in a year
  out.written_off = out.price * (1 - residual) * kYear / o.lifetime.value_or(RunTime{kYear}).value / hours;
  out.maintenance = out.price * o.maintenance.value_or(0) / hours;
  out.interest = out.price * o.interest.value_or(0) * (1 + residual) / 2 / hours;
  out.staff = dollars(o.staff_node_year.value_or(Dollars{0})) / hours;
  out.hosting = 12 * dollars(o.hosting_kw_month.value_or(Dollars{0})) * watts / 1000 / hours;
  return out;
}

Tariff tariff_of(const ReliabilityAssumptions& a, const Job& job, const JobModel& model,
                 const TariffInputs& in) {
  Tariff t;
  t.payment = a.prices.payment.value_or(Payment::kOnDemand);
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
  switch (t.payment) {
    case Payment::kOnDemand:
      t.node_hour = in.on_demand_node_hour;
      break;
    case Payment::kReserved:
      t.node_hour = price_of(a.prices.reserved_node_hour, "reserved", "reserved_node_hour");
      t.term_s = a.prices.reserved_term.value_or(RunTime{0}).value;
      break;
    case Payment::kSpot:
      t.spot_prices = in.spot_prices;
      t.node_hour =
          t.spot_prices ? t.spot_prices->mean() : price_of(a.prices.spot_node_hour, "spot", "spot_node_hour");
      break;
    case Payment::kOwned:
      t.owned = owned_hour(a.ownership, in.port_price, in.switch_ports, t.busy_watts);
      t.node_hour = t.owned->total();
      break;
  }
  // Of a cluster that may be bought, the price of energy is that payment's.
  if (e.kwh && (t.owned || !a.ownership.node)) t.kwh = dollars(*e.kwh);
  t.carbon_g_per_kwh = e.carbon_g_per_kwh;
  return t;
}

RunCost cost_of(const RunOutcome& run, const RunModel& model, const Tariff& t, std::uint64_t number) {
  RunCost out;
  const double total = seconds(run.total);
  const auto job = static_cast<double>(model.nodes), spares = static_cast<double>(t.spares);
  double node_s = (job + spares) * std::max(total, t.term_s);
  if (t.payment == Payment::kSpot) node_s -= seconds(run.away);
  double node_hour = t.node_hour;
  if (t.spot_prices && total > 0) {
    const double begin = RandomStream(t.seed, number, kPriceProcess).uniform() * t.spot_prices->length_s();
    node_hour = t.spot_prices->mean(begin, total);
  }
  out.nodes = node_hour * node_s / kHour;
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
