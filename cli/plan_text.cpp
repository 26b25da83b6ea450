// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cli/names.h"
#include "cli/plan_asked.h"
#include "core/text.h"
#include "planner/evaluate.h"
#include "planner/families.h"
#include "planner/loading.h"
#include "planner/risk.h"
#include "planner/words.h"

namespace orrery::cli {
namespace {

double gib(std::int64_t b) {
  return static_cast<double>(b) / kGiB;
}

void print_row(const std::string& mark, const planner::Ranked& r, std::size_t width) {
  const Predicted& p = r.predicted;
  const std::string days = p.days > 0 ? fmt::format("{:.2f}", p.days) : "-";
  const std::string cost = p.cost_usd > 0 ? fmt::format("{:.0f}", p.cost_usd) : "-";
  fmt::print("{:>3} {:<{}} {:>9.3f} {:>10.0f} {:>5.1f} {:>5.1f} {:>8.1f} {:>5.0f} {:>8} {:>10}\n", mark,
             short_name(r.plan), width, p.step_time_s, p.tokens_per_s, 100 * p.mfu, 100 * p.hfu,
             gib(p.peak_memory_bytes), 100 * p.fits_probability, days, cost);
}

// "~ mb2x64 +0.4 %, no sp +0.9 %, and 3 more up to +2.1 %": others of the same degrees.
void print_variants(const planner::Ranked& r) {
  if (r.variants.empty()) return;
  constexpr std::size_t kShown = 3;
  const auto longer = [&](const planner::Variant& v) {
    return fmt::format("{:+.1f} %", 100 * (v.step_time_s / r.predicted.step_time_s - 1));
  };
  std::vector<std::string> out;
  for (const planner::Variant& v : r.variants) {
    if (out.size() == kShown) break;
    out.push_back(planner::differences(v.plan, r.plan) + " " + longer(v));
  }
  if (const std::size_t more = r.variants.size() - out.size(); more > 0) {
    const auto slowest =
        std::max_element(r.variants.end() - static_cast<std::ptrdiff_t>(more), r.variants.end(),
                         [](const auto& x, const auto& y) { return x.step_time_s < y.step_time_s; });
    out.push_back(fmt::format("and {} more up to {}", more, longer(*slowest)));
  }
  fmt::print("      ~ {}\n", fmt::join(out, ", "));
}

void print_header(std::size_t width) {
  fmt::print("{:>3} {:<{}} {:>9} {:>10} {:>5} {:>5} {:>8} {:>5} {:>8} {:>10}\n", "", "plan", width, "step s",
             "tokens/s", "MFU%", "HFU%", "GiB", "fits%", "days", "USD");
}

// "^ safest (fits with 100 %) and smallest (46.1 GiB), +2.3 % time against the best".
void print_choices(const planner::Answer& a, std::size_t width) {
  for (const planner::Choice& c : a.choices) {
    const Predicted& p = c.plan.predicted;
    print_row("", c.plan, width);
    std::vector<std::string> why;
    for (const planner::Reason reason : c.reasons) {
      switch (reason) {
        case planner::Reason::kSafest:
          why.push_back(fmt::format("safest (fits with {:.0f} %)", 100 * p.fits_probability));
          break;
        case planner::Reason::kSmallest:
          why.push_back(fmt::format("smallest ({:.1f} GiB)", gib(p.peak_memory_bytes)));
          break;
        case planner::Reason::kSimplest:
          why.emplace_back("simplest");
          break;
      }
    }
    fmt::print("      ^ {}, {:+.1f} % time against the best\n", fmt::join(why, " and "),
               100 * (p.step_time_s / a.plans[0].predicted.step_time_s - 1));
  }
}

void print_memory(const Predicted& p) {
  fmt::print("\nmemory by stage, GiB{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "param", "grad",
             "optim", "activ", "work", "comm", "overhead", "total");
  for (const StageMemory& m : p.memory) {
    fmt::print("  stage {:<12}{:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n",
               m.stage, gib(m.parameter), gib(m.gradient), gib(m.optimizer), gib(m.activation),
               gib(m.workspace), gib(m.communication), gib(m.overhead), gib(m.total));
    if (m.host > 0) fmt::print("    and in its host's memory {:.2f} of each device\n", gib(m.host));
    if (m.drives > 0) fmt::print("    and on its host's drives {:.2f} of each device\n", gib(m.drives));
  }
}

void print_breakdown(const Predicted& p) {
  const Breakdown& b = p.breakdown;
  std::vector<std::pair<const char*, double>> parts{{"forward", b.forward_s},
                                                    {"backward", b.backward_s},
                                                    {"recompute", b.recompute_s},
                                                    {"optimizer", b.optimizer_s}};
  for (std::size_t i = 0; i < kWaitedAxes.size(); ++i) {
    if (kWaitedAxes[i].of != WaitedAxis::Of::kHost || b.exposed_s[i] > 0)
      parts.emplace_back(kWaitedAxes[i].label, b.exposed_s[i]);
  }
  parts.emplace_back("host", b.host_s);
  if (p.loading) parts.emplace_back("loading", b.loading_s);
  if (p.islands) parts.emplace_back("islands", b.islands_s);
  if (p.documents) parts.emplace_back("documents", b.documents_s);
  fmt::print("\nstep of the busiest stage\n");
  for (const auto& [name, value] : parts) {
    const double share = value / p.step_time_s;
    fmt::print("  {:<12} {:>10} {:>6.1f} % {}\n", name, format(from_seconds(value)), 100 * share,
               std::string(static_cast<std::size_t>(share * 50 + 0.5), '='));
  }
}

// At most so many, evenly chosen, the first and the last among them.
void print_sizes(const planner::Answer& a) {
  if (a.sizes.empty()) return;
  constexpr std::size_t kShown = 12;
  const std::size_t shown = std::min(a.sizes.size(), kShown);
  const std::size_t width = width_of_names(a.sizes);
  fmt::print("\nfastest plan by number of nodes, estimated\n{:>7} {:<{}} {:>9} {:>8} {:>10}\n", "nodes",
             "plan", width, "step s", "days", "USD");
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& z = a.sizes[shown == 1 ? 0 : i * (a.sizes.size() - 1) / (shown - 1)];
    fmt::print("{:>7} {:<{}} {:>9.3f} {:>8} {:>10}\n", z.nodes, short_name(z.plan), width, z.step_time_s,
               z.days > 0 ? fmt::format("{:.2f}", z.days) : "-",
               z.cost_usd > 0 ? fmt::format("{:.0f}", z.cost_usd) : "-");
  }
}

}  // namespace

