// SPDX-License-Identifier: Apache-2.0
#include "exec/parameter_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "exec/alone.h"
#include "exec/data.h"

namespace orrery::exec {
namespace {

using Units = Rank::StoredUnits;

// Every `of`-th sample.
class EveryNth : public Dataset {
 public:
  EveryNth(const Dataset& all, std::int64_t n, std::int64_t of) : all_(all), n_(n), of_(of) {}
  std::int64_t sequences() const override { return all_.sequences() / of_; }
  std::int64_t vocabulary() const override { return all_.vocabulary(); }
  std::string identity() const override { return fmt::format("{}, {} of {}", all_.identity(), n_, of_); }
  void read(std::int64_t i, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const override {
    all_.read(at(i), tokens, targets);
  }
  void read(std::int64_t i, std::span<float> values, std::int32_t& of) const override {
    all_.read(at(i), values, of);
  }
  void read(std::int64_t i, std::span<const std::span<std::int32_t>> ids,
            std::int32_t& label) const override {
    all_.read(at(i), ids, label);
  }

 private:
  std::int64_t at(std::int64_t i) const { return i * of_ + n_; }
  const Dataset& all_;
  std::int64_t n_, of_;
};

// One direction of the server's link.
class EmulatedDirection {
 public:
  explicit EmulatedDirection(const LinkOptions& link) : link_(link) {}
  void pass(std::int64_t bytes) {
    if (link_.bandwidth.value == 0) return;
    Clock::time_point until;
    {
      const std::lock_guard lock(mutex_);
      const double lasts = static_cast<double>(bytes) / static_cast<double>(link_.bandwidth.value);
      free_ = std::max(free_, Clock::now()) +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(lasts));
      until = free_ + std::chrono::duration_cast<Clock::duration>(
                          std::chrono::duration<double>(seconds(link_.latency)));
    }
    std::this_thread::sleep_until(until);
  }

 private:
  const LinkOptions& link_;
  std::mutex mutex_;
  Clock::time_point free_{};
};

std::int64_t bytes_in(const Units& units) {
  std::int64_t sum = 0;
  for (const auto& u : units) sum += std::ssize(u);
  return sum;
}

class Server {
 public:
  Server(const program::Program& program, const RunOptions& options, const Dataset& data,
         const ServerRules& rules)
      : program_(program),
        options_(options),
        rules_(rules),
        in_(options.link),
        out_(options.link),
        server_(program, options, data),
        done_by_worker_(static_cast<std::size_t>(rules.workers)) {
    server_.rank.read_parameters(parameters_);
    for (const program::Unit& u : program.classes.front().units) {
      if (u.kept == program::Kept::kTrained)
        gradient_bytes_ += u.elements * static_cast<std::int64_t>(bytes_of(program.training.gradient_type()));
    }
  }

  // What the server has; nothing once the run is over.
  std::optional<std::int64_t> pull(Units& to) {
    std::int64_t version = 0;
    {
      const std::lock_guard lock(mutex_);
      if (over()) return std::nullopt;
      to = parameters_;
      version = version_;
    }
    out_.pass(bytes_in(to));
    return version;
  }

  // Returns when the worker may go on.
  void push(std::size_t worker, std::int64_t version, const UnitShard& gradient, double loss) {
    in_.pass(gradient_bytes_);
    std::unique_lock lock(mutex_);
    if (over()) return;
    ++result_.gradients;
    ++done_by_worker_[worker];
    if (rules_.mode == ServerMode::kSynchronous && version != version_)
      ++result_.dropped;
    else
      gather(version, gradient, loss);
    changed_.notify_all();
    changed_.wait(lock, [&] { return over() || may_go_on(worker, version); });
  }

  void fail(std::string why) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = std::move(why);
    changed_.notify_all();
  }

  ServedRun finish(double seconds_passed) {
    if (!failure_.empty()) throw Error(failure_);
    result_.seconds = seconds_passed;
    return std::move(result_);
  }

