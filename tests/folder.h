// SPDX-License-Identifier: Apache-2.0
//
// A folder that goes with its test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace orrery {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "orrery-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

}  // namespace orrery
