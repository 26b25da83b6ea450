// SPDX-License-Identifier: Apache-2.0
//
// The host of a node's devices: the links to it, its memory, its processors and its drives, as far as
// offloading needs them. Bandwidths are nominal, per direction for the link.
#pragma once

#include <optional>

#include "core/fields.h"

namespace orrery {

// All NVMe drives of a node together, of large sequential accesses.
struct Drives {
  Bytes capacity;
  Bandwidth read, write;
  double efficiency = 0.9;  // achieved over nominal
  friend bool operator==(const Drives&, const Drives&) = default;
};

template <class V>
void describe(V& v, Drives& d) {
  v(Field{.name = "capacity",
          .help = "of all drives of the node",
          .min = limits::kSmallestMemory,
          .max = 1024.0 * limits::kLargestMemory,
          .required = true},
    d.capacity);
  v(Field{.name = "read",
          .help = "of all drives of the node",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    d.read);
  v(Field{.name = "write",
          .help = "of all drives of the node",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    d.write);
  v(Field{.name = "efficiency", .help = "achieved over nominal", .min = 0.01, .max = 1}, d.efficiency);
}

struct Host {
  Bandwidth link;                     // of one device to the host's memory: PCIe, NVLink-C2C
  std::int64_t devices_per_link = 1;  // devices behind one PCIe switch share what is above it
  double link_efficiency = 0.8;       // achieved over nominal, large copies of pinned memory
  Bytes memory;                       // of the node
  Bandwidth memory_bandwidth;         // of the node
  double memory_efficiency = 0.75;    // achieved over nominal, of what all its processors stream
  std::optional<Drives> nvme;         // none: it is not known, and nothing lies on them
  friend bool operator==(const Host&, const Host&) = default;
};

template <class V>
void describe(V& v, Host& h) {
  v(Field{.name = "link",
          .help = "one device to the host's memory, one direction",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    h.link);
  v(Field{.name = "devices_per_link",
          .help = "devices that share one link, behind one PCIe switch",
          .min = 1,
          .max = limits::kMostInNode},
    h.devices_per_link);
  v(Field{.name = "link_efficiency", .help = "achieved over nominal, large copies", .min = 0.01, .max = 1},
    h.link_efficiency);
  v(Field{.name = "memory",
          .help = "memory of the node",
          .min = limits::kSmallestMemory,
          .max = 1024.0 * limits::kLargestMemory,
          .required = true},
    h.memory);
  v(Field{.name = "memory_bandwidth",
          .help = "memory bandwidth of the node",
          .min = limits::kSlowest,
          .max = limits::kFastest,
          .required = true},
    h.memory_bandwidth);
  v(Field{.name = "memory_efficiency",
          .help = "achieved over nominal, of what all processors of the node stream",
          .min = 0.01,
          .max = 1},
    h.memory_efficiency);
  v(Field{.name = "nvme", .help = "the node's NVMe drives"}, h.nvme);
}

}  // namespace orrery