 private:
  bool over() const { return !failure_.empty() || std::ssize(result_.losses) == options_.steps; }
  bool may_go_on(std::size_t worker, std::int64_t version) const {
    if (rules_.mode == ServerMode::kSynchronous) return version_ > version;
    if (rules_.bound == 0) return true;
    const std::int64_t slowest = *std::min_element(done_by_worker_.begin(), done_by_worker_.end());
    return done_by_worker_[worker] - slowest <= rules_.bound;
  }

  // Adds a gradient to those of the next update, which is made once it has all of them.
  void gather(std::int64_t version, const UnitShard& gradient, double loss) {
    const auto stale = static_cast<std::size_t>(version_ - version);
    if (result_.staleness.size() <= stale) result_.staleness.resize(stale + 1);
    ++result_.staleness[stale];
    sum_.resize(gradient.size());
    for (std::size_t u = 0; u < gradient.size(); ++u) {
      sum_[u].resize(gradient[u].size());
      for (std::size_t i = 0; i < gradient[u].size(); ++i) sum_[u][i] += gradient[u][i];
    }
    loss_ += loss;
    if (++gathered_ < rules_.wait_for) return;
    update();
  }

  void update() {
    const float share = 1.0F / static_cast<float>(gathered_);
    for (std::vector<float>& unit : sum_) {
      for (float& x : unit) x *= share;
    }
    server_.rank.update(version_, sum_);
    for (std::vector<float>& unit : sum_) std::fill(unit.begin(), unit.end(), 0.0F);
    server_.rank.read_parameters(parameters_);
    result_.losses.push_back(loss_ / static_cast<double>(gathered_));
    loss_ = 0;
    gathered_ = 0;
    ++version_;
  }

  const program::Program& program_;
  const RunOptions& options_;
  const ServerRules& rules_;
  EmulatedDirection in_, out_;
  Alone server_;
  std::int64_t gradient_bytes_ = 0;  // of a worker
  std::mutex mutex_;
  std::condition_variable changed_;
  Units parameters_;
  std::int64_t version_ = 0, gathered_ = 0;
  double loss_ = 0;
  UnitShard sum_;
  std::vector<std::int64_t> done_by_worker_;
  std::string failure_;
  ServedRun result_;
};

void work(Server& server, const program::Program& program, const RunOptions& options, const Dataset& data,
          std::size_t worker) {
  RunOptions own = options;
  own.slow.clear();
  // A rank alone is rank 0.
  if (const auto slow = options.slow.find(static_cast<std::int64_t>(worker)); slow != options.slow.end())
    own.slow[0] = slow->second;
  Alone alone(program, own, data);
  Units parameters;
  UnitShard gradient;
  for (std::int64_t i = 0;; ++i) {
    const auto version = server.pull(parameters);
    if (!version) return;
    alone.rank.write_parameters(parameters);
    const Rank::StepResult r = alone.rank.compute_gradients(i, gradient);
    server.push(worker, *version, gradient, r.loss / static_cast<double>(program.rows_of_loss));
  }
}

}  // namespace

ServedRun run_server(const program::Program& program, const RunOptions& options, const Dataset& data,
                     const ServerRules& rules) {
  if (program.mesh.ranks() != 1) throw Error("a worker of a parameter server is one rank");
  if (data.sequences() < rules.workers)
    throw InputError(
        "command line", "/workers",
        fmt::format("{} workers are more than the data's {} samples", rules.workers, data.sequences()),
        "allowed: fewer workers, or more data");
  if (program.training.scales_loss()) throw Error("a parameter server takes gradients of unscaled losses");
  Server server(program, options, data, rules);
  std::vector<EveryNth> shares;
  for (std::int64_t w = 0; w < rules.workers; ++w) shares.emplace_back(data, w, rules.workers);
  const auto begin = Clock::now();
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t w = 0; w < shares.size(); ++w) {
        threads.emplace_back([&, w] {
          try {
            work(server, program, options, shares[w], w);
          } catch (const std::exception& e) {
            server.fail(fmt::format("worker {}: {}", w, e.what()));
          }
        });
      }
    } catch (const std::exception& e) {  // those that have begun would wait for the others
      server.fail(fmt::format("no thread for a worker: {}", e.what()));
    }
  }
  return server.finish(seconds_since(begin));
}

}  // namespace orrery::exec
