// SPDX-License-Identifier: Apache-2.0
#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <unordered_map>

#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fused_attention.h"
#include "kernels/cuda/library.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend finds functions here
}

namespace orrery::kernels::cuda {
namespace fe = cudnn_frontend;
namespace {

using reference::AttentionShape;

using kernels::cuda::check;
void check(fe::error_t e, const char* what) {
  if (e.is_bad()) throw Error(std::string(what) + ": " + e.get_message());
}
void check(cudnnStatus_t s, const char* what) {
  if (s != CUDNN_STATUS_SUCCESS) throw Error(std::string(what) + ": " + fe::detail::get_error_string(s));
}

// Loads the library once; false where it is not installed.
bool is_there() {
  static const bool found = [] {
    try {
      static const Library cudnn("libcudnn.so." + std::to_string(CUDNN_MAJOR));
      fe::cudnn_dlhandle = cudnn.handle();
      return true;
    } catch (const Error&) {
      return false;
    }
  }();
  return found;
}

struct Key {
  int device = 0;
  AttentionPass pass{};
  DType type{};
  Index batch = 0, seq = 0, keys = 0, heads = 0, kv = 0, head = 0, value = 0, window = 0;
  bool sees_all = false, apart = false;
  float scale = 0;
  auto operator<=>(const Key&) const = default;
};

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDq, kDk, kDv };

using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// A tensor [batch, heads, tokens, elements] of which a token's heads stand in a row of `width` elements.
struct Placed {
  Index batch, heads, tokens, elements, width;
  void place(const Tensor& t, Uid uid) const {
    t->set_uid(uid)
        .set_dim({batch, heads, tokens, elements})
        .set_stride({tokens * width, elements, width, 1});
  }
  Tensor in(Graph& graph, Uid uid) const {
    Tensor t = graph.tensor(fe::graph::Tensor_attributes());
    place(t, uid);
    return t;
  }
  void out(const Tensor& t, Uid uid) const {
    t->set_output(true);
    place(t, uid);
  }
};

struct Plan {
  std::unique_ptr<Graph> graph;  // none: cuDNN does not serve the shape
  std::size_t workspace = 0;
};

// Queries see all keys, those up to their own, or the last `window` of them.
template <class Options>
void see(Options& options, const AttentionShape& s) {
  options.set_attn_scale(s.scale());
  if (s.sees_all || s.other_seq > 0) return;
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (s.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s.window));
}

class OfThread {
 public:
  OfThread() { check(fe::detail::create_handle(&handle_), "cudnnCreate"); }
  ~OfThread() { (void)fe::detail::destroy_handle(handle_); }
  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;

  const Plan& plan(AttentionPass pass, DType type, const AttentionShape& s) {
    Key key{.pass = pass,
            .type = type,
            .batch = s.batch,
            .seq = s.seq,
            .keys = s.keys(),
            .heads = s.heads,
            .kv = s.kv,
            .head = s.head,
            .value = s.value_head(),
            .window = s.window,
            .sees_all = s.sees_all,
            .apart = s.other_seq > 0,
            .scale = s.scale()};
    check(cudaGetDevice(&key.device), "cudaGetDevice");
    const auto [at, added] = plans_.try_emplace(key);
    if (added) at->second = make(pass, type, s);
    return at->second;
  }

  void run(Stream stream, const Plan& plan, std::unordered_map<std::int64_t, void*> tensors,
           Workspace workspace) {
    check(fe::detail::set_stream(handle_, stream), "cudnnSetStream");
    check(plan.graph->execute(handle_, tensors, workspace.memory), "cuDNN's attention");
  }

