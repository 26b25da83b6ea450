// SPDX-License-Identifier: Apache-2.0
//
// orrery schedule: a queue of jobs on a shared cluster.
#include "cli/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>

#include "cli/progress.h"
#include "core/timeline.h"
#include "planner/evaluate.h"
#include "planner/plan.h"
#include "planner/search.h"
#include "sim/scheduling/gantt.h"

namespace orrery::cli {
namespace {

struct ScheduleAsked {
  std::string jobs, cluster;
  std::int64_t nodes = 0;
  std::optional<QueueOrder> order;
  std::optional<Backfill> backfill;
  std::optional<std::int64_t> depth;
  std::optional<PreemptionRule> preemption;
  std::optional<NodeChoice> placement;
  std::optional<sim::TraceFormat> trace_format;
  sim::TraceTenant tenant = sim::TraceTenant::kUser;
  std::string timeline, launch;
  bool each_job = false;
};

constexpr std::int64_t kLargestTrace = 1LL << 30;

// --- the jobs ---------------------------------------------------------------------------------------------

// Devices that a job is given, with those of whole nodes that it did not ask for.
std::int64_t held(const Cluster& c, std::int64_t devices) {
  if (devices < c.devices_per_node) return devices;
  return (devices + c.devices_per_node - 1) / c.devices_per_node * c.devices_per_node;
}

class QueueBuilder {
 public:
  QueueBuilder(Scheduled& s, const sim::Topology& whole, const sim::ClusterNodes& nodes, const App& app)
      : s_(s), whole_(whole), nodes_(nodes), app_(app) {}

  void add_tenants(const std::vector<Tenant>& tenants, const Cursor& at) {
    for (std::size_t i = 0; i < tenants.size(); ++i) {
      const Tenant& t = tenants[i];
      if (tenants_.contains(t.name))
        at.child(i).child("name").fail(shown(Json(t.name)) + " is there twice", "allowed: each tenant once");
      tenants_.emplace(t.name, std::ssize(s_.queue.tenants));
      s_.queue.tenants.push_back({t.name, t.share, t.quota});
    }
    listed_ = tenants.size();
  }

  void add(const JobRequest& r, std::size_t index, const Cursor& at) {
    sim::ClusterJob job;
    job.name = r.name.empty() ? fmt::format("job {}", index + 1) : r.name;
    job.tenant = tenant_of(r, at);
    job.submit = sim::ticks(r.submit);
    job.priority = r.priority;
    job.restart = sim::ticks(r.restart);
    job.network = r.network;
    if (r.requested) job.requested = sim::ticks(*r.requested);
    if (r.checkpoint) {
      job.checkpoint_every = sim::ticks(r.checkpoint->interval);
      job.checkpoint_cost = sim::ticks(r.checkpoint->cost);
    }
    if (r.scenario)
      add_plan(r, job, at);
    else
      add_duration(r, job, at);
    check_size(job, at);
    if (std::ssize(s_.queue.jobs) + r.count > sim::kMostScheduledJobs)
      at.child("count").fail("makes more jobs than are scheduled",
                             fmt::format("allowed: {} in all", sim::kMostScheduledJobs));
    for (std::int64_t copy = 0; copy < r.count; ++copy) {
      s_.queue.jobs.push_back(job);
      if (r.count > 1) s_.queue.jobs.back().name += fmt::format(" #{}", copy + 1);
      s_.request.push_back(index);
    }
  }

 private:
  std::int32_t tenant_of(const JobRequest& r, const Cursor& at) {
    const auto found = tenants_.find(r.tenant);
    if (found != tenants_.end()) return static_cast<std::int32_t>(found->second);
    if (listed_ > 0) {
      std::vector<std::string> names;
      for (const auto& [name, id] : tenants_) names.push_back(name);
      at.child("tenant").fail(shown(Json(r.tenant)) + " is not one of the tenants",
                              allowed_names(r.tenant, names));
    }
    if (tenants_.size() == limits::kMostTenants)
      at.child("tenant").fail("is one tenant too many", fmt::format("allowed: {}", limits::kMostTenants));
    const auto id = static_cast<std::int32_t>(s_.queue.tenants.size());
    tenants_.emplace(r.tenant, id);
    s_.queue.tenants.push_back({r.tenant, 1, std::nullopt});
    return id;
  }

