// SPDX-License-Identifier: Apache-2.0
//
// Tensors in device memory for tests, whether the device is a GPU or the emulated one.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/cpu/fast.h"

namespace orrery::kernels {

using Vector = std::vector<float>;

inline void require(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

// A stream, and memory that lives as long.
class TestDevice {
 public:
  TestDevice() { require(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0)); }
  ~TestDevice() {
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    for (void* m : memory_) (void)cudaFree(m);
  }
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  // What was never written holds NaN.
  void* allocate(std::size_t bytes) {
    void* m = nullptr;
    require(cudaMalloc(&m, bytes));
    require(cudaMemsetAsync(m, 0xff, bytes, stream));
    memory_.push_back(m);
    return m;
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    void* const m = allocate(values.size() * sizeof(T));
    require(cudaMemcpyAsync(m, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
    require(cudaStreamSynchronize(stream));
    return static_cast<T*>(m);
  }
  void* put(DType type, const Vector& values) {
    if (type == DType::kFloat32) return put(values);
    std::vector<std::uint16_t> bits(values.size());
    narrow(type, static_cast<Index>(values.size()), values.data(), bits.data());
    return put(bits);
  }
  template <class T>
  std::vector<T> get(const void* from, std::size_t n) {
    std::vector<T> out(n);
    require(cudaMemcpyAsync(out.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
    require(cudaStreamSynchronize(stream));
    return out;
  }
  Vector get(DType type, const void* from, std::size_t n) {
    if (type == DType::kFloat32) return get<float>(from, n);
    const auto bits = get<std::uint16_t>(from, n);
    Vector out(n);
    widen(type, static_cast<Index>(n), bits.data(), out.data());
    return out;
  }

  cudaStream_t stream = nullptr;

 private:
  std::vector<void*> memory_;
};

}  // namespace orrery::kernels
