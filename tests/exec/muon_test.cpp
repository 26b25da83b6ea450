// SPDX-License-Identifier: Apache-2.0
//
// Muon on ranks: its updates are those of whole matrices, whatever ranks hold parts of them.
#include <Eigen/Dense>
#include <filesystem>
#include <map>

#include "exec/checkpoint.h"
#include "tests/exec/small_model.h"

namespace orrery {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr float kRate = 0.01F;
constexpr float kDecay = 0.5F;

Training muon_training(const Muon& muon = {}) {
  return {.global_batch = kBatch,
          .sequence = 8,
          .precision = Precision::kFp32,
          .math = Math::kFp32,
          .muon = muon};
}

exec::RunResult one_muon_step(const Model& m, const Plan& p, const Training& t, float rate) {
  exec::RunOptions o = small_run(1);
  o.learning_rate = rate;
  o.weight_decay = kDecay;
  return train(m, p, t, stack(), o);
}

// What a step takes from a matrix: rate (decay W + 0.2 sqrt(longer side) X), X five iterations of U / |U|. In
// the first step U is 1.95 times the gradient.
Matrix taken_by_muon(const Matrix& weights, const Matrix& gradient) {
  Matrix x = gradient / gradient.norm();
  for (int i = 0; i < 5; ++i) {
    const Matrix a = x * x.transpose();
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a * a) * x;
  }
  const auto longer = static_cast<double>(std::max(x.rows(), x.cols()));
  return kRate * (kDecay * weights + 0.2 * std::sqrt(longer) * x);
}

Matrix rows_of(const std::vector<float>& values, std::int64_t first, std::int64_t rows,
               std::int64_t columns) {
  Matrix out(rows, columns);
  for (std::int64_t i = 0; i < rows * columns; ++i)
    out(i / columns, i % columns) = values[static_cast<std::size_t>(first * columns + i)];
  return out;
}

// Logical tensors of a model whose matrices are stacked: the rows of each.
std::map<std::string, program::Parameter> tensors_by_name(const Model& m, const Training& t) {
  std::map<std::string, program::Parameter> out;
  const program::Program whole = program::compile(m, plan(1, 1, 1, 0), t, stack());
  for (const program::Parameter& p : whole.classes.front().parameters) out[p.name] = p;
  return out;
}

TEST(Muon, MovesEachMatrixByItsOrthogonalisedGradient) {
  for (const char* kind : {"tiny-llama", "tiny-gpt", "experts"}) {
    const Model m = tiny_of(kind);
    std::vector<Plan> plans{plan(1, 1, 1, 0), sp(plan(2, 2, 2, 1)), plan(1, 1, 4, 3), plan(4, 1, 2, 2),
                            plan(1, 2, 4, 1)};
    if (m.name == "experts") {
      Plan apart = plan(2, 1, 4, 1);
      apart.ep = 2;
      apart.etp = 2;
      apart.expert_room = ExpertsLayer{.experts = 4, .top_k = 2}.most_shares(2);
      plans.push_back(apart);
    }
    const auto tensors = tensors_by_name(m, muon_training());
    for (const Plan& p : plans) {
      const auto before = one_muon_step(m, p, muon_training(), 0).parameters;
      const auto after = one_muon_step(m, p, muon_training(), kRate);
      int matrices = 0, others = 0;
      for (const auto& [name, tensor] : tensors) {
        const bool of_layer = name.starts_with("layer") && tensor.cols > 1;
        EXPECT_EQ(tensor.muon, of_layer) << name;
        if (!of_layer) {
          ++others;
          continue;
        }
        std::int64_t first = 0;
        for (const std::int64_t rows : tensor.row_blocks) {
          const Matrix w = rows_of(before.at(name), first, rows, tensor.cols),
                       g = rows_of(after.gradients.at(name), first, rows, tensor.cols),
                       moved = w - rows_of(after.parameters.at(name), first, rows, tensor.cols);
          first += rows;
          if (g.norm() == 0) continue;  // no token came to the expert
          ++matrices;
          const Matrix expected = taken_by_muon(w, g);
          EXPECT_LT((moved - expected).norm() / expected.norm(), 2e-3)
              << kind << " " << name << " of " << short_name(p);
        }
      }
      EXPECT_GT(matrices, 20);
      EXPECT_GT(others, 8);
    }
  }
}

