// SPDX-License-Identifier: Apache-2.0
//
// Products that sum a bias gradient beside a weight's, on a GPU and on the emulated device, as cuda_test.cpp.
#include <unistd.h>

#include <array>
#include <filesystem>

#include "core/json.h"
#include "kernels/cuda/gemm.h"
#include "tests/kernels/closeness.h"

namespace orrery::kernels {
namespace {

using cuda::GemmShape;

// dW [m,n] = du' x of so many rows, with the sums of du's columns.
GemmShape weight_gradient(DType operands, DType result, bool accumulate, Index rows) {
  return {.m = 48,
          .n = 40,
          .k = rows,
          .transpose_a = true,
          .accumulate = accumulate,
          .epilogue = cuda::Epilogue::kBiasGrad,
          .operands = operands,
          .result = result};
}

void expect_both_gradients(TestDevice& device, cuda::Gemms& gemms, const GemmShape& s) {
  const Tensor du(device, s.operands, s.k * s.m, 1), x(device, s.operands, s.k * s.n, 2),
      dw(device, s.result, s.m * s.n, 3), db(device, s.result, s.m, 4, 10);
  Vector dw_here(dw.values), db_here(db.values);
  reference::gemm({s.m, s.n, s.k, true, false, s.accumulate}, du.data(), x.data(), nullptr, dw_here.data());
  reference::bias_grad(s.k, s.m, du.data(), db_here.data(), s.accumulate);
  const std::size_t bytes = cuda::bias_grad_workspace(s.k, s.m);
  gemms.run(device.stream, s,
            {.a = du.at,
             .b = x.at,
             .c = dw.at,
             .bias_gradient = db.at,
             .workspace = {device.allocate(bytes), bytes}});
  // A library that adds what it summed in 16 bits rounds twice.
  expect_close(s.result, device.get(s.result, dw.at, dw_here.size()), dw_here, "weight gradient");
  expect_close(s.result, device.get(s.result, db.at, db_here.size()), db_here, "bias gradient");
}

TEST(BiasGradientsOfProducts, AreTheSumsOfTheReference) {
  TestDevice device;
  std::vector<GemmShape> shapes;
  for (const auto& [operands, result] : {std::pair{DType::kFloat32, DType::kFloat32},
                                         {DType::kBfloat16, DType::kFloat32},
                                         {DType::kBfloat16, DType::kBfloat16},
                                         {DType::kFloat16, DType::kFloat16}}) {
    for (const bool accumulate : {false, true})
      shapes.push_back(weight_gradient(operands, result, accumulate, 320));
  }
  cuda::Gemms gemms(device.stream, shapes, 32 << 20);
  EXPECT_EQ(gemms.plans(), shapes.size());
  for (const GemmShape& s : shapes) expect_both_gradients(device, gemms, s);
}

#ifdef ORRERY_EMULATED_GPU
// Where the library does not have the epilogue, kernels of ours sum: the file of choices says so here. By the
// library it is the product and a sum with what is there; apart, the product and two kernels.
TEST(BiasGradientsOfProducts, AreSummedApartWhereTheLibraryDoesNot) {
  namespace fs = std::filesystem;
  const auto file = [](const char* name) {
    return fs::temp_directory_path() / (name + std::to_string(::getpid()) + ".json");
  };
  const fs::path with = file("orrery-with-"), without = file("orrery-without-");
  fs::remove(with);
  TestDevice device;
  const std::array shapes{weight_gradient(DType::kBfloat16, DType::kFloat32, false, 336),
                          weight_gradient(DType::kBfloat16, DType::kFloat32, true, 336)};
  cuda::Gemms fused(device.stream, shapes, 32 << 20, with);
  Json json = load_json(with);
  for (Json& product : json["products"]) product["fused"] = false;
  save_json(without, json);
  cuda::Gemms apart(device.stream, shapes, 32 << 20, without);
  EXPECT_NE(fused.hash(), apart.hash());
  const auto launches = [&](cuda::Gemms& gemms, const GemmShape& s) {
    const std::int64_t before = emulation::work_enqueued();
    expect_both_gradients(device, gemms, s);
    return emulation::work_enqueued() - before;
  };
  EXPECT_EQ(launches(fused, shapes[0]), 1);
  EXPECT_EQ(launches(fused, shapes[1]), 2);
  EXPECT_EQ(launches(apart, shapes[0]), 3);
  EXPECT_EQ(launches(apart, shapes[1]), 3);
  fs::remove(with);
  fs::remove(without);
}
#endif

}  // namespace
}  // namespace orrery::kernels