  void add_duration(const JobRequest& r, sim::ClusterJob& job, const Cursor& at) {
    if (!r.duration) at.fail("has neither a duration nor a scenario", "allowed: one of them");
    if (r.steps) at.child("steps").fail("is of scenarios, and the job has none", "allowed: with scenario");
    if (r.devices && r.nodes) at.child("nodes").fail("is there beside devices", "allowed: one of them");
    if (!r.devices && !r.nodes) at.fail("has neither devices nor nodes", "allowed: one of them");
    job.devices = r.devices ? *r.devices : *r.nodes * s_.cluster.devices_per_node;
    job.work = std::max(sim::Ticks{1}, sim::ticks(*r.duration));
  }

  void add_plan(const JobRequest& r, sim::ClusterJob& job, const Cursor& at) {
    for (const auto& [given, name] :
         {std::pair{r.duration.has_value(), "duration"}, std::pair{r.devices.has_value(), "devices"},
          std::pair{r.network > 0, "network"}}) {
      if (given) at.child(name).fail("is there beside a scenario, whose plan says it", "allowed: without it");
    }
    job.plan = plan_of(r, at);
    const JobPlan& p = s_.plans[static_cast<std::size_t>(job.plan)];
    job.devices = p.plan.ranks();
    const Training& t = p.problem.scenario.training;
    if (!r.steps && t.tokens <= 0)
      at.child("steps").fail("is missing, and the scenario has no training/tokens", "allowed: one of them");
    const double steps = r.steps ? static_cast<double>(*r.steps) : std::ceil(t.tokens / t.tokens_per_step());
    const double work_s = steps * p.step_s;
    if (!(work_s <= limits::kLongestRun))
      at.child("scenario")
          .fail(fmt::format("{:.4g} steps of {:.4g} s are {:.3g} days", steps, p.step_s,
                            work_s / sim::kSecondsPerDay),
                "allowed: 9999 days");
    job.work = std::max(sim::Ticks{1}, sim::ticks(work_s));
  }

  // Each scenario on so many nodes is planned once.
  std::int32_t plan_of(const JobRequest& r, const Cursor& at) {
    const auto key = std::pair{*r.scenario, r.nodes.value_or(0)};
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    const std::filesystem::path file = app_.data.find(
        "scenarios", *r.scenario, std::filesystem::path(at.file).parent_path(), at.child("scenario"));
    const auto id = static_cast<std::int32_t>(s_.plans.size());
    s_.plans.push_back(planned(file.string(), r.nodes, at));
    plans_.emplace(key, id);
    return id;
  }

  // The scenario's own plan, or the best one by the estimate, on nodes of this cluster.
  JobPlan planned(const std::string& file, std::optional<std::int64_t> nodes, const Cursor& at) {
    const Json json = load_json(file);
    const Cursor top{file, ""};
    const bool has_plan = json.is_object() && json.contains("predicted");
    std::optional<Plan> plan;
    Cursor scenario = top;
    Problem problem = has_plan ? from_plan_file(json, top, plan, scenario)
                               : resolve(read_scenario(json, top), top, app_.data);
    if (!plan) plan = problem.scenario.plan;
    problem.cluster = s_.cluster;
    problem.devices = load_devices(s_.cluster, app_.data);
    if (nodes) {
      if (*nodes > s_.cluster.nodes)
        at.child("nodes").fail(
            fmt::format("{} nodes are more than the cluster's {}", *nodes, s_.cluster.nodes),
            fmt::format("allowed: 1 to {}", s_.cluster.nodes));
      if (plan) at.child("nodes").fail("is there beside a scenario that has a plan", "allowed: without it");
    }
    const Search& search = problem.scenario.search;
    const std::string wrong = host_problem(s_.cluster, plan ? plan->offloads() : orrery::offloads(search),
                                           plan ? plan->optimizer_on_drives() : uses_drives(search));
    if (!wrong.empty())
      at.child("scenario").fail(wrong, "allowed: a cluster with \"host\", or a scenario without \"offload\"");
    if (!plan) plan = best_plan(problem, nodes.value_or(problem.scenario.cluster.nodes), at);
    program::check_plan(problem.scenario.model, *plan, problem.scenario.training, scenario.child("plan"));
    check_stack(problem, *plan, scenario, scenario.child("plan"));
    check_ranks(*plan, s_.cluster, scenario.child("plan"));
    if (const planner::Fit fit = planner::fit(problem, *plan); !fit.fits())
      at.child("scenario").fail(fit.text(problem), "allowed: plans that fit into the cluster's devices");
    planner::PlacedPlan placed(problem, *plan, whole_, nodes_);
    const double step_s = placed.best_step_s();
    return {std::move(problem), *plan, scenario, std::move(placed), step_s};
  }

