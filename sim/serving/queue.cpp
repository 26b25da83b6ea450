// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "core/error.h"

namespace orrery::sim {

LaneCosts costs_of(const PassModel& model) {
  return {[&model](const PassMix& mix) { return seconds(model.time(mix)); },
          [&model](std::int64_t tokens) { return static_cast<double>(model.cache_bytes(tokens)); }};
}

namespace {

// What a lane does with the requests that it gets.
enum class Duty { kAll, kPrompts, kAnswers };

// A pass is priced in the time in which so many sequences have their turns.
constexpr std::int64_t kPassTurns = 200;

class ServingLane {
 public:
  ServingLane(const LaneCosts& costs, const LaneLimits& limits, Duty work)
      : costs_(costs), limits_(limits), work_(work) {}

  void run(std::span<const Request> requests, std::int64_t concurrency) {
    requests_ = requests;
    out_.requests.resize(requests.size());
    arrives_.resize(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) arrives_[i] = requests[i].arrives;
    if (concurrency > 0) {
      open_ = std::min<std::size_t>(requests.size(), static_cast<std::size_t>(concurrency));
      std::fill(arrives_.begin(), arrives_.end(), 0.0);
      follows_ = true;
    } else {
      open_ = requests.size();
    }
    while (next_ < requests.size() || !inside_.empty()) pass();
    out_.ended = now_;
    if (decoding_passes_ > 0) out_.mean_batch = batches_ / static_cast<double>(decoding_passes_);
  }
  LaneRun take() { return std::move(out_); }

 private:
  struct Sequence {
    std::size_t request;
    std::int64_t done = 0;  // tokens of the prompt that are in the cache
    std::int64_t made = 0;  // tokens of the answer
    double bytes = 0;
  };
  const Request& of(const Sequence& s) const { return requests_[s.request]; }

  void admit() {
    while (next_ < open_ && arrives_[next_] <= now_ && std::ssize(inside_) < limits_.sequences) {
      const Request& r = requests_[next_];
      const double bytes = costs_.cache(work_ == Duty::kPrompts ? r.input : r.input + r.output);
      if (bytes > limits_.cache)
        throw Error(
            fmt::format("a request of {} tokens and an answer of {} take {:.3g} bytes of cache, and {:.3g} "
                        "are there",
                        r.input, r.output, bytes, limits_.cache));
      if (held_ + bytes > limits_.cache) return;
      held_ += bytes;
      Sequence s{.request = next_, .bytes = bytes};
      if (work_ == Duty::kAnswers) {
        s.done = r.input;
        s.made = 1;
      }
      inside_.push_back(s);
      ++next_;
    }
  }

  void pass() {
    admit();
    if (inside_.empty()) {  // nobody is there: until the next one comes
      now_ = std::max(now_, arrives_[next_]);
      admit();
    }
    ++out_.passes;
    turns_ += kPassTurns + std::ssize(inside_);
    if (turns_ > kMostTurns)
      throw Error(fmt::format("{} passes and more are too many to simulate", out_.passes));
    PassMix mix;
    double context = 0;
    std::int64_t left = limits_.pass_tokens;
    for (const Sequence& s : inside_) {
      if (s.done < of(s).input) continue;
      ++mix.decodes;
      context += static_cast<double>(s.done + s.made - 1);  // the last one is not in the cache yet
    }
    left -= mix.decodes;
    parts_.clear();
    for (Sequence& s : inside_) {
      const std::int64_t missing = of(s).input - s.done;
      if (missing == 0) continue;
      if (left <= 0) break;
      // Whole prompts, where prompts are all that a lane does: the first one in any case.
      const std::int64_t tokens = work_ == Duty::kPrompts ? missing : std::min(missing, left);
      if (work_ == Duty::kPrompts && tokens > left && !parts_.empty()) break;
      parts_.push_back({tokens, s.done});
      s.done += tokens;
      left -= tokens;
      in_pass_.push_back(s.request);
    }
    if (mix.decodes > 0) {
      mix.decode_context = context / static_cast<double>(mix.decodes);
      batches_ += static_cast<double>(mix.decodes);
      ++decoding_passes_;
    }
    mix.prompts = parts_;
    const double takes = costs_.pass(mix);
    now_ += takes;
    out_.busy += takes;
    finish();
  }

