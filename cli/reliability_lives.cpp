// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/reliability.h"
#include "core/text.h"
#include "sim/reliability/replay.h"

namespace orrery::cli {
namespace {

struct Compared {
  std::string file;
  RunLife life;
  double measured = 0, predicted = 0;  // goodput
  double error() const { return predicted / measured - 1; }
};

// A simulation of more would take longer than a run of them.
constexpr double kMostCheckpoints = 1e7;

RunLife read_life(const std::string& file) {
  Json json = load_json(file);
  const Cursor at{file, ""};
  if (!json.is_object() || json.value("schema", Json()) != Json(kLifeSchema))
    at.child("schema").fail(fmt::format("the first file is the life of a run, and this one is not"),
                            fmt::format("allowed: \"{}\"", kLifeSchema));
  json.erase("schema");
  RunLife life = read_fields<RunLife>(json, at);
  if (life.steps <= life.first_step)
    at.child("steps").fail(fmt::format("{} is not beyond first_step, {}", life.steps, life.first_step));
  if (!(life.times.progress.value > 0) || !(life.times.counted().value >= life.times.progress.value))
    at.child("times").fail("the run made no progress, or more than its time allows",
                           "allowed: 0 < progress <= total - validation");
  const std::int64_t every = life.checkpoint_every;
  if (every > 0 && life.first_step % every != 0)
    at.child("first_step")
        .fail(fmt::format("{} is no multiple of checkpoint_every, {}", life.first_step, every));
  if (life.memory_every > 0 && every % life.memory_every != 0)
    at.child("memory_every")
        .fail(std::to_string(life.memory_every),
              fmt::format("allowed: 0, or a divisor of checkpoint_every, {}", every));
  for (std::size_t i = 0; i < life.faults.size(); ++i) {
    const Fault& f = life.faults[i];
    if (f.step <= life.first_step || f.step > life.steps)
      at.child("faults").child(i).child("step").fail(
          fmt::format("{}", f.step), fmt::format("allowed: {} to {}", life.first_step + 1, life.steps));
  }
  const std::int64_t shortest = life.memory_every > 0 ? life.memory_every : every;
  const double checkpoints =
      shortest > 0 ? static_cast<double>(life.steps) / static_cast<double>(shortest) : 1;
  if (checkpoints * static_cast<double>(life.faults.size() + 1) > kMostCheckpoints)
    at.child("steps").fail(
        fmt::format("{} steps with a checkpoint every {} and {} faults are too many to replay", life.steps,
                    shortest, life.faults.size()));
  return life;
}

// From the other runs; a run that is alone, from itself.
LifeConstants constants_for(const std::vector<RunLife>& lives, std::size_t which) {
  std::vector<RunLife> others = lives;
  if (lives.size() > 1) others.erase(others.begin() + static_cast<std::ptrdiff_t>(which));
  return sim::mean_of(others);
}

void print(const std::vector<Compared>& all, double mean, double worst) {
  std::size_t width = 4;
  for (const Compared& c : all) width = std::max(width, printable(c.file).size());
  fmt::print("{:<{}} {:>5} {:>6} {:>8} {:>9} {:>10} {:>10} {:>7}\n", "run", width, "ranks", "steps",
             "failures", "time", "measured", "predicted", "error");
  for (const Compared& c : all) {
    fmt::print("{:<{}} {:>5} {:>6} {:>8} {:>9} {:>8.1f} % {:>8.1f} % {:>+5.1f} %\n", printable(c.file), width,
               c.life.ranks, c.life.steps - c.life.first_step, c.life.failures,
               format(c.life.times.counted()), 100 * c.measured, 100 * c.predicted, 100 * c.error());
  }
  fmt::print(
      "goodput of {} runs: predicted within {:.1f} % of measured in the mean, {:.1f} % at worst, from {}\n",
      all.size(), 100 * mean, 100 * worst,
      all.size() > 1 ? "what a step, a checkpoint, a restart and a detection took in the other runs"
                     : "what each thing took in the run itself");
}

}  // namespace

bool is_life(const std::string& file) {
  const Json json = load_json(file);
  return json.is_object() && json.value("schema", Json()) == Json(kLifeSchema);
}

void compare_lives(const App& app, const std::vector<std::string>& files) {
  std::vector<RunLife> lives;
  for (const std::string& file : files) {
    lives.push_back(read_life(file));
    if (lives.back().program != lives.front().program)
      Cursor{file, "/program"}.fail(fmt::format("{} is another program than that of {}, {}",
                                                lives.back().program, files.front(), lives.front().program));
  }
  std::vector<Compared> all;
  double sum = 0, worst = 0;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const LifeConstants constants = constants_for(lives, i);
    if (const std::string lack = sim::missing(lives[i], constants); !lack.empty())
      Cursor{files[i], "/faults"}.fail(fmt::format("no other run measured {}", lack),
                                       "allowed: runs of which another has it too");
    const sim::RunModel model = sim::model_of(lives[i], constants);
    const sim::RunOutcome outcome = sim::simulate_run(model, 1, 0, sim::kMostRunEvents);
    all.push_back({files[i], lives[i], sim::goodput(lives[i]), sim::ettr(outcome, model)});
    sum += std::abs(all.back().error());
    worst = std::max(worst, std::abs(all.back().error()));
  }
  const double mean = sum / static_cast<double>(all.size());
  if (!app.json) return print(all, mean, worst);
  Json out = {
      {"schema", "orrery.lives/1"}, {"runs", Json::array()}, {"mean_error", mean}, {"worst_error", worst}};
  for (const Compared& c : all) {
    out["runs"].push_back({{"file", c.file},
                           {"failures", c.life.failures},
                           {"measured", c.measured},
                           {"predicted", c.predicted},
                           {"error", c.error()}});
  }
  print_json(out);
}

}  // namespace orrery::cli