  Problem from_plan_file(const Json& json, const Cursor& top, std::optional<Plan>& plan, Cursor& scenario) {
    PlanFile f = read_fields<PlanFile>(json, top);
    scenario = top.child("scenario");
    plan = f.plan;
    return resolve(f.scenario, scenario, app_.data);
  }

  Plan best_plan(Problem problem, std::int64_t nodes, const Cursor& at) {
    if (nodes > 0) problem.cluster.nodes = std::min(nodes, problem.cluster.nodes);
    problem.devices = load_devices(problem.cluster, app_.data);
    const sim::Topology topology(problem.cluster);
    const auto found = planner::search(
        problem, topology,
        {.keep = 1, .threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))});
    if (found.best.empty())
      at.child("scenario").fail("there is nothing to run: " + planner::why_none(problem, found));
    return found.best.front().plan;
  }

  void check_size(const sim::ClusterJob& job, const Cursor& at) {
    const std::int64_t wanted = held(s_.cluster, job.devices);
    if (wanted > s_.cluster.devices())
      at.fail(fmt::format("asks for {} devices, and the cluster has {}", wanted, s_.cluster.devices()),
              "allowed: as many, or fewer");
    const sim::ClusterTenant& tenant = s_.queue.tenants[static_cast<std::size_t>(job.tenant)];
    if (tenant.quota && wanted > *tenant.quota)
      at.fail(
          fmt::format("holds {} devices, and the quota of \"{}\" is {}", wanted, tenant.name, *tenant.quota),
          "allowed: as many, or fewer");
  }

  Scheduled& s_;
  const sim::Topology& whole_;
  const sim::ClusterNodes& nodes_;
  const App& app_;
  std::map<std::string, std::ptrdiff_t> tenants_;
  std::size_t listed_ = 0;
  std::map<std::pair<std::string, std::int64_t>, std::int32_t> plans_;
};

void override_policy(SchedulingPolicy& p, const ScheduleAsked& o) {
  p.order = o.order.value_or(p.order);
  p.backfill = o.backfill.value_or(p.backfill);
  p.backfill_depth = o.depth.value_or(p.backfill_depth);
  p.preemption = o.preemption.value_or(p.preemption);
  p.placement = o.placement.value_or(p.placement);
}

void check_policy(const SchedulingPolicy& p, const Cursor& at) {
  if (p.preemption != PreemptionRule::kNone && p.order == QueueOrder::kFifo)
    at.child("preemption")
        .fail("goes by priorities, and the order \"fifo\" knows none",
              "allowed: with the order \"priority\" or \"fair-share\"");
}

// --- running it -------------------------------------------------------------------------------------------

Cluster cluster_of(const ScheduleAsked& o, const App& app) {
  Cluster c = load_cluster(o.cluster, {}, Cursor{"command line", "/cluster"}, app.data);
  if (o.nodes > 0) {
    c.nodes = o.nodes;
    c.sized = Cursor{"command line", "/nodes"};
  }
  return c;
}