// Both halves of a gated MLP as one matrix, whatever tensor ranks have of each.
TEST(Muon, MovesGatesTogetherOnRequest) {
  for (const char* kind : {"tiny-llama", "experts"}) {
    const Model m = tiny_of(kind);
    const Training t = muon_training({.gates = MuonGates::kTogether});
    const auto tensors = tensors_by_name(m, t);
    for (const Plan& p : {plan(1, 1, 1, 0), sp(plan(2, 1, 2, 1))}) {
      const auto before = one_muon_step(m, p, t, 0).parameters;
      const auto after = one_muon_step(m, p, t, kRate);
      int gates = 0;
      for (const auto& [name, tensor] : tensors) {
        if (!name.ends_with("fc1/weight")) continue;
        ASSERT_EQ(tensor.row_blocks.size() % 2, 0U) << name;
        for (std::size_t i = 0; i < tensor.row_blocks.size(); i += 2) {
          const std::int64_t rows = 2 * tensor.row_blocks[i], first = static_cast<std::int64_t>(i) / 2 * rows;
          const Matrix w = rows_of(before.at(name), first, rows, tensor.cols),
                       g = rows_of(after.gradients.at(name), first, rows, tensor.cols),
                       moved = w - rows_of(after.parameters.at(name), first, rows, tensor.cols);
          if (g.norm() == 0) continue;
          ++gates;
          const Matrix expected = taken_by_muon(w, g);
          EXPECT_LT((moved - expected).norm() / expected.norm(), 2e-3)
              << kind << " " << name << " of " << short_name(p);
          const Matrix half = taken_by_muon(w.topRows(rows / 2), g.topRows(rows / 2));
          EXPECT_GT((moved.topRows(rows / 2) - half).norm() / half.norm(), 0.05) << "two matrices";
        }
      }
      EXPECT_GE(gates, 4);
    }
  }
}

// Embedding, head, norms and biases are AdamW's: as without Muon, to the bit.
TEST(Muon, LeavesTheRestToAdam) {
  const Model m = tiny("tiny-gpt");
  Training adam = muon_training();
  adam.muon.reset();
  for (const Plan& p : {plan(1, 1, 1, 0), plan(1, 2, 2, 1)}) {
    const auto with = one_muon_step(m, p, muon_training(), kRate).parameters,
               without = one_muon_step(m, p, adam, kRate).parameters;
    for (const auto& [name, tensor] : tensors_by_name(m, muon_training()))
      EXPECT_EQ(with.at(name) == without.at(name), !tensor.muon) << name << " of " << short_name(p);
  }
}

// A tensor rank takes its part for a matrix. Of the product that ends attention, whose columns two ranks
// share, each half moves as a matrix of its own; and so no more as the whole.
TEST(Muon, BlockwiseTakesPartsForMatrices) {
  const Model m = tiny("tiny-llama");
  const Training t = muon_training({.tp_mode = MuonTpMode::kBlockwise});
  const Plan p = sp(plan(2, 1, 2, 1));
  const auto before = one_muon_step(m, p, t, 0).parameters;
  const auto after = one_muon_step(m, p, t, kRate);
  const std::string name = "layer1/attn/out/weight";
  const program::Parameter tensor = tensors_by_name(m, t).at(name);
  ASSERT_EQ(tensor.cols, 32);
  const auto all = [&](const std::vector<float>& of) { return rows_of(of, 0, tensor.rows, tensor.cols); };
  const Matrix w = all(before.at(name)), g = all(after.gradients.at(name)),
               moved = w - all(after.parameters.at(name));
  for (const std::int64_t half : {0, 16}) {
    const Matrix expected = taken_by_muon(w.middleCols(half, 16), g.middleCols(half, 16));
    EXPECT_LT((moved.middleCols(half, 16) - expected).norm() / expected.norm(), 2e-3) << half;
  }
  const Matrix whole = taken_by_muon(w, g);
  EXPECT_GT((moved - whole).norm() / whole.norm(), 0.05);
}

