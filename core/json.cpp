// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "core/error.h"
#include "core/text.h"

namespace orrery {
namespace {

// "line 3, column 7" of a byte, both from 1. Columns count bytes.
std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto newline = before.rfind('\n');
  return fmt::format("line {}, column {}", line,
                     1 + before.size() - (newline == std::string_view::npos ? 0 : newline + 1));
}

// Makes a value of what the parser reads, and refuses what is out of bounds before it takes memory.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& file, std::int64_t largest)
      : text_(text), file_(file), values_left_(largest / kBytesPerValue) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(std::int64_t v) override { return add(v); }
  bool number_unsigned(std::uint64_t v) override { return add(v); }
  bool number_float(double v, const std::string&) override { return add(v); }
  bool string(std::string& v) override { return add(std::move(v)); }
  bool binary(Json::binary_t&) override { return false; }  // no such thing in text
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool end_object() override {
    refuse_repeated_keys(*open_.back());
    open_.pop_back();
    return true;
  }
  bool key(std::string& key) override {
    // Without a search for a key that may be there: end_object() finds it.
    using Members = Json::object_t::Container;
    auto& members = static_cast<Members&>(open_.back()->get_ref<Json::object_t&>());
    members.emplace_back(std::move(key), Json());
    slot_ = &members.back().second;
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& token, const Json::exception& e) override {
    const std::string place = place_of(text_, byte == 0 ? 0 : byte - 1);
    constexpr int kOutOfRange = 406;
    constexpr std::size_t kLongestNumber = 40;
    if (e.id == kOutOfRange)
      throw InputError(file_, place, shortened(token, kLongestNumber) + " is too large for a number",
                       "allowed: up to 1.8e308");
    throw InputError(file_, place, "not JSON: " + reason(e.what()));
  }

 private:
  // "unexpected ']'; expected '[', '{', or a literal" of a message whose beginning is the library's own.
  static std::string reason(std::string_view what) {
    constexpr std::size_t kLongest = 200;
    const auto dash = what.find(" - ");
    if (dash != std::string_view::npos) what.remove_prefix(dash + 3);
    return shortened(what, kLongest);
  }

  Json* place(Json value) {
    if (--values_left_ < 0)
      throw InputError(file_, pointer(), "the file has too many values by here",
                       "allowed: one for each 16 bytes of the largest file");
    if (slot_ != nullptr) {
      *slot_ = std::move(value);
      return std::exchange(slot_, nullptr);
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    auto& elements = open_.back()->get_ref<Json::array_t&>();
    elements.push_back(std::move(value));
    return &elements.back();
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kDeepestInput)
      throw InputError(file_, pointer(), "nested too deeply",
                       fmt::format("allowed: {} levels", kDeepestInput));
    open_.push_back(place(std::move(value)));
    return true;
  }

  void refuse_repeated_keys(const Json& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const auto& [key, value] : object.items()) keys.emplace_back(key);
    std::sort(keys.begin(), keys.end());
    const auto repeated = std::adjacent_find(keys.begin(), keys.end());
    if (repeated != keys.end())
      throw InputError(file_, pointer_to(pointer(), *repeated), "the key is there twice",
                       "allowed: each key once");
  }

  // Of the object or array that is open.
  std::string pointer() const {
    std::string out;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i]->is_array())
        out += "/" + std::to_string(open_[i]->size() - 1);
      else
        out = pointer_to(out, std::prev(open_[i]->get_ref<const Json::object_t&>().end())->first);
    }
    return out;
  }

  std::string_view text_;
  const std::string& file_;
  std::int64_t values_left_;
  Json root_;
  std::vector<Json*>
      open_;              // objects and arrays around what comes next; a growing one has its last child open
  Json* slot_ = nullptr;  // of the key that was read last
};

[[noreturn]] void cannot_write(const std::filesystem::path& path, int error) {
  throw Error(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(error)));
}

// What stands at `path` already, and stays what it is. A symbolic link to a file that is not there makes it.
void write_in_place(const std::filesystem::path& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) cannot_write(path, errno);
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      ::close(file);
      cannot_write(path, error);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::close(file) != 0) cannot_write(path, errno);
}

