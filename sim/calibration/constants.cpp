// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/constants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace orrery::sim {
namespace {

// The fields that are fitted, and how a value gets into a device or a stack.
struct DeviceField {
  const char* field;
  double& (*in)(Device&);
};
constexpr std::array kDeviceFields{
    DeviceField{"/sustained", [](Device& d) -> double& { return d.sustained; }},
    DeviceField{"/attention/backward", [](Device& d) -> double& { return d.attention.backward; }},
    DeviceField{"/attention/flash_2", [](Device& d) -> double& { return d.attention.flash_2; }},
    DeviceField{"/attention/flash_1", [](Device& d) -> double& { return d.attention.flash_1; }},
    DeviceField{"/attention/odd_head", [](Device& d) -> double& { return d.attention.odd_head; }}};
struct StackField {
  const char* field;
  void (*set)(Stack&, double);
};
constexpr std::array kStackFields{
    StackField{"/elementwise_passes", [](Stack& s, double v) { s.elementwise_passes = v; }},
    StackField{"/routing_passes", [](Stack& s, double v) { s.routing_passes = v; }},
    StackField{"/collective_sync", [](Stack& s, double v) { s.collective_sync = from_seconds(v * 1e-6); }},
    StackField{"/handover", [](Stack& s, double v) { s.handover = from_seconds(v * 1e-6); }}};

template <class Fields>
const auto& field_of(const Fields& fields, const Constant& c) {
  const auto at =
      std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return c.field == f.field; });
  if (at == fields.end()) throw std::logic_error("no profile has the field " + c.field);
  return *at;
}

struct Gpu {
  const char* name;
  std::vector<std::string> devices;
};
const std::vector<Gpu>& gpus() {
  // A GPU's siblings with the same cores share its constants. Boards on PCIe have other power limits.
  static const std::vector<Gpu> all{{"A100", {"a100-40gb", "a100-80gb", "a800"}},
                                    {"H100", {"h100-sxm", "h200", "h800", "gh200"}},
                                    {"GB200", {"gb200"}},
                                    {"B200", {"b200"}},
                                    {"B300", {"b300"}},
                                    {"V100", {"v100-16gb", "v100-32gb"}}};
  return all;
}

