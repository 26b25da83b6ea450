// SPDX-License-Identifier: Apache-2.0
#include "exec/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"
#include "exec/crc32c.h"
#include "exec/logical.h"
#include "kernels/cpu/fast.h"
#include "program/state/units.h"

namespace orrery::exec {
namespace {

using program::Parameter;
using program::Program;
using program::RankClass;
namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kPartial = ".partial";

fs::path folder_of(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:08}", kPrefix, step);
}

// How an index ends: the digits of its checksum are eight characters before kAfterChecksum.
constexpr std::string_view kBeforeChecksum = "\"checksum\": \"", kNoChecksum = "00000000",
                           kAfterChecksum = "\"\n}";

// The text of an index with its checksum in place of the digits that stand there.
std::string checked_text(std::string text) {
  const std::size_t digits = text.size() - kAfterChecksum.size() - kNoChecksum.size();
  text.replace(digits, kNoChecksum.size(), kNoChecksum);
  text.replace(digits, kNoChecksum.size(), fmt::format("{:08x}", crc32c(text)));
  return text;
}

// The index as it was written: not a bit differs.
Json load_index(const fs::path& path) {
  if (std::error_code e; fs::exists(path, e) && !fs::is_regular_file(path, e))
    throw Error(fmt::format("{} is no regular file", path.string()));
  const std::string text = load_text(path);
  constexpr std::size_t kEnd = kBeforeChecksum.size() + kNoChecksum.size() + kAfterChecksum.size();
  if (text.size() < kEnd || !text.ends_with(kAfterChecksum) ||
      std::string_view(text).substr(text.size() - kEnd, kBeforeChecksum.size()) != kBeforeChecksum)
    throw Error(fmt::format("{} does not end with its checksum", path.string()));
  if (text != checked_text(text)) throw Error(fmt::format("{} does not have its checksum", path.string()));
  return parse_json(text, path.string());
}

// Throws Error with what errno says.
[[noreturn]] void cannot(const fs::path& path, const char* what) {
  throw Error(fmt::format("{} cannot be {}: {}", path.string(), what, std::strerror(errno)));
}

// A file that is written from its beginning, and is on the disk once it is finished.
class Output {
 public:
  explicit Output(const fs::path& path)
      : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) cannot(path_, "made");
  }
  ~Output() {
    if (file_ >= 0) ::close(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(file_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) cannot(path_, "written");
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void finish() {
    if (::fsync(file_) != 0) cannot(path_, "flushed to the disk");
    if (::close(std::exchange(file_, -1)) != 0) cannot(path_, "closed");
  }

 private:
  fs::path path_;
  int file_;
};

// The names in a folder are on the disk when this returns.
void flush(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  const bool failed = file < 0 || ::fsync(file) != 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  errno = error;
  if (failed) cannot(folder, "flushed to the disk");
}

// The parts [first, end) of a parameter's local elements are of its logical tensor.
std::vector<Piece> pieces_of(const Parameter& p, const WeightShare& share, std::int64_t first,
                             std::int64_t end) {
  std::vector<Piece> out;
  for_each_box(p, share, [&](const Box& box, std::int64_t local) {
    const std::int64_t rows = std::clamp<std::int64_t>(p.rows - p.padding - box.row, 0, box.rows);
    const std::int64_t size = rows * box.cols;
    Piece piece{.tensor = p.name, .row = box.row, .rows = rows, .col = box.col, .cols = box.cols};
    piece.begin = std::clamp<std::int64_t>(first - local, 0, size);
    piece.end = std::clamp<std::int64_t>(end - local, 0, size);
    if (piece.begin < piece.end) out.push_back(std::move(piece));
  });
  return out;
}

}  // namespace

std::map<std::string, CheckpointTensor> tensors_of(const Program& program) {
  std::map<std::string, CheckpointTensor> out;
  for (const RankClass& c : program.classes) {
    for (const Parameter& p : c.parameters) out[p.name] = {p.name, p.rows - p.padding, p.cols};
  }
  return out;
}

