// SPDX-License-Identifier: Apache-2.0
//
// What `orrery schedule` prints and writes.
#include <fmt/format.h>

#include <algorithm>

#include "cli/schedule.h"
#include "core/text.h"
#include "planner/export/export.h"
#include "planner/export/launch.h"

namespace orrery::cli {
namespace {

using sim::Quantiles;
using sim::TenantReport;

Json json_of(const Quantiles& q) {
  return {{"mean", q.mean}, {"p50", q.p50}, {"p95", q.p95}, {"max", q.most}};
}

// Of a node for an hour; zero where the price of one of them is unknown.
double node_hour(const Cluster& c) {
  return c.dollars_per_hour(c.nodes) / static_cast<double>(c.nodes);
}

double dollars_of(const Scheduled& s, const TenantReport& t) {
  return t.device_hours / static_cast<double>(s.cluster.devices_per_node) * node_hour(s.cluster);
}

Json tenant_json(const Scheduled& s, const TenantReport& t) {
  Json j = {{"name", t.name},
            {"jobs", t.jobs},
            {"preemptions", t.preemptions},
            {"backfilled", t.backfilled},
            {"device_hours", t.device_hours},
            {"share_of_held", t.share},
            {"wait_s", json_of(t.wait)},
            {"slowdown", json_of(t.slowdown)}};
  if (node_hour(s.cluster) > 0) j["usd"] = dollars_of(s, t);
  return j;
}

Json job_json(const Scheduled& s, std::size_t i) {
  const sim::ClusterJob& job = s.queue.jobs[i];
  const sim::JobOutcome& o = s.outcome.jobs[i];
  return {{"name", job.name},
          {"tenant", s.queue.tenants[static_cast<std::size_t>(job.tenant)].name},
          {"devices", job.devices},
          {"submit_s", sim::seconds(job.submit)},
          {"start_s", sim::seconds(o.start)},
          {"end_s", sim::seconds(o.end)},
          {"work_s", sim::seconds(o.useful)},
          {"lost_s", sim::seconds(o.lost)},
          {"slow_s", sim::seconds(o.slow)},
          {"checkpoint_s", sim::seconds(o.checkpoint)},
          {"restart_s", sim::seconds(o.restart)},
          {"preemptions", o.preemptions},
          {"backfilled", o.backfilled},
          {"attempts", Json::array()}};
}

std::string time_text(double s) {
  return format(RunTime{s});
}

void print_tenant(const Scheduled& s, const TenantReport& t) {
  const bool priced = node_hour(s.cluster) > 0;
  fmt::print("  {:<20}{:>8}{:>12.0f}{:>8.1f}{:>12}{:>12}{:>12}{:>10.2f}{:>9}{}\n",
             shortened(printable(t.name), 19), t.jobs, t.device_hours, 100 * t.share, time_text(t.wait.mean),
             time_text(t.wait.p50), time_text(t.wait.p95), t.slowdown.mean, t.preemptions,
             priced ? fmt::format("{:>12.0f}", dollars_of(s, t)) : "");
}

constexpr std::size_t kMostListed = 32;  // jobs, or tenants

void print_tenants(const Scheduled& s) {
  fmt::print("\n  {:<20}{:>8}{:>12}{:>8}{:>12}{:>12}{:>12}{:>10}{:>9}{}\n", "tenant", "jobs", "device h",
             "held%", "wait", "p50", "p95", "slowdown", "preempt",
             node_hour(s.cluster) > 0 ? "         USD" : "");
  std::vector<const TenantReport*> order;
  for (const TenantReport& t : s.report.tenants) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const TenantReport* a, const TenantReport* b) {
    return a->device_hours > b->device_hours;
  });
  for (std::size_t i = 0; i < std::min(order.size(), kMostListed); ++i) print_tenant(s, *order[i]);
  if (order.size() > kMostListed) fmt::print("  and {} more, which --json has\n", order.size() - kMostListed);
  if (order.size() > 1) print_tenant(s, s.report.all);
}

