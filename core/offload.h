// SPDX-License-Identifier: Apache-2.0
//
// What a plan keeps in the memory of the devices' hosts in place of their own, and on the hosts' drives.
//
//   optimizer          so much of what is trained has its master copy and moments there, and the host's
//                      processors update it: gradients go to the host, parameters come back (ZeRO-Offload,
//                      Ren et al. 2021, arXiv:2101.06840)
//   parameters         ZeRO-3: ranks keep their shards there, and fetch each before all ranks gather it; the
//                      host updates all of them (ZeRO-Infinity, Rajbhandari et al. 2021, arXiv:2104.07857)
//   activation_layers  the first so many layers of each chunk keep there what their backward pass reads
//   nvme               what of these lies on the node's NVMe drives: the optimizer's state, or that and the
//                      shards of parameters (all). The host reads a unit's part before it updates the unit,
//                      and writes it back; shards pass through the host's memory on their way to the device
//   overlap            copies run beside the host's updates, unit by unit; without it all gradients are
//                      copied, then all is updated, then all parameters are copied; and each unit is read
//                      from the drives, updated and written before the next one is read
//
// Copies between a device and its host, and between that and the drives, run in streams of their own, one for
// each direction.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/fields.h"

namespace orrery {

enum class OnDrives { kNothing, kOptimizer, kAll };
constexpr auto enum_names(OnDrives) {
  return std::array{std::pair{OnDrives::kNothing, "nothing"}, std::pair{OnDrives::kOptimizer, "optimizer"},
                    std::pair{OnDrives::kAll, "all"}};
}

struct Offload {
  double optimizer = 0;  // share of the elements that a rank updates, 0 to 1
  bool parameters = false;
  std::int64_t activation_layers = 0;
  OnDrives nvme = OnDrives::kNothing;
  bool overlap = true;
  friend bool operator==(const Offload&, const Offload&) = default;
};

template <class V>
void describe(V& v, Offload& o) {
  v(Field{.name = "optimizer",
          .help = "share of the optimizer's state that lies in the host's memory and is updated there",
          .min = 0,
          .max = 1},
    o.optimizer);
  v(Field{.name = "parameters", .help = "whether ZeRO-3's shards of parameters lie in the host's memory too"},
    o.parameters);
  v(Field{.name = "activation_layers",
          .help = "layers of each chunk, the first ones, whose activations wait for the backward pass in the "
                  "host's memory",
          .min = 0,
          .max = limits::kMostLayers},
    o.activation_layers);
  v(Field{.name = "nvme",
          .help = "what of the optimizer's state and the parameters lies on the node's NVMe drives"},
    o.nvme);
  v(Field{.name = "overlap", .help = "whether copies run beside the host's updates"}, o.overlap);
}

}  // namespace orrery