std::map<std::string, CheckpointTensor> trained_tensors_of(const Program& program) {
  auto out = tensors_of(program);
  for (const RankClass& c : program.classes) {
    for (const Parameter& p : c.parameters) {
      if (p.kept != program::Kept::kTrained) out.erase(p.name);
    }
  }
  return out;
}

std::map<std::string, CheckpointTensor> frozen_tensors_of(const Program& program) {
  auto out = tensors_of(program);
  for (const auto& [name, tensor] : trained_tensors_of(program)) out.erase(name);
  return out;
}

std::int64_t arrays_before_outer(const Program& program) {
  return 1 + moment_arrays(program, false);
}

std::int64_t moment_arrays(const Program& program, bool muon) {
  return program.training.bytes_of(muon).moments / bytes_per_parameter(program.training.precision).moment;
}

std::int64_t state_arrays(const Program& program) {
  return arrays_before_outer(program) +
         (program.plan.islands > 1 ? program::outer_bytes(program.training) / 4 : 0);
}

namespace {

// Parameters [first, first + n) of a shard in fp32: themselves, or widened into `space`.
const float* floats_of(const UnitMemory& m, std::int64_t first, std::int64_t n, std::vector<float>& space) {
  if (!is_half(m.type)) return static_cast<const float*>(m.parameters) + first;
  space.resize(static_cast<std::size_t>(n));
  kernels::widen(m.type, n, static_cast<const std::uint16_t*>(m.parameters) + first, space.data());
  return space.data();
}

}  // namespace

// A rank writes what no other has to: of parameters that tensor ranks hold alike the first tensor rank, of
// copies the first, of a tied weight the first stage.
CheckpointFile pack_rank(const Program& program, std::int64_t rank, const std::vector<UnitMemory>& units,
                         const std::function<void(std::string_view)>& write) {
  const RankClass& c = program.classes[static_cast<std::size_t>(program.stage_of(rank))];
  CheckpointFile out;
  out.name = fmt::format("rank-{}.bin", rank);
  const std::array<WeightShare, 2> shares{weight_share(program, rank, false),
                                          weight_share(program, rank, true)};
  if (shares[0].copy > 0 && shares[1].copy > 0) return out;
  const std::int64_t island = island_of(program, rank), outer = arrays_before_outer(program);
  std::uint32_t crc = 0;
  std::vector<float> widened;
  for (const Parameter& p : c.parameters) {
    const program::Unit& unit = c.units[static_cast<std::size_t>(p.unit)];
    if (p.kept != program::Kept::kTrained) continue;
    const WeightShare& share = shares[p.of_experts ? 1 : 0];
    const bool elsewhere = share.copy > 0 || (p.split == Parameter::Split::kNone && share.rank > 0) ||
                           (p.name == "embedding/weight" && c.chunks.front() != 0);
    const std::int64_t shard = share.shard * unit.shard;
    const std::int64_t first = std::max(p.offset, shard) - p.offset;
    const std::int64_t end = std::min(p.offset + p.local_elements(), shard + unit.shard) - p.offset;
    if (elsewhere || first >= end) continue;
    const UnitMemory& memory = units[static_cast<std::size_t>(p.unit)];
    for (std::int64_t state = 0; state < state_arrays(program); ++state) {
      if (state > moment_arrays(program, p.muon) && state < outer) continue;
      std::int64_t from = p.offset + first - shard;
      for (Piece& piece : pieces_of(p, share, first, end)) {
        const std::int64_t n = piece.end - piece.begin;
        const float* values = state == 0      ? floats_of(memory, from, n, widened)
                              : state < outer ? memory.moments + (state - 1) * unit.shard + from
                                              : memory.outer + (state - outer) * unit.shard + from;
        piece.tensor = name_on_island(p.name, island);
        piece.state = state;
        piece.offset = out.bytes / 4;
        const std::string_view bytes(reinterpret_cast<const char*>(values), static_cast<std::size_t>(n) * 4);
        write(bytes);
        crc = crc32c(bytes, crc);
        out.bytes += n * 4;
        from += n;
        out.pieces.push_back(std::move(piece));
      }
    }
  }
  out.crc32c = crc;
  return out;
}

