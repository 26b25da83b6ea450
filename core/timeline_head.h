// SPDX-License-Identifier: Apache-2.0
//
// What both forms of a timeline on disk say about it in JSON, beside slices and memory. For readers of
// timelines and traces.
#pragma once

#include <map>

#include "core/fields.h"
#include "core/timeline.h"

namespace orrery {

inline constexpr std::size_t kMostStreams = 256;
inline constexpr double kMostUs = 2e12;  // 23 days; sums of times stay far from overflow

// The index of a name in a list; names that are not in it yet are added.
class Interner {
 public:
  explicit Interner(std::vector<std::string>& names) : names_(names) {
    for (std::size_t i = 0; i < names.size(); ++i) index_.try_emplace(names[i], static_cast<std::int32_t>(i));
  }
  std::int32_t operator()(const std::string& name) {
    const auto [at, added] = index_.try_emplace(name, static_cast<std::int32_t>(names_.size()));
    if (added) names_.push_back(name);
    return at->second;
  }

 private:
  std::vector<std::string>& names_;
  std::map<std::string, std::int32_t> index_;
};

// Source, program, what limits ops and what they communicate (by name), how ranks are numbered and folded,
// tokens of experts.
Json timeline_head(const TimelineHead& t);
// Names not seen yet are added to `t.names`. Checks all but what refers to slices.
void read_timeline_head(const Json& head, const Cursor& at, TimelineHead& t);

// Times of a slice that was read are in order: ready, start, active, end. Those that rounding put out of
// order are moved; says what is wrong when that does not explain it, and nothing otherwise.
std::string put_in_order(Slice& s);

// Processes and streams that slices refer to exist: those without a name get one. Throws where there are too
// many, or where ranks are of a process that is not there.
void name_places(Timeline& t, const Cursor& at);
// Where slices refer to so many processes and streams.
void name_places(TimelineHead& t, std::int32_t processes, std::int32_t streams, const Cursor& at);

std::string text_field(const Json& object, const char* key, const Cursor& at);
std::int64_t integer_field(const Json& object, const char* key, std::int64_t most, const Cursor& at);
std::vector<std::string> text_list(const Json& object, const char* key, const Cursor& at);

}  // namespace orrery
