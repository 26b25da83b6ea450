// SPDX-License-Identifier: Apache-2.0
#include "trace/kineto.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/trace/traces.h"
#include "trace/merge.h"

namespace orrery::trace {
namespace {

constexpr const char* kKineto = R"({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3},
  "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4321, "tid": 4321, "ts": 1000.0, "dur": 900.5},
  {"ph": "X", "cat": "Trace", "name": "Profiler", "pid": "Spans", "tid": "PyTorch", "ts": 1, "dur": 9},
  {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 7"}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1010.5, "dur": 20},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1040.5, "dur": 10},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "pid": 0, "tid": 20,
   "ts": 1025.5, "dur": 80},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 9, "ts": 1000.25, "dur": 0.5},
  {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 1010.5, "cat": "ac2g", "name": "ac2g"}]})";

Timeline alone(const Json& trace) {
  return merge(from_kineto(trace, "trace")).timeline;
}
std::string name_in(const Timeline& t, const Slice& s) {
  return t.names[static_cast<std::size_t>(s.name)];
}

TEST(Kineto, SaysWhatDevicesDid) {
  const Timeline t = alone(parse_json(kKineto, "trace"));
  EXPECT_EQ(t.source, "measured: PyTorch profiler");
  EXPECT_EQ(t.rank_labels, std::vector<std::string>{"rank 3, GPU 0"});
  EXPECT_EQ(t.streams, (std::vector<std::string>{"compute", "stream 20, NCCL", "stream 9"}));
  ASSERT_EQ(t.slices.size(), 4U);  // nothing of the host
  EXPECT_EQ(name_in(t, t.slices[0]), "gemm");
  EXPECT_EQ(t.slices[0].stream, 0);
  EXPECT_EQ(t.slices[0].start, Time{10'250'000});  // the copy was the first, at 1000.25 us
  EXPECT_EQ(t.slices[0].end, Time{30'250'000});
  EXPECT_EQ(t.slices[2].stream, 1);
  EXPECT_EQ(t.classes, (std::vector{OpClass::kProduct, OpClass::kAllReduce, OpClass::kCopy}));
  // Saved, it is one of ours, and says the same.
  const Timeline back = from_chrome_trace(parse_json(to_chrome_trace(t), "trace"), "trace");
  EXPECT_EQ(back.slices, t.slices);
  EXPECT_EQ(back.rank_labels, t.rank_labels);
  EXPECT_EQ(back.classes, t.classes);
  EXPECT_EQ(from_binary(to_binary(t), "t").classes.size(), t.classes.size());
}