std::vector<Constant> make_constants() {
  std::vector<Constant> all;
  // `also`: profiles that differ in their clocks, not in their kernels.
  const auto of_gpu = [&](const char* gpu, const char* field, double low, double high, double expected,
                          double spread, const std::vector<std::string>& also = {}) {
    Constant c{.of = gpu,
               .field = field,
               .devices = devices_of_gpu(gpu),
               .low = low,
               .high = high,
               .expected = expected,
               .spread = spread,
               .unit = "1"};
    c.devices.insert(c.devices.end(), also.begin(), also.end());
    all.push_back(std::move(c));
  };
  const auto of_stack = [&](const char* stack, const char* field, double low, double high, double expected,
                            double spread, const char* unit = "1") {
    all.push_back({.of = stack,
                   .field = field,
                   .stacks = {stack},
                   .low = low,
                   .high = high,
                   .expected = expected,
                   .spread = spread,
                   .unit = unit});
  };
  // Clocks of a job of hours over those of a warm benchmark of seconds. A B300's curve is a B200's, whose
  // board has 1,000 W where it has 1,400.
  of_gpu("A100", "/sustained", 0.5, 1.1, 0.85, 0.4);
  // Attention's backward over its forward rate: FlashAttention-2's and 3's papers have 0.7 to 0.85.
  of_gpu("A100", "/attention/backward", 0.5, 0.95, 0.78, 0.32, {"a100-pcie-80gb"});
  // FlashAttention's and FlashAttention-2's rates over the newest, by the papers' figures.
  of_gpu("A100", "/attention/flash_1", 0.3, 1, 0.65, 0.4, {"a100-pcie-80gb"});
  // 16-bit products whose rows are not aligned to 16 bytes run without tensor cores: the peaks' ratio is
  // 0.06.
  of_gpu("A100", "/attention/odd_head", 0.02, 0.5, 0.0625, 0.1, {"a100-pcie-80gb", "v100-16gb", "v100-32gb"});
  of_gpu("H100", "/sustained", 0.5, 1.1, 0.85, 0.4);
  of_gpu("H100", "/attention/backward", 0.5, 0.95, 0.78, 0.32, {"h100-pcie"});
  of_gpu("H100", "/attention/flash_2", 0.3, 1, 0.5, 0.4, {"h100-pcie"});
  of_gpu("H100", "/attention/flash_1", 0.15, 1, 0.35, 0.4, {"h100-pcie"});
  of_gpu("GB200", "/sustained", 0.5, 1.2, 0.85, 0.4);
  of_gpu("B200", "/sustained", 0.5, 1.2, 0.85, 0.4);
  of_gpu("B300", "/sustained", 0.5, 1.4, 1, 0.6);
  of_gpu("V100", "/sustained", 0.3, 1.1, 0.85, 0.4);
  // Memory traffic over that of fully fused kernels. PyTorch's own norms, masks and residuals make two to
  // three passes where fused kernels make one; a compiler fuses most.
  of_stack("megatron-core", "/elementwise_passes", 1, 2.5, 1.4, 1.6);
  of_stack("megatron-core-2024", "/elementwise_passes", 1, 2.5, 1.6, 1.6);
  of_stack("megatron-2021", "/elementwise_passes", 1, 2.5, 1.6, 1.6);
  of_stack("megatron-deepspeed", "/elementwise_passes", 1, 2.5, 1.6, 1.6);
  of_stack("fsdp-2023", "/elementwise_passes", 1, 2.5, 1.8, 1.6);
  of_stack("torchtitan-2024", "/elementwise_passes", 1, 2.5, 1.5, 1.6);
  all.back().stacks.push_back("torchtitan");  // no published run has it
  of_stack("maxtext", "/elementwise_passes", 1, 2, 1.2, 1.2);
  of_stack("internevo", "/elementwise_passes", 1, 2.5, 1.6, 1.6);
  of_stack("megatron-zero-bubble", "/elementwise_passes", 1, 2.5, 1.6, 1.6);
  of_stack("megatron-core", "/routing_passes", 1, 10, 1.5, 4);
  of_stack("megatron-core-2024", "/routing_passes", 1, 10, 3, 6);
  // Software that waits for its device around a collective, or issues a call for each member: a launch and a
  // wait are tens of microseconds.
  of_stack("megatron-deepspeed", "/collective_sync", 0, 200, 100, 100, "us");
  of_stack("internevo", "/collective_sync", 0, 200, 40, 100, "us");
  // Between a transfer of the pipeline and the first kernel behind it: the host returns from the exchange, and
  // launches. Megatron's schedules share their exchanges (p2p_communication.py).
  of_stack("megatron", "/handover", 0, 1000, 200, 400, "us");
  all.back().stacks = {"megatron-core", "megatron-core-2024", "megatron-2021", "megatron-zero-bubble"};
  return all;
}

}  // namespace

std::string Constant::name() const {
  std::string out = of + field;
  std::replace(out.begin(), out.end(), '/', '.');
  return out;
}

bool Constant::concerns(const Problem& problem) const {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return has(stacks, problem.stack.name) ||
         std::any_of(problem.devices.begin(), problem.devices.end(),
                     [&](const Device& d) { return has(devices, d.name); });
}

const std::vector<Constant>& fitted_constants() {
  static const std::vector<Constant> all = make_constants();
  return all;
}

Problem with_constants(Problem problem, std::span<const double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Constant& c = fitted_constants()[i];
    if (!c.concerns(problem)) continue;
    if (!c.stacks.empty()) {
      field_of(kStackFields, c).set(problem.stack, values[i]);
      continue;
    }
    for (Device& d : problem.devices) {
      if (std::find(c.devices.begin(), c.devices.end(), d.name) != c.devices.end())
        field_of(kDeviceFields, c).in(d) = values[i];
    }
  }
  return problem;
}

Json constant_json(const Constant& c, double value) {
  if (c.unit != "1") return fmt::format("{:.0f} {}", value, c.unit);
  return std::stod(fmt::format("{:.3g}", value));
}

std::vector<std::string> devices_of_gpu(std::string_view gpu) {
  const auto at = std::find_if(gpus().begin(), gpus().end(), [&](const Gpu& g) { return g.name == gpu; });
  return at == gpus().end() ? std::vector<std::string>() : at->devices;
}

std::string_view fitted_gpu(std::string_view device) {
  for (const Gpu& g : gpus()) {
    if (std::find(g.devices.begin(), g.devices.end(), device) != g.devices.end()) return g.name;
  }
  return {};
}

}  // namespace orrery::sim
