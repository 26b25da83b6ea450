// SPDX-License-Identifier: Apache-2.0
#include "cli/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "cli/version.h"
#include "core/text.h"

namespace orrery::cli {
namespace {

// Those that --help shows.
std::vector<const CLI::App*> shown_commands(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); });
}
std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* o) { return o->nonpositional() && !o->get_group().empty(); });
}

bool takes_value(const CLI::Option& o) {
  return o.get_items_expected_max() > 0;
}

const CLI::Option* option_named(const CLI::App& command, const std::string& word) {
  for (const CLI::Option* o : shown_options(command)) {
    if (o->check_name(word)) return o;
  }
  return nullptr;
}

// The values of an option that has a list of them; of others nothing: files, numbers and texts.
std::vector<std::string> values_of(const CLI::Option& o, const DataFolders& data) {
  const std::string type = o.get_type_name();
  if (type.size() > 2 && type.front() == '{' && type.back() == '}') {
    std::vector<std::string> out;
    for (std::size_t at = 1; at < type.size();) {
      const std::size_t end = std::min(type.find(',', at), type.size() - 1);
      out.push_back(type.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }
  if (o.check_lname("model")) return preset_model_names();
  if (o.check_lname("cluster") || o.check_lname("topology")) return data.names("topologies");
  if (o.check_lname("stack")) return data.names("profiles/stacks");
  return {};
}

// Text of a manual page: a line that begins with a dot would be a request, and a hyphen may be typed.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  if (!out.empty() && (out.front() == '.' || out.front() == '\'')) out.insert(0, "\\&");
  return out;
}

std::string with_capital(std::string text) {
  if (!text.empty()) text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text;
}

std::string names_of(const CLI::Option& o) {
  std::string out;
  for (const std::string& s : o.get_snames()) out += (out.empty() ? "-" : ", -") + s;
  for (const std::string& l : o.get_lnames()) out += (out.empty() ? "--" : ", --") + l;
  return out;
}

std::string described(const CLI::Option& o) {
  std::string out = with_capital(o.get_description());
  if (!out.empty() && out.back() != '.') out += '.';
  if (!o.get_default_str().empty()) out += fmt::format(" Without it: {}.", o.get_default_str());
  return out;
}

std::string joined_names(const std::vector<const CLI::App*>& path, char between) {
  std::string out = "orrery";
  for (const CLI::App* c : path) out += between + c->get_name();
  return out;
}

// What bash, zsh and fish run: each asks `orrery complete` for the words that may come, and completes names
// of files where there are none. The word that is being written ends with a dot there, so that it is never
// empty.
constexpr const char* kBashScript =
    R"(# bash completion of orrery: source it, or put it into /usr/share/bash-completion/completions/orrery
_orrery() {
  local words=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" complete -- "${words[@]}" "${COMP_WORDS[COMP_CWORD]}." 2>/dev/null)
}
complete -o bashdefault -o default -F _orrery orrery
)";
constexpr const char* kZshScript = R"(#compdef orrery
# zsh completion of orrery: put it into a folder of $fpath as _orrery
_orrery() {
  local -a found
  found=("${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT-1]}" "${words[CURRENT]}." 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then
    compadd -- "${found[@]}"
  else
    _files
  fi
}
if [[ "${funcstack[1]}" = _orrery ]]; then
  _orrery "$@"
else
  compdef _orrery orrery
fi
)";
constexpr const char* kFishScript =
    R"(# fish completion of orrery: put it into ~/.config/fish/completions/orrery.fish
function __orrery_complete
  set -l words (commandline -opc)
  orrery complete -- $words[2..-1] (commandline -ct). 2>/dev/null
end
complete -c orrery -a '(__orrery_complete)'
)";

enum class Shell { kBash, kZsh, kFish };
constexpr auto enum_names(Shell) {
  return std::array{std::pair{Shell::kBash, "bash"}, std::pair{Shell::kZsh, "zsh"},
                    std::pair{Shell::kFish, "fish"}};
}
const char* script_of(Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return kBashScript;
    case Shell::kZsh:
      return kZshScript;
    case Shell::kFish:
      return kFishScript;
  }
  return "";
}

