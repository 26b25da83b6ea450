// SPDX-License-Identifier: Apache-2.0
//
// Fits a device profile and a cluster to measured timelines of programs that ran on them.
//
// Ops are told apart by kind and shape; a shape counts with the mean of its instances that ran without a
// collective beside them, without the twentieth that took longest, and at least the longest of three. Matrix
// products and collectives: the parameters of their formulas that minimise the squared logarithms of model
// over measurement, by one-dimensional searches in turn (Brent). Attention: its efficiency, in closed form.
// Other ops: a factor on the memory model for each kind. What shapes took, collectives among them, is kept
// beside the formulas, which then serve shapes that were not measured. Slow-downs under overlap: instances
// that ran beside a collective over instances of the same shape that did not.
#pragma once

#include <string>
#include <vector>

#include "core/cluster.h"
#include "core/device.h"
#include "core/timeline.h"
#include "program/program.h"

namespace orrery::sim {

struct MeasuredRun {
  const program::Program* program;
  const Timeline* timeline;  // of that program
  std::string file = {};     // that errors name
};

struct CalibrationRow {
  std::string op;
  std::int64_t shapes = 0, instances = 0;
  double seconds = 0;            // of all instances
  double before = 0, after = 0;  // median |model / measured - 1| over shapes, formulas alone
};

struct Calibration {
  Device device;
  Cluster cluster;
  LinkProfile links;                 // the cluster's, with what collectives took by kind, members and size
  std::vector<CalibrationRow> rows;  // by measured time, largest first
  double overlapped_s = 0;           // compute time beside collectives, which the slow-downs come from
};

// `device` and `cluster` are where the fit begins and what is not fitted. Throws InputError when a timeline
// does not belong to its program, and Error when there is no compute in any.
Calibration calibrate(const Device& device, const Cluster& cluster, const std::vector<MeasuredRun>& runs);

}  // namespace orrery::sim
