// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gemm_choices.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <vector>

#include "core/fields.h"
#include "core/hash.h"
#include "core/json.h"

namespace orrery::kernels::cuda {
namespace {

constexpr const char* kSchema = "orrery.gemm-cache/1";

struct Entry {
  std::string product, algorithm;  // the latter as hexadecimal digits
  bool fused = false;
};
template <class V>
void describe(V& v, Entry& e) {
  v(Field{.name = "product", .help = "shape, types and epilogue", .required = true}, e.product);
  v(Field{.name = "fused", .help = "whether the library computes the epilogue"}, e.fused);
  v(Field{.name = "algorithm", .help = "as the library describes it", .required = true}, e.algorithm);
}
struct File {
  std::string library;
  std::vector<Entry> products;
};
template <class V>
void describe(V& v, File& f) {
  v(Field{.name = "library", .help = "and the device", .required = true}, f.library);
  v(Field{.name = "products", .help = "and what runs them", .most = 1U << 20}, f.products);
}

constexpr std::size_t kDigits = 16;  // of a number of 64 bits

GemmChoice choice_of(const Entry& e, const Cursor& at) {
  GemmChoice out{.fused = e.fused};
  bool read = e.algorithm.size() == kDigits * out.algorithm.size();
  for (std::size_t i = 0; read && i < out.algorithm.size(); ++i) {
    const char *const begin = e.algorithm.data() + i * kDigits, *const end = begin + kDigits;
    const auto [stop, wrong] = std::from_chars(begin, end, out.algorithm[i], 16);
    read = wrong == std::errc() && stop == end;
  }
  if (!read) {
    at.child("algorithm")
        .fail(fmt::format("\"{}\" is no algorithm", e.algorithm),
              fmt::format("allowed: {} hexadecimal digits", kDigits * out.algorithm.size()));
  }
  return out;
}

const char* name_of(DType t) {
  switch (t) {
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat64:
      return "fp64";
    case DType::kBfloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kInt32:
      return "int32";
    case DType::kByte:
      return "byte";
  }
  return "";
}

const char* name_of(Epilogue e) {
  switch (e) {
    case Epilogue::kNone:
      return "";
    case Epilogue::kGelu:
      return " gelu";
    case Epilogue::kGeluGrad:
      return " gelu-grad";
    case Epilogue::kBiasGrad:
      return " bias-grad";
  }
  return "";
}

const char* name_of(Fp8Product p) {
  switch (p) {
    case Fp8Product::kNo:
      return "";
    case Fp8Product::kValues:
      return " in fp8";
    case Fp8Product::kGradient:
      return " in fp8, of a gradient";
  }
  return "";
}

}  // namespace

const GemmChoice* GemmChoices::find(const std::string& product) const {
  const auto found = of_.find(product);
  return found == of_.end() ? nullptr : &found->second;
}

void GemmChoices::read(const std::filesystem::path& path) {
  if (read_ == path) return;
  read_ = path;
  if (!std::filesystem::exists(path)) return;
  Json json = load_json(path);
  const Cursor root{path.string(), ""};
  if (!json.is_object() || json.value("schema", Json()) != kSchema)
    root.fail("keeps no algorithms of products", fmt::format("allowed: schema \"{}\"", kSchema));
  json.erase("schema");
  const auto file = read_fields<File>(json, root);
  if (file.library != library_) {
    root.child("library").fail(fmt::format("\"{}\"", file.library),
                               fmt::format("allowed: \"{}\", which runs here, or another file", library_));
  }
  for (std::size_t i = 0; i < file.products.size(); ++i)
    of_[file.products[i].product] = choice_of(file.products[i], root.child("products").child(i));
}

void GemmChoices::write(const std::filesystem::path& path) const {
  File file{.library = library_};
  for (const auto& [product, choice] : of_) {
    std::string digits;
    for (const std::uint64_t word : choice.algorithm) digits += fmt::format("{:016x}", word);
    file.products.push_back({product, digits, choice.fused});
  }
  Json json = {{"schema", kSchema}};
  json.update(write_fields(file));
  save_json(path, json);
}

std::string text_of(const GemmShape& s, int tried, std::size_t workspace) {
  std::string rows;
  if (s.lda > 0 || s.ldb > 0 || s.ldc > 0 || s.alpha != 1)
    rows = fmt::format(" {} times, of rows {} {} {}", s.alpha, s.row_of_a(), s.row_of_b(), s.row_of_c());
  return fmt::format("{}x{}x{} {}->{} {}{}{}{}{}{}{}{} at {}, of {} in {}", s.m, s.n, s.k,
                     name_of(s.operands), name_of(s.result), s.transpose_a ? 't' : '-',
                     s.transpose_b ? 't' : '-', s.accumulate ? " +" : "", s.bias ? " bias" : "",
                     s.tf32 ? " tf32" : "", name_of(s.epilogue), name_of(s.fp8), rows, s.alignment, tried,
                     workspace);
}

std::uint64_t hash_of(const std::string& product, const GemmChoice& choice) {
  std::uint64_t h = mix(choice.fused ? 1 : 0);
  for (const char c : product) h = mix(h ^ static_cast<unsigned char>(c));
  for (const std::uint64_t word : choice.algorithm) h = mix(h ^ word);
  return h;
}

}  // namespace orrery::kernels::cuda
