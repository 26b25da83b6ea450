// SPDX-License-Identifier: Apache-2.0
//
// orrery documents: lengths of a corpus's documents, for a scenario's training.
#include <fmt/format.h>

#include "cli/commands.h"
#include "core/documents.h"
#include "core/text.h"
#include "exec/corpus.h"

namespace orrery::cli {
namespace {

struct CorpusAsked {
  std::string file, output;
  std::optional<std::int64_t> end_token;
  std::int64_t sequence = 8192;
};

void execute(const App& app, const CorpusAsked& o) {
  if (!o.output.empty()) require_writable("/output", o.output);
  const exec::CorpusLengths corpus = exec::corpus_lengths(o.file, o.end_token);
  const Documents documents{RecordedLengths{corpus.lengths}};
  const double seen = DocumentLengths(documents).share_seen(o.sequence, 0);
  if (!o.output.empty()) save_json(o.output, write_fields(documents));
  if (app.json) {
    return print_json({{"schema", "orrery.documents/1"},
                       {"documents", write_fields(documents)},
                       {"count", corpus.documents},
                       {"tokens", corpus.tokens},
                       {"longest", corpus.longest},
                       {"sequence", o.sequence},
                       {"share_seen", seen}});
  }
  fmt::print("{}: {} documents of {:.1f} tokens in the mean, the longest of {}\n", printable(o.file),
             corpus.documents, corpus.mean(), corpus.longest);
  fmt::print(
      "packed into sequences of {} tokens, attention within them has {:.1f} % of all pairs of tokens\n",
      o.sequence, 100 * seen);
  if (!o.output.empty())
    fmt::print("{}: {} lengths, for \"documents\" of a scenario's training\n", printable(o.output),
               corpus.lengths.size());
}

}  // namespace

void add_documents(CLI::App& parent, App& app) {
  CLI::App* command =
      subcommand(parent, app, "documents",
                 "how long the documents of a corpus are, and what packing them leaves of attention");
  auto o = std::make_shared<CorpusAsked>();
  command
      ->add_option("file", o->file,
                   "an index of Megatron-LM (*.idx), tokens as `orrery run` takes them (*.bin), or text")
      ->required();
  command->add_option("--end-token", o->end_token, "that ends a document: in *.bin a token, in text a byte")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{65535}));
  command->add_option("--sequence", o->sequence, "tokens that documents are packed into")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("-o,--output", o->output, "write the lengths into this file");
  command->callback([&app, o] { execute(app, *o); });
}

}  // namespace orrery::cli
