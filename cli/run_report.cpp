// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "cli/run.h"
#include "cli/run_loading.h"
#include "core/text.h"
#include "exec/checkpoint.h"
#include "exec/stop.h"
#include "sim/reliability/replay.h"

namespace orrery::cli {

// Throws nothing where stderr is on the disk that is full.
void alert(std::string_view text) {
  std::fputs(fmt::format("alert: {}\n", printable(text)).c_str(), stderr);
}

namespace {

// Says once why it failed.
template <class Write>
void attempt(bool& failed, const char* consequence, Write write) {
  try {
    write();
  } catch (const Error& e) {
    if (!std::exchange(failed, true)) alert(fmt::format("{}{}", e.what(), consequence));
  }
}

}  // namespace

Observer::Observer(const App& app, const RunAsked& o, const Scenario& s, const exec::RunOptions& run)
    : app_(app), o_(o), run_(run), tokens_(s.training.tokens_per_step()) {
  flops_ = model_flops_per_sequence(s.model, s.training, AttentionFlops::kFull).value *
           static_cast<double>(s.training.global_batch);
}

void Observer::see(const program::Program& program) {
  peak_ = Bytes{0};
  for (const program::RankClass& c : program.classes) peak_ = std::max(peak_, c.arena_peak);
}

void Observer::operator()(std::int64_t step, const exec::StepReport& r) {
  if (!app_.json) print(step, r);
  if (!r.unsaved.empty()) alert(fmt::format("no checkpoint of step {}: {}", r.unsaved_step, r.unsaved));
  if (o_.metrics.empty() && o_.tensorboard.empty()) return;
  std::vector<exec::Scalar> scalars{
      {"step", "optimizer steps done", static_cast<double>(step + 1)},
      {"loss", "mean cross-entropy of the last batch, nats per token", r.loss},
      {"gradient_norm", "global norm before clipping", r.gradient_norm},
      {"learning_rate", "of the last step", exec::learning_rate(run_, step)},
      {"step_seconds", "duration of the last step", r.seconds},
      {"tokens_per_second", "in the last step, all ranks", tokens_ / r.seconds},
      {"model_flops_per_second", "in the last step, all ranks, without recomputation", flops_ / r.seconds},
      {"waiting_ratio", "share of the step in which compute waited for other ranks", r.waiting},
      {"peak_bytes", "memory of the rank with the most", static_cast<double>(peak_.value)}};
  for (std::size_t k = 0; k < r.mtp_loss.size(); ++k) {
    scalars.push_back({fmt::format("mtp_loss_{}", k + 1),
                       fmt::format("mean cross-entropy of tokens {} further, before mtp_loss_scale", k + 1),
                       r.mtp_loss[k]});
  }
  if (r.loss_scale > 0) {
    scalars.push_back({"loss_scale", "factor of the loss in the last step", r.loss_scale});
    scalars.push_back({"skipped", "1 when gradients overflowed in the last step", r.skipped ? 1.0 : 0.0});
  }
  if (r.validation_loss >= 0)
    scalars.push_back({"validation_loss", "mean cross-entropy of held-out data", r.validation_loss});
  if (!o_.metrics.empty()) attempt(metrics_failed_, "", [&] { exec::write_prometheus(o_.metrics, scalars); });
  if (!o_.tensorboard.empty() && !board_failed_) {
    attempt(board_failed_, "; TensorBoard gets no more scalars", [&] {
      if (!board_) board_.emplace(o_.tensorboard);
      board_->write(step + 1, scalars);
    });
  }
}

void Observer::print(std::int64_t step, const exec::StepReport& r) const {
  fmt::print(
      "step {:>4}  loss {:.6f}  gradient norm {:.4f}  {:>9}  {:>7.0f} tokens/s  {:>7.2f} GFLOP/s  waiting "
      "{:>4.1f} %  peak {}",
      step + 1, r.loss, r.gradient_norm, format(from_seconds(r.seconds)), tokens_ / r.seconds,
      flops_ / r.seconds / 1e9, 100 * r.waiting, format(peak_));
  if (!r.mtp_loss.empty()) fmt::print("  MTP loss {:.6f}", fmt::join(r.mtp_loss, " "));
  if (r.loss_scale > 0) fmt::print("  loss scale {}", r.loss_scale);
  if (r.skipped) fmt::print("  skipped: gradients overflowed");
  if (r.validation_loss >= 0) fmt::print("  validation loss {:.6f}", r.validation_loss);
  fmt::print("\n");
  std::fflush(stdout);
}

namespace {

Json to_json(const exec::RunResult& r, double tokens_per_s) {
  Json out = {{"schema", "orrery.run/1"}, {"first_step", r.first_step}, {"from_memory", r.from_memory},
              {"alerts", r.alerts},       {"steps", Json::array()},     {"tokens_per_s", tokens_per_s},
              {"memory", Json::object()}};
  for (const auto& step : r.steps) {
    Json& row = out["steps"].emplace_back(
        Json{{"loss", step.loss}, {"grad_norm", step.gradient_norm}, {"seconds", step.seconds}});
    row["waited_for_data_s"] = step.waited_for_data_s;
    if (!step.mtp_loss.empty()) row["mtp_loss"] = step.mtp_loss;
    if (step.loss_scale > 0) {
      row["loss_scale"] = step.loss_scale;
      row["skipped"] = step.skipped;
    }
    if (step.validation_loss >= 0) row["validation_loss"] = step.validation_loss;
    if (!step.unsaved.empty()) {
      row["unsaved"] = step.unsaved;
      row["unsaved_step"] = step.unsaved_step;
    }
  }
  for (std::size_t i = 0; i < r.arena_bytes.size(); ++i) {
    Json& memory = out["memory"][std::to_string(i)] = {{"arena", r.arena_bytes[i]},
                                                       {"host", r.host_bytes[i]},
                                                       {"drives", r.drive_bytes[i]},
                                                       {"scratch", r.scratch_bytes[i]}};
    for (std::size_t c = 0; c < r.class_bytes[i].size(); ++c)
      memory[program::kBufferClassNames[c]] = r.class_bytes[i][c];
  }
  return out;
}

}  // namespace

void print_ranks(const Mesh& mesh, const std::vector<std::string>& hosts) {
  std::size_t width = 4;
  for (const std::string& h : hosts) width = std::max(width, printable(h).size());
  const std::vector<MeshAxis> axes = whole_axes(mesh);
  fmt::print("{:>4} {:<{}}", "rank", "host", width);
  for (const MeshAxis& axis : axes) fmt::print(" {:>4}", axis.name);
  for (std::int64_t r = 0; r < mesh.ranks(); ++r) {
    fmt::print("\n{:>4} {:<{}}", r, printable(hosts[static_cast<std::size_t>(r)]), width);
    for (const MeshAxis& axis : axes) fmt::print(" {:>4}", mesh.coordinate(r, axis.name));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

std::string beginning(const RunAsked& o) {
  return exec::has_checkpoints(o.checkpoints) ? "from the last checkpoint"
         : o.checkpoints.empty()
             ? "from step 0, as --checkpoints is not given"
             : fmt::format("from step 0, as {} holds no checkpoint", printable(o.checkpoints));
}

std::string going_on(const RunAsked& o) {
  return fmt::format("{}{}", o.memory_every > 0 ? "from memory, or else " : "", beginning(o));
}

ExitCode exit_of(const exec::RunResult& r) {
  return r.stopped_by == 0        ? ExitCode::kOk
         : r.stopped_by == SIGINT ? ExitCode::kInterrupted
                                  : ExitCode::kTerminated;
}

void report(App& app, const RunAsked& o, const Ended& run) {
  const exec::RunResult& r = run.result;
  app.exit = exit_of(r);
  const std::int64_t done = r.first_step + static_cast<std::int64_t>(r.steps.size());
  const bool unsaved =
      !r.steps.empty() && !r.steps.back().unsaved.empty() && r.steps.back().unsaved_step == done;
  if (r.stopped_by != 0) {
    fmt::print(stderr, "{} stopped the run after step {} of {}{}\n", exec::name_of_signal(r.stopped_by), done,
               o.steps,
               o.checkpoints.empty() ? "; no checkpoint was written, as --checkpoints is not given"
               : unsaved             ? "; its checkpoint could not be written"
                         : fmt::format("; {} has the checkpoint of step {}", printable(o.checkpoints), done));
  }
  if (unsaved) app.exit = ExitCode::kFailure;  // what was trained is lost
  for (const std::string& text : r.alerts) alert(text);
  for (const std::string& why : r.passed_over) fmt::print(stderr, "passed over: {}\n", printable(why));
  if (r.steps.empty()) {
    fmt::print(stderr, "the checkpoint has done {} steps: nothing is left to do\n", r.first_step);
    if (app.json) print_json(to_json(r, 0));
    return;
  }
  if (!o.trace.empty()) save_timeline(o.trace, r.timeline);
  if (!o.expert_load.empty())
    save_json(o.expert_load, write_fields(ExpertLoad{RecordedLoad{r.expert_tokens}}));

  // The first step pays for warming up.
  double total = 0, warm = 0;
  for (std::size_t i = 0; i < r.steps.size(); ++i) {
    total += r.steps[i].seconds;
    if (i > 0 || r.steps.size() == 1) warm += r.steps[i].seconds;
  }
  const double counted = static_cast<double>(std::max<std::size_t>(1, r.steps.size() - 1));
  const double tokens_per_s = run.problem.scenario.training.tokens_per_step() * counted / warm;
  const bool lived = run.life.failures > 0 || !o.life.empty() || !o.life_trace.empty();
  if (!o.life.empty()) save_life(o.life, run.life);
  if (!o.life_trace.empty()) save_timeline(o.life_trace, sim::life_timeline(run.marks));
  if (app.json) {
    Json out = to_json(r, tokens_per_s);
    if (lived) out["life"] = write_fields(run.life);
    if (o.loading) out["loading"] = to_json(compare_loading(run));
    return print_json(out);
  }
  const auto fullest = std::max_element(r.arena_bytes.begin(), r.arena_bytes.end()) - r.arena_bytes.begin();
  fmt::print("{} on {} {} ranks: {:.0f} tokens/s, arena of the fullest rank {}, {} beside it\n",
             short_name(run.plan), run.plan.ranks(), run.processes ? "process" : "thread", tokens_per_s,
             format(Bytes{r.arena_bytes[static_cast<std::size_t>(fullest)]}),
             format(Bytes{r.scratch_bytes[static_cast<std::size_t>(fullest)]}));
  if (const std::int64_t host = *std::max_element(r.host_bytes.begin(), r.host_bytes.end()); host > 0)
    fmt::print("in its host's memory a rank keeps {}\n", format(Bytes{host}));
  if (const std::int64_t drives = *std::max_element(r.drive_bytes.begin(), r.drive_bytes.end()); drives > 0)
    fmt::print("on its host's drives a rank keeps {}\n", format(Bytes{drives}));
  if (r.waited_for_data_s > 0.05 * total)
    fmt::print("the run starved: {:.0f} % of its time it waited for data\n",
               100 * r.waited_for_data_s / total);
  if (o.loading) fmt::print("{}\n", text_of(compare_loading(run)));
  if (lived) fmt::print("{}\n", goodput_text(run.life));
  if (!o.trace.empty()) fmt::print("measured timeline: {}\n", printable(o.trace));
}

}  // namespace orrery::cli