struct ExitText {
  ExitCode code;
  const char* meaning;
};
constexpr std::array kExits{ExitText{ExitCode::kOk, "done"},
                            ExitText{ExitCode::kFailure, "it failed; standard error says why"},
                            ExitText{ExitCode::kUsage, "no such command or option"},
                            ExitText{ExitCode::kInvalidInput,
                                     "an input is wrong: its file, the place in it, its value and what is "
                                     "allowed are on standard error"},
                            ExitText{ExitCode::kNoPlanFits, "no plan fits, or none keeps to the limits"}};

}  // namespace

std::vector<std::string> completions(const CLI::App& root, const DataFolders& data,
                                     std::vector<std::string> words) {
  if (words.empty()) words.emplace_back();
  std::string last = words.back();
  words.pop_back();
  const CLI::App* command = &root;
  const CLI::Option* open = nullptr;  // whose value comes next
  for (const std::string& word : words) {
    if (open != nullptr && word == "=") continue;  // bash takes --goal=time for three words
    if (std::exchange(open, nullptr) != nullptr) continue;
    if (word.starts_with("-")) {
      const CLI::Option* o = option_named(*command, word);
      if (o != nullptr && takes_value(*o)) open = o;
      continue;
    }
    for (const CLI::App* c : shown_commands(*command)) {
      if (c->get_name() == word) command = c;
    }
  }
  std::vector<std::string> all;
  const std::size_t equals = last.find('=');
  if (open != nullptr) {
    if (last == "=") last.clear();
    all = values_of(*open, data);
    // Of several values, the one that is being written.
    if (const std::size_t comma = last.rfind(','); comma != std::string::npos) {
      for (std::string& value : all) value.insert(0, last.substr(0, comma + 1));
    }
  } else if (last.starts_with("--") && equals != std::string::npos) {
    if (const CLI::Option* o = option_named(*command, last.substr(0, equals)))
      for (const std::string& value : values_of(*o, data)) all.push_back(last.substr(0, equals + 1) + value);
  } else if (last.starts_with("-")) {
    for (const CLI::Option* o : shown_options(*command)) {
      for (const std::string& name : o->get_lnames()) all.push_back("--" + name);
    }
  } else {
    for (const CLI::App* c : shown_commands(*command)) all.push_back(c->get_name());
  }
  std::erase_if(all, [&](const std::string& word) { return !word.starts_with(last); });
  return all;
}

std::vector<std::vector<const CLI::App*>> command_paths(const CLI::App& root) {
  std::vector<std::vector<const CLI::App*>> out{{}};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const CLI::App& command = out[i].empty() ? root : *out[i].back();
    for (const CLI::App* c : shown_commands(command)) {
      std::vector<const CLI::App*> path = out[i];
      path.push_back(c);
      out.push_back(std::move(path));
    }
  }
  return out;
}

std::string page_name(const std::vector<const CLI::App*>& path) {
  return joined_names(path, '-');
}