void print_answer(const Problem& problem, const planner::Answer& a) {
  const auto& c = a.search.counts;
  const Scenario& s = problem.scenario;
  fmt::print("{}: {} on {} x {} ({}), batch {} x {} tokens, stack {}\n",
             printable(s.name.empty() ? s.model.name : s.name), printable(s.model.name),
             problem.cluster.nodes, printable(problem.cluster.name), printable(problem.counted_devices()),
             s.training.global_batch, s.training.sequence, printable(problem.stack.name));
  if (s.training.adapter) fmt::print("{}\n", planner::words_of_adapter(s));
  if (const auto limits = stack_limits(problem.stack, s.model, s.training); !limits.empty())
    fmt::print("not searched: {} has {}\n", printable(problem.stack.name), fmt::join(limits, "; "));
  fmt::print(
      "{} combinations: {} no plans, {} proved slower or too large, {} costed; of those {} too large, {} "
      "fit; {} "
      "simulated "
      "(estimate within {:.2f} %)\n\n",
      c.considered, c.invalid, c.bounded, c.costed, c.too_large, c.feasible, a.simulated.size(),
      100 * a.largest_gap);
  if (a.plans.empty()) fmt::print("{}\n", planner::why_none(problem, a.search));
  if (!a.unmet.empty()) fmt::print("{}\n\n", a.unmet);
  if (!a.trade_off.empty()) fmt::print("not only the cheapest: {}\n\n", a.trade_off);
  std::size_t width = width_of_names(a.alongside, width_of_names(a.plans));
  for (const planner::Choice& choice : a.choices)
    width = std::max(width, short_name(choice.plan.plan).size());
  print_header(width);
  for (std::size_t i = 0; i < a.plans.size(); ++i) {
    print_row(std::to_string(i + 1), a.plans[i], width);
    print_variants(a.plans[i]);
  }
  if (!a.plans.empty()) {
    const Predicted& best = a.plans[0].predicted;
    const planner::MemoryRange memory = planner::memory_range(best.peak_memory_bytes, problem.spread);
    fmt::print("      how sure: {}: {:.3g} to {:.3g} s; {:.3g} to {:.3g} GiB of {:.3g}\n",
               words_of(problem.measured), best.step_time_low_s, best.step_time_high_s, memory.low / kGiB,
               memory.high / kGiB, gib(planner::fit(problem, a.plans[0].plan, best).available));
  }
  print_choices(a, width);
  for (const auto& r : a.alongside) {
    print_row("", r, width);
    const bool fits = r.fits();
    const std::string against =
        a.plans.empty() ? ""
                        : fmt::format(", {:+.1f} % time against the best",
                                      100 * (r.predicted.step_time_s / a.plans[0].predicted.step_time_s - 1));
    fmt::print("      ^ {}{}{}\n", r.note,
               fits ? ""
                    : fmt::format(", does not fit: needs {:.1f} GiB, has {}",
                                  gib(r.predicted.peak_memory_bytes), format(r.capacity)),
               against);
  }
  if (!a.plans.empty()) {
    print_memory(a.plans[0].predicted);
    if (const auto& layers = a.plans[0].plan.chunk_layers; !layers.empty())
      fmt::print("  layers of each chunk: {}\n", fmt::join(layers, " "));
    if (const auto& layers = a.plans[0].plan.recompute_by_chunk; !layers.empty())
      fmt::print("  recomputed layers of each chunk: {}\n", fmt::join(layers, " "));
    print_breakdown(a.plans[0].predicted);
    if (const auto& loading = a.plans[0].predicted.loading) {
      fmt::print("\n");
      for (const std::string& line : planner::loading_lines(problem, a.plans[0].plan, *loading))
        fmt::print("{}\n", line);
    }
    fmt::print("\nin words\n  {}\n\nwhy\n", planner::in_words(a.plans[0].plan, s.model));
    for (const std::string& w : a.why) fmt::print("  {}\n", w);
  }
  print_sizes(a);
  if (!a.rejected.empty()) fmt::print("\nrejected\n");
  const std::size_t of_rejected = width_of_names(a.rejected);
  for (const auto& r : a.rejected) fmt::print("  {:<{}} {}\n", short_name(r.plan), of_rejected, r.reason);
  if (!a.sensitivity.empty()) fmt::print("\nwhat would help\n");
  for (const auto& x : a.sensitivity)
    fmt::print("  {:<22} {:>6.2f}x  {}\n", x.change, x.speedup, short_name(x.plan));
  if (const auto advice = planner::learning_rate_advice(problem)) {
    fmt::print("\nlearning rate {:.1e} after {} warm-up steps (GPT-3's table, square root of the batch)\n",
               advice->learning_rate, advice->warm_up_steps);
  }
  if (s.storage_per_gb_month.value > 0) {
    const double gb = restart_bytes(s.model, s.training) / 1e9;
    fmt::print("a checkpoint that can restart (no gradients): {:.0f} GB, ${:.2f} a month each\n", gb,
               gb * dollars(s.storage_per_gb_month));
  }
}

}  // namespace orrery::cli
