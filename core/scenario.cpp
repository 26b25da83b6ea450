// SPDX-License-Identifier: Apache-2.0
#include "core/scenario.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>
#include <string_view>

#include "core/search_axes.h"

namespace orrery {
namespace fs = std::filesystem;

DataFolders::DataFolders() {
  if (const char* root = std::getenv("ORRERY_DATA"); root != nullptr && *root != '\0') {
    roots_.emplace_back(root);
  }
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  if (!unknown) roots_.push_back((program.parent_path() / ORRERY_DATA_FROM_PROGRAM).lexically_normal());
  roots_.emplace_back(ORRERY_SOURCE_DIR);
  roots_.emplace_back(ORRERY_DATA_INSTALLED);  // of programs of others, which link the library
}

std::vector<std::string> DataFolders::names(const std::string& folder) const {
  std::vector<std::string> out;
  for (const fs::path& root : roots_) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root / folder, error)) {
      if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

fs::path DataFolders::find(const std::string& folder, const std::string& name, const fs::path& base,
                           const Cursor& at) const {
  if (name.empty() || name.size() > 4096 || name.find('\0') != std::string::npos) {
    at.fail(shown(Json(name)) + " is not a name or a path");
  }
  std::error_code error;
  if (name.ends_with(".json")) {
    const fs::path path = base / name;
    if (fs::exists(path, error)) return path;
  }
  if (name.find('/') == std::string::npos) {
    for (const fs::path& root : roots_) {
      const fs::path path = root / folder / (name + ".json");
      if (fs::exists(path, error)) return path;
    }
  }
  at.fail(shown(Json(name)) + " is not in " + folder, allowed_names(name, names(folder)));
}

Scenario read_scenario(const Json& json, const Cursor& at) {
  return read_fields<Scenario>(json, at);
}

namespace {

// Collectives are tabulated for each size of a group in a domain.
constexpr std::int64_t kLargestDomain = 4096;

void check_cluster(const Cluster& c, const Cursor& at) {
  if (c.intra_bandwidth.value == 0 && c.inside.empty())
    at.fail(
        "neither \"intra_bandwidth\", \"links\" nor \"inside\" says how fast devices of a node reach each "
        "other");
  for (std::size_t i = 0; i < c.other_nodes.size(); ++i) {
    const Cursor other = at.child("other_nodes").child(i);
    const std::int64_t from = c.other_nodes[i].from_node;
    if (i > 0 && from <= c.other_nodes[i - 1].from_node)
      other.child("from_node")
          .fail(fmt::format("{} does not come after the entry before", from),
                fmt::format("allowed: more than {}", c.other_nodes[i - 1].from_node));
    if (from >= c.nodes)
      other.child("from_node")
          .fail(fmt::format("{} is not one of the {} nodes, which are counted from 0", from, c.nodes),
                fmt::format("allowed: at most {}", c.nodes - 1));
    if (from % c.scale_up_nodes != 0)
      other.child("from_node")
          .fail(
              fmt::format("{} is inside a domain of {} nodes, which are of one type", from, c.scale_up_nodes),
              fmt::format("allowed: a multiple of {}", c.scale_up_nodes));
    if (c.other_nodes[i].intra_bandwidth.value == 0 && c.inside.empty())
      other.fail(
          "neither \"intra_bandwidth\" nor \"links\" says how fast devices of a node reach each other");
  }
  if (c.devices_per_node * c.scale_up_nodes > kLargestDomain)
    at.child("scale_up_nodes")
        .fail(fmt::format("{} nodes of {} devices are too many for one domain", c.scale_up_nodes,
                          c.devices_per_node),
              fmt::format("allowed: {} devices", kLargestDomain));
}

}  // namespace

Cluster load_cluster(const std::string& name, const fs::path& base, const Cursor& at,
                     const DataFolders& data) {
  const fs::path path = data.find("topologies", name, base, at);
  const Json json = load_json(path);
  const Cursor file{path.string(), ""};
  // What a link profile says stands where the file says nothing else.
  const auto take_links = [&](const Json& of, const Cursor& there, NodeType& type) {
    const auto links = of.is_object() ? of.find("links") : of.end();
    if (links == of.end() || !links->is_string() || links->get_ref<const std::string&>().empty()) return;
    type.measured = load_links(links->get<std::string>(), there.child("links"), data, path.parent_path());
    static_cast<ScaleUp&>(type) = type.measured;
  };
  Cluster out;
  take_links(json, file, out);
  read_fields_into(json, file, out);
  for (std::size_t i = 0; i < out.other_nodes.size(); ++i) {
    const Json& of = json["other_nodes"][i];
    const Cursor there = file.child("other_nodes").child(i);
    OtherNodes other;
    take_links(of, there, other);
    read_fields_into(of, there, other);
    out.other_nodes[i] = std::move(other);
  }
  out.file = file.file;
  check_cluster(out, file);
  return out;
}

std::vector<Device> load_devices(const Cluster& c, const DataFolders& data) {
  const fs::path folder = fs::path(c.file).parent_path();
  std::vector<Device> out{load_device(c.device, Cursor{c.file, "/device"}, data, folder)};
  for (std::size_t i = 0; i < c.other_nodes.size(); ++i) {
    const Cursor at = Cursor{c.file, "/other_nodes"}.child(i).child("device");
    out.push_back(load_device(c.other_nodes[i].device, at, data, folder));
  }
  return out;
}

std::string Problem::device_names() const {
  std::string out;
  for (std::size_t i = 0; i < cluster.types(); ++i) out += (i > 0 ? " + " : "") + devices[i].name;
  return out;
}

std::string Problem::counted_devices() const {
  std::string out;
  for (std::size_t i = 0; i < cluster.types(); ++i)
    out += fmt::format("{}{} {}", i > 0 ? " + " : "", cluster.nodes_of(i) * cluster.devices_per_node,
                       devices[i].name);
  return out;
}

LinkProfile read_links(const Json& json, const Cursor& at) {
  LinkProfile out = read_fields<LinkProfile>(json, at);
  if (out.intra_bandwidth.value == 0) at.fail("the field \"intra_bandwidth\" is missing");
  for (std::size_t i = 0; i < out.measured.size(); ++i) {
    const CollectiveCurve& c = out.measured[i];
    const Cursor curve = at.child("measured").child(i);
    if (c.bytes.empty() || c.bytes.size() != c.times.size())
      curve.fail(fmt::format("{} sizes and {} times", c.bytes.size(), c.times.size()),
                 "allowed: one time for each size");
    if (std::adjacent_find(c.bytes.begin(), c.bytes.end(), std::greater_equal<>{}) != c.bytes.end())
      curve.child("bytes").fail("sizes do not ascend");
  }
  return out;
}

LinkProfile load_links(const std::string& name, const Cursor& at, const DataFolders& data,
                       const fs::path& base) {
  const fs::path path = data.find("profiles/links", name, base, at);
  return read_links(load_json(path), Cursor{path.string(), ""});
}

Device load_device(const std::string& name, const Cursor& at, const DataFolders& data, const fs::path& base) {
  const fs::path path = data.find("profiles", name, base, at);
  return read_fields<Device>(load_json(path), Cursor{path.string(), ""});
}

Stack load_stack(const std::string& name, const Cursor& at, const DataFolders& data) {
  const fs::path path = data.find("profiles/stacks", name, fs::path(at.file).parent_path(), at);
  const Cursor file{path.string(), ""};
  auto out = read_fields<Stack>(load_json(path), file);
  if (out.executable && out.loss_keeps != LossKeeps::kLogits)
    file.child("loss_keeps")
        .fail(fmt::format("\"{}\" is for stacks that our engine does not run", name_of(out.loss_keeps)),
              "allowed: \"logits\", or \"executable\": false");
  if (out.measured_low.has_value() != out.measured_high.has_value())
    file.child(out.measured_low ? "measured_high" : "measured_low")
        .fail("is missing", "allowed: both, or neither");
  if (out.measured_low && *out.measured_low > *out.measured_high)
    file.child("measured_low")
        .fail(fmt::format("{} is more than measured_high", *out.measured_low),
              fmt::format("allowed: at most {}", *out.measured_high));
  out.file = file.file;
  return out;
}

PublishedFitFile load_published_fit(const DataFolders& data) {
  const fs::path path = data.find("profiles/fits", "published", {}, Cursor{});
  return read_fields<PublishedFitFile>(load_json(path), Cursor{path.string(), ""});
}

PredictionSpread prediction_spread(const Stack& stack, const PublishedFitFile& fit) {
  return {.memory = stack.executable ? MemorySpread{} : fit.memory, .plans = fit.plans};
}

MeasuredRange measured_range(const Stack& stack, const std::vector<Device>& devices,
                             const PublishedFitFile& fit) {
  if (stack.measured_low)
    return {.knowledge = Knowledge::kBoth, .low = *stack.measured_low, .high = *stack.measured_high};
  const auto has = [](const std::vector<std::string>& all, const std::string& name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  const bool knows_stack = has(fit.stacks, stack.name);
  const bool knows_devices =
      std::all_of(devices.begin(), devices.end(), [&](const Device& d) { return has(fit.devices, d.name); });
  const Knowledge knowledge = knows_stack && knows_devices   ? Knowledge::kBoth
                              : knows_stack || knows_devices ? Knowledge::kOne
                                                             : Knowledge::kNeither;
  const auto found = std::find_if(fit.ranges.begin(), fit.ranges.end(),
                                  [&](const MeasuredRange& r) { return r.knowledge == knowledge; });
  if (found == fit.ranges.end())
    throw Error(
        fmt::format("profiles/fits/published.json has no range for knowledge \"{}\"", name_of(knowledge)));
  return *found;
}

bool offloads(const Search& s) {
  return std::any_of(s.offload.begin(), s.offload.end(), [](const Offload& o) { return o != Offload{}; });
}

bool uses_drives(const Search& s) {
  return std::any_of(s.offload.begin(), s.offload.end(),
                     [](const Offload& o) { return o.nvme != OnDrives::kNothing; });
}

void check_stack(const Problem& problem, const std::optional<Plan>& plan, const Cursor& scenario,
                 const Cursor& plan_at) {
  const Scenario& s = problem.scenario;
  auto wrong = plan ? stack_problem(problem.stack, s.model, *plan, s.training)
                    : stack_problem(problem.stack, s.model, s.training);
  const std::string of_hosts =
      host_problem(problem.cluster, plan && plan->offloads(), plan && plan->optimizer_on_drives());
  if (!wrong && !of_hosts.empty())
    wrong =
        StackProblem{"/plan/offload", of_hosts, "allowed: no such field, or a cluster whose \"host\" has it"};
  if (!wrong) return;
  const std::string_view pointer = wrong->pointer;
  constexpr std::string_view kPlan = "/plan", kModel = "/model/";
  if (pointer.starts_with(kModel))
    s.model.place(scenario.child("model"), pointer.substr(kModel.size())).fail(wrong->text, wrong->allowed);
  const bool of_plan = pointer.starts_with(kPlan);
  Cursor at = of_plan ? plan_at : scenario;
  at.pointer += of_plan ? pointer.substr(kPlan.size()) : pointer;
  at.fail(wrong->text, wrong->allowed);
}

namespace {

void check_muon(const Training& t, const Cursor& at) {
  const auto refuse = [&](const char* why) { at.fail(why, "allowed: no such field"); };
  if (t.precision == Precision::kSgd)
    refuse("AdamW updates what Muon does not, and precision \"sgd\" has no AdamW");
  if (t.lamb) refuse("LAMB scales updates of Adam, and Muon's are none");
  if (t.adapter) refuse("adapters are updated by AdamW alone");
  if (t.stochastic_rounding) refuse("parameters that Muon updates are rounded to the nearest number");
}

// Chunks of attention fill the sequence of their tower.
void check_chunks(const Model& m, const Training& t, const Cursor& at) {
  const Depth depth = depth_of(m);
  const std::vector<std::int64_t> tokens = tower_tokens(m, t);
  for (std::size_t k = 0; k < depth.kinds.size(); ++k) {
    const std::int64_t sequence = tokens[static_cast<std::size_t>(depth.towers[k].own)];
    const char* const field = sequence == t.sequence ? "sequence" : "target_sequence";
    depth.kinds[k].for_each_layer([&]<class T>(const T& layer) {
      if constexpr (std::is_same_v<T, AttentionLayer>) {
        if (layer.reach(sequence) == sequence) return;
        if (sequence % layer.chunk != 0)
          at.child(field).fail(
              fmt::format("{} is no multiple of the {} tokens of the model's chunks of attention", sequence,
                          layer.chunk),
              fmt::format("allowed: up to {0}, or a multiple of {0}", layer.chunk));
        if (t.dropout > 0)
          at.child("dropout").fail(fmt::format("{} is not applied to attention in chunks", t.dropout),
                                   fmt::format("allowed: 0, or {} up to {}", field, layer.chunk));
      }
    });
  }
}

void check_training(const Problem& p, const Cursor& at) {
  const Training& t = p.scenario.training;
  const Model& m = p.scenario.model;
  for (const Input& i : m.inputs) {
    if (std::holds_alternative<BagInput>(i.is) && t.sequence != 1)
      at.child("sequence").fail(fmt::format("{} is not the one token of a sample", t.sequence), "allowed: 1");
    const auto* image = std::get_if<PatchInput>(&i.is);
    if (image == nullptr || t.sequence == image->tokens()) continue;
    at.child("sequence")
        .fail(fmt::format("{} is not the {} tokens of an image", t.sequence, image->tokens()),
              fmt::format("allowed: {}", image->tokens()));
  }
  if (m.positions == Positions::kLearned && m.bags() == nullptr && t.sequence > m.max_positions) {
    at.child("sequence")
        .fail(fmt::format("{} is longer than the model's {} learned positions", t.sequence, m.max_positions));
  }
  const std::vector<Input> inputs = m.all_inputs();
  const bool has_target = std::any_of(inputs.begin(), inputs.end(), [](const Input& i) {
    const auto* tokens = std::get_if<TokenInput>(&i.is);
    return tokens != nullptr && tokens->target;
  });
  if (t.target_sequence > 0 && !has_target) {
    at.child("target_sequence")
        .fail(fmt::format("the model \"{}\" has no target beside its sequence", m.name),
              "allowed: 0, or a model whose inputs have one");
  }
  if (m.positions == Positions::kLearned && m.bags() == nullptr && t.target_tokens() > m.max_positions) {
    at.child("target_sequence")
        .fail(fmt::format("{} is longer than the model's {} learned positions", t.target_tokens(),
                          m.max_positions));
  }
  check_chunks(m, t, at);
  if (t.stochastic_rounding && (t.precision != Precision::kNoMaster || t.math != Math::kBf16)) {
    at.child("stochastic_rounding")
        .fail(fmt::format("precision \"{}\" with math \"{}\" has nothing to round so", name_of(t.precision),
                          name_of(t.math)),
              "allowed: precision no-master with math bf16");
  }
  if (t.lamb && t.precision == Precision::kSgd) {
    at.child("lamb").fail("LAMB scales an update of Adam, and precision \"sgd\" has none",
                          "allowed: every precision but sgd");
  }
  if (bytes_per_parameter(t.precision).splits_master() && t.parameter_type() != DType::kBfloat16) {
    at.child("precision")
        .fail(
            fmt::format("\"{}\" parts a master copy between parameters in bf16 and what they lack, and math "
                        "\"{}\" has them in fp16",
                        name_of(t.precision), name_of(t.math)),
            "allowed: adam-bf16 or megatron-adam-bf16, or another math");
  }
  if (t.muon) check_muon(t, at.child("muon"));
  const std::vector<std::int64_t>& tried = p.scenario.search.islands;
  const bool islands = (p.scenario.plan && p.scenario.plan->islands > 1) ||
                       std::any_of(tried.begin(), tried.end(), [](std::int64_t n) { return n > 1; });
  if (islands && bytes_per_parameter(t.precision).splits_master())
    at.child("precision")
        .fail(fmt::format("\"{}\" parts master copies, which islands exchange whole", name_of(t.precision)),
              "allowed: adam-bf16 or megatron-adam-bf16, or a plan without islands");
  if (t.outer && !islands && !t.serves())
    at.child("outer").fail("no plan has islands, which alone have an outer optimizer",
                           "allowed: no such field, or plan.islands or search.islands above 1");
  if (t.lars && t.precision != Precision::kSgd)
    at.child("lars").fail(
        fmt::format("LARS scales gradients of SGD, and precision \"{}\" has Adam", name_of(t.precision)),
        "allowed: false, or precision sgd");
  // A processor has neither, and emulates both.
  for (std::size_t i = 0; i < p.cluster.types(); ++i) {
    const Device& d = p.devices[i];
    if (!rounds(t.math) || d.half == FlopRate{0}) continue;
    const auto refuse = [&](const char* what, const char* allowed) {
      at.child("math").fail(fmt::format("\"{}\" has no products of {}", d.name, what), allowed);
    };
    if (d.fp8 == FlopRate{0}) refuse("8-bit floats", "allowed: bf16, fp16, tf32, fp32");
    if (needs_block_factors(t.math) && !d.applies_factors(t.math)) {
      at.child("math").fail(
          fmt::format("tensor cores of \"{}\" do not apply the factors of \"{}\"", d.name, name_of(t.math)),
          "allowed: bf16, fp16, tf32, fp32, fp8, fp8-delayed, fp8-rowwise, fp8-blockwise");
    }
  }
}

}  // namespace

// The tensors of a step have so few bytes that no sum of them wraps in any plan, however many passes ops
// take.
void check_step(const Problem& p, const Cursor& at) {
  constexpr double kMostBytes = 0x1p58;
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  const Model& m = p.scenario.model;
  const Training& t = p.scenario.training;
  constexpr double kBytes = 8;  // of an element, at most
  // Of a token in all blocks: its tensors forward and backward (program/blocks has under half of these).
  double blocks = 0, scores = 0;
  const std::vector<std::int64_t> lengths = tower_tokens(m, t);
  const double longest = d(*std::max_element(lengths.begin(), lengths.end()));
  depth_of(m).for_each_layer([&]<class T>(const T& layer, std::int64_t times) {
    blocks += d(times) * (10 * d(m.hidden) + 6 * d(layer.matrix_elements(m.hidden)) / d(m.hidden));
    if constexpr (ReadsTower<T>) blocks += d(times) * 6 * d(layer.read_elements(1));
    if (t.adapter)  // x A' and its gradient
      blocks += d(times) * 4 * d(t.adapter->rank) * d(std::ssize(layer.adapter_matrices(m.hidden)));
    if constexpr (std::is_same_v<T, ExpertsLayer>)  // rows of a token
      blocks += d(times) * 8 * d(layer.top_k) * d(m.hidden);
    const double rows = d(layer.score_rows()) * longest;
    scores = p.stack.flash_attention ? std::max(scores, rows) : scores + 4 * d(times) * rows;
  });
  const double bytes =
      kBytes * d(t.global_batch) * longest * (blocks + 4 * d(std::max(m.vocab, m.head_rows())) + scores);
  if (bytes > kMostBytes)
    at.fail(
        fmt::format("the tensors of a step take {:.2g} bytes", bytes),
        fmt::format("allowed: at most {:.2g}; a smaller global_batch, a shorter sequence or a smaller model",
                    kMostBytes));
}

namespace {

void check_recorded(const RecordedLoad& load, const std::vector<ExpertsAt>& experts, const Cursor& at) {
  if (load.tokens.size() != 1 && load.tokens.size() != experts.size()) {
    at.fail(fmt::format("{} lists are not of the model's {} layers with experts", load.tokens.size(),
                        experts.size()),
            fmt::format("allowed: 1 list, or {}", experts.size()));
  }
  for (std::size_t layer = 0; layer < experts.size(); ++layer) {
    const std::size_t i = load.tokens.size() == 1 ? 0 : layer;
    const std::vector<std::int64_t>& tokens = load.tokens[i];
    if (static_cast<std::int64_t>(tokens.size()) != experts[layer].layer.experts) {
      at.child(i).fail(
          fmt::format("{} numbers are not of {} experts", tokens.size(), experts[layer].layer.experts),
          fmt::format("allowed: {} numbers", experts[layer].layer.experts));
    }
    if (std::all_of(tokens.begin(), tokens.end(), [](std::int64_t n) { return n == 0; }))
      at.child(i).fail("no expert has a token", "allowed: a list with a number above 0");
  }
}

}  // namespace

void check_documents(const Model& model, const Documents& documents, std::int64_t sequence,
                     const Cursor& at) {
  if (!model.has_tokens() || model.all_inputs().size() > 1 || model.has_pair())
    at.fail("documents are of models that read one sequence of tokens", "allowed: no such field");
  bool attends = false;
  depth_of(model).for_each_layer([&]<class T>(const T& layer, std::int64_t) {
    if constexpr (std::is_same_v<T, AttentionLayer>) {
      if (!layer.causal)
        at.fail("tokens of the model see those behind them too", "allowed: no such field, or causal layers");
      if (layer.reach(sequence) < sequence)
        at.fail("documents would cross the chunks that attention of the model falls into",
                fmt::format("allowed: no such field, or sequence up to {}", layer.chunk));
    }
    attends |= layer.score_rows() > 0;
  });
  if (!attends) at.fail("the model has no attention", "allowed: no such field");
  const auto* recorded = std::get_if<RecordedLengths>(&documents.is);
  if (recorded != nullptr && recorded->tokens.empty())
    at.child(RecordedLengths::kName).child("tokens").fail("holds no length", "allowed: at least one");
}

void check_expert_load(const Model& model, const ExpertLoad& load, const Cursor& at) {
  const std::vector<ExpertsAt> experts = experts_of(model);
  if (experts.empty()) at.fail("the model has no experts", "allowed: no such field");
  if (const auto* recorded = std::get_if<RecordedLoad>(&load.is))
    check_recorded(*recorded, experts, at.child(RecordedLoad::kName).child("tokens"));
  const auto* hot = std::get_if<HotLoad>(&load.is);
  if (hot == nullptr) return;
  for (const auto& [block, layer] : experts) {
    const double most = layer.most_shares(layer.experts);
    if (hot->shares <= most) continue;
    at.child(HotLoad::kName)
        .child("shares")
        .fail(fmt::format("a token chooses {} of {} experts, and none of them twice: {} even shares are more "
                          "than all tokens",
                          layer.top_k, layer.experts, hot->shares),
              fmt::format("allowed: at most {}", most));
  }
}

namespace {

void check_experts(const Scenario& scenario, const Cursor& at) {
  if (scenario.training.expert_load) {
    check_expert_load(scenario.model, *scenario.training.expert_load,
                      at.child("training").child("expert_load"));
  }
  if (!experts_of(scenario.model).empty()) return;
  const auto none = [&](const char* name, const auto& list) {
    if (!list.empty())
      at.child("search").child(name).fail("the model has no experts", "allowed: no such field");
  };
  none("ep", scenario.search.ep);
  none("etp", scenario.search.etp);
  none("expert_exchange", scenario.search.expert_exchange);
  none("overlap_exchanges", scenario.search.overlap_exchanges);
}

// A target that no layer has would do nothing.
void check_adapter(const Model& model, const Adapter& adapter, const Cursor& at) {
  std::set<AdapterTarget> there;
  depth_of(model).for_each_layer([&](const auto& layer, std::int64_t) {
    for (const AdapterMatrix& m : layer.adapter_matrices(model.hidden)) there.insert(m.target);
  });
  if (there.empty()) at.fail("the model has no matrix that takes an adapter", "allowed: no such field");
  for (std::size_t i = 0; i < adapter.targets.size(); ++i) {
    if (there.contains(adapter.targets[i])) continue;
    std::vector<std::string_view> names;
    for (const AdapterTarget t : there) names.push_back(name_of(t));
    at.child("targets").child(i).fail(
        fmt::format("\"{}\": no layer of the model has such a matrix", name_of(adapter.targets[i])),
        fmt::format("allowed: {}", fmt::join(names, ", ")));
  }
}

void check_mtp(const Scenario& s, const Cursor& at) {
  if (s.model.mtp_layers > 0 && s.training.adapter)
    at.child("model").child("mtp_layers").fail("adapters are trained for the next token alone", "allowed: 0");
}

// A field that would do nothing is a mistake.
void check_loading(const Loading& l, const Cursor& at) {
  const auto needs = [&](bool given, bool there, const char* field, const char* what, const char* example) {
    if (given && !there)
      at.child(field).fail(fmt::format("is missing or zero, and {}", what),
                           fmt::format("allowed: more than zero, like {}", example));
  };
  needs(l.cache_bytes.has_value(), l.dataset_bytes.has_value(), "dataset_bytes",
        "cache_bytes is a part of it", "\"2 TB\"");
  needs(l.shuffle == Shuffle::kShard, l.cache_bytes.has_value(), "cache_bytes",
        "shards differ from a global shuffle in what a cache has", "\"500 GB\"");
  needs(l.bandwidth_month.has_value(), l.storage_bandwidth.has_value(), "storage_bandwidth",
        "bandwidth_month is the price of more of it", "\"10 GB/s\"");
  needs(l.cores.has_value(), l.cpu_time.value > 0, "cpu_time", "cores are for it", "\"8 ms\"");
  needs(l.samples_per_read > 1, l.latency.value > 0, "latency", "the samples of a read share it",
        "\"10 ms\"");
  needs(l.variation > 0, l.workers > 0, "workers", "variation is of what they make ahead", "4");
}

}  // namespace

Problem resolve(Scenario scenario, const Cursor& at, const DataFolders& data) {
  Problem problem;
  problem.at = at;
  const Cursor topology = at.child("cluster").child("topology");
  problem.cluster = load_cluster(scenario.cluster.topology, fs::path(at.file).parent_path(), topology, data);
  Cluster& c = problem.cluster;
  if (scenario.cluster.nodes > 0) {
    c.nodes = scenario.cluster.nodes;
    c.sized = at.child("cluster").child("nodes");
  }
  if (scenario.node_hour) for_each_type(c, [&](NodeType& t) { t.node_hour = *scenario.node_hour; });
  problem.devices = load_devices(c, data);
  problem.stack = load_stack(scenario.stack, at.child("stack"), data);
  const PublishedFitFile fit = load_published_fit(data);
  problem.measured = measured_range(problem.stack, problem.devices, fit);
  problem.spread = prediction_spread(problem.stack, fit);
  check_search(problem.stack, scenario.search, at.child("search"));
  if (const std::string wrong = host_problem(c, offloads(scenario.search), uses_drives(scenario.search));
      !wrong.empty())
    at.child("search").child("offload").fail(wrong,
                                             "allowed: no such field, or a cluster whose \"host\" has it");
  check_experts(scenario, at);
  if (scenario.training.documents)
    check_documents(scenario.model, *scenario.training.documents, scenario.training.sequence,
                    at.child("training").child("documents"));
  check_mtp(scenario, at);
  if (scenario.training.adapter)
    check_adapter(scenario.model, *scenario.training.adapter, at.child("training").child("adapter"));
  if (scenario.loading) check_loading(*scenario.loading, at.child("loading"));
  check_parts(depth_of(scenario.model), scenario.search.recompute_parts,
              at.child("search").child("recompute_parts"), problem.stack.norms_in_products);
  problem.scenario = std::move(scenario);
  check_stack(problem, problem.scenario.plan, at, at.child("plan"));
  check_training(problem, at.child("training"));
  check_step(problem, at.child("training"));
  check_goal(problem, at);
  return problem;
}

void check_goal(const Problem& problem, const Cursor& at) {
  const Scenario& s = problem.scenario;
  const auto need = [&](bool there, const Cursor& field, const char* example) {
    if (!there)
      field.fail(fmt::format("is missing or zero, and the goal \"{}\" needs it", name_of(s.goal)),
                 fmt::format("allowed: more than zero, like {}", example));
  };
  const bool cost = s.goal == Goal::kCost || s.goal == Goal::kCostByDeadline;
  if (cost || s.goal == Goal::kTimeInBudget)
    need(problem.cluster.dollars_per_hour(problem.cluster.nodes) > 0, at.child("node_hour"), "\"$32.77\"");
  if (s.goal == Goal::kCostByDeadline) need(s.deadline.value > 0, at.child("deadline"), "\"20 days\"");
  if (s.goal == Goal::kTimeInBudget) need(s.budget.value > 0, at.child("budget"), "\"$100000\"");
  if (s.goal == Goal::kCostByDeadline || s.goal == Goal::kTimeInBudget)
    need(s.training.tokens > 0, at.child("training").child("tokens"), "300e9");
}

std::vector<std::string> ignored_limits(const Scenario& s) {
  std::vector<std::string> out;
  const auto ignored = [&](const char* field, bool given, Goal uses) {
    if (given && s.goal != uses)
      out.push_back(fmt::format("the goal \"{}\" ignores the {}; the goal \"{}\" keeps to it",
                                name_of(s.goal), field, name_of(uses)));
  };
  ignored("deadline", s.deadline.value > 0, Goal::kCostByDeadline);
  ignored("budget", s.budget.value > 0, Goal::kTimeInBudget);
  return out;
}

void check_ranks(const Plan& plan, const Cluster& cluster, const Cursor& at) {
  if (plan.ranks() > cluster.devices())
    at.fail(fmt::format("{} has {} ranks, and the cluster \"{}\" has {} devices", short_name(plan),
                        plan.ranks(), cluster.name, cluster.devices()),
            "allowed: as many ranks as devices, or fewer");
}

Problem load_problem(const fs::path& file, const DataFolders& data) {
  const Cursor at{file.string(), ""};
  return resolve(read_scenario(load_json(file), at), at, data);
}

}  // namespace orrery
