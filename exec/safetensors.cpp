// SPDX-License-Identifier: Apache-2.0
#include "exec/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/fields.h"
#include "core/json.h"
#include "exec/data_file.h"
#include "kernels/cpu/fast.h"

namespace orrery::exec {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLengthBytes = 8;
constexpr std::int64_t kLargestHeader = 100'000'000;  // the format's own bound
constexpr std::array kTensorTypes{std::pair{DType::kFloat32, "F32"}, std::pair{DType::kBfloat16, "BF16"},
                                  std::pair{DType::kFloat16, "F16"}};

std::optional<DType> type_of(const std::string& name) {
  for (const auto& [type, known] : kTensorTypes) {
    if (name == known) return type;
  }
  return std::nullopt;
}
const char* name_of_type(DType type) {
  const auto known = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                  [&](const auto& of) { return of.first == type; });
  if (known == kTensorTypes.end()) throw Error("weights are 32-bit or 16-bit floats");
  return known->second;
}

std::int64_t whole(const Json& json, const Cursor& at) {
  std::int64_t value = 0;
  read_value(json, at, Field{.name = "", .help = "", .min = 0, .max = 9e15}, value);
  return value;
}

// Of a header that says so; of it, `data` bytes follow.
TensorFiles::Tensor tensor_of(const Json& json, const Cursor& at, std::size_t data) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets") || !json.at("dtype").is_string())
    at.fail("is not a tensor", "allowed: an object with dtype, shape and data_offsets");
  TensorFiles::Tensor out;
  const Json &shape = json.at("shape"), &offsets = json.at("data_offsets");
  out.named = json.at("dtype").get<std::string>();
  out.type = type_of(out.named);
  if (!shape.is_array() || shape.size() > 8)
    at.child("shape").fail(shown(shape) + " is not a shape", "allowed: up to 8 sizes");
  std::int64_t elements = 1;
  constexpr std::int64_t kMostElements = std::int64_t{1} << 50;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out.shape.push_back(whole(shape[i], at.child("shape").child(i)));
    if (out.shape.back() > 0 && elements > kMostElements / out.shape.back())
      at.child("shape").fail("has too many elements");
    elements *= out.shape.back();
  }
  if (!offsets.is_array() || offsets.size() != 2)
    at.child("data_offsets").fail(shown(offsets) + " is not a range", "allowed: [begin, end]");
  const std::int64_t begin = whole(offsets[0], at.child("data_offsets").child(0)),
                     end = whole(offsets[1], at.child("data_offsets").child(1));
  if (begin > end || end > static_cast<std::int64_t>(data))
    at.child("data_offsets").fail(fmt::format("lie outside the {} bytes of data", data));
  if (out.type && end - begin != elements * static_cast<std::int64_t>(bytes_of(*out.type)))
    at.child("data_offsets")
        .fail(fmt::format("hold {} bytes, and the shape has {}", end - begin,
                          elements * static_cast<std::int64_t>(bytes_of(*out.type))));
  out.offset = static_cast<std::size_t>(begin);
  out.bytes = static_cast<std::size_t>(end - begin);
  return out;
}

// The file, or a folder's.
fs::path file_of(const fs::path& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) return path;
  for (const char* const name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(path / name, none)) return path / name;
  }
  throw InputError(path.string(), "", "has no weights",
                   "allowed: a folder with model.safetensors or model.safetensors.index.json");
}

}  // namespace

TensorFiles::TensorFiles(const fs::path& path) {
  open(file_of(path));
}
TensorFiles::~TensorFiles() = default;
TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;

