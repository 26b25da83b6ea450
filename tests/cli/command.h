// SPDX-License-Identifier: Apache-2.0
//
// The program, run by a shell, and a folder for its files.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

namespace orrery {

struct Output {
  int code = -1;
  std::string out;
};

// What a shell's command prints, both streams together.
inline Output shell(const std::string& line) {
  const std::string command = "( " + line + " ) 2>&1";
  Output o;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> block{};
  while (const std::size_t n = fread(block.data(), 1, block.size(), pipe)) o.out.append(block.data(), n);
  const int status = pclose(pipe);
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return o;
}

inline Output orrery(const std::string& arguments) {
  return shell(std::string(ORRERY_BINARY) + " " + arguments);
}

inline std::string scenario(const char* name) {
  return std::string(ORRERY_ROOT) + "/scenarios/" + name + ".json";
}

class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() / ("orrery-test-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace orrery
