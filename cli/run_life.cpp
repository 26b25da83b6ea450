// SPDX-License-Identifier: Apache-2.0
#include "cli/run_life.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "cli/commands.h"
#include "cli/run.h"

namespace orrery::cli {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The text up to a mark, which is taken off with it; all of it where there is none.
std::string_view taken(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return out;
}

Fault read_fault(const std::string& text, std::int64_t ranks, std::int64_t steps) {
  const Cursor at{"command line", "/fail"};
  std::string_view rest = text;
  const auto rank = whole_number(taken(rest, '@'));
  const bool named = rest.find(':') != rest.npos;
  const auto step = whole_number(taken(rest, ':'));
  if (!rank || !step || *rank < 0 || *rank >= ranks || *step < 1 || *step > steps) {
    at.fail(fmt::format("{} is not RANK@STEP or RANK@STEP:KIND", shown(Json(text))),
            fmt::format("allowed: a rank from 0 to {}, a step from 1 to {}, a kind of {}", ranks - 1, steps,
                        fmt::join(all_names(FaultKind{}), ", ")));
  }
  Fault out{FaultKind::kDead, *rank, *step};
  if (named) read_value(Json(rest), at, Field{}, out.kind);
  return out;
}

}  // namespace

std::vector<Fault> read_faults(const std::vector<std::string>& texts, std::int64_t ranks,
                               std::int64_t steps) {
  std::vector<Fault> out;
  for (const std::string& text : texts) out.push_back(read_fault(text, ranks, steps));
  return out;
}

LifeKeeper::LifeKeeper(std::vector<Fault> faults) : faults_(std::move(faults)) {
  log_.attempts.emplace_back();
}

const Fault* LifeKeeper::stopping() const {
  std::int64_t before = failures();
  for (const Fault& f : faults_) {
    if (stops_run(f.kind) && before-- == 0) return &f;
  }
  return nullptr;
}

std::vector<Fault> LifeKeeper::faults() const {
  std::vector<Fault> out;
  std::copy_if(faults_.begin(), faults_.end(), std::back_inserter(out),
               [&](const Fault& f) { return !stops_run(f.kind) || &f == stopping(); });
  return out;
}

void LifeKeeper::step(std::int64_t step, const exec::StepReport& r) {
  log_.attempts.back().steps.push_back({.step = step + 1,
                                        .end_s = now_s(),
                                        .step_s = r.seconds,
                                        .saved = r.saved,
                                        .kept = r.kept,
                                        .saving_s = r.saving_s,
                                        .keeping_s = r.keeping_s,
                                        .validating_s = r.validating_s,
                                        .settled_s = r.settled_s});
}

void LifeKeeper::failed() {
  Attempt& attempt = log_.attempts.back();
  const Fault* const fault = stopping();
  // Where no step was done, the fault was at the first, or the start failed by itself.
  const bool there =
      fault != nullptr && (attempt.steps.empty() || attempt.steps.back().step + 1 == fault->step);
  attempt.failure = FailureMark{now_s(), there ? std::optional(fault->kind) : std::nullopt};
  log_.attempts.emplace_back();
}

RunLife LifeKeeper::life(const program::Program& program, const RunAsked& o,
                         const exec::RunOptions& options) const {
  RunLife out = run_life(log_);
  out.program = fmt::format("{:016x}", static_cast<std::uint64_t>(program.hash()));
  out.ranks = program.mesh.ranks();
  out.checkpoint_every = options.checkpoint_every;
  out.memory_every = o.memory_every;
  if (o.memory_every > 0) out.memory_replicas = std::min(o.memory_replicas, out.ranks);
  std::size_t start = 0;  // that a fault which stops the run was for
  for (const Fault& f : faults_) {
    if (!stops_run(f.kind)) {
      if (f.step <= out.steps) out.faults.push_back(f);
    } else if (start < log_.attempts.size()) {
      const auto& failure = log_.attempts[start++].failure;
      if (failure && failure->injected) out.faults.push_back(f);
    }
  }
  return out;
}

std::string LifeKeeper::log() const {
  return write_fields(log_).dump();
}

void LifeKeeper::continue_from(const std::string& log) {
  log_ = read_fields<LifeLog>(Json::parse(log), Cursor{"life"});
}

void save_life(const std::string& file, const RunLife& life) {
  Json out = {{"schema", kLifeSchema}};
  out.update(write_fields(life));
  save_json(file, out);
}

std::string goodput_text(const RunLife& life) {
  const LifeTimes& t = life.times;
  const auto text = [](RunTime of) { return of.value < 1 ? format(from_seconds(of.value)) : format(of); };
  return fmt::format(
      "goodput {:.1f} %: of {}, {} moved the run forward; {} were lost, checkpoints took {}, unnoticed "
      "failures "
      "{}, restarts {} ({} {})",
      100 * t.progress.value / t.counted().value, text(t.counted()), text(t.progress), text(t.lost),
      text(t.checkpoint), text(t.detection), text(t.restart), life.failures,
      life.failures == 1 ? "failure" : "failures");
}

}  // namespace orrery::cli
