// SPDX-License-Identifier: Apache-2.0
//
// The ranges of dimensioned fields, in the integers of core/units.h, and the most that files may hold. No
// hardware comes near them. Each keeps something countable:
//
//   times        one event of a step; a step has up to 2^31 of them in a row and may last 53 days
//                (kLongestStep)
//
//   bytes        one device; 2^23 devices (sim/topology/wiring.h) times twice as much is below 2^63
//
//   bandwidths   a petabyte takes 2^30 s at the least, and at the most a picosecond moves a byte of it
//
//   rates        the least makes a step of 2^53 FLOP 53 days long on some devices, which is then said
#pragma once

#include <cstddef>

#include "core/units.h"

namespace orrery::limits {

inline constexpr double kSecond = 1e12;  // ps

// Times: of a hop, a launch or a gap; of one measured op or collective.
inline constexpr double kLongestLatency = 1 * kSecond;
inline constexpr double kLongestOp = 3600 * kSecond;

inline constexpr double kSmallestMemory = 1 << 20, kLargestMemory = 1LL << 50;  // of a device: 1 MiB to 1 PiB
inline constexpr double kLargestBuffer = 1LL << 40;                             // of a bucket: 1 TiB
inline constexpr double kLargestMessage = 1e15;                                 // of a measured collective

inline constexpr double kSlowest = 1e6, kFastest = 1e15;  // bandwidths: 1 MB/s to 1 PB/s
// A dense rate: 1 GFLOP/s to 1000 EFLOP/s.
inline constexpr double kSlowestRate = 1e9, kFastestRate = 1e21;

inline constexpr double kHighestPrice = 1e6 * 1e6;  // micro-dollars: of a node-hour, of a switch port
inline constexpr double kLargestBudget = 1e12 * 1e6;
inline constexpr double kLongestRun = 9'999.0 * 86'400;  // s: 27 years

// Of a model, a plan and a cluster. Ranks (the product of five) and the sequences of a step fit in 64 bits.
inline constexpr double kMostLayers = 10'000, kMostTensorRanks = 1 << 12, kMostChunks = 1024,
                        kMostContextRanks = 1 << 10, kMostReplicas = 1 << 20, kMostIslands = 64,
                        kMostLossChunks = 1 << 12, kMostMicroBatch = 1 << 16, kMostNodes = 1 << 20,
                        kMostInNode = 1024;

// Of a model: so that bytes of parameters, gradients and states fit in 64 bits.
inline constexpr double kMostParameters = 1e15;
inline constexpr std::size_t kMostMtpLayers = 8;

inline constexpr std::size_t kMostChoices =
    64;  // of a list to search: the space is the product of such lists
inline constexpr std::size_t kLongestText = 4096;     // bytes of a name or a remark
inline constexpr std::size_t kLongestWork = 1 << 24;  // bytes of a stage's work (core/schedule_order.h)
inline constexpr std::size_t kMostRemarks = 1024;     // of an `origin`
// Every op that is priced looks through both.
inline constexpr std::size_t kMostFactors = 64, kMostMeasured = 4096;
inline constexpr std::size_t kMostCurves = 256;           // each is weighed for each size of a group
inline constexpr std::size_t kMostInsideCables = 16'384;  // ways through a node are found cable by cable
inline constexpr std::size_t kMostFaults = 65'536;
inline constexpr std::size_t kMostNodeTypes = 16;  // each stage knows which it is on, a bit each
// Elements of a list whose field does not say otherwise.
inline constexpr std::size_t kLongestList = 1'000'000;

}  // namespace orrery::limits