  // Tokens of the pass are there. A sequence whose prompt ended in it has its first one.
  void finish() {
    std::size_t part = 0;
    for (Sequence& s : inside_) {
      const bool in_prompt = part < in_pass_.size() && in_pass_[part] == s.request;
      if (in_prompt) ++part;
      if (s.done < of(s).input) continue;
      ++s.made;
      if (s.made == 1) out_.requests[s.request].first = now_;
    }
    in_pass_.clear();
    std::erase_if(inside_, [&](const Sequence& s) {
      const bool all =
          s.done == of(s).input && (work_ == Duty::kPrompts ? s.made >= 1 : s.made >= of(s).output);
      if (all) leave(s);
      return all;
    });
  }

  void leave(const Sequence& s) {
    held_ -= s.bytes;
    Served& served = out_.requests[s.request];
    served.arrived = arrives_[s.request];
    served.ended = now_;
    served.input = of(s).input;
    served.output = of(s).output;
    if (follows_ && open_ < requests_.size()) arrives_[open_++] = now_;
  }

  const LaneCosts& costs_;
  const LaneLimits limits_;
  const Duty work_;
  std::span<const Request> requests_;
  std::vector<double> arrives_;
  std::size_t open_ = 0, next_ = 0;  // requests that may arrive, and the next one of them
  bool follows_ = false;
  std::vector<Sequence> inside_;  // in order of arrival
  std::vector<PromptPart> parts_;
  std::vector<std::size_t> in_pass_;  // requests with parts of prompts in the pass
  double now_ = 0, held_ = 0, batches_ = 0;
  std::int64_t decoding_passes_ = 0, turns_ = 0;
  LaneRun out_;
};

void rate(Served& s) {
  s.ttft = s.first - s.arrived;
  s.tpot = s.output > 1 ? (s.ended - s.first) / static_cast<double>(s.output - 1) : -1;
}

}  // namespace

LaneRun serve(const LaneCosts& costs, const LaneLimits& limits, std::span<const Request> requests,
              std::int64_t concurrency) {
  ServingLane lane(costs, limits, Duty::kAll);
  lane.run(requests, concurrency);
  LaneRun out = lane.take();
  for (Served& s : out.requests) rate(s);
  return out;
}

LaneRun serve_in_pools(const Pools& pools, std::span<const Request> requests) {
  const auto lanes = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  struct Ready {
    double at;
    std::size_t request;
  };
  LaneRun out;
  out.requests.resize(requests.size());
  std::vector<Ready> ready;
  for (std::size_t lane = 0; lane < lanes(pools.prefill_lanes); ++lane) {
    std::vector<Request> own;
    for (std::size_t i = lane; i < requests.size(); i += lanes(pools.prefill_lanes))
      own.push_back(requests[i]);
    ServingLane prefills(pools.prefill_costs, pools.prefill, Duty::kPrompts);
    prefills.run(own, 0);
    const LaneRun run = prefills.take();
    out.busy += run.busy;
    out.passes += run.passes;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::size_t request = lane + i * lanes(pools.prefill_lanes);
      out.requests[request] = run.requests[i];
      if (own[i].output > 1) ready.push_back({run.requests[i].ended + pools.transfer(own[i].input), request});
      out.ended = std::max(out.ended, run.requests[i].ended);
    }
  }
  std::stable_sort(ready.begin(), ready.end(), [](const Ready& a, const Ready& b) { return a.at < b.at; });
  for (std::size_t lane = 0; lane < lanes(pools.decode_lanes); ++lane) {
    std::vector<Request> own;
    for (std::size_t i = lane; i < ready.size(); i += lanes(pools.decode_lanes)) {
      Request r = requests[ready[i].request];
      r.arrives = ready[i].at;
      own.push_back(r);
    }
    if (own.empty()) continue;
    ServingLane decodes(pools.decode_costs, pools.decode, Duty::kAnswers);
    decodes.run(own, 0);
    const LaneRun run = decodes.take();
    out.busy += run.busy;
    out.passes += run.passes;
    out.mean_batch += run.mean_batch / static_cast<double>(pools.decode_lanes);
    for (std::size_t i = 0; i < own.size(); ++i)
      out.requests[ready[lane + i * lanes(pools.decode_lanes)].request].ended = run.requests[i].ended;
    out.ended = std::max(out.ended, run.ended);
  }
  for (Served& s : out.requests) rate(s);
  return out;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto at = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
  return values[std::min(at, values.size() - 1)];
}

}  // namespace orrery::sim