 private:
  Plan make(AttentionPass pass, DType type, const AttentionShape& s) {
    auto graph = std::make_unique<Graph>();
    graph->set_io_data_type(type == DType::kBfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Placed queries{s.batch, s.heads, s.seq, s.head, s.query_width()},
        keys{s.batch, s.kv, s.keys(), s.head, s.key_width()},
        values{s.batch, s.kv, s.keys(), s.value_head(), s.key_width()},
        outs{s.batch, s.heads, s.seq, s.value_head(), s.heads * s.value_head()};
    const auto of_queries = [&](const Tensor& t) {
      t->set_uid(kLse)
          .set_dim({s.batch, s.heads, s.seq, 1})
          .set_stride({s.heads * s.seq, s.seq, 1, 1})
          .set_data_type(fe::DataType_t::FLOAT);
    };
    const Tensor q = queries.in(*graph, kQ), k = keys.in(*graph, kK), v = values.in(*graph, kV);
    if (pass == AttentionPass::kForward) {
      auto options = fe::graph::SDPA_attributes().set_generate_stats(true);
      see(options, s);
      const auto [out, lse] = graph->sdpa(q, k, v, options);
      outs.out(out, kOut);
      lse->set_output(true);
      of_queries(lse);
    } else {
      auto options = fe::graph::SDPA_backward_attributes().set_deterministic_algorithm(true);
      see(options, s);
      const Tensor lse = graph->tensor(fe::graph::Tensor_attributes());
      of_queries(lse);
      const auto [dq, dk, dv] =
          graph->sdpa_backward(q, k, v, outs.in(*graph, kOut), outs.in(*graph, kDOut), lse, options);
      queries.out(dq, kDq);
      keys.out(dk, kDk);
      values.out(dv, kDv);
    }
    if (graph->build(handle_, {fe::HeurMode_t::A}).is_bad()) return {};
    const auto bytes = static_cast<std::size_t>(graph->get_workspace_size());
    return {std::move(graph), bytes};
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

OfThread& of_thread() {
  thread_local OfThread of;
  return of;
}

// Keys' and values' heads stand behind the queries', or in rows of their own.
template <class Pointer>
Pointer moved(Pointer rows, Index elements) {
  using Element =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::uint16_t, std::uint16_t>;
  return static_cast<Element*>(rows) + elements;
}

}  // namespace

std::string fused_attention_version() {
  if (!is_there()) return {};
  const std::size_t v = fe::detail::get_backend_version();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

std::optional<std::size_t> fused_attention_workspace(AttentionPass pass, DType type,
                                                     const AttentionShape& s) {
  if (!is_half(type) || s.materialised || s.drops() || s.cap > 0 || s.packed || !is_there())
    return std::nullopt;
  const Plan& plan = of_thread().plan(pass, type, s);
  if (plan.graph == nullptr) return std::nullopt;
  return plan.workspace;
}

void fused_attention(Stream stream, DType type, const AttentionShape& s,
                     reference::AttentionRows<const void*> rows, void* out, float* lse, Workspace workspace) {
  const auto in = [](const void* p) { return const_cast<void*>(p); };
  of_thread().run(stream, of_thread().plan(AttentionPass::kForward, type, s),
                  {{kQ, in(rows.q)},
                   {kK, in(moved(rows.kv, s.first_of_keys()))},
                   {kV, in(moved(rows.kv, s.first_of_values()))},
                   {kOut, out},
                   {kLse, lse}},
                  workspace);
}

void fused_attention_grad(Stream stream, DType type, const AttentionShape& s,
                          reference::AttentionRows<const void*> rows, const void* out, const float* lse,
                          const void* d_out, reference::AttentionRows<void*> d_rows, Workspace workspace) {
  const auto in = [](const void* p) { return const_cast<void*>(p); };
  of_thread().run(stream, of_thread().plan(AttentionPass::kBackward, type, s),
                  {{kQ, in(rows.q)},
                   {kK, in(moved(rows.kv, s.first_of_keys()))},
                   {kV, in(moved(rows.kv, s.first_of_values()))},
                   {kOut, in(out)},
                   {kLse, const_cast<float*>(lse)},
                   {kDOut, in(d_out)},
                   {kDq, d_rows.q},
                   {kDk, moved(d_rows.kv, s.first_of_keys())},
                   {kDv, moved(d_rows.kv, s.first_of_values())}},
                  workspace);
}

}  // namespace orrery::kernels::cuda
