// SPDX-License-Identifier: Apache-2.0
//
// Lengths of the documents of a corpus, for Training::documents. A file is read part by part, never whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orrery::exec {

struct CorpusLengths {
  std::int64_t documents = 0, tokens = 0, longest = 0;
  // Lengths of some documents, drawn evenly from all where these are more than RecordedLengths takes.
  std::vector<std::int64_t> lengths;
  double mean() const { return static_cast<double>(tokens) / static_cast<double>(documents); }
};

// Of a corpus that Megatron-LM's tools/preprocess_data.py wrote, *.idx says where documents end (its
// core/datasets/indexed_dataset.py: "MMIDIDX\0\0", version 1, a type, numbers of sequences and of document
// ends, the sequences' lengths, pointers, and the documents' ends). Of other files, as open_data() has them,
// documents end with `end_token`, which counts as one of their tokens. Throws InputError naming the file
// where it cannot be read, is damaged, or has no document.
CorpusLengths corpus_lengths(const std::string& path, std::optional<std::int64_t> end_token);

}  // namespace orrery::exec
