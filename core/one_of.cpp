// SPDX-License-Identifier: Apache-2.0
#include "core/one_of.h"

#include "core/documents.h"
#include "core/expert_load.h"
#include "core/inputs.h"
#include "core/output.h"

namespace orrery {
namespace {

// Each type starts from its struct's own initialisers.
template <class Holder>
bool read(const Json& json, const Cursor& at, const char* what, Holder& out) {
  out = read_one_of<Holder>(json, at, what, []<class T>(T*) { return T{}; });
  return true;
}

}  // namespace

bool read_custom(const Json& json, const Cursor& at, ExpertLoad& out) {
  return read(json, at, "a load of experts", out);
}

bool read_custom(const Json& json, const Cursor& at, Documents& out) {
  return read(json, at, "documents", out);
}

bool read_custom(const Json& json, const Cursor& at, Input& out) {
  return read(json, at, "an input", out);
}

bool read_custom(const Json& json, const Cursor& at, ModelOutput& out) {
  return read(json, at, "an output", out);
}

}  // namespace orrery