void TensorFiles::open(const fs::path& path) {
  if (path.extension() == ".json") {
    const Json index = load_json(path);
    const Cursor map = Cursor{path.string(), ""}.child("weight_map");
    if (!index.is_object() || !index.contains("weight_map") || !index.at("weight_map").is_object())
      map.fail("is missing", "allowed: the file of each tensor");
    std::set<std::string> names;
    for (const auto& [tensor, file] : index.at("weight_map").items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : std::string();
      // Files stand beside the index.
      if (name.empty() || name != fs::path(name).filename() || !name.ends_with(".safetensors"))
        map.child(tensor).fail(shown(file) + " is not a file beside the index", "allowed: *.safetensors");
      names.insert(name);
    }
    for (const std::string& name : names) open(path.parent_path() / name);
    return;
  }
  auto file = std::make_unique<DataFile>(path.string());
  const Cursor at{path.string(), ""};
  std::uint64_t length = 0;
  if (file->bytes() < kLengthBytes) at.fail("is too short for weights in the safetensors format");
  file->read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > file->bytes() - kLengthBytes || length > static_cast<std::uint64_t>(kLargestHeader))
    at.fail(
        fmt::format("says that its header has {} bytes, and the file has {}", length, file->bytes()),
        fmt::format("allowed: the safetensors format, with a header of at most {} bytes", kLargestHeader));
  std::string text(static_cast<std::size_t>(length), '\0');
  file->read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const Json header = parse_json(text, path.string(), kLargestHeader);
  if (!header.is_object()) at.fail("has no header of tensors");
  const std::size_t first = kLengthBytes + text.size();
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") continue;
    Tensor tensor = tensor_of(json, at.child(name), file->bytes() - first);
    tensor.file = files_.size();
    tensor.offset += first;
    if (!tensors_.emplace(name, std::move(tensor)).second) at.child(name).fail("is in another file too");
  }
  paths_.push_back(path.string());
  files_.push_back(std::move(file));
}

std::vector<float> TensorFiles::read(const Tensor& t) const {
  if (!t.type)
    throw InputError(path_of(t), "", fmt::format("{} is not read", shown(Json(t.named))),
                     "allowed: F32, BF16, F16");
  std::vector<float> out(t.bytes / bytes_of(*t.type));
  if (!is_half(*t.type)) {
    files_[t.file]->read(t.offset, std::as_writable_bytes(std::span(out)));
    return out;
  }
  std::vector<std::uint16_t> narrow(out.size());
  files_[t.file]->read(t.offset, std::as_writable_bytes(std::span(narrow)));
  kernels::widen(*t.type, std::ssize(out), narrow.data(), out.data());
  return out;
}

void write_tensor_file(const fs::path& path, const std::vector<NamedTensor>& tensors, DType type) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};  // what readers of the format look for
  std::size_t offset = 0;
  for (const NamedTensor& t : tensors) {
    const std::size_t end = offset + t.values.size() * bytes_of(type);
    append(header, t.name,
           {{"dtype", name_of_type(type)}, {"shape", t.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements are aligned
  const std::uint64_t length = text.size();
  std::error_code failed;
  const fs::file_status there = fs::symlink_status(path, failed);
  const bool in_place = fs::exists(there) && !fs::is_regular_file(there);
  const fs::path partial = path.string() + (in_place ? "" : ".partial");
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::vector<std::uint16_t> narrow;
  for (const NamedTensor& t : tensors) {
    const void* bytes = t.values.data();
    if (is_half(type)) {
      narrow.resize(t.values.size());
      kernels::narrow(type, static_cast<std::int64_t>(t.values.size()), t.values.data(), narrow.data());
      bytes = narrow.data();
    }
    file.write(static_cast<const char*>(bytes),
               static_cast<std::streamsize>(t.values.size() * bytes_of(type)));
  }
  file.close();
  failed.clear();
  if (file && !in_place) fs::rename(partial, path, failed);
  if (file && !failed) return;
  const std::string why = failed ? failed.message() : std::strerror(errno);
  if (!in_place) fs::remove(partial, failed);
  throw Error(fmt::format("{} cannot be written: {}", path.string(), why));
}

}  // namespace orrery::exec
