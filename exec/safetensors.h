// SPDX-License-Identifier: Apache-2.0
//
// Files of tensors in the safetensors format (github.com/huggingface/safetensors): the length of a header in
// 8 bytes, the header in JSON (of each tensor type, shape and place), and the tensors' elements,
// little-endian, row by row. A model in several files has an index that says which file has which tensor.
//
//   const TensorFiles files("model/");                    // or model.safetensors, or its index
//   std::vector<float> w = files.read("lm_head.weight");  // 16-bit elements are widened
//   write_tensor_file("model.safetensors", {{"lm_head.weight", {vocab, hidden}, w}}, DType::kBfloat16);
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace orrery::exec {

class DataFile;

class TensorFiles {
 public:
  // Of a file, of an index (*.json), or of a folder with model.safetensors or its index. Throws InputError,
  // with the file and the tensor, where a header is wrong: no size is trusted that the file does not have.
  explicit TensorFiles(const std::filesystem::path& path);
  ~TensorFiles();
  TensorFiles(TensorFiles&&) noexcept;

  struct Tensor {
    std::string named;          // its type, as the file has it
    std::optional<DType> type;  // 32-bit or 16-bit floats; others are not read
    std::vector<std::int64_t> shape;
    std::size_t file = 0, offset = 0, bytes = 0;
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& path_of(const Tensor& t) const { return paths_[t.file]; }
  // Throws InputError where the type is not read, and Error where the file was truncated meanwhile.
  std::vector<float> read(const Tensor& t) const;

 private:
  void open(const std::filesystem::path& path);

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<DataFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
// Elements are rounded to `type`, 32-bit or 16-bit floats. The file is there when it is whole; a link, or
// what is not a regular file, is written in place. Throws Error.
void write_tensor_file(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       DType type);

}  // namespace orrery::exec