void load_queue(Scheduled& s, const ScheduleAsked& o, const sim::Topology& whole,
                const sim::ClusterNodes& nodes, const App& app) {
  if (!o.trace_format && std::filesystem::path(o.jobs).extension() == ".json") {
    const Cursor at{o.jobs, ""};
    JobsFile file = read_fields<JobsFile>(load_json(o.jobs), at);
    s.name = file.name;
    s.policy = file.policy;
    override_policy(s.policy, o);
    check_policy(s.policy, at.child("policy"));
    if (file.jobs.empty()) at.child("jobs").fail("is empty", "allowed: one job, or more");
    QueueBuilder builder(s, whole, nodes, app);
    builder.add_tenants(file.tenants, at.child("tenants"));
    for (std::size_t i = 0; i < file.jobs.size(); ++i)
      builder.add(file.jobs[i], i, at.child("jobs").child(i));
    s.requests = std::move(file.jobs);
    return;
  }
  override_policy(s.policy, o);
  check_policy(s.policy, Cursor{"command line", ""});
  const bool csv = std::filesystem::path(o.jobs).extension() == ".csv";
  const sim::TraceOptions options{
      o.trace_format.value_or(csv ? sim::TraceFormat::kCsv : sim::TraceFormat::kSwf), o.tenant,
      s.cluster.devices()};
  s.trace = sim::read_trace(load_text(o.jobs, kLargestTrace), o.jobs, options);
  s.queue = std::move(s.trace->queue);
  if (s.queue.jobs.empty())
    throw InputError(
        o.jobs, "line 1",
        fmt::format("the trace has no job that can run here; {} are left out", s.trace->left_out()));
}

void execute(const App& app, const ScheduleAsked& o) {
  require_writable("/trace", o.timeline);
  Scheduled s;
  s.file = o.jobs;
  s.cluster = cluster_of(o, app);
  const sim::Topology whole(s.cluster);
  const sim::ClusterNodes nodes = sim::cluster_nodes(whole);
  std::optional<Progress> progress(std::in_place, "reading jobs");
  load_queue(s, o, whole, nodes, app);
  if (!o.launch.empty() && s.trace)
    Cursor{"command line", "/launch"}.fail(
        "is for jobs of a JSON file, and a trace does not say what they run");
  require_folder("/launch", o.launch);
  const sim::PlanCost cost = [&](std::int32_t plan, std::span<const std::int32_t> on) {
    return s.plans[static_cast<std::size_t>(plan)].placed.cost(on);
  };
  try {
    s.outcome = sim::run_schedule(s.queue, s.policy, nodes, cost,
                                  [&](double share) { (*progress)("scheduling", share); });
  } catch (const InputError&) {
    throw;
  } catch (const Error& e) {
    throw InputError(o.jobs, s.trace ? "line 1" : "/jobs", e.what(), "allowed: fewer or shorter jobs");
  }
  s.report = sim::report_of(s.queue, nodes, s.outcome);
  if (!o.timeline.empty()) {
    (*progress)("writing the timeline", 0);
    save_timeline(o.timeline, sim::gantt(s.queue, nodes, s.outcome));
  }
  std::vector<std::string> notes;
  if (!o.launch.empty()) notes = write_launches(s, nodes, o.launch, app);
  progress.reset();
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  if (app.json)
    print_json(schedule_json(s, o.each_job));
  else
    print_schedule(s);
}

}  // namespace

void add_schedule(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "schedule",
                 "a queue of jobs of several tenants on a shared cluster: who waits, and for what");
  auto o = std::make_shared<ScheduleAsked>();
  command->add_option("jobs", o->jobs, "jobs (.json), or a trace: Standard Workload Format, or .csv")
      ->required();
  command->add_option("cluster", o->cluster, "a topology's name or file")->required();
  command->add_option("--nodes", o->nodes, "nodes, in place of the topology's")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  add_choice<QueueOrder>(*command, "--order", o->order, "which job is next");
  add_choice<Backfill>(*command, "--backfill", o->backfill,
                       "whether jobs may pass the first that does not fit");
  command->add_option("--backfill-depth", o->depth, "jobs that are tried behind it")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  add_choice<PreemptionRule>(*command, "--preemption", o->preemption,
                             "whether jobs take the nodes of others");
  add_choice<NodeChoice>(*command, "--placement", o->placement, "which free nodes a job gets");
  add_choice<sim::TraceFormat>(*command, "--format", o->trace_format,
                               "of a trace, in place of its extension's");
  add_choice<sim::TraceTenant>(*command, "--tenant", o->tenant, "what of a trace counts as a tenant");
  command->add_option("--trace", o->timeline, "write a timeline of nodes and jobs (Gantt)");
  command->add_option("--launch", o->launch, "folder for a Slurm and a Kubernetes file of each job");
  command->add_flag("--each-job", o->each_job, "with --json: each job too");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
