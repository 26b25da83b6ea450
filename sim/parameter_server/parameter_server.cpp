// SPDX-License-Identifier: Apache-2.0
#include "sim/parameter_server/parameter_server.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "core/random.h"
#include "sim/engine/events.h"
#include "sim/network/fair_shares.h"

namespace orrery::sim {

double ServedTraining::mean_staleness() const {
  double sum = 0, count = 0;
  for (std::size_t s = 0; s < staleness.size(); ++s) {
    sum += static_cast<double>(s) * static_cast<double>(staleness[s]);
    count += static_cast<double>(staleness[s]);
  }
  return count > 0 ? sum / count : 0;
}

std::int64_t ServedTraining::staleness_at(double share) const {
  std::int64_t all = 0, seen = 0;
  for (const std::int64_t n : staleness) all += n;
  for (std::size_t s = 0; s < staleness.size(); ++s) {
    seen += staleness[s];
    if (static_cast<double>(seen) >= share * static_cast<double>(all)) return static_cast<std::int64_t>(s);
  }
  return 0;
}

namespace {

// Flows that come and go on shared links. Rates are as they were until something changes.
class SharedFlows {
 public:
  explicit SharedFlows(const Network& network) : network_(network) {}

  // A flow that may run, over these links; alike numbers are alike routes.
  std::int32_t add(const Path& path) {
    std::vector<FairShares::Use> uses;
    for (const LinkId l : path) {
      const auto [at, added] = link_of_.try_emplace(l, static_cast<std::int32_t>(links_.size()));
      if (added) links_.push_back(l);
      const auto known =
          std::find_if(uses.begin(), uses.end(), [&](const auto& u) { return u.link == at->second; });
      if (known == uses.end())
        uses.push_back({at->second, 1});
      else
        ++known->weight;
    }
    uses_.push_back(std::move(uses));
    return static_cast<std::int32_t>(uses_.size()) - 1;
  }
  void ready() {
    std::vector<std::int64_t> capacities;
    for (const LinkId l : links_) capacities.push_back(network_.capacity(l));
    shares_.emplace(std::move(capacities));
    for (const auto& uses : uses_) shares_->add(uses);
    left_.resize(uses_.size());
    rate_.resize(uses_.size());
    passed_.resize(links_.size());
  }

  void start(std::int32_t flow, double bytes, double now) {
    settle(now);
    left_[static_cast<std::size_t>(flow)] = bytes;
    active_.push_back(flow);
    stale_ = true;
  }
  // When the next flow ends, in seconds; infinity where none runs.
  double next() {
    if (stale_) solve();
    return next_;
  }
  // The flows that have ended by then.
  std::vector<std::int32_t> finish(double now) {
    settle(now);
    std::vector<std::int32_t> out;
    std::erase_if(active_, [&](std::int32_t f) {
      const auto i = static_cast<std::size_t>(f);
      // Less than a picosecond of it, or than the time after this one that numbers tell apart.
      const bool ended = left_[i] <= rate_[i] * std::max(1e-12, now * 0x1p-50);
      if (ended) out.push_back(f);
      return ended;
    });
    if (!out.empty()) stale_ = true;
    return out;
  }
  // By link: the share of its capacity that was used in so many seconds.
  std::vector<ServerLink> busiest(double total_s, std::size_t most) const {
    std::vector<ServerLink> out;
    for (std::size_t l = 0; l < links_.size(); ++l) {
      const double could = static_cast<double>(network_.capacity(links_[l])) * total_s;
      out.push_back({network_.link_name(links_[l]), passed_[l] / could});
    }
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.busy > b.busy; });
    out.resize(std::min(out.size(), most));
    return out;
  }

 private:
  void settle(double now) {
    const double passed = now - at_;
    at_ = now;
    if (passed <= 0) return;
    if (stale_) solve();
    for (const std::int32_t f : active_) {
      const auto i = static_cast<std::size_t>(f);
      const double bytes = std::min(left_[i], rate_[i] * passed);
      left_[i] -= bytes;
      for (const FairShares::Use& u : uses_[i])
        passed_[static_cast<std::size_t>(u.link)] += bytes * static_cast<double>(u.weight);
    }
    find_next();
  }
  void solve() {
    stale_ = false;
    limits_.assign(active_.size(), kNoLimit);
    const auto rates = shares_->solve(active_, limits_);
    for (std::size_t i = 0; i < active_.size(); ++i)
      rate_[static_cast<std::size_t>(active_[i])] = static_cast<double>(std::max<std::int64_t>(1, rates[i]));
    find_next();
  }
  void find_next() {
    next_ = std::numeric_limits<double>::infinity();
    for (const std::int32_t f : active_)
      next_ = std::min(next_, at_ + left_[static_cast<std::size_t>(f)] / rate_[static_cast<std::size_t>(f)]);
  }

