// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/tools/minima.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "core/error.h"
#include "sim/cost.h"

namespace orrery::sim {
namespace {

namespace ops = program::ops;
using ops::Nature;
using program::Op;
using program::Program;

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

// A step adds all instances up, the slow ones too, so the mean counts and not the median. What took longest,
// a twentieth and of three or more at least one, may be what else the machine did.
double usual_mean(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  if (v.size() >= 3) v.resize(v.size() - std::max<std::size_t>(1, v.size() / 20));
  double sum = 0;
  for (const double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}

// All instances of one shape, under one placement where it communicates.
struct Shape {
  Op op;
  const Program* program = nullptr;
  // Seconds: without, and with communication of the same rank beside it.
  std::vector<double> alone, beside;
  double time() const { return usual_mean(alone.empty() ? beside : alone); }
  double weight() const {
    double total = 0;
    for (const auto* v : {&alone, &beside}) {
      for (const double s : *v) total += s;
    }
    return total;
  }
};

using ShapeKey = std::tuple<program::OpKey, std::int64_t, std::int64_t>;

class OpSamples {
 public:
  void add(const MeasuredRun& run) {
    const Timeline& t = *run.timeline;
    const Program& p = *run.program;
    const Cursor at{run.file, ""};
    if (t.program_hash != p.hash()) at.fail("the timeline is not of this plan's program");
    const auto ranks = static_cast<std::size_t>(p.mesh.ranks());
    std::vector<std::vector<const Slice*>> communicating(ranks);  // active slices, by start
    std::vector<std::vector<const Slice*>> computing(ranks), of_host(ranks);
    std::vector<std::map<std::tuple<std::string_view, std::int32_t, std::string_view>, const Op*>> ops(
        p.classes.size());
    for (std::size_t c = 0; c < p.classes.size(); ++c) {
      for (const program::Segment& s : p.classes[c].segments) {
        const std::int32_t chunk = p.classes[c].chunks[static_cast<std::size_t>(s.chunk)];
        for (const Op& op : s.ops)
          ops[c][{program::kSegmentNames[static_cast<std::size_t>(s.kind)], chunk, op.name}] = &op;
      }
    }
    for (const Slice& s : t.slices) {
      const auto rank = static_cast<std::size_t>(s.rank);
      if (rank >= ranks)
        at.fail(fmt::format("has a rank {}", rank), fmt::format("allowed: 0 to {}", ranks - 1));
      const bool offloads =
          program::is_offload(p.communication.streams[static_cast<std::size_t>(s.stream)].role);
      (s.stream == program::kCompute ? computing : offloads ? of_host : communicating)[rank].push_back(&s);
    }
    const auto by_active = [](const Slice* a, const Slice* b) { return a->active < b->active; };
    for (std::size_t r = 0; r < ranks; ++r) {
      std::sort(communicating[r].begin(), communicating[r].end(), by_active);
      std::sort(computing[r].begin(), computing[r].end(), by_active);
      const auto stage = static_cast<std::size_t>(p.stage_of(static_cast<std::int64_t>(r)));
      const auto find = [&](const Slice& s) {
        const auto found = ops[stage].find({t.segments[static_cast<std::size_t>(s.segment)], s.chunk,
                                            t.names[static_cast<std::size_t>(s.name)]});
        if (found == ops[stage].end())
          at.fail(fmt::format("the plan's program has no op \"{}\" in stage {}",
                              t.names[static_cast<std::size_t>(s.name)], stage));
        return found->second;
      };
      for (std::size_t i = 0; i < computing[r].size(); ++i) {
        const Slice& s = *computing[r][i];
        const double duration = seconds(s.end - s.active);
        if (i + 1 < computing[r].size()) gaps.push_back(seconds(computing[r][i + 1]->start - s.end));
        Shape& shape = shape_of(*find(s), p);
        (beside(s, communicating[r]) > 0.5 * duration ? shape.beside : shape.alone).push_back(duration);
      }
      for (const Slice* s : of_host[r]) {
        const Op& op = *find(*s);
        const auto* const copy = op.as<ops::Copy>();
        std::vector<Moved>& into = copy == nullptr                          ? updates
                                   : copy->way == ops::CopyWay::kToDrives   ? drive_writes
                                   : copy->way == ops::CopyWay::kFromDrives ? drive_reads
                                                                            : copies;
        into.push_back({static_cast<double>(op.traffic.value), seconds(s->end - s->active),
                        static_cast<std::int64_t>(ranks)});
      }
      // What shares its rank's links takes up to twice as long: no measure of the links.
      for (const Slice* s : communicating[r]) {
        const Op& op = *find(*s);
        if (op.is<ops::Recv>()) continue;
        const double duration = seconds(s->end - s->active);
        Shape& shape = shape_of(op, p);
        (beside(*s, communicating[r]) > 0.1 * duration ? shape.beside : shape.alone).push_back(duration);
      }
    }
  }

  std::map<ShapeKey, Shape> shapes;
  struct Moved {
    double bytes, seconds;
    std::int64_t ranks;  // of its run
  };
  // Between devices and their hosts, by the hosts, and between these and their drives.
  std::vector<Moved> copies, updates, drive_reads, drive_writes;
  std::vector<double> gaps;  // between ops of the compute stream, waits included

 private:
  Shape& shape_of(const Op& op, const Program& p) {
    const bool communicates = program::is_communication(op.kind);
    const std::int64_t members =
        !communicates        ? 1
        : op.is<ops::Send>() ? 2
                             : p.mesh.size(p.communication.groups[static_cast<std::size_t>(op.group)].axes);
    Shape& s = shapes[{program::key_of(op.kind), members, communicates ? op.payload.value : 0}];
    s.op = op;
    s.program = &p;
    return s;
  }

  // Seconds of a slice in which its rank transfers something else.
  static double beside(const Slice& s, const std::vector<const Slice*>& communicating) {
    double total = 0;
    for (const Slice* c : communicating) {
      if (c->active >= s.end) break;
      if (c == &s) continue;
      total += std::max(0.0, seconds(std::min(s.end, c->end) - std::max(s.active, c->active)));
    }
    return total;
  }
};

// Positive parameters, each between its bounds, moved in turn to where `error` is least.
struct Parameter {
  double* value;
  double low, high;
};
void minimise(const std::vector<Parameter>& parameters, const std::function<double()>& error) {
  constexpr int kRounds = 8, kBits = 20;
  for (int round = 0; round < kRounds; ++round) {
    for (const Parameter& p : parameters) {
      const double before = *p.value, error_before = error();
      const auto at = [&](double logarithm) {
        *p.value = std::exp(logarithm);
        return error();
      };
      const auto [best, error_best] =
          boost::math::tools::brent_find_minima(at, std::log(p.low), std::log(p.high), kBits);
      *p.value = error_best < error_before ? std::exp(best) : before;
    }
  }
}

double squared_log(double model, double measured) {
  const double r = std::log(model / measured);
  return r * r;
}

class Fitter {
 public:
  Fitter(const Device& device, const Cluster& cluster, const std::vector<MeasuredRun>& runs)
      : base_device_(device), base_cluster_(cluster), device_(device), cluster_(cluster) {
    for (const MeasuredRun& run : runs) samples_.add(run);
    for (auto& [key, shape] : samples_.shapes) {
      if (shape.time() > 0) parts_[program::nature_of(shape.op.kind)].push_back(&shape);
    }
    if (parts_[Nature::kProduct].empty()) throw Error("there are no matrix products in what was measured");
  }

  Calibration fit() {
    device_.sustained = base_device_.sustained = 1;
    device_.factors.clear();
    device_.measured.clear();
    base_device_.measured.clear();
    fit_gap();
    fit_gemm();
    fit_attention();
    fit_others();
    fit_links();
    fit_host();
    Calibration out;
    fit_overlap(out);
    rows(out);
    for (const auto& [part, shapes] : parts_) {
      for (const Shape* s : shapes) {
        if (program::is_communication(s->op.kind)) continue;
        const program::OpKey key = program::key_of(s->op.kind);
        static_assert(std::tuple_size_v<decltype(key.fields)> <= kMostOpDims,
                      "profiles hold every op's shape");
        std::vector<std::int64_t> dims(key.fields.begin(), key.fields.end());
        while (!dims.empty() && dims.back() == 0) dims.pop_back();
        device_.measured.push_back(
            {std::string(program::name_of(s->op.kind)), std::move(dims), from_seconds(s->time())});
      }
    }
    out.device = device_;
    out.cluster = cluster_;
    out.links = measured_links();
    return out;
  }

 private:
  static double model(const Shape& s, const Device& device, const Cluster& cluster) {
    const Topology topology(cluster);
    const PlanLinks links = plan_links(topology, s.program->plan);
    return seconds(
        CostModel(Devices(&device, 1), Stack{}, cluster, links, s.program->training).op(s.op, only(0)));
  }
  double model(const Shape& s) const { return model(s, device_, cluster_); }

  double error(Nature part) const {
    double total = 0;
    for (const Shape* s : parts_.at(part)) {
      if (s->op.is<ops::Orthogonalise>()) continue;  // many products, which has a factor of its own
      total += s->weight() * squared_log(model(*s), s->time());
    }
    return total;
  }

  // What a stream loses between two ops, where it does not wait.
  void fit_gap() {
    std::vector<double> gaps = samples_.gaps;
    std::sort(gaps.begin(), gaps.end());
    gaps.resize(gaps.size() / 2);
    device_.kernel_gap = from_seconds(std::max(0.0, median(gaps)));
  }

  // What the links to the hosts, their memory and their drives achieve; what moves less than kLeast says
  // little of them.
  void fit_host() {
    if (!cluster_.host) return;
    constexpr double kLeast = 1 << 16;
    // Of all ranks that share it.
    const auto rate = [&](const std::vector<OpSamples::Moved>& all, std::int64_t sharing) {
      double bytes = 0, seconds = 0;
      for (const OpSamples::Moved& m : all) {
        if (m.bytes < kLeast) continue;
        bytes += m.bytes * static_cast<double>(std::min(m.ranks, sharing));
        seconds += m.seconds;
      }
      return seconds > 0 ? bytes / seconds : 0;
    };
    Host& h = *cluster_.host;
    const auto fit = [](double& efficiency, double achieved, Bandwidth nominal) {
      if (achieved > 0) efficiency = std::clamp(achieved / static_cast<double>(nominal.value), 0.01, 1.0);
    };
    fit(h.link_efficiency, rate(samples_.copies, std::min(cluster_.devices_per_node, h.devices_per_link)),
        h.link);
    fit(h.memory_efficiency, rate(samples_.updates, cluster_.devices_per_node), h.memory_bandwidth);
    if (!h.nvme) return;
    const auto of_drives = [&](const std::vector<OpSamples::Moved>& all, Bandwidth nominal) {
      return rate(all, cluster_.devices_per_node) / static_cast<double>(nominal.value);
    };
    const double read = of_drives(samples_.drive_reads, h.nvme->read),
                 write = of_drives(samples_.drive_writes, h.nvme->write);
    // One factor for both: the nominal time of equal bytes that come and go, over the time that they took.
    const double to_read = 1 / static_cast<double>(h.nvme->read.value),
                 to_write = 1 / static_cast<double>(h.nvme->write.value);
    const double both = read > 0 && write > 0 ? (to_read + to_write) / (to_read / read + to_write / write)
                                              : std::max(read, write);
    if (both > 0) h.nvme->efficiency = std::clamp(both, 0.01, 1.0);
  }

  void fit_gemm() {
    double latency = std::max(1e-7, seconds(device_.gemm.latency));
    device_.gemm.exposed_memory = 0.1;  // where the search begins
    const auto with_latency = [&] {
      device_.gemm.latency = from_seconds(latency);
      return error(Nature::kProduct);
    };
    minimise({{&device_.gemm.efficiency, 0.01, 1.2},
              {&device_.gemm.k_overhead, 0.1, 2000},
              {&device_.gemm.memory_efficiency, 0.01, 1.2},
              {&device_.gemm.exposed_memory, 1e-3, 1},
              {&latency, 1e-7, 1e-4}},
             with_latency);
    with_latency();
  }

  // Time is inverse to the efficiency where compute bounds it.
  void fit_attention() {
    for (const bool backward : {false, true}) {
      std::vector<double> ratios;
      for (const Shape* s : parts_[Nature::kAttention]) {
        const bool grad = s->op.is<ops::AttentionGrad>() || s->op.is<ops::CrossAttentionGrad>() ||
                          s->op.is<ops::ContextAttentionGrad>();
        if (grad == backward) ratios.push_back(model(*s) / s->time());
      }
      if (ratios.empty()) continue;
      double& efficiency = backward ? device_.attention.backward : device_.attention.efficiency;
      efficiency = std::clamp(efficiency * median(ratios), 0.01, backward ? 2.0 : 1.2);
    }
  }

  void fit_others() {
    std::map<std::string_view, std::vector<double>> ratios;
    for (const auto& [part, shapes] : parts_) {
      for (const Shape* s : shapes) {
        if (!program::ops::moves_bytes(part) && !s->op.is<ops::Orthogonalise>()) continue;
        const double gap = seconds(device_.kernel_gap), formula = model(*s) - gap;
        if (formula > 0) ratios[program::name_of(s->op.kind)].push_back(s->time() / formula);
      }
    }
    for (const auto& [kind, of_kind] : ratios) {
      device_.factors.push_back({std::string(kind), std::clamp(median(of_kind), 0.001, 1000.0)});
    }
  }

  // Bandwidth and latencies between ranks of a node; what nodes need is not measured in one.
  void fit_links() {
    if (parts_[Nature::kCollective].empty() && parts_[Nature::kTransfer].empty()) return;
    cluster_.intra_efficiency = 1;
    double bandwidth = static_cast<double>(cluster_.intra_bandwidth.value),
           hop = seconds(cluster_.intra_latency), start = seconds(cluster_.collective_latency);
    const auto with = [&] {
      cluster_.intra_bandwidth = Bandwidth{static_cast<std::int64_t>(bandwidth)};
      cluster_.intra_latency = from_seconds(hop);
      cluster_.collective_latency = from_seconds(start);
      return error(Nature::kCollective) + error(Nature::kTransfer);
    };
    for (const Nature part : {Nature::kCollective, Nature::kTransfer}) parts_[part];
    minimise({{&bandwidth, 1e6, 1e12}, {&hop, 1e-8, 1e-2}, {&start, 1e-8, 1e-2}}, with);
    with();
  }

  // Of collectives that stay in the scale-up domain, of the kinds that have curves of their own: another's
  // would be taken for one of these.
  LinkProfile measured_links() const {
    std::map<std::tuple<CollectiveKind, std::int64_t, std::int64_t>, std::vector<double>> times;
    const Topology topology(cluster_);
    for (const auto& [key, s] : samples_.shapes) {
      const auto* const collective = s.op.as<ops::Collective>();
      constexpr auto& kinds = MeasuredCollectives::kTabulated;
      if (collective == nullptr ||
          std::find(kinds.begin(), kinds.end(), collective->collective) == kinds.end())
        continue;
      const auto& [op, members, bytes] = key;
      const PlanLinks links = plan_links(topology, s.program->plan);
      if (members > 1 && bytes > 0 && s.time() > 0 && links[static_cast<std::size_t>(s.op.group)].local())
        times[{collective->collective, members, bytes}].push_back(s.time());
    }
    LinkProfile out;
    static_cast<ScaleUp&>(out) = cluster_;
    for (const auto& [at, of_shapes] : times) {
      const auto& [kind, members, bytes] = at;
      if (out.measured.empty() || out.measured.back().collective != kind ||
          out.measured.back().ranks != members)
        out.measured.push_back({.system = cluster_.name, .collective = kind, .ranks = members});
      CollectiveCurve& curve = out.measured.back();
      curve.bytes.push_back(Bytes{bytes});
      curve.times.push_back(from_seconds(median(of_shapes)));
    }
    return out;
  }

  void fit_overlap(Calibration& out) {
    std::vector<double> slower;
    for (const auto& [key, s] : samples_.shapes) {
      if (s.op.stream != program::kCompute) continue;
      for (const double t : s.beside) out.overlapped_s += t;
      if (s.alone.size() >= 3 && s.beside.size() >= 3) slower.push_back(median(s.beside) / median(s.alone));
    }
    if (!slower.empty()) device_.overlap_compute = std::clamp(median(slower), 1.0, 10.0);
  }

  void rows(Calibration& out) {
    std::map<std::string_view, std::vector<const Shape*>> kinds;
    for (const auto& [part, shapes] : parts_) {
      for (const Shape* s : shapes) kinds[program::name_of(s->op.kind)].push_back(s);
    }
    for (const auto& [kind, shapes] : kinds) {
      CalibrationRow& row = out.rows.emplace_back();
      row.op = kind;
      std::vector<double> before, after;
      for (const Shape* s : shapes) {
        ++row.shapes;
        row.instances += static_cast<std::int64_t>(s->alone.size() + s->beside.size());
        row.seconds += s->weight();
        before.push_back(std::abs(model(*s, base_device_, base_cluster_) / s->time() - 1));
        after.push_back(std::abs(model(*s) / s->time() - 1));
      }
      row.before = median(before);
      row.after = median(after);
    }
    std::sort(out.rows.begin(), out.rows.end(),
              [](const CalibrationRow& a, const CalibrationRow& b) { return a.seconds > b.seconds; });
  }

  Device base_device_;
  Cluster base_cluster_;
  Device device_;
  Cluster cluster_;
  OpSamples samples_;
  std::map<Nature, std::vector<const Shape*>> parts_;
};

}  // namespace

Calibration calibrate(const Device& device, const Cluster& cluster, const std::vector<MeasuredRun>& runs) {
  return Fitter(device, cluster, runs).fit();
}

}  // namespace orrery::sim
