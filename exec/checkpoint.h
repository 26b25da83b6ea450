// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of trained parameters and their optimizer state; frozen parameters are those that the run
// starts from, whose identity the recipe has. What is stored are parts of logical tensors, so any plan reads
// what any other wrote: a file per rank with the parts that no other rank writes, and an index that says
// which boxes of which tensors they are.
//
// Islands (core/outer.h) have parameters and moments of their own between exchanges: those of each are
// stored, those of the first under the tensors' names. A run goes on with fewer islands, or with more, which
// begin as the first was.
//
//   FOLDER/step-00000120/index.json    step, recipe, tensors, files with their sizes, CRC-32C and pieces,
//                                      and last its own CRC-32C
//                        rank-0.bin    32-bit floats, little-endian
//
// A checkpoint is written under another name and renamed when it is whole; before an old one is removed it is
// renamed back. Reading checks sizes, checksums,
// that the step is the folder's, and that the pieces cover every file and every tensor once; a damaged
// checkpoint is passed over for the one before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fields.h"
#include "exec/loss_scale.h"
#include "exec/terms.h"
#include "program/program.h"

namespace orrery::exec {

// Elements [begin, end) in row-major order of a box of a tensor.
struct Piece {
  std::string tensor;
  std::int64_t state = 0;  // 0: the parameter; 1 and on: arrays of the optimizer's state
  std::int64_t row = 0, rows = 0, col = 0, cols = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t offset = 0;  // elements into the file
};

struct CheckpointFile {
  std::string name;
  std::int64_t bytes = 0, crc32c = 0;
  std::vector<Piece> pieces;
};

struct CheckpointTensor {
  std::string name;
  std::int64_t rows = 0, cols = 0;
};

struct CheckpointIndex {
  std::int64_t step = 0;  // steps done
  Recipe recipe;
  std::int64_t states = 0;                  // arrays kept of each tensor
  LossScale::State loss_scale{.scale = 0};  // zero: the loss was not scaled
  std::vector<std::string> algorithms;      // Executor's, by rank, as hexadecimal digits
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointFile> files;
};

template <class V>
void describe(V& v, Piece& p) {
  constexpr double kMost = 1e15;
  v(Field{.name = "tensor", .help = "logical name", .required = true}, p.tensor);
  v(Field{.name = "state", .help = "0: parameter; then the optimizer's arrays", .min = 0, .max = 8}, p.state);
  v(Field{.name = "row", .help = "first row of the box", .min = 0, .max = kMost}, p.row);
  v(Field{.name = "rows", .help = "rows of the box", .min = 0, .max = kMost}, p.rows);
  v(Field{.name = "col", .help = "first column of the box", .min = 0, .max = kMost}, p.col);
  v(Field{.name = "cols", .help = "columns of the box", .min = 0, .max = kMost}, p.cols);
  v(Field{.name = "begin", .help = "first element of the box, row-major", .min = 0, .max = kMost}, p.begin);
  v(Field{.name = "end", .help = "past its last element", .min = 0, .max = kMost}, p.end);
  v(Field{.name = "offset", .help = "elements into the file", .min = 0, .max = kMost}, p.offset);
}
template <class V>
void describe(V& v, CheckpointFile& f) {
  v(Field{.name = "name", .help = "beside the index", .required = true}, f.name);
  v(Field{.name = "bytes", .help = "size", .min = 0, .max = 1e15, .required = true}, f.bytes);
  v(Field{.name = "crc32c", .help = "CRC-32C of the file", .min = 0, .max = 4294967295.0, .required = true},
    f.crc32c);
  v(Field{.name = "pieces", .help = "what it holds"}, f.pieces);
}
template <class V>
void describe(V& v, CheckpointTensor& t) {
  v(Field{.name = "name", .help = "logical name", .required = true}, t.name);
  v(Field{.name = "rows", .help = "rows", .min = 0, .max = 1e15, .required = true}, t.rows);
  v(Field{.name = "cols", .help = "columns", .min = 0, .max = 1e15, .required = true}, t.cols);
}
template <class V>
void describe(V& v, CheckpointIndex& c) {
  v(Field{.name = "step", .help = "optimizer steps done", .min = 0, .max = 1e15, .required = true}, c.step);
  v(Field{.name = "recipe", .help = "what was trained", .required = true}, c.recipe);
  v(Field{.name = "states", .help = "arrays kept of each tensor", .min = 1, .max = 8, .required = true},
    c.states);
  v(Field{.name = "loss_scale",
          .help = "factor of the loss; 0 where it is not scaled",
          .min = 0,
          .max = 1e30},
    c.loss_scale.scale);
  v(Field{.name = "good_steps", .help = "since the factor changed", .min = 0, .max = 1e15},
    c.loss_scale.good);
  v(Field{.name = "skipped_steps", .help = "whose gradients overflowed", .min = 0, .max = 1e15},
    c.loss_scale.skipped);
  v(Field{.name = "algorithms", .help = "of each rank's products: equal ones compute equal bits"},
    c.algorithms);
  v(Field{.name = "tensors", .help = "logical tensors"}, c.tensors);
  v(Field{.name = "files", .help = "one per rank that writes"}, c.files);
}

// The memory of a unit on a rank: its shard of parameters, from the master copy where there is one, and the
// optimizer's moments one after the other. Nothing of frozen ones.
struct UnitMemory {
  const void* parameters = nullptr;
  DType type = DType::kFloat32;
  const float* moments = nullptr;
  const float* outer = nullptr;  // where there are islands: the anchor, and the outer momentum behind it
};

// Arrays of state of each trained parameter, in fp32 whatever the plan computes in: itself, its moments, and
// what islands exchange. So a run in one precision goes on in another.
std::int64_t state_arrays(const program::Program& program);
std::int64_t arrays_before_outer(const program::Program& program);  // of these, without the last
// Moments of a parameter; Muon has the first alone.
std::int64_t moment_arrays(const program::Program& program, bool muon);

// What a rank stores: its bytes go to `write`, one piece after the other.
CheckpointFile pack_rank(const program::Program& program, std::int64_t rank,
                         const std::vector<UnitMemory>& units,
                         const std::function<void(std::string_view bytes)>& write);
// Writes it to the rank's file in `folder`, and flushes it to the disk. This and what follows throw Error
// with the path and what the system says when the disk is full or fails.
CheckpointFile write_rank(const std::filesystem::path& folder, const program::Program& program,
                          std::int64_t rank, const std::vector<UnitMemory>& units);

// The model's tensors by logical name, without padding: all, those that are trained, and the others.
std::map<std::string, CheckpointTensor> tensors_of(const program::Program& program);
std::map<std::string, CheckpointTensor> trained_tensors_of(const program::Program& program);
std::map<std::string, CheckpointTensor> frozen_tensors_of(const program::Program& program);

// Adds what the program knows: its tensors and arrays of state; and leaves out files that hold nothing.
void complete_index(CheckpointIndex& index, const program::Program& program);

// The index as text whose last key, "checksum", is the CRC-32C of that text with zeros for its eight digits.
std::string with_checksum(Json index);

// The folder to write step `step` into, which one rank makes and others know; and its completion, once all
// files are written.
std::filesystem::path partial_checkpoint(const std::filesystem::path& folder, std::int64_t step);
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder, std::int64_t step);
void finish_checkpoint(const std::filesystem::path& folder, const program::Program& program,
                       CheckpointIndex index);
