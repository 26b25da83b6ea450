// SPDX-License-Identifier: Apache-2.0
//
// What others watch of a run: a file in Prometheus' text format, replaced after each step, and TensorBoard
// scalars.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::exec {

struct Scalar {
  std::string_view name;  // "loss", "gradient_norm", ..
  std::string_view help;
  double value;
};

// https://prometheus.io/docs/instrumenting/exposition_formats: gauges named orrery_NAME. The file is replaced
// as a whole, so a scraper never reads half of it. Throws Error when it cannot be written.
void write_prometheus(const std::string& path, const std::vector<Scalar>& scalars);

// An event file of TensorBoard in `folder`, which is made: records of a length, the event as protocol buffers
// message tensorflow.Event, and masked CRC-32C of both. Throws Error when it cannot be written.
class TensorBoard {
 public:
  explicit TensorBoard(const std::string& folder);
  void write(std::int64_t step, const std::vector<Scalar>& scalars);

 private:
  void record(const std::string& event);
  std::string path_;
  std::ofstream file_;
};

}  // namespace orrery::exec
