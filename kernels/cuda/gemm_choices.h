// SPDX-License-Identifier: Apache-2.0
//
// Which algorithm runs a product. It is chosen once in a process, by measuring, so that runs in it compute
// the same bits; a file keeps the choices for other processes on devices of the same kind.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "kernels/cuda/gemm.h"

namespace orrery::kernels::cuda {

struct GemmChoice {
  bool fused = false;                        // its epilogue is the library's; else a kernel comes after it
  std::array<std::uint64_t, 8> algorithm{};  // as the library describes it
};

class GemmChoices {
 public:
  // `library`: what describes algorithms, and the device that they are for.
  explicit GemmChoices(std::string library) : library_(std::move(library)) {}

  std::mutex lock;  // held around all that follows, and while algorithms are measured

  // Products are told apart by text.
  const GemmChoice* find(const std::string& product) const;
  void add(const std::string& product, const GemmChoice& choice) { of_[product] = choice; }

  // Takes the choices of a file, where there is one and it was not read before. Throws InputError where it is
  // no such file, or is of another library or device.
  void read(const std::filesystem::path& path);
  void write(const std::filesystem::path& path) const;

 private:
  std::string library_;
  std::map<std::string, GemmChoice> of_;
  std::filesystem::path read_;  // the last
};

// "768x768x65536 bf16->f32 t- +": of the shape, and of the search: `tried` algorithms with this much memory.
std::string text_of(const GemmShape& shape, int tried, std::size_t workspace);

// Another number where another algorithm runs the product.
std::uint64_t hash_of(const std::string& product, const GemmChoice& choice);

}  // namespace orrery::kernels::cuda
