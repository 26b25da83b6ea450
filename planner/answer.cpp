// SPDX-License-Identifier: Apache-2.0
#include "planner/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "planner/loading.h"
#include "planner/risk.h"
#include "planner/words.h"

namespace orrery::planner {

Json ranked_json(const Problem& problem, const Ranked& r) {
  Json j = write_fields(r.plan);
  j["name"] = short_name(r.plan);
  if (!r.note.empty()) j["note"] = r.note;
  j["global_batch"] = r.plan.global_batch();
  j["estimate"] = {{"step_time_s", seconds(r.estimate.step)}, {"peak_bytes", r.estimate.peak.value}};
  j["predicted"] = write_fields(r.predicted);
  const MemoryRange memory = memory_range(r.predicted.peak_memory_bytes, problem.spread);
  j["peak_memory_80_percent_bytes"] = {std::llround(memory.low), std::llround(memory.high)};
  j["pessimistic_s"] = r.risky() ? Json() : Json(r.pessimistic_s);
  for (const Variant& v : r.variants)
    j["variants"].push_back({{"name", short_name(v.plan)}, {"step_time_s", v.step_time_s}});
  return j;
}

Json answer_json(const Problem& problem, const Answer& a) {
  const auto& c = a.search.counts;
  Json out = {{"schema", "orrery.answer/1"},
              {"scenario", problem.scenario.name},
              {"device", problem.device_names()},
              {"cluster", problem.cluster.name}};
  out["search"] = {{"considered", c.considered}, {"invalid", c.invalid}, {"too_large", c.too_large},
                   {"bounded", c.bounded},       {"costed", c.costed},   {"simulated", a.simulated.size()},
                   {"feasible", c.feasible},     {"seconds", c.seconds}, {"largest_gap", a.largest_gap}};
  out["not_run_by_stack"] = stack_limits(problem.stack, problem.scenario.model, problem.scenario.training);
  out["capacity_bytes"] = a.search.capacity.value;
  out["nodes"] = a.nodes;
  out["unmet"] = a.unmet;
  out["trade_off"] = a.trade_off;
  out["sizes"] = Json::array();
  for (const auto& z : a.sizes)
    out["sizes"].push_back({{"nodes", z.nodes},
                            {"plan", short_name(z.plan)},
                            {"step_time_s", z.step_time_s},
                            {"days", z.days},
                            {"cost_usd", z.cost_usd}});
  for (const char* list : {"plans", "choices", "alongside", "rejected", "sensitivity", "pareto"})
    out[list] = Json::array();
  for (const auto& r : a.plans) out["plans"].push_back(ranked_json(problem, r));
  if (!a.plans.empty()) out["in_words"] = in_words(a.plans.front().plan, problem.scenario.model);
  for (const Choice& choice : a.choices) {
    Json j = ranked_json(problem, choice.plan);
    for (const Reason reason : choice.reasons) j["reasons"].push_back(name_of(reason));
    out["choices"].push_back(std::move(j));
  }
  for (const auto& r : a.alongside) out["alongside"].push_back(ranked_json(problem, r));
  for (const auto& r : a.rejected)
    out["rejected"].push_back(
        {{"name", short_name(r.plan)}, {"reason", r.reason}, {"step_time_s", r.step_time_s}});
  for (const auto& s : a.sensitivity) {
    out["sensitivity"].push_back({{"change", s.change},
                                  {"step_time_s", s.step_time_s},
                                  {"speedup", s.speedup},
                                  {"plan", short_name(s.plan)}});
  }
  for (const Plan& p : a.pareto) out["pareto"].push_back(short_name(p));
  out["why"] = a.why;
  if (!a.plans.empty() && a.plans[0].predicted.loading)
    out["loading"] = loading_json(problem, a.plans[0].plan, *a.plans[0].predicted.loading);
  if (const auto advice = learning_rate_advice(problem))
    out["advice"] = {{"learning_rate", advice->learning_rate}, {"warm_up_steps", advice->warm_up_steps}};
  return out;
}

std::vector<Row> rows_of(const Answer& a) {
  std::vector<Row> out;
  for (std::size_t i = 0; i < a.plans.size(); ++i) out.push_back({std::to_string(i + 1), &a.plans[i]});
  for (const Choice& choice : a.choices) {
    std::vector<std::string_view> reasons;
    for (const Reason reason : choice.reasons) reasons.push_back(name_of(reason));
    out.push_back({fmt::format("{}", fmt::join(reasons, ", ")), &choice.plan});
  }
  for (const Ranked& r : a.alongside) out.push_back({r.fits() ? r.note : r.note + " (does not fit)", &r});
  return out;
}

std::string in_csv(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string in_markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string answer_csv(const Answer& a) {
  struct Column {
    const char* name;
    std::function<std::string(const Ranked&)> value;
  };
  const auto whole = [](std::int64_t Plan::*of) {
    return [of](const Ranked& r) { return std::to_string(r.plan.*of); };
  };
  const auto real = [](double Predicted::*of) {
    return [of](const Ranked& r) { return fmt::format("{:.9g}", r.predicted.*of); };
  };
  const Column columns[] = {
      {"plan", [](const Ranked& r) { return short_name(r.plan); }},
      {"devices", [](const Ranked& r) { return std::to_string(r.plan.ranks()); }},
      {"tp", whole(&Plan::tp)},
      {"cp", whole(&Plan::cp)},
      {"pp", whole(&Plan::pp)},
      {"vpp", whole(&Plan::vpp)},
      {"dp", whole(&Plan::dp)},
      {"ep", whole(&Plan::ep)},
      {"zero", whole(&Plan::zero)},
      {"micro_batch", whole(&Plan::micro_batch)},
      {"micro_batches", whole(&Plan::micro_batches)},
      {"schedule", [](const Ranked& r) { return std::string(name_of(r.plan.schedule)); }},
      {"sequence_parallel",
       [](const Ranked& r) { return std::string(r.plan.sequence_parallel ? "true" : "false"); }},
      {"recompute", [](const Ranked& r) { return std::string(name_of(r.plan.recompute)); }},
      {"step_time_s", real(&Predicted::step_time_s)},
      {"step_time_low_s", real(&Predicted::step_time_low_s)},
      {"step_time_high_s", real(&Predicted::step_time_high_s)},
      {"tokens_per_s", real(&Predicted::tokens_per_s)},
      {"mfu", real(&Predicted::mfu)},
      {"hfu", real(&Predicted::hfu)},
      {"peak_memory_bytes", [](const Ranked& r) { return std::to_string(r.predicted.peak_memory_bytes); }},
      {"fits_probability", real(&Predicted::fits_probability)},
      {"days", real(&Predicted::days)},
      {"cost_usd", real(&Predicted::cost_usd)}};
  std::string out = "as";
  for (const Column& c : columns) out += fmt::format(",{}", c.name);
  out += "\r\n";
  for (const Row& row : rows_of(a)) {
    out += in_csv(row.as);
    for (const Column& c : columns) out += "," + in_csv(c.value(*row.plan));
    out += "\r\n";
  }
  return out;
}

std::string answer_markdown(const Problem& problem, const Answer& a) {
  const Scenario& s = problem.scenario;
  std::string out =
      fmt::format("**{}** on {} x {} ({}), batch {} x {} tokens, stack {}\n\n",
                  in_markdown(s.name.empty() ? s.model.name : s.name), problem.cluster.nodes,
                  in_markdown(problem.cluster.name), in_markdown(problem.counted_devices()),
                  s.training.global_batch, s.training.sequence, in_markdown(problem.stack.name));
  if (a.plans.empty()) return out + why_none(problem, a.search) + "\n";
  if (!a.unmet.empty()) out += a.unmet + "\n\n";
  out +=
      "| | plan | step s | tokens/s | MFU % | HFU % | GiB | fits % | days | USD |\n"
      "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const Row& row : rows_of(a)) {
    const Predicted& p = row.plan->predicted;
    out +=
        fmt::format("| {} | {} | {:.3f} | {:.0f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} | {} | {} |\n",
                    in_markdown(row.as), in_markdown(short_name(row.plan->plan)), p.step_time_s,
                    p.tokens_per_s, 100 * p.mfu, 100 * p.hfu, static_cast<double>(p.peak_memory_bytes) / kGiB,
                    100 * p.fits_probability, p.days > 0 ? fmt::format("{:.2f}", p.days) : "-",
                    p.cost_usd > 0 ? fmt::format("{:.0f}", p.cost_usd) : "-");
  }
  const Predicted& best = a.plans.front().predicted;
  const MemoryRange memory = memory_range(best.peak_memory_bytes, problem.spread);
  out += fmt::format(
      "\nThe first plan: {}\n\nHow sure: {}: {:.3g} to {:.3g} s; {:.3g} to {:.3g} GiB of a device.\n",
      in_words(a.plans.front().plan, s.model), words_of(problem.measured), best.step_time_low_s,
      best.step_time_high_s, memory.low / kGiB, memory.high / kGiB);
  if (!a.why.empty()) out += "\n";
  for (const std::string& w : a.why) out += fmt::format("- {}\n", in_markdown(w));
  return out;
}

}  // namespace orrery::planner
