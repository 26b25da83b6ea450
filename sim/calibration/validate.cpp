// SPDX-License-Identifier: Apache-2.0
#include "sim/calibration/validate.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sim/calibration/published.h"
#include "sim/compute/compute.h"

namespace orrery::sim {

void Validation::add(const Validation& other) {
  read += other.read;
  rows.insert(rows.end(), other.rows.begin(), other.rows.end());
  conflicting.insert(conflicting.end(), other.conflicting.begin(), other.conflicting.end());
  fits.insert(fits.end(), other.fits.begin(), other.fits.end());
  for (const auto& [reason, n] : other.skipped) skipped[reason] += n;
}

std::vector<std::string> Validation::sources() const {
  std::vector<std::string> out;
  for (const ValidationRow& r : rows) out.push_back(r.source);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

namespace {

std::vector<std::string_view> split(std::string_view line, char by) {
  std::vector<std::string_view> out;
  while (true) {
    const auto at = line.find(by);
    out.push_back(line.substr(0, at));
    if (at == std::string_view::npos) return out;
    line.remove_prefix(at + 1);
  }
}

double number(std::string_view text, const Cursor& at) {
  constexpr double kMost = 1e9;  // of a dimension, and of milliseconds
  double v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc{} || end != text.data() + text.size() || !(v > 0 && v <= kMost)) {
    at.fail(shown(Json(std::string(text))) + " is not a number of a kernel table",
            fmt::format("allowed: above 0, at most {}", kMost));
  }
  return v;
}
std::int64_t dimension(std::string_view text, const Cursor& at) {
  const double v = number(text, at);
  if (v != std::floor(v)) at.fail(shown(Json(std::string(text))) + " is not a whole number");
  return static_cast<std::int64_t>(v);
}

const std::map<std::string, std::string, std::less<>>& device_names() {
  static const std::map<std::string, std::string, std::less<>> names = {{"A100-SXM4-80GB", "a100-80gb"},
                                                                        {"H100-SXM5-80GB", "h100-sxm"},
                                                                        {"B200-SXM", "b200"},
                                                                        {"GB200", "gb200"},
                                                                        {"L40S", "l40s"}};
  return names;
}

}  // namespace

Validation validate_kernels(const std::string& csv, const std::string& file, const DataFolders& data) {
  Validation out;
  std::map<std::string, Device> devices;
  const auto lines = split(csv, '\n');
  const bool gemm = lines.front().starts_with("gpu,dtype,m,n,k,ms");
  if (!gemm && !lines.front().starts_with("gpu,dtype,batch,seq,heads,kv_heads,head_dim,ms")) {
    Cursor{file, "line 1"}.fail(
        "is not a kernel table",
        "allowed: gpu,dtype,m,n,k,ms,.. or gpu,dtype,batch,seq,heads,kv_heads,head_dim,ms,..");
  }
  const std::size_t ms_column = gemm ? 5 : 7;
  constexpr double kLeastWork = 1e9;  // below it launch cost decides, which training pays per op anyway
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    ++out.read;
    const Cursor at{file, fmt::format("line {}", i + 1)};
    const auto cells = split(lines[i], ',');
    if (cells.size() <= ms_column) at.fail("too few columns");
    const auto name = device_names().find(cells[0]);
    if (name == device_names().end()) {
      ++out.skipped["no profile for the GPU"];
      continue;
    }
    if (cells[1] != "bf16" && cells[1] != "fp16") {
      ++out.skipped["number format without a fitted curve"];
      continue;
    }
    auto [device, added] = devices.try_emplace(name->second);
    if (added) device->second = load_device(name->second, at, data);
    std::array<std::int64_t, 5> v{};
    for (std::size_t c = 2; c < ms_column; ++c) v[c - 2] = dimension(cells[c], at);
    const double work =
        gemm ? 2.0 * static_cast<double>(v[0]) * static_cast<double>(v[1]) * static_cast<double>(v[2])
             : 2.0 * static_cast<double>(v[0]) * static_cast<double>(v[2]) * static_cast<double>(v[1]) *
                   static_cast<double>(v[1]) * static_cast<double>(v[4]);
    if (work < kLeastWork) {
      ++out.skipped["less than 1 GFLOP"];
      continue;
    }
    ValidationRow row;
    row.id = fmt::format("{}:{}", gemm ? "gemm" : "attention", i + 1);
    row.source = fmt::format("{} {}", gemm ? "gemm" : "attention", cells[0]);
    row.quantity = "time";
    row.published = number(cells[ms_column], at) * 1e-3;
    row.predicted =
        gemm ? gemm_seconds(device->second, Math::kBf16, v[0], v[1], v[2], 2)
             : attention_seconds(device->second, Math::kBf16, {v[0], v[1], v[2], v[3], v[4], false});
    out.rows.push_back(std::move(row));
  }
  return out;
}

namespace {

Json load_rows(const std::string& file) {
  Json rows = parse_json(load_text(file), file);
  if (!rows.is_array() || rows.empty() || !rows[0].is_object())
    Cursor{file, ""}.fail("is not a data set", "allowed: an array of rows");
  return rows;
}

bool are_training_runs(const Json& rows) {
  return rows[0].contains("parallel");
}
bool are_mapped_runs(const Json& rows) {
  return rows[0].contains("gpu_type") && rows[0].contains("ep");
}

}  // namespace

PublishedRuns read_published(const std::string& file, const DataFolders& data) {
  const Json rows = load_rows(file);
  if (are_training_runs(rows)) return read_training(rows, file, data);
  if (are_mapped_runs(rows)) return read_mapped(rows, file, data);
  Cursor{file, ""}.child(std::size_t{0}).fail("is not a training run");
}

Validation validate_file(const std::string& file, const DataFolders& data) {
  if (file.ends_with(".csv")) return validate_kernels(load_text(file), file, data);
  const Json rows = load_rows(file);
  if (are_training_runs(rows)) return validate_training(rows, file, data);
  if (are_mapped_runs(rows)) return validate_mapped(rows, file, data);
  if (rows[0].contains("serving_stack")) return validate_serving(rows, file, data);
  if (rows[0].contains("collective")) return validate_collectives(rows, file, data);
  Cursor{file, ""}.child(std::size_t{0}).fail("is neither a training run, a run of serving nor a collective");
}

}  // namespace orrery::sim
