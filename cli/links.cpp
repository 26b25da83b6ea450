// SPDX-License-Identifier: Apache-2.0
//
// orrery links: link profiles, from what nccl-tests prints or from traces of a training.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "core/text.h"
#include "sim/collective/nccl_tests.h"
#include "trace/curves.h"
#include "trace/load.h"

namespace orrery::cli {
namespace {

struct LinksAsked {
  std::vector<std::string> files, traces;
  std::string base, name, system, output;
  std::optional<CollectiveKind> collective;
  std::int64_t ranks = 0;
};

std::vector<CollectiveCurve> curves_of_traces(const LinksAsked& o) {
  if (o.traces.empty()) return {};
  const trace::Loaded loaded = trace::load({o.traces.begin(), o.traces.end()});
  if (loaded.merged.processes.empty())
    throw InputError(o.traces.front(), "/", "is a timeline, which does not say who exchanged what with whom",
                     "allowed: the traces themselves");
  auto curves = trace::curves_of(loaded.merged, o.system);
  if (curves.empty())
    throw InputError(o.traces.front(), "/",
                     "no collective has a known size and all its members in the traces",
                     "allowed: traces of all ranks of a node, by PyTorch 2.2 or newer");
  return curves;
}

void import(const App& app, const LinksAsked& o) {
  const Cursor at{"command line", ""};
  if (o.files.empty() && o.traces.empty())
    at.fail("neither files of nccl-tests nor --traces are given", "allowed: one of them or both");
  require_writable("/output", o.output);
  LinkProfile profile = load_links(o.base, at.child("base"), app.data);
  profile.name = o.name;
  std::vector<CollectiveCurve> curves = curves_of_traces(o);
  for (const std::string& file : o.files) {
    curves.push_back(sim::read_nccl_tests(load_text(file), file, o.collective, o.ranks));
    curves.back().system = o.system;
  }
  for (CollectiveCurve& curve : curves) {
    // What is measured here goes before what the base has for such groups.
    std::erase_if(profile.measured, [&](const CollectiveCurve& c) {
      return c.collective == curve.collective && c.ranks == curve.ranks;
    });
    profile.measured.push_back(std::move(curve));
  }
  profile.origin["measured here"] =
      fmt::format("{}{}{}", fmt::join(o.files, ", "), o.files.empty() || o.traces.empty() ? "" : ", ",
                  fmt::join(o.traces, ", "));
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
  CLI::App* imports = subcommand(
      *command, app, "import", "a link profile from nccl-tests' output, or a training's traces, of one node");
  auto o = std::make_shared<LinksAsked>();
  imports->add_option("files", o->files, "what nccl-tests printed, or its -J file");
  imports->add_option("--traces", o->traces, "of the PyTorch profiler, of all ranks of one node");
  imports->add_option("--base", o->base, "the profile whose constants and other curves it keeps")->required();
  imports->add_option("--name", o->name, "of the new profile")->required();
  imports->add_option("--system", o->system, "what it was measured on");
  add_choice<CollectiveKind>(*imports, "--collective", o->collective, "where the files do not say");
  imports->add_option("--ranks", o->ranks, "where the files do not say")->check(CLI::Range(2, 1024));
  imports->add_option("-o,--output", o->output, "the profile's file");
  imports->callback([&app, o] { import(app, *o); });
}

}  // namespace orrery::cli
