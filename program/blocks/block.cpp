// SPDX-License-Identifier: Apache-2.0
//
// A block of the model: its layers, joined to the residual stream as its form says.
//
// What the backward pass reads of a transformer layer, and so what is kept, in bytes for 16-bit elements and
// dropout (Korthikanti et al. 2022, section 4): x, n1, y, n2 2sbh each and two masks sbh: 10 sbh; qkv, ctx,
// u, v 6+2+8+8 = 24 sbh/t; scores 5 a s^2 b / t. tests/program/memory_test.cpp adds them up.
#include <algorithm>

#include "program/blocks.h"

namespace orrery::program {
namespace {

// The part that a whole layer is.
RecomputeParts part_of(const AttentionLayer&) {
  return {};
}
RecomputeParts part_of(const LatentAttentionLayer&) {
  return {};
}
RecomputeParts part_of(const CrossAttentionLayer&) {
  return {};
}
RecomputeParts part_of(const MlpLayer&) {
  return RecomputePart::kMlp;
}
RecomputeParts part_of(const ExpertsLayer&) {
  return RecomputePart::kExperts;
}

class BlockGraph {
 public:
  BlockGraph(Builder& g, const ModelBlock& b) : g_(g), block_(b) {
    for (const Layer& l : b.layers) {
      const std::string base = std::visit([](const auto& layer) { return layer.kTensors; }, l.is);
      const auto before = std::count_if(bases_.begin(), bases_.end(),
                                        [&](const std::string& other) { return other.starts_with(base); });
      bases_.push_back(before == 0 ? base : base + std::to_string(before + 1));
    }
  }

  // From the block's input to its output.
  ValueId run(ValueId x) {
    switch (block_.form) {
      case BlockForm::kPreNorm:
      case BlockForm::kSandwichNorm:
      case BlockForm::kPostNorm:
        return in_turn(x);
      case BlockForm::kParallel:
      case BlockForm::kParallelOneNorm:
        return beside_each_other(x);
    }
    return kNoValue;
  }

 private:
  std::size_t layers() const { return bases_.size(); }
  Branch layer(std::size_t i, ValueId x) {
    return std::visit(
        [&](const auto& l) {
          const Builder::InPart part(g_, part_of(l));
          return branch(g_, bases_[i], l, x);
        },
        block_.layers[i].is);
  }
  // Of the norm before layer i.
  RecomputeParts norm_parts(std::size_t i) const {
    const bool in_product =
        g_.stack.norms_in_products &&
        std::visit([](const auto& l) { return l.kBeginsInProducts; }, block_.layers[i].is);
    return in_product ? RecomputeParts() : RecomputePart::kNorms;
  }
  ValueId norm_before(const std::string& name, std::size_t i, ValueId x) {
    const Builder::InPart part(g_, norm_parts(i));
    return g_.norm(name, x);
  }
  // Whether the norm before layer i is one op with the sum that it is taken of. A norm that is repeated
  // without that sum is not.
  bool joins_norm(std::size_t i) const {
    return g_.stack.fused_residual_norms && !g_.training.drops() &&
           (norm_parts(i) & g_.plan.repeated()).empty();
  }
  // What a layer adds to x, complete over tensor ranks where it is scaled.
  Branch scaled(const std::string& base, ValueId x, const Branch& b) {
    if (g_.model.residual_scale == 1) return b;
    if (!b.biases.empty()) throw std::logic_error("biases beside what is scaled");
    const Placements whole = g_.placement(x);
    const ValueId y = g_.value(base + "/residual/scaled", g_.model.hidden, whole);
    g_.node(base + "/residual/scale", ops::Scale{g_.rows * g_.model.hidden, g_.model.residual_scale},
            {g_.use(b.value, whole)}, {y});
    return {y, {}};
  }
  // x + a branch, after so many of the layers.
  ValueId join(std::size_t done, ValueId x, const Branch& branch) {
    const std::string& base = bases_[done - 1];
    const Branch b = scaled(base, x, branch);
    return g_.residual(base, x, b, done == layers() ? "out" : base + "/residual/out",
                       static_cast<std::int64_t>(done));
  }

  ValueId in_turn(ValueId x) {
    const bool before = block_.form != BlockForm::kPostNorm, after = block_.form != BlockForm::kPreNorm;
    ValueId n = before ? norm_before(bases_[0] + "/norm", 0, x) : x;
    for (std::size_t i = 0; i < layers(); ++i) {
      Branch b = layer(i, n);
      if (after) b = {g_.norm(bases_[i] + "/post_norm", b.value), {}};
      const std::size_t next = i + 1;
      if (before && next < layers() && joins_norm(next)) {
        const Builder::Normed both =
            g_.residual_norm(bases_[next] + "/norm", x, scaled(bases_[i], x, b), bases_[i] + "/residual/out");
        x = both.sum;
        n = both.norm;
        continue;
      }
      x = join(next, x, b);
      n = before && next < layers() ? norm_before(bases_[next] + "/norm", next, x) : x;
    }
    return x;
  }

  // Branches are partial sums over tensor ranks: one collective completes the sum of all. Dropout acts on
  // each by itself, and an op takes no more than two biases.
  ValueId beside_each_other(ValueId x) {
    const bool one = block_.form == BlockForm::kParallelOneNorm;
    std::vector<Branch> branches;
    ValueId n = kNoValue;
    for (std::size_t i = 0; i < layers(); ++i) {
      if (i == 0 || !one) n = norm_before(one ? "norm" : bases_[i] + "/norm", i, x);
      branches.push_back(layer(i, n));
    }
    std::size_t biases = 0;
    for (const Branch& b : branches) biases += b.biases.size();
    if (g_.training.drops() || biases > ops::Residual::kMostBiases) {
      for (std::size_t i = 0; i < layers(); ++i) x = join(i + 1, x, branches[i]);
      return x;
    }
    Branch all = branches.front();
    for (std::size_t i = 1; i < layers(); ++i) {
      all.value = g_.sum(bases_[i] + "/sum", all.value, branches[i].value);
      all.biases.insert(all.biases.end(), branches[i].biases.begin(), branches[i].biases.end());
    }
    return join(layers(), x, all);
  }

  Builder& g_;
  const ModelBlock& block_;
  std::vector<std::string> bases_;  // of names, by layer
};

}  // namespace

Graph model_block(const Model& m, const ModelBlock& block, const BlockTowers& towers, const Plan& p,
                  const Training& t, const Stack& s, std::vector<RotaryUse>& rotary) {
  Builder g(m, p, t, s, Builder::Part::kLayer, &rotary);
  g.in_tower(towers.own);
  ValueId x = BlockGraph(g, block).run(g.input(towers.own));
  if (block.final_norm) x = g.norm("final_norm", x);
  g.output(towers.own, x);
  return g.finish();
}

}  // namespace orrery::program
