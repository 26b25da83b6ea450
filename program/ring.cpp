// SPDX-License-Identifier: Apache-2.0
//
// Ring attention (Liu et al. 2023, arXiv:2310.01889): keys and values go around a ring of ranks, and each
// rank attends to those that it has at the time. The next ones arrive while it does. In the backward pass
// their gradients go around with them, a step behind, and come home after as many steps as there are ranks.
#include <fmt/format.h>

#include "program/emitter.h"

namespace orrery::program {
namespace {

ops::ContextShape step_of(ops::ContextShape shape, std::int64_t step) {
  shape.step = step;
  return shape;
}

}  // namespace

std::string Emitter::step_name(const std::string& of, std::int64_t step, const char* suffix) const {
  return named_ ? fmt::format("{}/step{}{}", of, step, suffix) : std::string();
}

Ref Emitter::shifted(const std::string& name, Ref from, std::int64_t elements) {
  const DType type = training.activation_type();
  const Ref to{activation(name, elements, type)};
  collective({CollectiveKind::kShift, elements}, name, groups_[static_cast<std::size_t>(GraphAxis::kRing)],
             static_cast<std::int64_t>(bytes_of(type)), {from}, {to});
  return to;
}

void Emitter::ring_attention(const std::string& name, const ops::ContextAttention& op,
                             const std::vector<Ref>& reads, Ref out, Ref lse) {
  Ref kv = reads[1];
  const Ref sums{activation(named_ ? name + "/sums" : std::string(), op.context(), DType::kFloat32)};
  for (std::int64_t i = 0; i < op.steps; ++i) {
    const ops::ContextAttention step{step_of(op, i)};
    const Ref next = step.last() ? kv : shifted(step_name(name, i, "/shift"), kv, op.keys());
    std::vector<Ref> of_step{reads[0], kv};
    if (!step.first()) of_step.insert(of_step.end(), {sums, lse});
    if (op.of_documents()) of_step.push_back(reads[2]);
    add(step, step_name(name, i, ""), std::move(of_step), {step.last() ? out : sums, lse});
    kv = next;
  }
}

void Emitter::ring_attention_grad(const std::string& name, const ops::ContextAttentionGrad& op,
                                  const std::vector<Ref>& reads, Ref dq, Ref dkv) {
  const std::int64_t elements = op.keys(),
                     bytes = static_cast<std::int64_t>(bytes_of(training.activation_type()));
  Ref kv = reads[1], travels{};
  for (std::int64_t i = 0; i < op.steps; ++i) {
    const ops::ContextAttentionGrad step{step_of(op, i)};
    const Ref next = step.last() ? kv : shifted(step_name(name, i, "/shift"), kv, elements);
    const Ref arrived = step.first() ? travels : shifted(step_name(name, i, "/shift-dkv"), travels, elements);
    const Ref own{activation(step_name(name, i, "/dkv"), elements, training.activation_type())};
    std::vector<Ref> of_step = reads;
    of_step[1] = kv;
    add(step, step_name(name, i, ""), std::move(of_step), {dq, own}).accumulate = !step.first();
    if (!step.first())
      add(ops::Accumulate{elements, bytes}, step_name(name, i, "/add-dkv"), {arrived, own}, {own});
    travels = own;
    kv = next;
  }
  collective({CollectiveKind::kShift, elements}, step_name(name, op.steps, "/shift-dkv"),
             groups_[static_cast<std::size_t>(GraphAxis::kRing)], bytes, {travels}, {dkv});
}

}  // namespace orrery::program
