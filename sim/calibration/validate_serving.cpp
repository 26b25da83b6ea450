// SPDX-License-Identifier: Apache-2.0
//
// Published runs of serving: so many requests at a time, all of the same lengths, one that ends being
// followed by another. The requests are simulated as they were run; the mean times to the first token and of
// the others are compared.
#include <algorithm>
#include <map>
#include <memory>

#include "sim/calibration/validate.h"
#include "sim/serving/queue.h"

namespace orrery::sim {
namespace {

// What a benchmark measures for each request at a time.
constexpr std::int64_t kRequestsEach = 10;
constexpr std::uint64_t kSeed = 1;

struct ServingRow {
  static constexpr bool kForeign = true;
  std::string id, source, topology, stack;
  Model model;
  ServedFormat weights = ServedFormat::kBf16;
  std::int64_t tp = 1, concurrency = 1, input = 1, output = 1;
  // Standard deviation of lengths over their mean. Where all are alike, requests begin and end in step, and
  // wait for each other's prompts.
  double length_spread = 0;
  double ttft_ms = 0, tpot_ms = 0;
};
template <class V>
void describe(V& v, ServingRow& r) {
  const auto count = [](const char* name, const char* help) {
    return Field{.name = name, .help = help, .min = 1, .max = limits::kMostServedTokens, .required = true};
  };
  v(Field{.name = "id", .help = "of the row"}, r.id);
  v(Field{.name = "source", .help = "what published it"}, r.source);
  v(Field{.name = "model", .help = "that is served", .required = true}, r.model);
  v(Field{.name = "topology", .help = "what it ran on", .required = true}, r.topology);
  v(Field{.name = "serving_stack", .help = "software that served", .required = true}, r.stack);
  v(Field{.name = "weights", .help = "format of weights"}, r.weights);
  v(count("tp", "tensor-parallel degree"), r.tp);
  v(count("concurrency", "requests at a time"), r.concurrency);
  v(count("input_tokens", "tokens of a request"), r.input);
  v(count("output_tokens", "tokens of an answer"), r.output);
  v(Field{.name = "length_spread", .help = "standard deviation over mean of lengths", .min = 0, .max = 10},
    r.length_spread);
  v(Field{.name = "ttft_ms", .help = "mean time to the first token", .min = 1e-3, .max = 1e9}, r.ttft_ms);
  v(Field{.name = "tpot_ms", .help = "mean time of the other tokens", .min = 1e-3, .max = 1e9}, r.tpot_ms);
}

class ServingRows {
 public:
  ServingRows(const std::string& file, const DataFolders& data) : file_(file), data_(data) {}

  Validation read(const Json& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Cursor at = Cursor{file_, ""}.child(i);
      ++out_.read;
      predict(read_fields<ServingRow>(rows[i], at), at);
    }
    return std::move(out_);
  }

 private:
  // What rows of one deployment share: passes are priced once.
  struct Deployment {
    Problem problem;
    std::unique_ptr<Topology> topology;
    std::unique_ptr<PassModel> passes;
  };

  const Deployment& deployment(const ServingRow& r, const Cursor& at) {
    auto& known = known_[{r.model.name, r.topology, r.stack, r.weights, r.tp}];
    if (known) return *known;
    known = std::make_unique<Deployment>();
    Scenario s;
    s.model = r.model;
    s.cluster.topology = r.topology;
    s.cluster.nodes = 1;
    const Serving serving{.weights = r.weights};
    Stack stack = load_serving_stack(r.stack, at.child("serving_stack"), data_);
    known->problem = served_problem(resolve(std::move(s), at, data_), serving, std::move(stack));
    const Problem& problem = known->problem;
    const Plan plan{.tp = r.tp, .schedule = Schedule::kGPipe};
    program::check_plan(problem.scenario.model, plan, Training{.global_batch = 1, .sequence = 1}, at);
    check_ranks(plan, problem.cluster, at.child("tp"));
    known->topology = std::make_unique<Topology>(problem.cluster);
    known->passes = std::make_unique<PassModel>(problem, *known->topology, plan, bytes_of(serving.cache));
    return *known;
  }

  void predict(const ServingRow& r, const Cursor& at) {
    const Deployment& d = deployment(r, at);
    const Serving defaults;
    const ServedMemory m = d.passes->memory(defaults.pass_tokens, 1);
    const LaneLimits limits{.sequences = r.concurrency,
                            .pass_tokens = defaults.pass_tokens,
                            .cache = defaults.memory_share * static_cast<double>(m.device) -
                                     static_cast<double>(m.weights + m.workspace + m.overhead)};
    if (limits.cache < static_cast<double>(r.concurrency * d.passes->cache_bytes(r.input + r.output))) {
      ++out_.skipped["the cache has no room for all requests at a time"];
      return;
    }
    const Serving lengths{.input_tokens = r.input,
                          .output_tokens = r.output,
                          .input_spread = r.length_spread,
                          .output_spread = r.length_spread};
    const std::vector<Request> requests = draw_requests(lengths, 0, kRequestsEach * r.concurrency, kSeed);
    const LaneRun run = serve(costs_of(*d.passes), limits, requests, r.concurrency);
    double ttft = 0, tpot = 0;
    for (const Served& s : run.requests) {
      ttft += s.ttft / static_cast<double>(requests.size());
      tpot += s.tpot / static_cast<double>(requests.size());
    }
    const auto add = [&](const char* quantity, double predicted, double published_ms) {
      if (published_ms == 0) return;
      ValidationRow row;
      row.id = r.id;
      row.source = r.source.substr(0, r.source.find(" row"));
      row.quantity = quantity;
      row.predicted = predicted;
      row.published = 1e-3 * published_ms;
      out_.rows.push_back(std::move(row));
    };
    add("ttft", ttft, r.ttft_ms);
    if (r.output > 1) add("tpot", tpot, r.tpot_ms);
  }

  using Key = std::tuple<std::string, std::string, std::string, ServedFormat, std::int64_t>;
  const std::string& file_;
  const DataFolders& data_;
  std::map<Key, std::unique_ptr<Deployment>> known_;
  Validation out_;
};

}  // namespace

Validation validate_serving(const Json& rows, const std::string& file, const DataFolders& data) {
  return ServingRows(file, data).read(rows);
}

}  // namespace orrery::sim
