// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/error.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

std::string syntax_error(const std::string& text, std::int64_t largest = kLargestInputFile) {
  try {
    (void)parse_json(text, "f.json", largest);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Json, ReadsAllThatJsonHasInOrder) {
  const Json j = parse_json(R"({"b": [1, -2, 2.5, true, null, "x\ny", {}], "a": {"c": [[]]}})", "f");
  EXPECT_EQ(j.dump(), R"({"b":[1,-2,2.5,true,null,"x\ny",{}],"a":{"c":[[]]}})");
  EXPECT_TRUE(j["b"][0].is_number_integer());
  EXPECT_EQ(parse_json("18446744073709551615", "f").get<std::uint64_t>(), ~std::uint64_t{0});
}

TEST(Json, SyntaxErrorsNameLineColumnAndWhatWasExpected) {
  EXPECT_EQ(syntax_error("{\"a\": 1,\n \"b\": [1,, 2]}"),
            "f.json: line 2, column 10: not JSON: unexpected ','; expected '[', '{', or a literal");
  EXPECT_EQ(syntax_error("{\"a\" 1}"),
            "f.json: line 1, column 6: not JSON: unexpected number literal; expected ':'");
  EXPECT_EQ(syntax_error("[1"), "f.json: line 1, column 3: not JSON: unexpected end of input; expected ']'");
  EXPECT_EQ(syntax_error("[2e999]"),
            "f.json: line 1, column 6: 2e999 is too large for a number; allowed: up to 1.8e308");
  EXPECT_EQ(syntax_error("[" + std::string(1 << 20, '9') + "]"),
            "f.json: line 1, column 1048577: " + std::string(40, '9') +
                "... is too large for a number; allowed: up to 1.8e308");
  EXPECT_EQ(
      syntax_error("\"\xff\""),
      "f.json: line 1, column 2: not JSON: invalid string: ill-formed UTF-8 byte; last read: '\"\\xff'");
  for (const char* text : {"", "nul", "[NaN]", "[Infinity]", "{]", "\"\\x\"", "[1] 2", "\x01"})
    EXPECT_EQ(syntax_error(text).find("json.exception"), std::string::npos) << text;
}

TEST(Json, AKeyStandsOnceInAnObject) {
  EXPECT_EQ(syntax_error(R"({"a": [{"x": 1}, {"b/c": 1, "x": 2, "b/c": 3}]})"),
            "f.json: /a/1/b~1c: the key is there twice; allowed: each key once");
  EXPECT_EQ(syntax_error(R"([{"x": {"x": 1}}, {"x": 1}])"), "no error");
}

TEST(Json, ManyKeysOfOneObjectTakeNoTimeThatGrowsWithTheirSquare) {
  // 300,000 keys: 4.5e10 comparisons of strings if each were looked up among the others.
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += "\"key" + std::to_string(i) + "\":0,";
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "f").size(), 300'000U);
  text.back() = ',';
  EXPECT_NE(syntax_error(text + "\"key7\":0}").find("f.json: /key7: the key is there twice"),
            std::string::npos);
}

TEST(Json, NestingAndTheNumberOfValuesAreBounded) {
  const std::string deep = std::string(kDeepestInput, '[') + std::string(kDeepestInput, ']');
  EXPECT_EQ(syntax_error(deep), "no error");
  EXPECT_NE(syntax_error("[" + deep + "]").find("nested too deeply; allowed: 64 levels"), std::string::npos);
  // 1600 bytes at most may have 100 values: the array and 99 zeros.
  const auto zeros = [](int n) {
    std::string text = "[0";
    for (int i = 1; i < n; ++i) text += ",0";
    return text + "]";
  };
  EXPECT_EQ(syntax_error(zeros(99), 1600), "no error");
  EXPECT_NE(syntax_error(zeros(100), 1600).find("too many values"), std::string::npos);
}

TEST(Json, AppendedKeysReadAsOthers) {
  Json j = Json::object();
  append(j, "a", 1);
  append(j, "b", Json::array({2}));
  EXPECT_EQ(j.dump(), R"({"a":1,"b":[2]})");
  EXPECT_EQ(j["b"][0], 2);
}

class Files : public testing::Test {
 protected:
  Files() { fs::create_directories(folder_); }
  ~Files() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::temp_directory_path() / ("orrery-files-" + std::to_string(::getpid()));
};

TEST_F(Files, ARegularFileIsReplacedAsAWhole) {
  const fs::path file = folder_ / "a.json";
  save_text(file, "one");
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(file.c_str(), &before), 0);
  save_text(file, "two");
  ASSERT_EQ(::stat(file.c_str(), &after), 0);
  EXPECT_EQ(load_text(file), "two");
  EXPECT_NE(before.st_ino, after.st_ino);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "nothing is left";
}

TEST_F(Files, WhatIsNoRegularFileStaysWhatItIs) {
  const fs::path pipe = folder_ / "pipe", file = folder_ / "file", link = folder_ / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] {
    std::ifstream in(pipe);
    std::getline(in, read, '\0');
  });
  save_text(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(fs::symlink_status(pipe)));

  save_text(file, "a long old text");
  fs::create_symlink(file, link);
  save_text(link, "new");
  EXPECT_TRUE(fs::is_symlink(fs::symlink_status(link)));
  EXPECT_EQ(load_text(file), "new");

  save_text("/dev/null", "nothing");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THROW(save_text("/dev/full", "text"), Error);
  EXPECT_THROW(save_text(folder_, "text"), Error);
  EXPECT_THROW(save_text(folder_ / "no" / "such", "text"), Error);
}

}  // namespace
}  // namespace orrery
