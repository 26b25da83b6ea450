// SPDX-License-Identifier: Apache-2.0
//
// Lengths of a corpus's documents, from files as other software writes them.
#include "exec/corpus.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "core/error.h"
#include "tests/folder.h"

namespace orrery::exec {
namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// As indexed_dataset.py writes it: a document's end is the number of sequences up to it.
std::string megatron_index(const std::vector<std::int32_t>& lengths, const std::vector<std::int64_t>& ends,
                           std::uint64_t version = 1) {
  std::string out("MMIDIDX\0\0", 9);
  put(out, version);
  put(out, std::uint8_t{8});  // unsigned 16-bit tokens
  put(out, static_cast<std::uint64_t>(lengths.size()));
  put(out, static_cast<std::uint64_t>(ends.size()));
  for (const std::int32_t n : lengths) put(out, n);
  for (std::size_t i = 0; i < lengths.size(); ++i) put(out, std::int64_t{0});
  for (const std::int64_t n : ends) put(out, n);
  return out;
}

class Corpora : public testing::Test {
 protected:
  std::string write(const char* name, const std::string& bytes) {
    const std::string path = (folder_.path / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string refusal(const std::string& path, std::optional<std::int64_t> end = std::nullopt) {
    try {
      (void)corpus_lengths(path, end);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  }
  Folder folder_;
};

// The first document is of two sequences, and one has none.
TEST_F(Corpora, AnIndexSaysWhereDocumentsEnd) {
  const CorpusLengths c =
      corpus_lengths(write("a.idx", megatron_index({5, 7, 300, 4}, {0, 2, 2, 3, 4})), std::nullopt);
  EXPECT_EQ(c.lengths, (std::vector<std::int64_t>{12, 300, 4}));
  EXPECT_EQ(c.documents, 3);
  EXPECT_EQ(c.tokens, 316);
  EXPECT_EQ(c.longest, 300);
}

TEST_F(Corpora, OtherFilesEndThemWithAToken) {
  EXPECT_EQ(corpus_lengths(write("a.txt", "ab.c.defg"), '.').lengths, (std::vector<std::int64_t>{3, 2, 4}));
  std::string tokens;
  for (const std::int32_t n : {20240520, 1, 5}) put(tokens, n);
  tokens.resize(1024);
  for (const std::uint16_t t : {50256, 3, 4, 50256, 9}) put(tokens, t);
  EXPECT_EQ(corpus_lengths(write("a.bin", tokens), 50256).lengths, (std::vector<std::int64_t>{1, 3, 1}));
}

// 200,000 documents of 1 to 100 tokens: 65,536 of them have the mean of all, 50.5, to 4 standard errors of
// 28.9 / 256.
TEST_F(Corpora, LongOnesAreSampledEvenly) {
  std::vector<std::int32_t> lengths(200'000);
  std::vector<std::int64_t> ends(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(i * 7919 % 100 + 1);
  std::iota(ends.begin(), ends.end(), 1);
  const CorpusLengths c = corpus_lengths(write("a.idx", megatron_index(lengths, ends)), std::nullopt);
  EXPECT_EQ(c.documents, 200'000);
  EXPECT_NEAR(c.mean(), 50.5, 1e-9);
  ASSERT_EQ(c.lengths.size(), 65'536U);
  EXPECT_NEAR(
      static_cast<double>(std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0})) / 65'536,
      50.5, 4 * 28.9 / 256);
}

TEST_F(Corpora, DamagedFilesAreRefused) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal((folder_.path / "none.idx").string()), "No such file");
  has(refusal(write("a.idx", "MMIDIDX")), "too short");
  has(refusal(write("b.idx", std::string(64, 'x'))), "no index of Megatron-LM");
  has(refusal(write("c.idx", megatron_index({5}, {1}, 2))), "version 1");
  const std::string whole = megatron_index({5, 6}, {1, 2});
  has(refusal(write("d.idx", whole.substr(0, whole.size() - 1))), "bytes long");
  std::string huge = whole;
  huge.replace(18, 8, std::string(8, '\xff'));
  has(refusal(write("e.idx", huge)), "bytes long");
  has(refusal(write("f.idx", megatron_index({5, 6}, {2, 1}))), "after one that ends behind 2");
  has(refusal(write("g.idx", megatron_index({5, 6}, {3}))), "of 2");
  has(refusal(write("h.idx", megatron_index({-5}, {1}))), "-5 tokens");
  has(refusal(write("i.idx", megatron_index({}, {}))), "no document");
  has(refusal(write("a.txt", "abc")), "does not say where documents end");
  has(refusal(write("j.idx", whole), 3), "says itself");
  has(refusal(write("short.bin", "abc"), 3), "too short");
  has(refusal(write("raw.bin", std::string(2048, 'x')), 3), "no token file");  // Megatron-LM's have no header
}

}  // namespace
}  // namespace orrery::exec