void print_jobs(const Scheduled& s) {
  fmt::print("\n  {:<24}{:<16}{:>8}{:>12}{:>12}{:>12}  {}\n", "job", "tenant", "devices", "submitted",
             "starts", "ends", "");
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < s.queue.jobs.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return s.outcome.jobs[a].start < s.outcome.jobs[b].start;
  });
  for (const std::size_t i : order) {
    const sim::ClusterJob& job = s.queue.jobs[i];
    const sim::JobOutcome& o = s.outcome.jobs[i];
    std::string remark = o.backfilled ? "backfilled" : "";
    const auto add = [&](const std::string& text) { remark += (remark.empty() ? "" : ", ") + text; };
    if (o.preemptions > 0)
      add(fmt::format("preempted {}x, {} lost", o.preemptions, time_text(sim::seconds(o.lost))));
    if (o.slow > sim::Ticks{0}) add(fmt::format("{} slower on its nodes", time_text(sim::seconds(o.slow))));
    fmt::print("  {:<24}{:<16}{:>8}{:>12}{:>12}{:>12}  {}\n", shortened(printable(job.name), 23),
               shortened(printable(s.queue.tenants[static_cast<std::size_t>(job.tenant)].name), 15),
               job.devices, time_text(sim::seconds(job.submit)), time_text(sim::seconds(o.start)),
               time_text(sim::seconds(o.end)), remark);
  }
}

std::string policy_text(const SchedulingPolicy& p) {
  std::string out = fmt::format("{}, backfill {}", name_of(p.order), name_of(p.backfill));
  if (p.backfill != Backfill::kNone) out += fmt::format(" ({} jobs deep)", p.backfill_depth);
  if (p.order == QueueOrder::kFairShare)
    out += p.half_life.value > 0 ? fmt::format(", half-life {}", time_text(p.half_life.value))
                                 : ", no half-life";
  return out + fmt::format(", preemption {}, placement {}", name_of(p.preemption), name_of(p.placement));
}

}  // namespace

Json schedule_json(const Scheduled& s, bool jobs) {
  const sim::ScheduleReport& r = s.report;
  Json j = {{"schema", "orrery.schedule/1"},    {"jobs_file", s.file},        {"name", s.name},
            {"cluster", s.cluster.name},        {"nodes", s.cluster.nodes},   {"devices", s.outcome.devices},
            {"policy", write_fields(s.policy)}, {"makespan_s", r.makespan_s}, {"attempts", r.attempts},
            {"shapes_costed", s.outcome.shapes}};
  if (s.trace)
    j["left_out"] = {{"without_devices", s.trace->without_devices},
                     {"without_run_time", s.trace->without_time},
                     {"larger_than_cluster", s.trace->too_large}};
  j["share_of_device_time"] = {
      {"useful", r.useful},   {"slow", r.slow},       {"lost", r.lost}, {"checkpoint", r.checkpoint},
      {"restart", r.restart}, {"unasked", r.unasked}, {"free", r.free}};
  j["utilisation"] = r.held;
  j["fragmentation"] = r.fragmentation;
  j["free_while_wanted"] = r.wanted;
  j["spread"] = r.spread;
  j["fairness"] = r.fairness;
  if (node_hour(s.cluster) > 0) {
    j["node_hour_usd"] = node_hour(s.cluster);
    j["price_as_of"] = s.cluster.price_as_of;
  }
  j["all"] = tenant_json(s, r.all);
  j["tenants"] = Json::array();
  for (const TenantReport& t : r.tenants) j["tenants"].push_back(tenant_json(s, t));
  j["load"] = Json::array();
  for (const sim::LoadBucket& b : r.load)
    j["load"].push_back(
        {{"at_s", b.at_s}, {"held", b.held}, {"fragmented", b.fragmented}, {"waiting", b.waiting}});
  if (!jobs) return j;
  Json& list = j["jobs"] = Json::array();
  for (std::size_t i = 0; i < s.queue.jobs.size(); ++i) list.push_back(job_json(s, i));
  for (const sim::Attempt& a : s.outcome.attempts) {
    const auto nodes = s.outcome.nodes_of(a);
    list[static_cast<std::size_t>(a.job)]["attempts"].push_back(
        {{"start_s", sim::seconds(a.start)},
         {"end_s", sim::seconds(a.end)},
         {"preempted", a.preempted},
         {"slow_on_nodes", a.slow},
         {"nodes", std::vector<std::int32_t>(nodes.begin(), nodes.end())}});
  }
  return j;
}

