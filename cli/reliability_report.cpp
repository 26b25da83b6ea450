// SPDX-License-Identifier: Apache-2.0
//
// What `orrery reliability` prints.
#include <fmt/format.h>

#include <cmath>

#include "cli/reliability.h"
#include "core/text.h"

namespace orrery::cli {
namespace {

using sim::Spread;
using sim::Summary;

// JSON has no infinity.
Json number(double v) {
  return std::isfinite(v) ? Json(v) : Json();
}
Json json_of(const Spread& s) {
  return {{"mean", s.mean}, {"p5", s.p5}, {"p50", s.p50}, {"p95", s.p95}, {"standard_error", s.error}};
}
Json json_of(const sim::Change& c) {
  return {{"days", number(c.days)}, {"standard_error_days", c.days_error}, {"usd", number(c.dollars)}};
}

double trillions(const Operated& q) {
  return q.operation.job.tokens_per_step * static_cast<double>(q.operation.job.steps) / 1e12;
}

Json first_answer(const sim::JobModel& m) {
  const sim::EttrTerms t = m.ettr_terms();
  const double expected = m.expected_run_s();
  return {{"mtbf_s", number(m.mtbf_s)},
          {"young_daly_interval_s", number(sim::young_daly_interval(m.stall_s, m.mtbf_s))},
          {"ettr_kokolis", sim::expected_ettr(t)},
          {"ettr_exact", seconds(m.run.work) / expected},
          {"days_exact", expected / sim::kSecondsPerDay}};
}

Json way_json(const ReliabilityReport& r, const Way& w) {
  const Operated& q = r.questions[w.question];
  const sim::JobModel& m = w.answered.model;
  const Summary& s = w.answered.summary;
  const bool priced = w.answered.tariff.node_hour > 0;
  Json j = {{"scenario", q.at.file},
            {"name", q.problem.scenario.name},
            {"plan", q.plan ? Json(short_name(*q.plan)) : Json()},
            {"payment", name_of(w.payment)},
            {"nodes", q.operation.job.nodes},
            {"devices", q.operation.job.devices()},
            {"step_s", m.step_s},
            {"step_source", q.step_source},
            {"steps", q.operation.job.steps},
            {"work_days", days(m.run.work)}};
  j["rates"] = q.assumed.profile;
  j["checkpoint"] = {{"bytes", m.bytes},
                     {"write_s", m.write_s},
                     {"stall_s", m.stall_s},
                     {"interval_s", m.interval_s},
                     {"interval_steps", m.steps_per_checkpoint},
                     {"memory_interval_s", m.memory_interval_s},
                     {"interval_from", m.interval_note}};
  j["restart"] = {{"hardware_s", m.restart_hardware_s}, {"software_s", m.restart_software_s}};
  j["formula"] = first_answer(m);
  j["step_spread"] = {{"p5", m.step_spread.p5},
                      {"p50", m.step_spread.p50},
                      {"p95", m.step_spread.p95},
                      {"mean", m.step_spread.mean}};
  j["runs"] = s.runs;
  j["days"] = json_of(s.days);
  j["days_with_step_range"] = json_of(s.days_of_step);
  j["ettr"] = json_of(s.ettr);
  if (priced) {
    const double steps = static_cast<double>(q.operation.job.steps);
    j["usd"] = json_of(s.dollars);
    j["usd_with_step_range"] = json_of(s.dollars_of_step);
    j["usd_per_step"] = s.dollars.mean / steps;
    j["usd_per_trillion_tokens"] = trillions(q) > 0 ? Json(s.dollars.mean / trillions(q)) : Json();
  }
  if (const auto& o = w.answered.tariff.owned)
    j["owned_node"] = {{"usd", o->price},
                       {"switch_ports", o->switch_ports},
                       {"used", o->used},
                       {"usd_per_hour", o->total()},
                       {"written_off", o->written_off},
                       {"maintenance", o->maintenance},
                       {"interest", o->interest},
                       {"staff", o->staff},
                       {"hosting", o->hosting}};
  j["usd_of_storage"] = json_of(s.storage_dollars);
  j["usd_of_energy"] = json_of(s.energy_dollars);
  j["kwh"] = json_of(s.kwh);
  j["carbon_kg"] = json_of(s.carbon_kg);
  j["share_of_time"] = {{"progress", s.progress},
                        {"lost", s.lost},
                        {"slow", s.slow},
                        {"checkpoint", s.checkpoint},
                        {"undetected", s.detection},
                        {"restart", s.restart},
                        {"wait_for_node", s.wait},
                        {"maintenance", s.maintenance}};
  j["events"] = {
      {"hardware", json_of(s.hardware)},   {"software", json_of(s.software)},
      {"silent", json_of(s.silent)},       {"newest_checkpoints_spoiled", json_of(s.old_rollbacks)},
      {"preempted", json_of(s.preempted)}, {"evictions", json_of(s.evictions)},
      {"planned", json_of(s.planned)},     {"checkpoints", json_of(s.checkpoints)}};
  if (r.deadline_days > 0)
    j["deadline"] = {{"days", r.deadline_days}, {"probability", s.share_within(r.deadline_days)}};
  return j;
}

Json advice_json(const planner::Advised& a) {
  Json j;
  j["interval"] = {{"young_daly_s", number(a.interval.young_daly_s)},
                   {"exact_s", a.interval.exact_s},
                   {"simulated_s", a.interval.simulated_s},
                   {"as_good_from_s", a.interval.shortest_s},
                   {"as_good_to_s", a.interval.longest_s}};
  j["interval"]["tried"] = Json::array();
  for (const auto& [interval, mean] : a.interval.tried)
    j["interval"]["tried"].push_back({{"interval_s", interval}, {"days", mean}});
  j["spares"] = Json::array();
  for (const sim::SpareNodes& s : a.spares)
    j["spares"].push_back({{"nodes", s.nodes},
                           {"days", s.days_mean},
                           {"days_p95", s.days_p95},
                           {"share_waiting", s.wait_share},
                           {"usd", s.dollars_mean}});
  j["hour_of_mtbf"] = json_of(a.hour);
  j["sensitivity"] = Json::array();
  for (const sim::Sensitivity& s : a.sensitivities)
    j["sensitivity"].push_back({{"field", s.field},
                                {"half", {{"value", s.halved}, {"change", json_of(s.half)}}},
                                {"double", {{"value", s.doubled}, {"change", json_of(s.twice)}}}});
  return j;
}

std::string way_name(const ReliabilityReport& r, const Way& w) {
  const Scenario& s = r.questions[w.question].problem.scenario;
  const std::string name = printable(s.name.empty() ? s.model.name : s.name);
  return fmt::format("{}, {}", shortened(name, 48), name_of(w.payment));
}

std::string deadline_text(const ReliabilityReport& r) {
  return format(RunTime{r.deadline_days * sim::kSecondsPerDay});
}

std::string money(double usd) {
  return fmt::format("${:.{}f}", usd, usd < 100 ? 4 : 0);
}

void print_question(const Operated& q, const sim::JobModel& m) {
  const Scenario& s = q.problem.scenario;
  fmt::print("{}: {}{} on {} nodes of {} {}\n", printable(s.name.empty() ? s.model.name : s.name),
             printable(s.model.name), q.plan ? ", " + short_name(*q.plan) : "", q.operation.job.nodes,
             q.operation.job.devices_per_node, printable(q.problem.devices.front().name));
  fmt::print("{} steps of {:.4g} s, {}: {:.2f} days of work\n", q.operation.job.steps, m.step_s,
             q.step_source, days(m.run.work));
  if (q.problem.cluster.nodes > q.operation.job.nodes)
    fmt::print(
        "{} nodes of the cluster are not the plan's and are not paid here; reliability/spares/nodes would "
        "pay them\n",
        q.problem.cluster.nodes - q.operation.job.nodes);
}

void print_formula(const sim::JobModel& m) {
  const sim::EttrTerms t = m.ettr_terms();
  const double expected = m.expected_run_s();
  const std::string mtbf = std::isfinite(m.mtbf_s) ? format(RunTime{m.mtbf_s}) : "no failures";
  fmt::print("\nby formula, with failures that stop the job alone\n");
  fmt::print("  time between stops      {}\n", mtbf);
  fmt::print("  checkpoint              {:.4g} GB, written in {:.3g} s, stops the job for {:.3g} s\n",
             m.bytes / 1e9, m.write_s, m.stall_s);
  fmt::print("  interval                {}, {} steps ({})\n", format(RunTime{m.interval_s}),
             m.steps_per_checkpoint, m.interval_note);
  if (m.run.in_memory()) fmt::print("  interval in memory      {}\n", format(RunTime{m.memory_interval_s}));
  fmt::print("  stop to work again      {:.0f} s when a node fails, {:.0f} s when software does\n",
             m.restart_hardware_s, m.restart_software_s);
  if (const sim::StepSpread& v = m.step_spread; v.mean > 1)
    fmt::print(
        "  slowest rank of a step  {:.3f} times the step without noise in the mean; p5 {:.3f}, p95 {:.3f}\n",
        v.mean, v.p5, v.p95);
  fmt::print("  ETTR                    {:.4f} exactly, {:.4f} to first order (Kokolis et al.)\n",
             seconds(m.run.work) / expected, sim::expected_ettr(t));
  fmt::print("  days                    {:.2f}\n", expected / sim::kSecondsPerDay);
}

void print_spread(const char* name, const Spread& s, int digits) {
  fmt::print("  {:<24}{:>14.{}f}{:>14.{}f}{:>14.{}f}{:>14.{}f}\n", name, s.mean, digits, s.p5, digits, s.p50,
             digits, s.p95, digits);
}

// What an hour of a bought node is made of, and how much of its life it has to be used to be worth it.
void print_owned(const sim::OwnedHour& o, const sim::Tariff& t, double on_demand) {
  fmt::print(
      "owned: a node with its {:.1f} switch ports is {} to buy, and {} for an hour in which it is used "
      "({:.0f} % of its life)\n"
      "  written off {:.2f}, maintenance {:.2f}, interest {:.2f}, staff {:.2f}, hosting {:.2f}; energy "
      "beside "
      "it\n",
      o.switch_ports, money(o.price), money(o.total()), 100 * o.used, o.written_off, o.maintenance,
      o.interest, o.staff, o.hosting);
  const double rented = on_demand - t.busy_watts / 1000 * t.kwh.value_or(0);  // less the energy
  if (rented <= 0) return;
  const double share = o.total() * o.used / rented;
  if (share <= 1)
    fmt::print("  cheaper than on demand where it is used more than {:.0f} % of its life\n", 100 * share);
  else
    fmt::print("  on demand is cheaper however much it is used\n");
}

void print_runs(const ReliabilityReport& r, const Way& w) {
  const Operated& q = r.questions[w.question];
  const Summary& s = w.answered.summary;
  fmt::print("\n{} simulated runs, seed {}\n  {:<24}{:>14}{:>14}{:>14}{:>14}\n", s.runs, r.seed, "", "mean",
             "p5", "p50", "p95");
  print_spread("ETTR", s.ettr, 4);
  print_spread("days", s.days, 2);
  if (!q.operation.step.certain()) print_spread("days, step uncertain too", s.days_of_step, 2);
  const bool priced = w.answered.tariff.node_hour > 0;
  if (priced) {
    print_spread("USD", s.dollars, 0);
    if (!q.operation.step.certain()) print_spread("USD, step uncertain too", s.dollars_of_step, 0);
  }
  if (s.storage_dollars.mean > 0) print_spread("USD of storage", s.storage_dollars, 0);
  if (s.energy_dollars.mean > 0) print_spread("USD of energy", s.energy_dollars, 0);
  const auto thousands = [](const char* name, const Spread& of) {
    if (of.mean > 0)
      print_spread(name, {of.mean / 1000, of.p5 / 1000, of.p50 / 1000, of.p95 / 1000, 0},
                   of.mean < 1e4 ? 2 : 0);
  };
  thousands("MWh", s.kwh);
  thousands("t of CO2", s.carbon_kg);
  const std::pair<const char*, const Spread*> counts[] = {
      {"failed nodes", &s.hardware},  {"software failures", &s.software},
      {"silent failures", &s.silent}, {"of them, newest spoiled", &s.old_rollbacks},
      {"preemptions", &s.preempted},  {"evicted slow nodes", &s.evictions},
      {"planned stops", &s.planned},  {"checkpoints", &s.checkpoints}};
  for (const auto& [name, count] : counts) {
    if (count->mean > 0) print_spread(name, *count, count->mean < 10 ? 2 : 0);
  }
  if (!q.operation.step.certain()) fmt::print("  the step is uncertain: {}\n", words_of(q.problem.measured));
  if (priced) {
    fmt::print("  {} a step", money(s.dollars.mean / static_cast<double>(q.operation.job.steps)));
    if (trillions(q) > 0) fmt::print(", {} a trillion tokens", money(s.dollars.mean / trillions(q)));
    fmt::print(", {}\n", name_of(w.payment));
  } else {
    fmt::print("  no dollars: neither the cluster nor the scenario has a node_hour\n");
  }
  if (r.deadline_days > 0)
    fmt::print("  ends within {} with a probability of {:.1f} %\n", deadline_text(r),
               100 * s.share_within(r.deadline_days));

  fmt::print("\nwhere the time goes\n");
  const std::pair<const char*, double> parts[] = {{"progress", s.progress},
                                                  {"work done again", s.lost},
                                                  {"slow nodes, fewer replicas", s.slow},
                                                  {"checkpoints", s.checkpoint},
                                                  {"down, not noticed", s.detection},
                                                  {"restarting", s.restart},
                                                  {"waiting for a node", s.wait},
                                                  {"maintenance", s.maintenance}};
  for (const auto& [name, share] : parts) {
    if (share > 0)
      fmt::print("  {:<28}{:>7.2f} %  {}\n", name, 100 * share,
                 std::string(static_cast<std::size_t>(share * 50 + 0.5), '='));
  }
}

std::string change_text(const sim::Change& c, bool priced) {
  if (!std::isfinite(c.days)) return "no end";
  std::string out = fmt::format("{:+.2f} days", c.days);
  if (priced) out += fmt::format(", {}${:.0f}", c.dollars < 0 ? "-" : "+", std::abs(c.dollars));
  return out;
}

void print_advice(const planner::Advised& a, bool priced) {
  const sim::IntervalAdvice& i = a.interval;
  fmt::print("\nadvice\n");
  if (!i.tried.empty())
    fmt::print(
        "  interval: {} by Young and Daly, {} exactly, {} as simulated; from {} to {} the run takes at most "
        "{:.1f} % longer\n",
        std::isfinite(i.young_daly_s) ? format(RunTime{i.young_daly_s}) : "none", format(RunTime{i.exact_s}),
        format(RunTime{i.simulated_s}), format(RunTime{i.shortest_s}), format(RunTime{i.longest_s}),
        100 * sim::kAsGood);
  fmt::print("  one more hour between stops: {}\n", change_text(a.hour, priced));
  if (!a.spares.empty()) {
    fmt::print("  {:>12} {:>10} {:>10} {:>10} {:>14}\n", "spare nodes", "days", "p95", "waiting %",
               priced ? "USD" : "");
    const sim::SpareNodes* best = &a.spares.front();
    for (const sim::SpareNodes& s : a.spares) {
      fmt::print("  {:>12} {:>10.2f} {:>10.2f} {:>10.2f} {:>14}\n", s.nodes, s.days_mean, s.days_p95,
                 100 * s.wait_share, priced ? fmt::format("{:.0f}", s.dollars_mean) : "");
      if (priced ? s.dollars_mean < best->dollars_mean : s.days_mean < best->days_mean) best = &s;
    }
    fmt::print("  {} with {} spare nodes\n", priced ? "cheapest" : "fastest", best->nodes);
  }
  if (a.sensitivities.empty()) return;
  fmt::print("\nwhat each assumption does, halved and doubled\n");
  for (const sim::Sensitivity& s : a.sensitivities)
    fmt::print("  {:<34} {:>10} {:<30} {:>10} {}\n", s.field, s.halved, change_text(s.half, priced),
               s.doubled, change_text(s.twice, priced));
}

void print_ways(const ReliabilityReport& r) {
  if (r.ways.size() < 2) return;
  fmt::print("\n{:>3} {:<64} {:>8} {:>8} {:>8} {:>14} {:>14}{}\n", "", "way", "ETTR", "days", "p95", "USD",
             "p95", r.deadline_days > 0 ? "   in time %" : "");
  for (std::size_t i = 0; i < r.ways.size(); ++i) {
    const Summary& s = r.ways[i].answered.summary;
    const bool priced = r.ways[i].answered.tariff.node_hour > 0;
    fmt::print("{:>3} {:<64} {:>8.4f} {:>8.2f} {:>8.2f} {:>14} {:>14}", i + 1, way_name(r, r.ways[i]),
               s.ettr.mean, s.days.mean, s.days.p95, priced ? fmt::format("{:.0f}", s.dollars.mean) : "-",
               priced ? fmt::format("{:.0f}", s.dollars.p95) : "-");
    if (r.deadline_days > 0) fmt::print("{:>12.1f}", 100 * s.share_within(r.deadline_days));
    fmt::print("\n");
  }
  const Choices c = choices(r);
  fmt::print("fastest: {}; cheapest: {}", c.fastest + 1,
             c.cheapest ? std::to_string(*c.cheapest + 1) : std::string("unknown, without prices"));
  if (r.deadline_days > 0)
    fmt::print("; cheapest that ends within {} in {:.4g} % of runs: {}", deadline_text(r), 100 * r.confidence,
               c.cheapest_in_time ? std::to_string(*c.cheapest_in_time + 1) : std::string("none"));
  fmt::print("\n");
}

void print_assumptions(const Operated& q) {
  fmt::print("\nassumed, rates of {}\n", printable(q.assumed.profile));
  for (const Assumption& a : q.assumed.list)
    fmt::print("  {:<34} {:>12}  {}\n", a.field, printable(a.value), printable(a.source));
}

}  // namespace

Json reliability_json(const ReliabilityReport& r) {
  Json out = {{"schema", "orrery.reliability-report/1"}, {"seed", r.seed}, {"confidence", r.confidence}};
  out["ways"] = Json::array();
  for (const Way& w : r.ways) out["ways"].push_back(way_json(r, w));
  const Choices c = choices(r);
  const auto index = [](const std::optional<std::size_t>& i) { return i ? Json(*i) : Json(); };
  out["fastest"] = c.fastest;
  out["cheapest"] = index(c.cheapest);
  out["cheapest_in_time"] = index(c.cheapest_in_time);
  if (r.advised) out["advice"] = advice_json(*r.advised);
  out["assumptions"] = Json::array();
  for (const Operated& q : r.questions) {
    Json list = Json::array();
    for (const Assumption& a : q.assumed.list)
      list.push_back({{"field", a.field}, {"value", a.value}, {"source", a.source}});
    out["assumptions"].push_back(std::move(list));
  }
  return out;
}

void print_reliability(const ReliabilityReport& r) {
  const Way& first = r.ways.front();
  const Operated& q = r.questions.front();
  print_question(q, first.answered.model);
  print_formula(first.answered.model);
  print_runs(r, first);
  print_ways(r);
  for (const Way& w : r.ways) {
    const sim::Tariff& t = w.answered.tariff;
    if (t.owned) print_owned(*t.owned, t, r.questions[w.question].operation.prices.on_demand_node_hour);
  }
  if (r.advised) print_advice(*r.advised, first.answered.tariff.node_hour > 0);
  print_assumptions(q);
}

}  // namespace orrery::cli