void replace(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", ::getpid());
  std::error_code ignored;
  {
    std::ofstream out(temporary, std::ios::binary);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.flush();
    if (!out) {
      const int error = errno;
      std::filesystem::remove(temporary, ignored);
      cannot_write(path, error);
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return;
  std::filesystem::remove(temporary, ignored);
  throw Error(fmt::format("{}: cannot be written: {}", path.string(), error.message()));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file, std::int64_t largest) {
  if (static_cast<std::int64_t>(text.size()) > largest) {
    throw InputError(file, "byte 0", fmt::format("{} bytes of input", text.size()),
                     fmt::format("allowed: {} bytes", largest));
  }
  if (text.starts_with("\x1f\x8b"))
    throw InputError(file, "byte 0", "is compressed", "allowed: JSON; gunzip unpacks it");
  Builder builder(text, file, largest);
  Json::sax_parse(text, &builder);
  return builder.take();
}

Json load_json(const std::filesystem::path& path, std::int64_t largest) {
  return parse_json(load_text(path, largest), path == "-" ? "standard input" : path.string(), largest);
}

void append(Json& object, std::string key, Json value) {
  using Members = Json::object_t::Container;
  static_cast<Members&>(object.get_ref<Json::object_t&>()).emplace_back(std::move(key), std::move(value));
}

std::string pointer_to(const std::string& pointer, std::string_view key) {
  constexpr std::size_t kLongest = 80;
  std::string out = pointer + "/";
  for (const char c : shortened(key, kLongest)) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

namespace {

// `expected`: bytes, where they are known; a text that grows takes as much again.
std::string text_of(std::istream& in, const std::filesystem::path& path, std::int64_t largest,
                    std::int64_t expected = 0) {
  std::string text;
  text.reserve(static_cast<std::size_t>(std::min(expected, largest)));
  char block[1 << 16];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (static_cast<std::int64_t>(text.size()) > largest) {
      throw InputError(path.string(), fmt::format("byte {}", largest), "the file is too large",
                       fmt::format("allowed: {} bytes", largest));
    }
  }
  return text;
}

}  // namespace

std::string load_text(const std::filesystem::path& path, std::int64_t largest) {
  if (path == "-") return text_of(std::cin, "standard input", largest);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) {
    throw InputError(path.string(), "/", "no such file");
  }
  if (std::filesystem::is_directory(status)) {
    throw InputError(path.string(), "/", "is a directory", "allowed: a file");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string(), "/", "cannot be read");
  const bool regular = std::filesystem::is_regular_file(status);
  const auto size = regular ? std::filesystem::file_size(path, error) : 0;
  return text_of(in, path, largest, error ? 0 : static_cast<std::int64_t>(size));
}

namespace {

constexpr std::size_t kIndent = 2, kColumns = 100;

std::string plain(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// [1, 2], {"a": 1}
void write_line(const Json& json, std::string& out) {
  if (!json.is_structured()) {
    out += plain(json);
    return;
  }
  out += json.is_array() ? '[' : '{';
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) out += ", ";
    first = false;
    if (json.is_object()) out += plain(Json(key)) + ": ";
    write_line(value, out);
  }
  out += json.is_array() ? ']' : '}';
}

void write_lines(const Json& json, std::size_t indent, std::string& out) {
  const bool nested =
      std::any_of(json.begin(), json.end(), [](const Json& value) { return value.is_structured(); });
  if (!json.is_structured() || json.empty() || (json.is_array() && !nested)) return write_line(json, out);
  const std::size_t inner = indent + kIndent;
  out += json.is_array() ? '[' : '{';
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    out += (first ? "\n" : ",\n") + std::string(inner, ' ');
    first = false;
    if (json.is_object()) {
      out += plain(Json(key)) + ": ";
      write_lines(value, inner, out);
      continue;
    }
    std::string line;
    write_line(value, line);
    if (inner + line.size() <= kColumns)
      out += line;
    else
      write_lines(value, inner, out);
  }
  out += "\n" + std::string(indent, ' ') + (json.is_array() ? ']' : '}');
}

}  // namespace

std::string laid_out(const Json& json) {
  std::string out;
  write_lines(json, 0, out);
  return out + "\n";
}

void save_json(const std::filesystem::path& path, const Json& json) {
  save_text(path, laid_out(json));
}

void save_text(const std::filesystem::path& path, std::string_view text) {
  std::error_code missing;
  const auto status = std::filesystem::symlink_status(path, missing);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return write_in_place(path, text);
  replace(path, text);
}

}  // namespace orrery