void print_schedule(const Scheduled& s) {
  const sim::ScheduleReport& r = s.report;
  fmt::print("{} jobs of {} tenants on {} nodes of {} devices ({})\n", s.queue.jobs.size(),
             s.queue.tenants.size(), s.cluster.nodes, s.cluster.devices_per_node, printable(s.cluster.name));
  fmt::print("{}\n", policy_text(s.policy));
  if (s.trace && s.trace->left_out() > 0)
    fmt::print("left out: {} jobs without devices, {} without run time, {} larger than the cluster\n",
               s.trace->without_devices, s.trace->without_time, s.trace->too_large);
  for (std::size_t i = 0; i < s.plans.size(); ++i) {
    const JobPlan& p = s.plans[i];
    fmt::print("{}: {}, {:.4g} s a step on the best nodes\n", printable(p.problem.scenario.model.name),
               short_name(p.plan), p.step_s);
  }
  if (s.queue.jobs.size() <= kMostListed) print_jobs(s);
  print_tenants(s);
  fmt::print("\n  makespan       {}\n", time_text(r.makespan_s));
  fmt::print("  utilisation    {:.2f} % of device time is held; {:.2f} % is useful work\n", 100 * r.held,
             100 * r.useful);
  const std::pair<const char*, double> parts[] = {
      {"longer because of nodes and neighbours", r.slow},
      {"work done again after preemptions", r.lost},
      {"checkpoints", r.checkpoint},
      {"restarts", r.restart},
      {"devices of whole nodes that nobody asked for", r.unasked}};
  for (const auto& [name, share] : parts) {
    if (share > 0) fmt::print("                 {:.2f} % {}\n", 100 * share, name);
  }
  fmt::print("  free           {:.2f} %; {:.2f} % while a job waits\n", 100 * r.free, 100 * r.wanted);
  fmt::print(
      "  fragmentation  {:.2f} %: free, enough for the job that is next, and not where it needs them\n",
      100 * r.fragmentation);
  fmt::print("  switches       {:.2f} times as many as whole-node jobs need\n", r.spread);
  if (s.report.tenants.size() > 1)
    fmt::print("  fairness       {:.3f} (Jain's index of what tenants held over their shares)\n", r.fairness);
  if (node_hour(s.cluster) > 0)
    fmt::print("  price          ${:.2f} a node and hour ({})\n", node_hour(s.cluster),
               s.cluster.price_as_of.empty() ? "no date" : printable(s.cluster.price_as_of));
}

// --- launch files
// -------------------------------------------------------------------------------------------

namespace {

// What the job runs on each node: its command, or a script of its plan for Megatron-LM.
std::string script_of(const Scheduled& s, const JobRequest& r, const sim::ClusterJob& job, const App& app,
                      std::vector<std::string>& notes) {
  if (!r.command.empty()) return r.command;
  if (job.plan < 0) {
    notes.push_back(fmt::format("{} has no command; its files stop with a message", job.name));
    return "echo 'set what this job runs' >&2; exit 1";
  }
  const JobPlan& p = s.plans[static_cast<std::size_t>(job.plan)];
  Problem problem = p.problem;
  problem.stack = load_stack(planner::stack_of(planner::Target::kMegatron), p.scenario, app.data);
  check_stack(problem, p.plan, p.scenario, p.scenario.child("plan"));
  const planner::Exported e = planner::export_plan(planner::Target::kMegatron, problem, p.plan, p.scenario);
  for (const std::string& note : e.notes) notes.push_back(fmt::format("{}: {}", job.name, note));
  return e.text;
}

}  // namespace

std::vector<std::string> write_launches(const Scheduled& s, const sim::ClusterNodes& nodes,
                                        const std::filesystem::path& folder, const App& app) {
  std::vector<std::string> notes;
  const std::int64_t per_node = s.cluster.devices_per_node;
  struct File {
    std::string name, text;
  };
  std::vector<File> files;  // written when all of them are known
  for (std::size_t i = 0; i < s.queue.jobs.size(); ++i) {
    if (i > 0 && s.request[i] == s.request[i - 1]) continue;  // one for all copies
    const sim::ClusterJob& job = s.queue.jobs[i];
    const JobRequest& r = s.requests[s.request[i]];
    planner::Launch l{.name = r.name.empty() ? job.name : r.name,
                      .tenant = r.tenant,
                      .nodes = (job.devices + per_node - 1) / per_node,
                      .devices_per_node = std::min(job.devices, per_node),
                      .limit = r.requested,
                      .priority = r.priority,
                      .command = script_of(s, r, job, app, notes),
                      .image = r.image};
    l.switches = sim::fewest_leaves(nodes, l.nodes);
    l.whole_nodes = l.nodes > 1;
    const std::string name = fmt::format("{:04}-{}", s.request[i] + 1, planner::launch_name(l.name));
    files.push_back({name + ".sbatch", planner::slurm_job(l)});
    if (r.image.empty())
      notes.push_back(fmt::format("{} has no image, so there is no Kubernetes file for it", l.name));
    else
      files.push_back({name + ".yaml", planner::manifest(planner::ManifestKind::kJob, l)});
  }
  for (const File& f : files) save_text(folder / f.name, f.text);
  notes.push_back(fmt::format("{} files are in {}", files.size(), folder.string()));
  return notes;
}

}  // namespace orrery::cli
