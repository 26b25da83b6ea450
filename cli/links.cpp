// SPDX-License-Identifier: Apache-2.0
//
// orrery links: link profiles, from what nccl-tests prints.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "core/text.h"
#include "sim/collective/nccl_tests.h"

namespace orrery::cli {
namespace {

struct LinksAsked {
  std::vector<std::string> files;
  std::string base, name, system, output;
  std::optional<CollectiveKind> collective;
  std::int64_t ranks = 0;
};

void import(const App& app, const LinksAsked& o) {
  const Cursor at{"command line", ""};
  require_writable("/output", o.output);
  LinkProfile profile = load_links(o.base, at.child("base"), app.data);
  profile.name = o.name;
  for (const std::string& file : o.files) {
    CollectiveCurve curve = sim::read_nccl_tests(load_text(file), file, o.collective, o.ranks);
    curve.system = o.system;
    // What is measured here goes before what the base has for such groups.
    std::erase_if(profile.measured, [&](const CollectiveCurve& c) {
      return c.collective == curve.collective && c.ranks == curve.ranks;
    });
    profile.measured.push_back(std::move(curve));
  }
  profile.origin["measured here"] = fmt::format("{}", fmt::join(o.files, ", "));
  Json json = write_fields(profile);
  (void)read_links(json, at);  // what is written can be read, or this says why not
  json["schema"] = "orrery.links/1";
  if (o.output.empty()) return print_json(json);
  save_json(o.output, json);
  fmt::print("{}: {} curves; name it as \"links\" in a cluster file\n", printable(o.output),
             profile.measured.size());
}

}  // namespace

void add_links(CLI::App& parent, App& app) {
  CLI::App* command = parent.add_subcommand("links", "link profiles: collectives measured inside a node");
  command->require_subcommand(1);
  CLI::App* imports =
      subcommand(*command, app, "import", "a link profile from nccl-tests' output on one node");
  auto o = std::make_shared<LinksAsked>();
  imports->add_option("files", o->files, "what nccl-tests printed, or its -J file")->required();
  imports->add_option("--base", o->base, "the profile whose constants and other curves it keeps")->required();
  imports->add_option("--name", o->name, "of the new profile")->required();
  imports->add_option("--system", o->system, "what it was measured on");
  add_choice<CollectiveKind>(*imports, "--collective", o->collective, "where the files do not say");
  imports->add_option("--ranks", o->ranks, "where the files do not say")->check(CLI::Range(2, 1024));
  imports->add_option("-o,--output", o->output, "the profile's file");
  imports->callback([&app, o] { import(app, *o); });
}

}  // namespace orrery::cli