TEST(Kineto, SlipsAreNamed) {
  const auto message = [](const char* key, const Json& value) -> std::string {
    Json trace = parse_json(kKineto, "trace");
    trace["traceEvents"][3][key] = value;
    try {
      (void)alone(trace);
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  EXPECT_EQ(message("tid", 7), "");
  EXPECT_NE(message("tid", "seven").find("/traceEvents/3/tid"), std::string::npos);
  EXPECT_NE(message("dur", -1).find("/traceEvents/3/dur"), std::string::npos);
  EXPECT_NE(message("ts", "now").find("/traceEvents/3/ts"), std::string::npos);
  EXPECT_NE(message("ts", 1e16).find("/traceEvents/3/ts"), std::string::npos);
  EXPECT_NE(message("ts", 3e15).find("23 days"), std::string::npos);
  EXPECT_NE(message("ts", -2000).find("/traceEvents/3/ts"), std::string::npos);
  EXPECT_NE(message("dur", 1e17).find("/traceEvents/3/dur"), std::string::npos);
  EXPECT_NE(message("name", 5).find("/traceEvents/3/name"), std::string::npos);
}

// A device may lag by most of a step: the kernel that starts in the second step was launched in the first.
TEST(Kineto, KernelsAreOfTheStepThatLaunchedThem) {
  KinetoRank rank(0, 0);
  rank.step(7, 0, 100).step(8, 100, 200);
  rank.kernel("gemm", 7, 150, 10, 90);  // launched at 60
  rank.kernel("gemm", 7, 170, 10, 20);  // at 150
  // A second thread names a step once more, later: it is the same step.
  rank.step(8, 120, 130);
  const Timeline t = alone(rank.trace());
  ASSERT_EQ(t.slices.size(), 2U);
  EXPECT_EQ(t.segments[static_cast<std::size_t>(t.slices[0].segment)], "ProfilerStep#7");
  EXPECT_EQ(t.segments[static_cast<std::size_t>(t.slices[1].segment)], "ProfilerStep#8");
  EXPECT_EQ(merge(from_kineto(rank.trace(), "trace")).steps, 2);
}

TEST(Kineto, CollectivesSayTheirSize) {
  KinetoRank rank(0, 0);
  rank.collective("allreduce", "[0, 1]", 1 << 20, 10, 5);
  rank.collective("_allgather_base", "[0, 1]", 1 << 10, 30, 5)["args"]["Out msg nelems"] = 1 << 11;
  rank.collective("alltoallv", "[0, 1]", 1 << 20, 50, 5)["args"]["dtype"] = "Float8_e4m3fn";
  const Timeline t = alone(rank.trace());
  ASSERT_EQ(t.slices.size(), 3U);
  EXPECT_EQ(name_in(t, t.slices[0]), "all-reduce, 2097152 B (ncclDevKernel_AllReduce_Sum_bf16_RING_LL)");
  const auto payload = [&](std::size_t i) { return t.payloads[static_cast<std::size_t>(t.slices[i].name)]; };
  const auto class_at = [&](std::size_t i) { return t.classes[static_cast<std::size_t>(t.slices[i].name)]; };
  EXPECT_EQ(payload(0), 2 << 20);  // 2^20 elements of 2 bytes
  EXPECT_EQ(payload(1), 2 << 11);  // the whole, which is the output
  EXPECT_EQ(payload(2), 1 << 20);
  EXPECT_EQ(class_at(0), OpClass::kAllReduce);
  EXPECT_EQ(class_at(1), OpClass::kAllGather);
  EXPECT_EQ(class_at(2), OpClass::kAllToAll);
}

// Versions before 2022: capitals, streams as texts of threads, whole microseconds since 1970.
TEST(Kineto, OldTracesAreRead) {
  const Json trace = parse_json(R"({"traceEvents": [
    {"ph": "X", "cat": "Kernel", "name": "volta_sgemm_64x64_nt", "pid": 1, "tid": "stream 7",
     "ts": 1623143089861000, "dur": 30, "args": {"stream": 7, "correlation": 5}},
    {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD", "pid": 1, "tid": "stream 9", "ts": 1623143089861100, "dur": 0,
     "args": {"stream": 9}}]})",
                                "trace");
  ASSERT_TRUE(is_kineto(trace));
  const Timeline t = alone(trace);
  ASSERT_EQ(t.slices.size(), 2U);
  EXPECT_EQ(t.slices[0].end - t.slices[0].start, Time{30'000'000});
  EXPECT_EQ(t.slices[1].start, Time{100'000'000});
  EXPECT_EQ(t.classes, (std::vector{OpClass::kProduct, OpClass::kCopy}));
}

TEST(Kineto, KernelsAreKnownByTheirNames) {
  const std::vector<std::pair<const char*, OpClass>> kKnown{
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", OpClass::kAllGather},
      {"ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", OpClass::kReduceScatter},
      {"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", OpClass::kSendReceive},
      {"ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", OpClass::kBroadcast},
      {"void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>", OpClass::kAllToAll},
      {"void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>",
       OpClass::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80", OpClass::kAttention},
      {"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", OpClass::kProduct},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", OpClass::kProduct},
      {"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32", OpClass::kProduct},
      {"void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_dptp128c_acc::GemmKernel>",
       OpClass::kProduct},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
       OpClass::kElementwise},
      {"void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", OpClass::kOptimizer},
      {"void layer_norm::ln_fwd_tuned_kernel<layer_norm::Kernel_traits>", OpClass::kElementwise},
      {"moe_permute_topK_kernel", OpClass::kRouting},
      {"void vllm::fused_add_rms_norm_kernel<vllm::_typeConvert<c10::BFloat16>>", OpClass::kElementwise},
      {"triton_red_fused_convolution_native_layer_norm_0", OpClass::kElementwise},
      {"multimem_all_reduce_kernel", OpClass::kAllReduce},
      {"bmm_Bfloat16_Bfloat16_t128x8x128", OpClass::kProduct},
      {"ncclDevKernel_Generic_1", OpClass::kUnknown}};
  for (const auto& [name, is] : kKnown) EXPECT_EQ(class_of_kernel(name), is) << name;
  EXPECT_EQ(class_of_collective("_allgather_base"), OpClass::kAllGather);
  EXPECT_EQ(class_of_collective("reduce_scatter_tensor_coalesced"), OpClass::kReduceScatter);
  EXPECT_EQ(class_of_collective("all_to_allv"), OpClass::kAllToAll);
  EXPECT_EQ(class_of_collective("barrier"), OpClass::kUnknown);
  EXPECT_TRUE(names_step("ProfilerStep#12"));
  EXPECT_TRUE(names_step("iteration 12"));
  EXPECT_TRUE(names_step("Step_3"));
  EXPECT_FALSE(names_step("stepping"));
  EXPECT_FALSE(names_step("step"));
  EXPECT_FALSE(names_step("step 3 of 4"));
}

}  // namespace
}  // namespace orrery::trace
