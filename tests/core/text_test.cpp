// SPDX-License-Identifier: Apache-2.0
#include "core/text.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"

namespace orrery {
namespace {

TEST(Text, WhatATerminalWouldActOnIsShown) {
  EXPECT_EQ(printable("plain, with 100 % ~ \\ \" '"), "plain, with 100 % ~ \\ \" '");
  EXPECT_EQ(printable("red \x1b[31m \a\b\x7f"), "red \\x1b[31m \\x07\\x08\\x7f");
  EXPECT_EQ(printable("two\nlines\tand\rmore"), "two\\nlines\\tand\\x0dmore");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u009b31m"), "\\u{009b}31m");  // the control character CSI in one piece
  EXPECT_EQ(printable("a\u202eb\u2066c\u2028d"),
            "a\\u{202e}b\\u{2066}c\\u{2028}d");  // directions, a line end
}

TEST(Text, OtherTextOfAnyLanguageStays) {
  const std::string text = "é ß 模型 🚀 \u00a0 \U0010ffff";
  EXPECT_EQ(printable(text), text);
}

TEST(Text, BytesThatAreNoUtf8AreShown) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");                    // cut off
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");                    // ESC in two bytes
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a surrogate pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last character
}

TEST(Text, AnyBytesBecomeOnePrintableLine) {
  constexpr unsigned kSeed = 3;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = static_cast<char>(random() % 256);
    const std::string shown = printable(text);
    for (const char c : shown)
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << "seed " << kSeed << ", case " << i;
    EXPECT_EQ(printable(shown), shown) << "seed " << kSeed << ", case " << i;
  }
}

TEST(Text, QuotedTextEndsAtItsOwnQuote) {
  EXPECT_EQ(in_quotes("leaf"), "\"leaf\"");
  EXPECT_EQ(in_quotes("a\"]; b [label=\"x"), R"("a\"]; b [label=\"x")");
  EXPECT_EQ(in_quotes("end\\"), R"("end\\")");
  EXPECT_EQ(in_quotes("\n"), R"("\\n")");
}

TEST(Text, MessagesOfErrorsArePrintable) {
  const InputError e("dir\x1b[2J/f.json", "/name", "\"\x9d\" is unknown");
  EXPECT_STREQ(e.what(), "dir\\x1b[2J/f.json: /name: \"\\x9d\" is unknown");
}

}  // namespace
}  // namespace orrery
