// SPDX-License-Identifier: Apache-2.0
//
// What stops and slows a run of many steps, what brings it back, and what it is paid by: the object
// `reliability` of a scenario and the body of the files in profiles/reliability. docs/reliability.md has the
// formulas.
//
// Every field may be absent. Three files are laid over each other: the scenario, the profile of published
// rates that it names, and profiles/reliability/default.json, which has all that a run needs
// (core/reliability_profile.h). Rates are events per node and day, or per job and day, of a job that runs or
// restarts; a mean time is that of an exponential distribution.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"

namespace orrery {

// How a job comes back: all of it is submitted anew; a booted spare node takes the place of the failed one;
// or its processes start again on the nodes that it has.
enum class RestartKind { kRequeue, kHotSpare, kInPlace };
constexpr auto enum_names(RestartKind) {
  return std::array{std::pair{RestartKind::kRequeue, "requeue"},
                    std::pair{RestartKind::kHotSpare, "hot-spare"},
                    std::pair{RestartKind::kInPlace, "in-place"}};
}

// sync: the job waits until storage has the checkpoint. async: it waits until the host's memory has it, and
// storage gets it from there. memory: other nodes' memory gets it too, more often than storage does.
enum class CheckpointKind { kSync, kAsync, kMemory };
constexpr auto enum_names(CheckpointKind) {
  return std::array{std::pair{CheckpointKind::kSync, "sync"}, std::pair{CheckpointKind::kAsync, "async"},
                    std::pair{CheckpointKind::kMemory, "memory"}};
}

// Ranks that write a checkpoint: all, or those of one replica (tp * pp).
enum class Writers { kAll, kReplica };
constexpr auto enum_names(Writers) {
  return std::array{std::pair{Writers::kAll, "all"}, std::pair{Writers::kReplica, "replica"}};
}

enum class Payment { kOnDemand, kReserved, kSpot, kOwned };
constexpr auto enum_names(Payment) {
  return std::array{std::pair{Payment::kOnDemand, "on-demand"}, std::pair{Payment::kReserved, "reserved"},
                    std::pair{Payment::kSpot, "spot"}, std::pair{Payment::kOwned, "owned"}};
}

namespace limits {
inline constexpr double kMostEventsPerDay = 1e5;
inline constexpr double kMostWatts = 1e6;
}  // namespace limits

struct FailureRates {
  std::optional<double> hardware_per_node_day, software_per_node_day, software_per_job_day;
  std::optional<RunTime> detection, repair;
};
struct SilentFailures {
  std::optional<double> per_node_day;
  std::optional<RunTime> detection;
};
struct RestartTimes {
  std::optional<RestartKind> hardware, software;
  std::optional<RunTime> requeue, requeue_per_device, hot_spare, hot_spare_per_device, in_place,
      in_place_per_device;
};
struct Checkpoints {
  std::optional<CheckpointKind> kind;
  std::optional<RunTime> interval, memory_interval;
  std::optional<Bytes> bytes;
  std::optional<Bandwidth> write_bandwidth, read_bandwidth, writer_bandwidth, device_bandwidth;
  std::optional<Writers> writers;
  std::optional<std::int64_t> replicas, kept;
};
struct Spares {
  std::optional<std::int64_t> nodes, fewest_replicas;
  std::optional<std::vector<double>> shrunk;
};
struct Stragglers {
  std::optional<double> slow_per_node_day, slow_low, slow_high;
  std::optional<RunTime> slow_lasts;
  std::optional<bool> evicts;
  std::optional<double> rank_noise, imbalance;
};
struct Maintenance {
  std::optional<RunTime> every, lasts;
};
struct Preemption {
  std::optional<double> per_node_day;
  std::optional<RunTime> notice, refill;
};
struct Prices {
  std::optional<Payment> payment;
  std::optional<Dollars> reserved_node_hour, spot_node_hour, storage_per_gb_month;
  std::optional<RunTime> reserved_term;
  std::optional<std::string> spot_prices;
};
// Of a cluster that is bought: sim/reliability/money.h has what a node's hour is then.
struct Ownership {
  std::optional<Dollars> node, switch_port;  // to buy
  std::optional<double> switch_ports;        // a node's part of the fabric's
  std::optional<RunTime> lifetime;
  std::optional<double> residual, maintenance, interest, used;  // shares; the middle two of a year
  std::optional<Dollars> hosting_kw_month, staff_node_year;
};
struct DevicePower {
  std::string device;
  double watts = 0;
};
struct Energy {
  std::optional<std::vector<DevicePower>> devices;
  std::optional<double> device_watts, host_watts, idle_share, pue, carbon_g_per_kwh;
  std::optional<Dollars> kwh;
};

struct ReliabilityAssumptions {
  FailureRates failures;
  SilentFailures silent;
  RestartTimes restart;
  Checkpoints checkpoint;
  Spares spares;
  Stragglers stragglers;
  Maintenance maintenance;
  Preemption preemption;
  Prices prices;
  Ownership ownership;
  Energy energy;
};

// Of a scenario.
struct Reliability : ReliabilityAssumptions {
  std::optional<std::string> rates;   // a profile's name or file
  std::optional<RunTime> step_time;   // in place of the planner's
  std::optional<std::int64_t> steps;  // in place of training.tokens
};

// Fields of this file: an optional number of events, a factor, a time.
namespace reliability_fields {
constexpr Field rate(const char* name, const char* help) {
  return {.name = name, .help = help, .min = 0, .max = limits::kMostEventsPerDay};
}
constexpr Field number(const char* name, const char* help, double min, double max) {
  return {.name = name, .help = help, .min = min, .max = max};
}
constexpr Field time(const char* name, const char* help, double min = 0) {
  return {.name = name, .help = help, .min = min, .max = limits::kLongestRun};
}
constexpr Field price(const char* name, const char* help) {
  return {.name = name, .help = help, .min = 0, .max = limits::kHighestPrice};
}
constexpr Field bandwidth(const char* name, const char* help) {
  return {.name = name, .help = help, .min = limits::kSlowest, .max = limits::kFastest};
}
}  // namespace reliability_fields

template <class V>
void describe(V& v, FailureRates& f) {
  using namespace reliability_fields;
  v(rate("hardware_per_node_day", "failures that take a node out of the job, per node and day"),
    f.hardware_per_node_day);
  v(rate("software_per_node_day", "failures that leave all nodes sound, per node and day"),
    f.software_per_node_day);
  v(rate("software_per_job_day", "failures that leave all nodes sound, per day whatever the job's size"),
    f.software_per_job_day);
  v(time("detection", "from a failure until the restart begins"), f.detection);
  v(time("repair", "mean time until a failed node is a spare again"), f.repair);
}
template <class V>
void describe(V& v, SilentFailures& s) {
  using namespace reliability_fields;
  v(rate("per_node_day", "corruptions that nothing reports at once, per node and day"), s.per_node_day);
  v(time("detection", "mean time until a corruption is noticed"), s.detection);
}
template <class V>
void describe(V& v, RestartTimes& r) {
  using namespace reliability_fields;
  v(Field{.name = "hardware", .help = "how the job comes back when a node has failed"}, r.hardware);
  v(Field{.name = "software", .help = "how the job comes back when all nodes are sound"}, r.software);
  v(time("requeue", "time of a restart from the queue, without loading the checkpoint"), r.requeue);
  v(time("requeue_per_device", "what each device of the job adds to it"), r.requeue_per_device);
  v(time("hot_spare", "time of a restart with a booted spare node, without loading the checkpoint"),
    r.hot_spare);
  v(time("hot_spare_per_device", "what each device of the job adds to it"), r.hot_spare_per_device);
  v(time("in_place", "time of a restart on the same nodes, without loading the checkpoint"), r.in_place);
  v(time("in_place_per_device", "what each device of the job adds to it"), r.in_place_per_device);
}
template <class V>
void describe(V& v, Checkpoints& c) {
  using namespace reliability_fields;
  v(Field{.name = "kind",
          .help = "what the job waits for: storage, the host's memory, or neighbours' memory"},
    c.kind);
  v(time("interval", "work between two checkpoints in storage; absent: Young's and Daly's", 1e-3),
    c.interval);
  v(time("memory_interval", "of kind memory: work between two checkpoints; absent: a step", 1e-3),
    c.memory_interval);
  v(Field{.name = "bytes",
          .help = "of one checkpoint; absent: parameters, master copy and moments of the precision recipe",
          .min = 1,
          .max = limits::kLargestMessage},
    c.bytes);
  v(bandwidth("write_bandwidth", "of the storage, for the whole job"), c.write_bandwidth);
  v(bandwidth("read_bandwidth", "of the storage, for the whole job"), c.read_bandwidth);
  v(bandwidth("writer_bandwidth", "at which one rank writes to storage"), c.writer_bandwidth);
  v(bandwidth("device_bandwidth", "at which one rank copies from its device to the host"),
    c.device_bandwidth);
  v(Field{.name = "writers", .help = "ranks that write: all, or those of one replica"}, c.writers);
  v(number("replicas", "of kind memory: nodes that hold each part, its own among them", 1, 16), c.replicas);
  v(number(
        "kept",
        "newest checkpoints that storage keeps, beside one of each hour of the last day and one of each day",
        1, 1e6),
    c.kept);
}
template <class V>
void describe(V& v, Spares& s) {
  using namespace reliability_fields;
  v(number("nodes",
           "spare nodes that are paid for; absent: there is always a free node, unpaid, but for spot nodes",
           0, limits::kMostNodes),
    s.nodes);
  v(number("fewest_replicas",
           "the job goes on with fewer replicas, down to so many, when no spare is left; absent: it waits", 1,
           limits::kMostReplicas),
    s.fewest_replicas);
  v(Field{.name = "shrunk",
          .help =
              "how many times longer the same tokens take without 1, 2, .. replicas; absent: by the planner",
          .min = 1,
          .max = 1e6,
          .most = 4096},
    s.shrunk);
}
template <class V>
void describe(V& v, Stragglers& s) {
  using namespace reliability_fields;
  v(rate("slow_per_node_day", "nodes that become slow, per node and day"), s.slow_per_node_day);
  v(number("slow_low", "a slow node makes the step at least so many times longer", 1, 1000), s.slow_low);
  v(number("slow_high", "and at most so many times; evenly distributed between the two", 1, 1000),
    s.slow_high);
  v(time("slow_lasts", "mean time until a slow node recovers, or is found"), s.slow_lasts);
  v(Field{.name = "evicts", .help = "whether a slow node is replaced then, which takes a restart"}, s.evicts);
  v(number("rank_noise",
           "standard deviation of a rank's step time from step to step, as a share of it, beyond what the "
           "predicted step contains",
           0, 1),
    s.rank_noise);
  v(number("imbalance",
           "factor of the step time for uneven sequences and stages beyond what the predicted step contains",
           1, 1000),
    s.imbalance);
}
template <class V>
void describe(V& v, Maintenance& m) {
  using namespace reliability_fields;
  v(time("every", "time from one planned stop to the next; absent: none", 60), m.every);
  v(time("lasts", "time of a planned stop, before the restart"), m.lasts);
}
template <class V>
void describe(V& v, Preemption& p) {
  using namespace reliability_fields;
  v(rate("per_node_day", "interruptions of spot nodes, per node and day"), p.per_node_day);
  v(time("notice", "from the announcement of an interruption until the node is gone"), p.notice);
  v(time("refill", "mean time until a node comes in place of an interrupted one"), p.refill);
}
template <class V>
void describe(V& v, Prices& p) {
  using namespace reliability_fields;
  v(Field{.name = "payment", .help = "how nodes are paid; on-demand is the scenario's node_hour"}, p.payment);
  v(price("reserved_node_hour", "price of a reserved node for an hour"), p.reserved_node_hour);
  v(price("spot_node_hour", "mean price of a spot node for an hour"), p.spot_node_hour);
  v(Field{.name = "spot_prices",
          .help =
              "file of a spot node's prices over time, which go before spot_node_hour: time,price or what "
              "the AWS command line prints"},
    p.spot_prices);
  v(price("storage_per_gb_month", "price of checkpoint storage, over the scenario's"),
    p.storage_per_gb_month);
  v(time("reserved_term", "shortest time that reserved nodes are paid for"), p.reserved_term);
}
template <class V>
void describe(V& v, Ownership& o) {
  using namespace reliability_fields;
  v(price("node", "price to buy a node"), o.node);
  v(price("switch_port", "price to buy a switch port with its cable, over the fabric's port_cost"),
    o.switch_port);
  v(number("switch_ports", "of the fabric for each node; absent: counted in the topology", 0, 1e4),
    o.switch_ports);
  v(time("lifetime", "in which nodes and switches are written off", 86400), o.lifetime);
  v(number("residual", "share of the price that is left then", 0, 1), o.residual);
  v(number("maintenance", "share of the price that support and parts cost in a year", 0, 1), o.maintenance);
  v(number("interest", "on the capital that is bound, in a year", 0, 1), o.interest);
  v(number("used", "share of the lifetime in which nodes work for somebody", 0.01, 1), o.used);
  v(price("hosting_kw_month", "price of space and cooling for a kW, for a month, without energy"),
    o.hosting_kw_month);
  v(price("staff_node_year", "what people who run a node cost in a year"), o.staff_node_year);
}
template <class V>
void describe(V& v, DevicePower& d) {
  v(Field{.name = "device", .help = "a device profile's name", .required = true}, d.device);
  v(reliability_fields::number("watts", "its power under load", 0, limits::kMostWatts), d.watts);
}
template <class V>
void describe(V& v, Energy& e) {
  using namespace reliability_fields;
  v(Field{.name = "devices", .help = "power of devices under load", .most = 1024}, e.devices);
  v(number("device_watts", "power of a device under load, over the list's", 0, limits::kMostWatts),
    e.device_watts);
  v(number("host_watts", "power of the rest of a node: processors, memory, fans, NICs", 0,
           limits::kMostWatts),
    e.host_watts);
  v(number("idle_share", "power of a device that waits, as a share of its power under load", 0, 1),
    e.idle_share);
  v(number("pue", "power of the site over that of its nodes", 1, 10), e.pue);
  v(price("kwh", "price of a kilowatt-hour; absent: energy is part of the node's price"), e.kwh);
  v(number("carbon_g_per_kwh", "grams of carbon dioxide per kilowatt-hour; absent: not counted", 0, 1e5),
    e.carbon_g_per_kwh);
}

template <class V>
void describe(V& v, ReliabilityAssumptions& a) {
  v(Field{.name = "failures", .help = "failures that stop the job at once"}, a.failures);
  v(Field{.name = "silent", .help = "failures that spoil the results until they are noticed"}, a.silent);
  v(Field{.name = "restart", .help = "what a restart takes"}, a.restart);
  v(Field{.name = "checkpoint", .help = "what is saved, how and how often"}, a.checkpoint);
  v(Field{.name = "spares", .help = "nodes that take the place of failed ones"}, a.spares);
  v(Field{.name = "stragglers", .help = "what makes steps longer"}, a.stragglers);
  v(Field{.name = "maintenance", .help = "planned stops"}, a.maintenance);
  v(Field{.name = "preemption", .help = "interruptions of spot nodes"}, a.preemption);
  v(Field{.name = "prices", .help = "prices beside the scenario's"}, a.prices);
  v(Field{.name = "ownership", .help = "prices of a cluster that is bought, for the payment \"owned\""},
    a.ownership);
  v(Field{.name = "energy", .help = "power, and what it costs"}, a.energy);
}
template <class V>
void describe(V& v, Reliability& r) {
  v(Field{.name = "rates", .help = "a profile of published rates, under the fields that are given here"},
    r.rates);
  v(reliability_fields::time("step_time", "in place of the step that the planner predicts", 1e-6),
    r.step_time);
  v(reliability_fields::number("steps", "of the run, in place of training.tokens", 1, 1e12), r.steps);
  describe(v, static_cast<ReliabilityAssumptions&>(r));
}

ORRERY_FIELDS(extern, ReliabilityAssumptions);
ORRERY_FIELDS(extern, Reliability);

}  // namespace orrery
