// SPDX-License-Identifier: Apache-2.0
//
// What is written is read, and no header is trusted further than its file goes.
#include "exec/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "tests/folder.h"

namespace orrery::exec {
namespace {

class SafeTensors : public testing::Test {
 protected:
  // A file with this header and so many bytes behind it.
  std::string with(const std::string& header, std::size_t data, std::uint64_t length = 0) {
    const std::string path = folder_.path / "x.safetensors";
    std::ofstream out(path, std::ios::binary);
    if (length == 0) length = header.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header << std::string(data, '\x3f');
    return path;
  }
  // How the file is refused.
  std::string why(const std::string& header, std::size_t data, std::uint64_t length = 0) {
    try {
      TensorFiles files(with(header, data, length));
    } catch (const InputError& e) {
      return e.what();
    }
    return "it is read";
  }
  Folder folder_;
};

TEST_F(SafeTensors, AreReadAsTheyWereWritten) {
  const std::string path = folder_.path / "model.safetensors";
  const std::vector<float> a{1, -2.5F, 3e-3F, 4, 5, 6}, b{0.1F};
  for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    write_tensor_file(path, {{"a", {2, 3}, a}, {"b", {1}, b}, {"none", {0, 7}, {}}}, type);
    const TensorFiles files(folder_.path);
    ASSERT_EQ(files.tensors().size(), 3U);
    EXPECT_EQ(files.tensors().at("a").shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_TRUE(files.read(files.tensors().at("none")).empty());
    const std::vector<float> read = files.read(files.tensors().at("a"));
    // Half of the last of 8 and of 11 bits.
    const float unit = type == DType::kFloat32 ? 0 : type == DType::kBfloat16 ? 1.0F / 256 : 1.0F / 2048;
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(read[i], a[i], unit * std::abs(a[i])) << i;
    EXPECT_EQ(read[3], 4.0F);
    EXPECT_NEAR(files.read(files.tensors().at("b"))[0], 0.1F, unit * 0.1F);
  }
  EXPECT_FALSE(fs::exists(path + ".partial"));
  fs::create_symlink(folder_.path / "target", folder_.path / "link");
  write_tensor_file(folder_.path / "link", {{"a", {1}, {1.0F}}}, DType::kFloat32);
  EXPECT_TRUE(fs::is_symlink(folder_.path / "link"));
  EXPECT_GT(fs::file_size(folder_.path / "target"), 0U);
  EXPECT_THROW(write_tensor_file(folder_.path / "no" / "x.safetensors", {}, DType::kFloat32), Error);
}

TEST_F(SafeTensors, OfAnIndexStandBesideIt) {
  write_tensor_file(folder_.path / "one.safetensors", {{"a", {1}, {1.0F}}}, DType::kFloat32);
  write_tensor_file(folder_.path / "two.safetensors", {{"b", {1}, {2.0F}}}, DType::kFloat32);
  const auto index = [&](const std::string& text) {
    const fs::path path = folder_.path / "model.safetensors.index.json";
    std::ofstream(path) << text;
    return path;
  };
  index(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const TensorFiles files(folder_.path);
  EXPECT_EQ(files.read(files.tensors().at("b")), std::vector<float>{2.0F});
  for (const char* const wrong :
       {R"({"weight_map": {"a": "../one.safetensors"}})", R"({"weight_map": {"a": "/etc/passwd"}})",
        R"({"weight_map": {"a": 1}})", R"({"weight_map": []})", R"({})", R"([])"})
    EXPECT_THROW(TensorFiles{index(wrong)}, InputError) << wrong;
  write_tensor_file(folder_.path / "two.safetensors", {{"a", {1}, {2.0F}}}, DType::kFloat32);
  EXPECT_THROW(TensorFiles{index(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})")},
               InputError)
      << "two files have the same tensor";
}

TEST_F(SafeTensors, WithAWrongHeaderAreRefused) {
  const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"w": {"dtype": ")") + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
           offsets + "}}";
  };
  EXPECT_EQ(why(tensor("F32", "[2]", "[0, 8]"), 8), "it is read");
  const std::vector<std::tuple<std::string, std::size_t, const char*>> wrong{
      {tensor("F32", "[2]", "[0, 8]"), 7, "lie outside the 7 bytes of data"},
      {tensor("F32", "[2]", "[4, 8]"), 8, "hold 4 bytes, and the shape has 8"},
      {tensor("F32", "[2]", "[8, 0]"), 8, "lie outside the 8 bytes of data"},
      {tensor("F32", "[2]", "[-8, 0]"), 8, "data_offsets/0"},
      {tensor("F32", "[2]", "[0, 8, 8]"), 8, "allowed: [begin, end]"},
      {tensor("F32", "[4294967296, 4294967296, 4294967296]", "[0, 8]"), 8, "has too many elements"},
      {tensor("F32", "[0, 4294967296, 4294967296]", "[0, 8]"), 8, "hold 8 bytes, and the shape has 0"},
      {tensor("F32", "[-2]", "[0, 8]"), 8, "shape/0"},
      {tensor("F32", "[1,1,1,1,1,1,1,1,2]", "[0, 8]"), 8, "allowed: up to 8 sizes"},
      {tensor("F32", "2", "[0, 8]"), 8, "is not a shape"},
      {R"({"w": {"dtype": "F32", "shape": [2]}})", 8, "is not a tensor"},
      {R"({"w": [0, 8]})", 8, "is not a tensor"},
      {R"([1])", 8, "has no header of tensors"},
      {R"({"w": )", 8, "x.safetensors"}};
  for (const auto& [header, data, words] : wrong) {
    const std::string said = why(header, data);
    EXPECT_NE(said.find(words), std::string::npos) << header << "\n" << said;
    EXPECT_NE(said.find("x.safetensors"), std::string::npos) << said;
  }
  // Another type is only refused where it is read.
  const TensorFiles files(with(tensor("F64", "[1]", "[0, 8]"), 8));
  EXPECT_THROW(files.read(files.tensors().at("w")), InputError);
  EXPECT_NE(why("{}", 0, std::uint64_t{1} << 63).find("says that its header has 9223372036854775808 bytes"),
            std::string::npos);
  EXPECT_NE(why("{}", 0, 3).find("says that its header has 3 bytes"), std::string::npos);
}

}  // namespace
}  // namespace orrery::exec
