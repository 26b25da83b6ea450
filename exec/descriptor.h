// SPDX-License-Identifier: Apache-2.0
//
// A file descriptor that is closed when it goes out of scope. Internal to exec/.
#pragma once

#include <unistd.h>

namespace orrery::exec {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

}  // namespace orrery::exec
