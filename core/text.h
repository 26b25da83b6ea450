// SPDX-License-Identifier: Apache-2.0
//
// Text from files, made harmless where it is shown: a name may hold anything that a file can.
//
//   printable("a\x1b[2Jb")    // a\x1b[2Jb, in visible characters
//   in_quotes("say \"x\"")       // "say \"x\"", for Graphviz
#pragma once

#include <string>
#include <string_view>

namespace orrery {

bool is_utf8(std::string_view text);

// On one line of a terminal: control characters, bytes that are no UTF-8, and characters that reorder or
// break lines become \n, \t, \xNN or \u{NNNN}. All other text stays what it is.
std::string printable(std::string_view text);

// The same between quotation marks, with a backslash before each quotation mark and each backslash.
std::string in_quotes(std::string_view text);

// At most so many bytes of a text, and "..." for the others.
std::string shortened(std::string_view text, std::size_t most);

}  // namespace orrery