CheckpointFile write_rank(const fs::path& folder, const Program& program, std::int64_t rank,
                          const std::vector<UnitMemory>& units) {
  std::optional<Output> file;  // none of a rank that stores nothing
  CheckpointFile out = pack_rank(program, rank, units, [&](std::string_view bytes) {
    if (!file) file.emplace(folder / fmt::format("rank-{}.bin", rank));
    file->write(bytes);
  });
  if (file) file->finish();
  return out;
}

void complete_index(CheckpointIndex& index, const Program& program) {
  index.states = state_arrays(program);
  for (std::int64_t island = 0; island < program.plan.islands; ++island) {
    for (const auto& [name, tensor] : trained_tensors_of(program))
      index.tensors.push_back({name_on_island(name, island), tensor.rows, tensor.cols});
  }
  std::erase_if(index.files, [](const CheckpointFile& f) { return f.pieces.empty(); });
}

fs::path partial_checkpoint(const fs::path& folder, std::int64_t step) {
  return folder_of(folder, step).string() + kPartial;
}

fs::path begin_checkpoint(const fs::path& folder, std::int64_t step) {
  const fs::path partial = partial_checkpoint(folder, step);
  std::error_code failed;
  fs::remove_all(partial, failed);
  fs::create_directories(partial, failed);
  if (failed) throw Error(fmt::format("{} cannot be made: {}", partial.string(), failed.message()));
  return partial;
}

std::string with_checksum(Json index) {
  index.erase("checksum");
  index["checksum"] = kNoChecksum;
  return checked_text(index.dump(1));
}

void finish_checkpoint(const fs::path& folder, const Program& program, CheckpointIndex index) {
  const fs::path whole = folder_of(folder, index.step), partial = whole.string() + kPartial;
  complete_index(index, program);
  Json json = write_fields(index);
  json["schema"] = "orrery.checkpoint/1";
  Output file(partial / "index.json");
  file.write(with_checksum(std::move(json)));
  file.finish();
  flush(partial);
  std::error_code failed;
  fs::remove_all(whole, failed);
  fs::rename(partial, whole, failed);
  if (failed) throw Error(fmt::format("{} cannot be made: {}", whole.string(), failed.message()));
  flush(folder);
}

namespace {

std::vector<float> read_floats(const fs::path& path, const CheckpointFile& f) {
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  if (failed) throw Error(fmt::format("{} cannot be read: {}", path.string(), failed.message()));
  if (static_cast<std::int64_t>(size) != f.bytes || f.bytes % 4 != 0)
    throw Error(fmt::format("{} has {} bytes, not {}", path.string(), size, f.bytes));
  std::vector<float> out(static_cast<std::size_t>(f.bytes / 4));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(f.bytes));
  if (!file) throw Error(fmt::format("{} cannot be read", path.string()));
  if (crc32c({reinterpret_cast<const char*>(out.data()), static_cast<std::size_t>(f.bytes)}) !=
      static_cast<std::uint32_t>(f.crc32c))
    throw Error(fmt::format("{} does not have its checksum", path.string()));
  return out;
}

RestoredState restore(const fs::path& folder, const Program& program) {
  const std::string path = folder / "index.json";
  Json json = load_index(path);
  const Cursor root{path, ""};
  if (!json.is_object() || json.value("schema", Json()) != "orrery.checkpoint/1")
    root.fail("is no index of a checkpoint", "allowed: schema \"orrery.checkpoint/1\"");
  json.erase("schema");
  json.erase("checksum");
  const auto index = read_fields<CheckpointIndex>(json, root);
  if (folder_of(folder.parent_path(), index.step) != folder)
    root.child("step").fail(
        fmt::format("{}, and the folder is \"{}\"", index.step, folder.filename().string()));

  RestoredState out =
      restore(index, root, program, [&](const CheckpointFile& f) { return read_floats(folder / f.name, f); });
  out.index = path;
  return out;
}

}  // namespace

