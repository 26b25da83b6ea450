// SPDX-License-Identifier: Apache-2.0
//
// A CUDA library that is looked for when it is first needed: a program that was built with it starts where it
// is not installed, and says so only when it is asked to use it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "core/error.h"

namespace orrery::kernels::cuda {

class Library {
 public:
  // By the dynamic linker, or in the toolkit that the program was built with. Throws Error.
  explicit Library(const std::string& name)
      : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
      handle_ = dlopen((std::string(ORRERY_CUDA_LIBRARIES "/") + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw Error(std::string("cannot load ") + dlerror());
  }

  void* handle() const { return handle_; }  // for dlsym

  // dlsym gives an object pointer; POSIX says that it converts.
  template <class F>
  F* find(const char* function) const {
    auto* const found = reinterpret_cast<F*>(dlsym(handle_, function));
    if (found == nullptr) throw Error(name_ + " has no " + function);
    return found;
  }

 private:
  std::string name_;
  void* handle_;  // for the rest of the process
};

}  // namespace orrery::kernels::cuda
