// SPDX-License-Identifier: Apache-2.0
#include "exec/monitor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "exec/crc32c.h"

namespace orrery::exec {
namespace {

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

// Fields of a protocol buffers message: a key of number and wire type, then the value.
enum WireType : std::uint64_t { kVarint = 0, k64Bit = 1, kLength = 2, k32Bit = 5 };
void append_key(std::string& out, std::uint64_t field, WireType type) {
  append_varint(out, field << 3 | type);
}
void append_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  append_key(out, field, kLength);
  append_varint(out, bytes.size());
  out += bytes;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// tensorflow.Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
std::string event(std::int64_t step) {
  std::string out;
  append_key(out, 1, k64Bit);
  append_little_endian(out, std::bit_cast<std::uint64_t>(wall_time()));
  append_key(out, 2, kVarint);
  append_varint(out, static_cast<std::uint64_t>(step));
  return out;
}

std::uint32_t masked(std::uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace

void write_prometheus(const std::string& path, const std::vector<Scalar>& scalars) {
  std::string text;
  for (const Scalar& s : scalars) {
    text += fmt::format("# HELP orrery_{0} {1}\n# TYPE orrery_{0} gauge\norrery_{0} {2}\n", s.name, s.help,
                        s.value);
  }
  save_text(path, text);
}

TensorBoard::TensorBoard(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  path_ = fmt::format("{}/events.out.tfevents.{:.0f}.{}.{}", folder, wall_time(), host.data(), ::getpid());
  file_.open(path_, std::ios::binary);
  std::string first = event(0);
  append_bytes(first, 3, "brain.Event:2");
  record(first);
}

// tensorflow.Summary: value = 1, of tag = 1 and simple_value = 2.
void TensorBoard::write(std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& s : scalars) {
    std::string value;
    append_bytes(value, 1, s.name);
    append_key(value, 2, k32Bit);
    append_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(s.value)));
    append_bytes(summary, 1, value);
  }
  std::string out = event(step);
  append_bytes(out, 5, summary);
  record(out);
}

void TensorBoard::record(const std::string& bytes) {
  std::string header;
  append_little_endian(header, static_cast<std::uint64_t>(bytes.size()));
  std::string out = header;
  append_little_endian(out, masked(crc32c(header)));
  out += bytes;
  append_little_endian(out, masked(crc32c(bytes)));
  if (!file_.write(out.data(), static_cast<std::streamsize>(out.size())).flush())
    throw Error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
}

}  // namespace orrery::exec