  const Network& network_;
  std::map<LinkId, std::int32_t> link_of_;
  std::vector<LinkId> links_;
  std::vector<std::vector<FairShares::Use>> uses_;
  std::optional<FairShares> shares_;
  std::vector<std::int32_t> active_;
  std::vector<std::int64_t> limits_;
  std::vector<double> left_, rate_, passed_;
  double at_ = 0, next_ = std::numeric_limits<double>::infinity();
  bool stale_ = false;  // flows have come or gone since rates were found
};

enum class Activity : std::uint8_t { kPulling, kComputing, kPushing, kWaiting };

class Servers {
 public:
  Servers(const Network& network, const ServerRules& rules, const ServerWork& work)
      : rules_(rules), work_(work), flows_(network), workers_(work.workers.size()) {
    Path path;
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      random_.emplace_back(work.seed, 0, w);
      for (const std::int64_t server : work.servers) {
        for (const bool pull : {true, false}) {
          path.clear();
          const std::int64_t from = pull ? server : work.workers[w], to = pull ? work.workers[w] : server;
          network.route(from, to, path);
          flow_of_.push_back({static_cast<std::int32_t>(w), flows_.add(path),
                              seconds(work.latency + network.extra_latency(path))});
        }
      }
    }
    flows_.ready();
  }

  ServedTraining run() {
    for (std::size_t w = 0; w < workers_.size(); ++w) transfer(w, Activity::kPulling);
    while (result_.updates < work_.updates) {
      // All that happens now comes before rates are found anew.
      if (!events_.empty() && static_cast<double>(events_.next()) * 1e-12 <= now_) {
        handle(events_.pop());
        continue;
      }
      const double flow = flows_.next();
      const double event = events_.empty() ? std::numeric_limits<double>::infinity()
                                           : static_cast<double>(events_.next()) * 1e-12;
      now_ = std::max(now_, std::min(flow, event));
      if (flow <= event) {
        for (const std::int32_t ended : flows_.finish(now_)) end_flow(ended);
      } else {
        handle(events_.pop());
      }
    }
    const double n = static_cast<double>(workers_.size());
    for (std::size_t w = 0; w < workers_.size(); ++w) account(w);
    result_.total = from_seconds(now_);
    result_.mean = {from_seconds(spent_[1] / n), from_seconds(spent_[0] / n), from_seconds(spent_[2] / n),
                    from_seconds(spent_[3] / n)};
    result_.links = flows_.busiest(now_, 8);
    return std::move(result_);
  }

 private:
  struct Worker {
    Activity doing = Activity::kWaiting;
    double since = 0;
    std::int64_t version = 0;    // of the parameters that it has
    std::int64_t gradients = 0;  // that it has pushed
    std::int64_t flows = 0;      // that are under way
    bool handled = false;        // its gradient is, and it may pull
  };
  struct FlowOf {
    std::int32_t worker, flow;
    double latency_s;
  };
  struct Event {
    enum class Is : std::uint8_t { kFlow, kComputed, kUpdated } is;
    std::int32_t of = 0;  // a flow, or a worker
  };

  void account(std::size_t w) {
    spent_[static_cast<std::size_t>(workers_[w].doing)] += now_ - workers_[w].since;
    workers_[w].since = now_;
  }
  void become(std::size_t w, Activity doing) {
    account(w);
    workers_[w].doing = doing;
  }
  void later(double s, Event e) { events_.push(from_seconds(now_ + s).value, e); }

  // All parts of parameters or gradients, each after its latency.
  void transfer(std::size_t w, Activity doing) {
    become(w, doing);
    Worker& worker = workers_[w];
    if (doing == Activity::kPulling) worker.version = version_;
    const std::size_t servers = work_.servers.size();
    worker.flows = static_cast<std::int64_t>(servers);
    for (std::size_t s = 0; s < servers; ++s) {
      const std::size_t i = 2 * (w * servers + s) + (doing == Activity::kPulling ? 0 : 1);
      later(flow_of_[i].latency_s, {Event::Is::kFlow, static_cast<std::int32_t>(i)});
    }
  }

  void handle(const Event& e) {
    switch (e.is) {
      case Event::Is::kFlow: {
        const Worker& worker =
            workers_[static_cast<std::size_t>(flow_of_[static_cast<std::size_t>(e.of)].worker)];
        const Bytes all = worker.doing == Activity::kPulling ? work_.pulled : work_.pushed;
        return flows_.start(flow_of_[static_cast<std::size_t>(e.of)].flow,
                            static_cast<double>(all.value) / static_cast<double>(work_.servers.size()), now_);
      }
      case Event::Is::kComputed:
        return transfer(static_cast<std::size_t>(e.of), Activity::kPushing);
      case Event::Is::kUpdated:
        return updated();
    }
  }

  void end_flow(std::int32_t flow) {
    const auto w = static_cast<std::size_t>(flow_of_[static_cast<std::size_t>(flow)].worker);
    Worker& worker = workers_[w];
    if (--worker.flows > 0) return;
    if (worker.doing == Activity::kPulling) {
      become(w, Activity::kComputing);
      const double variance = natural_log(1 + work_.variation * work_.variation);
      double lasts = seconds(work_.compute) * (work_.variation > 0 ? random_[w].log_normal(variance) : 1);
      if (const auto slow = work_.slow.find(static_cast<std::int64_t>(w)); slow != work_.slow.end())
        lasts *= slow->second;
      return later(lasts, {Event::Is::kComputed, static_cast<std::int32_t>(w)});
    }
    ++worker.gradients;
    ++result_.gradients;
    become(w, Activity::kWaiting);
    worker.handled = false;
    arrived_.push_back(w);
    serve();
  }

  // Gradients in the order in which they came. The one that completes an update is handled once that is done.
  void serve() {
    while (!updating_ && !arrived_.empty()) {
      const std::size_t w = arrived_.front();
      arrived_.pop_front();
      Worker& worker = workers_[w];
      const auto stale = static_cast<std::size_t>(version_ - worker.version);
      if (rules_.mode == ServerMode::kSynchronous && stale > 0) {
        ++result_.dropped;
        worker.handled = true;
        continue;
      }
      if (result_.staleness.size() <= stale) result_.staleness.resize(stale + 1);
      ++result_.staleness[stale];
      worker.handled = ++gathered_ < rules_.wait_for;
      if (worker.handled) continue;
      updating_ = true;
      completed_by_ = w;
      later(seconds(work_.update), {Event::Is::kUpdated});
    }
    go_on();
  }

  void updated() {
    ++version_;
    ++result_.updates;
    gathered_ = 0;
    updating_ = false;
    workers_[completed_by_].handled = true;
    serve();
  }

  // Workers that wait, and may go on.
  void go_on() {
    std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
    for (const Worker& worker : workers_) slowest = std::min(slowest, worker.gradients);
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.doing != Activity::kWaiting || !worker.handled) continue;
      const bool may = rules_.mode == ServerMode::kSynchronous
                           ? version_ > worker.version
                           : rules_.bound == 0 || worker.gradients - slowest <= rules_.bound;
      if (may) transfer(w, Activity::kPulling);
    }
  }

  const ServerRules& rules_;
  const ServerWork& work_;
  SharedFlows flows_;
  std::vector<FlowOf> flow_of_;  // by worker, server, and pull before push: as the flows are numbered
  std::vector<Worker> workers_;
  std::vector<RandomStream> random_;
  Events<Event> events_;
  double now_ = 0;
  std::int64_t version_ = 0, gathered_ = 0;
  std::deque<std::size_t> arrived_;  // workers whose gradients the servers have not looked at
  std::size_t completed_by_ = 0;     // of the update under way
  bool updating_ = false;
  std::array<double, 4> spent_{};  // by Activity
  ServedTraining result_;
};

}  // namespace

ServedTraining simulate_servers(const Network& network, const ServerRules& rules, const ServerWork& work) {
  return Servers(network, rules, work).run();
}

}  // namespace orrery::sim
