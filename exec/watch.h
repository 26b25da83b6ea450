// SPDX-License-Identifier: Apache-2.0
//
// What is odd about a run, from what all ranks say after every step: replicas that train on the same data,
// ranks whose data come late, ranks that compute slowly, a slow start. Internal to exec/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace orrery::exec {

class Watch {
 public:
  // `sequences`: of the data that a run trains on. `crowded`: ranks share cores, so that how long each of
  // them computes says nothing of it; slow ranks are not looked for.
  Watch(const program::Program& program, std::int64_t sequences, std::int64_t steps, bool crowded);

  struct Seen {
    double computing_s = 0;        // of the step, as PassTimes has it
    double waited_for_data_s = 0;  // in the step
    std::uint32_t batch = 0;       // checksum of the tokens it loaded; zero where it sees none
  };
  // What rank r saw of a step; then how long the step took.
  void see(std::int64_t rank, const Seen& seen);
  void end_step(double seconds);

  // A sentence each.
  std::vector<std::string> alerts() const;

 private:
  void same_data(std::vector<std::string>& out) const;
  void late_data(std::vector<std::string>& out) const;
  void slow_ranks(std::vector<std::string>& out) const;
  void slow_start(std::vector<std::string>& out) const;

  const Mesh& mesh_;
  std::int64_t sequences_, batch_;
  bool crowded_;
  std::vector<Seen> sums_;             // by rank, over steps
  std::vector<std::uint32_t> now_;     // by rank: this step's batch
  std::vector<std::int64_t> shared_;   // by rank: steps in which an earlier replica had its batch
  std::vector<std::int64_t> differs_;  // by rank: steps in which its first tensor rank had another batch
  std::vector<double> seconds_;
};

}  // namespace orrery::exec
