// SPDX-License-Identifier: Apache-2.0
//
// The first byte: what nccl-tests printed, a link profile, a device profile, a stack. Any bytes are read, or
// an InputError.
#include <cstdint>
#include <string>

#include "core/scenario.h"
#include "sim/collective/collective.h"
#include "sim/collective/nccl_tests.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  if (size == 0) return 0;
  static const DataFolders folders{std::filesystem::path(ORRERY_ROOT)};
  static const Cluster cluster = load_cluster("dgx-h100", {}, {}, folders);
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  const Cursor at{"fuzz.json", ""};
  const auto use = [](const LinkProfile& links) {
    Cluster c = cluster;
    static_cast<ScaleUp&>(c) = c.measured = links;
    const sim::Topology topology(c);
    for (const auto& [kind, name] : enum_names(CollectiveKind{}))
      (void)sim::CollectiveModel(c).cost(kind, Bytes{1 << 20}, topology.group(8, 1));
  };
  try {
    switch (data[0] % 4) {
      case 0:
        use({.measured = {sim::read_nccl_tests(text, at.file, {}, 0)}});
        break;
      case 1:
        use(read_links(parse_json(text, at.file), at));
        break;
      case 2:
        (void)read_fields<Device>(parse_json(text, at.file), at);
        break;
      default:
        (void)read_fields<Stack>(parse_json(text, at.file), at);
    }
  } catch (const Error&) {
  }
  return 0;
}