RestoredState restore(const CheckpointIndex& index, const Cursor& root, const Program& program,
                      const std::function<std::vector<float>(const CheckpointFile&)>& read) {
  // The tensors must be this model's, on each island; then all sizes are known to be sound.
  const auto of_model = trained_tensors_of(program);
  std::map<std::string, CheckpointTensor> expected;
  for (std::int64_t island = 0; island < index.recipe.islands; ++island) {
    for (const auto& [name, tensor] : of_model) expected[name_on_island(name, island)] = tensor;
  }
  const std::int64_t arrays = arrays_before_outer(program) + (!index.recipe.outer                ? 0
                                                              : index.recipe.outer->momentum > 0 ? 2
                                                                                                 : 1);
  if (index.states != arrays)
    root.child("states").fail(
        fmt::format("{} arrays of state, and this training has {}", index.states, arrays));
  if (index.tensors.size() != expected.size())
    root.child("tensors").fail(
        fmt::format("{} tensors, and the model has {}", index.tensors.size(), expected.size()));
  for (std::size_t i = 0; i < index.tensors.size(); ++i) {
    const CheckpointTensor& t = index.tensors[i];
    const auto found = expected.find(t.name);
    if (found == expected.end() || found->second.rows != t.rows || found->second.cols != t.cols)
      root.child("tensors").child(i).fail(
          fmt::format("the model has no tensor \"{}\" of {} x {}", t.name, t.rows, t.cols));
  }
  RestoredState out{index.step,
                    index.recipe,
                    {},
                    index.loss_scale,
                    index.algorithms,
                    std::vector<LogicalTensors>(static_cast<std::size_t>(index.states))};
  // Of a tensor that Muon updates the arrays after its moment are empty. A checkpoint of AdamW has them, and
  // one of Muon lacks those that AdamW wants: such a run is another, which the recipes say, and if it is
  // forced these are left out, or begin as zeros.
  const bool other_moments = (index.recipe.update == "muon") != program.training.muon.has_value();
  std::set<std::string> of_muon;
  for (const RankClass& c : program.classes) {
    for (const Parameter& p : c.parameters) {
      for (std::int64_t island = 0; p.muon && island < index.recipe.islands; ++island)
        of_muon.insert(name_on_island(p.name, island));
    }
  }
  std::map<std::string, std::vector<std::vector<bool>>> covered;
  for (const auto& [name, t] : expected) {
    const auto elements = static_cast<std::size_t>(t.rows * t.cols);
    covered[name].resize(out.states.size());
    for (std::int64_t s = 0; s < index.states; ++s) {
      const bool second = s > moment_arrays(program, true) && s < arrays_before_outer(program);
      if (second && of_muon.contains(name) && !other_moments) continue;
      const auto i = static_cast<std::size_t>(s);
      out.states[i][name].resize(elements);
      covered[name][i].resize(elements);
    }
  }
  for (std::size_t f = 0; f < index.files.size(); ++f) {
    const CheckpointFile& file = index.files[f];
    const Cursor at = root.child("files").child(f);
    if (file.name != fs::path(file.name).filename()) at.child("name").fail("is not a plain file name");
    const std::vector<float> floats = read(file);
    std::int64_t next = 0;  // element of the file
    for (std::size_t i = 0; i < file.pieces.size(); ++i) {
      const Piece& p = file.pieces[i];
      if (p.offset != next)
        at.child("pieces").child(i).fail(fmt::format(
            "begins at element {} of its file, and the pieces before it end at {}", p.offset, next));
      next += p.end - p.begin;
      const auto tensor = expected.find(p.tensor);
      const bool sound = tensor != expected.end() && p.state < index.states &&
                         !covered[p.tensor][static_cast<std::size_t>(p.state)].empty() &&
                         p.row + p.rows <= tensor->second.rows && p.col + p.cols <= tensor->second.cols &&
                         p.begin < p.end && p.end <= p.rows * p.cols &&
                         p.offset + (p.end - p.begin) <= static_cast<std::int64_t>(floats.size());
      if (!sound) at.child("pieces").child(i).fail("lies outside its tensor or its file");
      const auto state = static_cast<std::size_t>(p.state);
      auto& to = out.states[state][p.tensor];
      auto& seen = covered[p.tensor][state];
      for (std::int64_t e = p.begin; e < p.end; ++e) {
        const auto logical =
            static_cast<std::size_t>((p.row + e / p.cols) * tensor->second.cols + p.col + e % p.cols);
        to[logical] = floats[static_cast<std::size_t>(p.offset + e - p.begin)];
        if (seen[logical])
          at.child("pieces").child(i).fail(fmt::format("holds a part of \"{}\" a second time", p.tensor));
        seen[logical] = true;
      }
    }
    if (next * 4 != file.bytes)
      at.child("pieces").fail(fmt::format("end at byte {} of {} of their file", next * 4, file.bytes));
  }
  for (const auto& [name, states] : covered) {
    for (std::int64_t s = 0; s < index.states; ++s) {
      if (other_moments && s > moment_arrays(program, true) && s < arrays_before_outer(program)) continue;
      const std::vector<bool>& seen = states[static_cast<std::size_t>(s)];
      if (std::find(seen.begin(), seen.end(), false) != seen.end())
        root.child("files").fail(fmt::format("does not hold all of \"{}\"", name));
    }
  }
  return out;
}