// Removes what was begun for the step; as much as can be removed.
void drop_partial(const std::filesystem::path& folder, std::int64_t step);
// Of the checkpoints up to step `newest`, removes all but the newest `keep`; 0 keeps all.
void keep_newest(const std::filesystem::path& folder, std::int64_t newest, std::int64_t keep);

// Whether there is any, whole or damaged.
bool has_checkpoints(const std::filesystem::path& folder);
// The steps that the newest would have done, whole or damaged; nothing where there is none.
std::optional<std::int64_t> newest_checkpoint(const std::filesystem::path& folder);

struct RestoredState {
  std::int64_t step = 0;
  Recipe recipe;
  std::string index;  // path of the file that says so; empty: it was in memory
  LossScale::State loss_scale;
  std::vector<std::string> algorithms;
  std::vector<LogicalTensors> states;  // by state
};
// What the index's files hold, which `read` returns, checked as above; throws Error with the place in `root`.
RestoredState restore(const CheckpointIndex& index, const Cursor& root, const program::Program& program,
                      const std::function<std::vector<float>(const CheckpointFile&)>& read);
// The newest whole checkpoint under `folder`; what is wrong with newer ones goes to `passed_over`. Nothing
// when there is none at all; throws Error when there are some, and none is whole.
std::optional<RestoredState> restore_newest(const std::filesystem::path& folder,
                                            const program::Program& program,
                                            std::vector<std::string>& passed_over);

}  // namespace orrery::exec