// Matrices are computed whole, so shards of them give the bits of the whole, in 16 bits too.
TEST(Muon, ShardsGiveTheBitsOfTheWhole) {
  for (const Precision precision : {Precision::kMixed, Precision::kMegatron, Precision::kNoMaster}) {
    Training t = muon_training();
    t.precision = precision;
    t.math = Math::kBf16;
    const Model m = tiny("tiny-llama");
    const auto expected = train(m, plan(1, 1, 4, 0), t, stack());
    const auto actual = train(m, plan(1, 1, 4, 1), t, stack());
    EXPECT_EQ(actual.steps[1].loss, expected.steps[1].loss) << name_of(precision);
    EXPECT_TRUE(actual.parameters == expected.parameters) << name_of(precision);
    t.muon->momentum = 0.5;
    EXPECT_FALSE(train(m, plan(1, 1, 4, 0), t, stack()).parameters == expected.parameters);
  }
}

// Norms and biases fill a unit through a whole chunk, beside those of matrices, which come and go: the two
// have places of their own for whole gradients and parameters.
TEST(Muon, UnitsThatAreOpenTogetherDoNotMeet) {
  for (const char* kind : {"tiny-gpt", "tiny-llama", "experts"}) {
    Model m = tiny_of(kind);
    if (m.blocks.empty()) m.layers = 8;
    const auto gradients = [&](std::int64_t zero, std::int64_t bucket) {
      Stack s = stack();
      s.bucket = Bytes{bucket};
      return train(m, plan(1, 1, 2, zero), muon_training(), s, small_run(1)).gradients;
    };
    const auto expected = gradients(0, 1 << 30);
    for (const std::int64_t zero : {1, 2, 3}) {
      for (const std::int64_t bucket : {1, 20000, 60000}) {
        for (const auto& [name, values] : gradients(zero, bucket)) {
          std::vector<float> off = values;
          for (std::size_t i = 0; i < off.size(); ++i) off[i] -= expected.at(name)[i];
          EXPECT_LE(norm_of(off), 1e-5 * norm_of(expected.at(name)) + 1e-9)
              << kind << " " << name << " zero " << zero << " bucket " << bucket;
        }
      }
    }
  }
}

// A checkpoint has one moment of a matrix and two of all else; a run goes on from it to the bit, and so does
// one under another plan but for roundings.
TEST(Muon, GoesOnFromACheckpoint) {
  const auto folder = std::filesystem::temp_directory_path() / ("orrery-muon-" + std::to_string(::getpid()));
  const Model m = tiny("tiny-llama");
  const auto program_of = [&](const Plan& p) { return program::compile(m, p, muon_training(), stack()); };
  for (const Plan& p : {plan(1, 2, 2, 1), plan(2, 1, 2, 3)}) {
    std::filesystem::remove_all(folder);
    exec::RunOptions o = small_run(4);
    const auto expected = exec::run(program_of(p), o);
    o.steps = 2;
    o.checkpoints = folder;
    o.checkpoint_every = 2;
    exec::run(program_of(p), o);
    o.steps = 4;
    o.resume = true;
    o.checkpoint_every = 0;
    const auto actual = exec::run(program_of(p), o);
    ASSERT_EQ(actual.first_step, 2);
    EXPECT_TRUE(actual.parameters == expected.parameters) << short_name(p);
    EXPECT_EQ(actual.steps[1].loss, expected.steps[3].loss);
    const auto elsewhere = exec::run(program_of(plan(4, 1, 2, 1)), o);
    EXPECT_NEAR(elsewhere.steps[1].loss, expected.steps[3].loss, 1e-4);
    // AdamW is another training, which goes on only when it is forced to; second moments begin as zeros.
    Training adam = muon_training();
    adam.muon.reset();
    const auto other = program::compile(m, p, adam, stack());
    try {
      exec::run(other, o);
      ADD_FAILURE() << "went on";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find("update"), std::string::npos) << e.what();
    }
    o.force = true;
    EXPECT_EQ(exec::run(other, o).first_step, 2);
    // Elements of three arrays, without the second moments of matrices.
    std::int64_t elements = 0, bytes = 0;
    for (const auto& [name, tensor] : tensors_by_name(m, muon_training()))
      elements += (tensor.muon ? 2 : 3) * (tensor.rows - tensor.padding) * tensor.cols;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
      if (file.path().extension() == ".bin") bytes += static_cast<std::int64_t>(file.file_size());
    }
    EXPECT_EQ(bytes, 4 * elements) << short_name(p);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace orrery