namespace {

// Folders of checkpoints, the newest first.
std::vector<fs::path> written_checkpoints(const fs::path& folder) {
  std::vector<fs::path> steps;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && name.starts_with(kPrefix) && !name.ends_with(kPartial))
      steps.push_back(entry.path());
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

}  // namespace

void drop_partial(const fs::path& folder, std::int64_t step) {
  std::error_code ignored;
  fs::remove_all(partial_checkpoint(folder, step), ignored);
}

void keep_newest(const fs::path& folder, std::int64_t newest, std::int64_t keep) {
  if (keep == 0) return;
  std::vector<fs::path> steps = written_checkpoints(folder);
  std::erase_if(steps, [&](const fs::path& step) { return step > folder_of(folder, newest); });
  for (auto i = static_cast<std::size_t>(keep); i < steps.size(); ++i) {
    const fs::path removed = steps[i].string() + kPartial;
    std::error_code failed;
    fs::remove_all(removed, failed);
    if (!failed) fs::rename(steps[i], removed, failed);
    if (!failed) fs::remove_all(removed, failed);
    if (failed) throw Error(fmt::format("{} cannot be removed: {}", steps[i].string(), failed.message()));
  }
}

bool has_checkpoints(const fs::path& folder) {
  return !written_checkpoints(folder).empty();
}

std::optional<std::int64_t> newest_checkpoint(const fs::path& folder) {
  const std::vector<fs::path> steps = written_checkpoints(folder);
  if (steps.empty()) return std::nullopt;
  const std::string digits = steps.front().filename().string().substr(std::string_view(kPrefix).size());
  std::int64_t step = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step;
}

std::optional<RestoredState> restore_newest(const fs::path& folder, const Program& program,
                                            std::vector<std::string>& passed_over) {
  const std::vector<fs::path> steps = written_checkpoints(folder);
  if (steps.empty()) return std::nullopt;
  for (const fs::path& step : steps) {
    try {
      return restore(step, program);
    } catch (const Error& e) {
      passed_over.emplace_back(e.what());
    }
  }
  throw Error(fmt::format("no checkpoint under {} can be used; the newest: {}", folder.string(),
                          passed_over.front()));
}

}  // namespace orrery::exec
