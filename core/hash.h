// SPDX-License-Identifier: Apache-2.0
//
// A mixer for hashes whose values results may depend on: the same everywhere.
#pragma once

#include <cstdint>

namespace orrery {

// SplitMix64's step (Steele, Lea and Flood 2014).
constexpr std::uint64_t mix(std::uint64_t h) {
  h += 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

}  // namespace orrery
