// SPDX-License-Identifier: Apache-2.0
//
// What both forms of a timeline on disk say about it in JSON, beside slices and memory. Internal to core/.
#pragma once

#include "core/fields.h"
#include "core/timeline.h"

namespace orrery {

// Source, program, what limits ops and what they communicate (by name), how ranks are numbered and folded.
Json timeline_head(const Timeline& t);
// Names not seen yet are added to `t.names`. Checks all but what refers to slices.
void read_timeline_head(const Json& head, const Cursor& at, Timeline& t);

std::string text_field(const Json& object, const char* key, const Cursor& at);
std::int64_t integer_field(const Json& object, const char* key, std::int64_t most, const Cursor& at);
std::vector<std::string> text_list(const Json& object, const char* key, const Cursor& at);

}  // namespace orrery
