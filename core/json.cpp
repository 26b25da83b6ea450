// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"

namespace orrery {
namespace {

// A byte scan, so that hostile nesting is refused before a parser builds it.
void check_depth(std::string_view text, const std::string& file) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepestInput) {
        throw InputError(file, fmt::format("byte {}", i), "nested too deeply",
                         fmt::format("allowed: {} levels", kDeepestInput));
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file, std::int64_t largest) {
  if (static_cast<std::int64_t>(text.size()) > largest) {
    throw InputError(file, "byte 0", fmt::format("{} bytes of input", text.size()),
                     fmt::format("allowed: {} bytes", largest));
  }
  if (text.starts_with("\x1f\x8b"))
    throw InputError(file, "byte 0", "is compressed", "allowed: JSON; gunzip unpacks it");
  check_depth(text, file);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    std::string what = e.what();
    const auto colon = what.find(": ");
    if (colon != std::string::npos) what = what.substr(colon + 2);
    if (what.size() > 200) what = what.substr(0, 200) + "...";
    for (char& c : what) {
      if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) < 0x20) c = '?';
    }
    throw InputError(file, fmt::format("byte {}", e.byte), "not JSON: " + what);
  } catch (const Json::exception& e) {
    throw InputError(file, "byte 0", std::string("not JSON: ") + e.what());
  }
}

Json load_json(const std::filesystem::path& path, std::int64_t largest) {
  return parse_json(load_text(path, largest), path.string(), largest);
}

std::string load_text(const std::filesystem::path& path, std::int64_t largest) {
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
  std::string text;
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

void save_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.flush();
    if (!out) {
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      throw Error(fmt::format("{}: cannot be written", path.string()));
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw Error(fmt::format("{}: {}", path.string(), error.message()));
  }
}

}  // namespace orrery