std::string manual_page(const std::vector<const CLI::App*>& path, const CLI::App& root,
                        const std::string& version) {
  const CLI::App& command = path.empty() ? root : *path.back();
  std::string out =
      fmt::format(".TH {} 1 \"\" \"orrery {}\" \"Orrery\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n",
                  roff(page_name(path)), roff(version), roff(page_name(path)),
                  roff(command.get_description()), roff(joined_names(path, ' ')));
  const std::vector<const CLI::App*> commands = shown_commands(command);
  const auto positionals = command.get_options(
      [](const CLI::Option* o) { return o->get_positional() && !o->get_group().empty(); });
  for (const CLI::Option* o : positionals) {
    const std::string name = o->get_name(true) + (o->get_items_expected_max() > 1 ? " ..." : "");
    out += fmt::format(".I {}\n", roff(o->get_required() ? name : "[" + name + "]"));
  }
  out += commands.empty() ? "[\\fIoption\\fR ...]\n" : "\\fIcommand\\fR [\\fIoption\\fR ...]\n";
  if (!positionals.empty()) out += ".SH ARGUMENTS\n";
  for (const CLI::Option* o : positionals)
    out += fmt::format(".TP\n.I {}\n{}\n", roff(o->get_name(true)), roff(described(*o)));
  if (!commands.empty()) out += ".SH COMMANDS\n";
  for (const CLI::App* c : commands) {
    out += fmt::format(".TP\n.B {}\n{}.\n", roff(c->get_name()), roff(with_capital(c->get_description())));
  }
  out += ".SH OPTIONS\n";
  for (const CLI::Option* o : shown_options(command)) {
    out += fmt::format(".TP\n.B {}{}\n{}\n", roff(names_of(*o)),
                       takes_value(*o) ? fmt::format(" \\fI{}\\fB", roff(o->get_type_name())) : "",
                       roff(described(*o)));
  }
  out += ".SH EXIT STATUS\n";
  for (const ExitText& e : kExits)
    out += fmt::format(".TP\n{}\n{}.\n", static_cast<int>(e.code), roff(with_capital(e.meaning)));
  out += ".SH SEE ALSO\n";
  std::vector<std::string> others;
  if (!path.empty()) others.push_back(page_name({path.begin(), path.end() - 1}));
  for (const CLI::App* c : commands) {
    std::vector<const CLI::App*> below = path;
    below.push_back(c);
    others.push_back(page_name(below));
  }
  for (std::size_t i = 0; i < others.size(); ++i)
    out += fmt::format(".BR {} (1){}\n", roff(others[i]), i + 1 < others.size() ? "," : "");
  return out;
}

void add_completion(CLI::App& root, App& app) {
  CLI::App* script = root.add_subcommand("completion", "a script that completes commands in a shell");
  auto shell = std::make_shared<Shell>();
  script
      ->add_option_function<std::string>(
          "shell",
          [shell](const std::string& given) {
            read_value(Json(given), Cursor{"command line", "/shell"}, Field{}, *shell);
          },
          "bash, zsh or fish")
      ->required();
  script->callback([shell] { fmt::print("{}", script_of(*shell)); });
  CLI::App* complete = root.add_subcommand("complete", "words that may follow others")->group("");
  auto words = std::make_shared<std::vector<std::string>>();
  complete->add_option("words", *words, "what was written, the last with a dot behind it");
  complete->callback([&root, &app, words] {
    if (!words->empty() && words->back().ends_with('.')) words->back().pop_back();
    for (const std::string& word : completions(root, app.data, *words)) fmt::print("{}\n", word);
  });
}

void add_man(CLI::App& root) {
  CLI::App* man = root.add_subcommand("man", "manual pages of the commands, as man reads them");
  struct Asked {
    std::vector<std::string> command;
    std::string folder;
  };
  auto o = std::make_shared<Asked>();
  man->add_option("command", o->command, "words of a command, like model show; absent: orrery itself");
  man->add_option("--folder", o->folder, "write a page of each command into it");
  man->callback([&root, version = version(), o] {
    const auto paths = command_paths(root);
    if (!o->folder.empty()) {
      require_folder("/folder", o->folder);
      for (const auto& path : paths)
        save_text(std::filesystem::path(o->folder) / (page_name(path) + ".1"),
                  manual_page(path, root, version));
      return;
    }
    const std::string asked = fmt::format("{}", fmt::join(o->command, " "));
    std::vector<std::string> names;
    for (const auto& path : paths) {
      const std::string name = path.empty() ? "" : joined_names(path, ' ').substr(sizeof("orrery"));
      if (name == asked) {
        fmt::print("{}", manual_page(path, root, version));
        return;
      }
      names.push_back(name);
    }
    throw InputError("command line", "/command", fmt::format("orrery has no command \"{}\"", asked),
                     allowed_names(asked, names));
  });
}

}  // namespace orrery::cli
