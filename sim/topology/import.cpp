// SPDX-License-Identifier: Apache-2.0
#include "sim/topology/import.h"

#include <algorithm>
#include <array>
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "core/text.h"
#include "sim/topology/wiring.h"

namespace orrery::sim {
namespace {

using Xml = boost::property_tree::ptree;

Cursor at_line(const std::string& file, std::int64_t line) {
  return {file, "line " + std::to_string(line)};
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

Cluster read_edges(const std::string& text, Cluster c, const std::string& file) {
  std::istringstream in(text);
  std::int64_t number = 0, nodes = 0, rails = 0;
  c.fabric = {.kind = FabricKind::kGraph, .routing = Routing::kMinimal};
  Bandwidth fastest{0};
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (const auto comment = line.find('#'); comment != std::string::npos) line.resize(comment);
    const auto words = words_of(line);
    if (words.empty()) continue;
    const Cursor at = at_line(file, number);
    if (words.size() < 3 || words.size() > 4)
      at.fail(fmt::format("{} words", words.size()),
              "allowed: FROM TO BANDWIDTH [LATENCY], like port0.0 leaf1 400Gb/s 500ns");
    if (c.fabric.cables.size() == limits::kLongestList)
      at.fail("more cables than are read", fmt::format("allowed: {}", limits::kLongestList));
    Cable cable{words[0], words[1], {}, {}};
    read_value(Json(words[2]), at, declared<Cable>("bandwidth"), cable.bandwidth);
    if (words.size() == 4) read_value(Json(words[3]), at, declared<Cable>("latency"), cable.latency);
    if (cable.from == cable.to) at.fail("the cable joins a vertex to itself", "allowed: two vertices");
    for (const std::string* name : {&cable.from, &cable.to}) {
      check_length(*name, limits::kLongestText, at);
      if (!is_utf8(*name)) at.fail(shown(Json(*name)) + " is not UTF-8");
      const auto port = port_named(*name);
      if (!port) continue;
      if (port->node >= static_cast<std::int64_t>(limits::kMostNodes) ||
          port->rail >= static_cast<std::int64_t>(limits::kMostInNode))
        at.fail(shown(Json(*name)) + " is out of range", "allowed: port0.0 to port1048575.1023");
      nodes = std::max(nodes, port->node + 1);
      rails = std::max(rails, port->rail + 1);
      fastest = std::max(fastest, cable.bandwidth);
    }
    c.fabric.cables.push_back(std::move(cable));
  }
  if (nodes == 0)
    throw InputError(file, "", "no cable ends at a port of a node",
                     "allowed: names like port0.0, port 0 of node 0");
  c.nodes = nodes;
  c.nics = rails;
  c.devices_per_node = std::max(c.devices_per_node, rails);
  c.nic_bandwidth = fastest * rails;
  c.nic_efficiency = 1;
  return c;
}

void collect(const Xml& tree, const std::string& tag, std::vector<const Xml*>& out, int depth = 0) {
  if (depth > 64) return;
  for (const auto& [name, child] : tree) {
    if (name == tag) out.push_back(&child);
    collect(child, tag, out, depth + 1);
  }
}

// The parser calls itself for every level, and an element takes it hundreds of bytes. A node has under a
// thousand elements.
void check_elements(const std::string& text, const std::string& file) {
  constexpr std::int64_t kDeepest = 64, kMost = 65'536;
  std::int64_t depth = 0, elements = 0, line = 1;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    line += text[i] == '\n';
    const bool opens = text[i] == '<' && text[i + 1] != '/' && text[i + 1] != '!' && text[i + 1] != '?';
    depth += opens;
    elements += opens;
    if ((text[i] == '<' && text[i + 1] == '/') || (text[i] == '/' && text[i + 1] == '>')) --depth;
    if (depth > kDeepest)
      at_line(file, line).fail("nested too deeply", fmt::format("allowed: {} levels", kDeepest));
    if (elements > kMost)
      at_line(file, line).fail("more elements than are read", fmt::format("allowed: {}", kMost));
  }
}

// What errors call an element of the file: <pci busid="0000:17:00.0">.
struct Element {
  const std::string& file;
  const char* tag;
  const char* key;
  const Xml& tree;

  std::string text(const char* attribute) const {
    return tree.get<std::string>(std::string("<xmlattr>.") + attribute, "");
  }
  // Where it has no such attribute, or none that is a number: `absent`.
  double number(const char* attribute, double absent, double most) const {
    return in_range(attribute, tree.get<double>(std::string("<xmlattr>.") + attribute, absent), most);
  }
  double in_range(const char* attribute, double v, double most) const {
    if (v >= 0 && v <= most) return v;
    Cursor{file, fmt::format("<{} {}=\"{}\">", tag, key, text(key))}.fail(
        fmt::format("{}=\"{}\" is out of range", attribute, text(attribute)),
        fmt::format("allowed: 0 to {}", most));
  }
};

// NCCL's rates in GB/s (topo.h, xml.cc of 2.30).
double nvlink_rate(double sm) {
  return sm >= 100 ? 40.1 : sm >= 90 ? 20.6 : sm >= 86 && sm < 90 ? 12.0 : 20.0;
}
double pcie_rate(const Element& pci) {
  const std::string text = pci.text("link_speed");  // "16.0 GT/s PCIe"
  double gts = text.empty() ? 16 : 8;               // 8 where it is not known, as NCCL has it
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gts);
  if (error == std::errc::result_out_of_range) gts = HUGE_VAL;
  gts = pci.in_range("link_speed", gts, 1000);
  const double width = pci.number("link_width", 16, 32);
  const double speed = gts >= 64   ? 480
                       : gts >= 32 ? 240
                       : gts >= 16 ? 120
                       : gts >= 8  ? 60
                       : gts >= 5  ? 30
                                   : 15;
  return (width == 0 ? 16 : width) * speed / 80;
}

// Of all bonds to one target.
double nvlink_rate(const Element& gpu, const Element& link) {
  return link.number("count", 0, 1000) * nvlink_rate(gpu.number("sm", 80, 1000));
}

Bandwidth gigabytes(double gb) {
  return Bandwidth{std::llround(gb * 1e9)};
}

// Between sockets, as NCCL counts (topo.h of 2.30).
double socket_rate(const Element& cpu) {
  if (cpu.text("vendor") == "AuthenticAMD") return 16;
  constexpr double kSapphireRapids = 0x8f, kSkylake = 0x55;
  const double model = cpu.number("modelid", kSkylake, 65'535);
  return model >= kSapphireRapids ? 22 : model >= kSkylake ? 10 : 6;
}

// The PCIe tree and the NVLinks between GPUs of a node without NVSwitches.
class InsideReader {
 public:
  InsideReader(const Xml& system, const std::string& file, std::int64_t most_nics)
      : file_(file), most_nics_(most_nics) {
    walk(system, "cpu0");
    for (std::size_t i = 0; i < cpus_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j)
        add(cpus_[j].first, cpus_[i].first, std::min(cpus_[i].second, cpus_[j].second));
    }
    for (const auto& [from, target, rate] : nvlinks_) {
      const auto to = gpus_.find(target);
      if (to == gpus_.end())
        switched_ = true;
      else if (from < to->second)
        add("gpu" + std::to_string(from), "gpu" + std::to_string(to->second), rate);
    }
  }
  bool switched() const { return switched_; }
  // `nic`: of a NIC that the file does not have.
  std::vector<Cable> cables(Bandwidth nic) && {
    if (nics_.empty()) cables_.push_back({"nic0", "cpu0", std::max(nic, gigabytes(12)), Time{0}});
    return std::move(cables_);
  }

 private:
  void add(const std::string& from, const std::string& to, double gb) {
    cables_.push_back({from, to, std::max(gigabytes(gb), Bandwidth{1}), Time{0}});
  }
  void walk(const Xml& at, const std::string& parent) {
    for (const auto& [name, child] : at) {
      if (name == "cpu") {
        constexpr std::size_t kMostCpus = 64;  // every two of them are joined
        if (cpus_.size() == kMostCpus)
          throw InputError(file_, "", "more <cpu> elements than are read",
                           fmt::format("allowed: {}", kMostCpus));
        const std::string cpu = "cpu" + std::to_string(cpus_.size());
        cpus_.emplace_back(cpu, socket_rate({file_, "cpu", "numaid", child}));
        walk(child, cpu);
      } else if (name == "pci") {
        read_pci(child, parent);
      }
    }
  }
  void read_pci(const Xml& pci, const std::string& parent) {
    const Element slot{file_, "pci", "busid", pci};
    const double rate = pcie_rate(slot);
    const std::string bus = slot.text("busid");
    std::vector<const Xml*> nets;
    collect(pci, "net", nets);
    if (const auto gpu = pci.find("gpu"); gpu != pci.not_found()) {
      const auto number = static_cast<std::int64_t>(gpus_.size());
      if (!gpus_.try_emplace(bus, number).second) return;  // the same slot twice
      add("gpu" + std::to_string(number), parent, rate);
      for (const auto& [name, child] : gpu->second) {
        if (name != "nvlink") continue;
        const Element link{file_, "nvlink", "target", child};
        nvlinks_.push_back(
            {number, link.text("target"), nvlink_rate({file_, "gpu", "dev", gpu->second}, link)});
      }
    } else if (pci.find("nic") != pci.not_found()) {
      for (const Xml* net : nets) {
        const auto number = static_cast<std::int64_t>(nics_.size());
        if (number < most_nics_ && nics_.insert(net->get<std::string>("<xmlattr>.name", "")).second)
          add("nic" + std::to_string(number), parent, rate);
      }
    } else {
      const std::string own = "pci-" + std::to_string(switches_++);
      add(own, parent, rate);
      walk(pci, own);
    }
  }

  struct Nvlink {
    std::int64_t from;
    std::string target;
    double rate;
  };
  const std::string& file_;
  std::int64_t most_nics_, switches_ = 0;
  std::vector<Cable> cables_;
  std::vector<std::pair<std::string, double>> cpus_;
  std::map<std::string, std::int64_t> gpus_;  // by bus
  std::set<std::string> nics_;
  std::vector<Nvlink> nvlinks_;
  bool switched_ = false;
};

Cluster read_nccl(const std::string& text, Cluster c, const std::string& file) {
  check_elements(text, file);
  Xml root;
  try {
    std::istringstream in(text);
    boost::property_tree::read_xml(in, root);
  } catch (const boost::property_tree::xml_parser_error& e) {
    throw InputError(file, "line " + std::to_string(e.line()), e.message(),
                     "allowed: XML as NCCL_TOPO_DUMP_FILE writes it");
  }
  if (root.find("system") == root.not_found()) throw InputError(file, "", "has no element \"system\"", {});
  std::vector<const Xml*> pcis, nets;
  collect(root, "pci", pcis);
  collect(root, "net", nets);
  std::int64_t gpus = 0;
  double nvlink = 0, pcie = 0;
  for (const Xml* pci : pcis) {
    const auto gpu = pci->find("gpu");
    if (gpu == pci->not_found()) continue;
    double mine = 0;
    for (const auto& [name, link] : gpu->second) {
      if (name == "nvlink")
        mine += nvlink_rate({file, "gpu", "dev", gpu->second}, {file, "nvlink", "target", link});
    }
    const double slot = pcie_rate({file, "pci", "busid", *pci});
    nvlink = gpus == 0 ? mine : std::min(nvlink, mine);
    pcie = gpus == 0 ? slot : std::min(pcie, slot);
    ++gpus;
  }
  if (gpus == 0) throw InputError(file, "", "has no GPU: no \"gpu\" inside a \"pci\"", {});
  if (gpus > 1024) throw InputError(file, "", fmt::format("has {} GPUs", gpus), "allowed: at most 1024");
  double network = 0;
  std::set<std::string> seen;
  for (const Xml* net : nets) {
    if (!seen.insert(net->get<std::string>("<xmlattr>.name", std::to_string(seen.size()))).second) continue;
    const double speed = Element{file, "net", "name", *net}.number("speed", 10000, 1e7);  // Mb/s
    network += (speed > 0 ? speed : 10000) / 8000;
  }
  c.nodes = 1;
  c.devices_per_node = gpus;
  c.intra_bandwidth = gigabytes(nvlink > 0 ? nvlink : pcie);
  if (nvlink > 0) c.intra_efficiency = 1;
  c.nics = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::min<std::size_t>(seen.size(), 1024)));
  if (network > 0) c.nic_bandwidth = gigabytes(network);
  c.origin["intra_bandwidth"] =
      nvlink > 0 ? "NVLinks of the NCCL topology times NCCL's rate of one, which is what transfers achieve"
                 : "PCIe slots of the NCCL topology";
  c.origin["nics"] = "network adapters of the NCCL topology";
  InsideReader inside(root.get_child("system"), file, std::min(c.nics, c.devices_per_node));
  if (gpus > 1 && !inside.switched()) {
    c.inside = std::move(inside).cables(c.nic_bandwidth);
    c.origin["inside"] = "PCIe and NVLinks of the NCCL topology, at NCCL's rates";
  }
  return c;
}

// What joins two GPUs without NVLink, "X" being a GPU and itself.
constexpr std::array<std::string_view, 7> kSlots{"X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC"};

Cluster read_nvidia_smi(const std::string& text, Bandwidth nvlink, Cluster c, const std::string& file) {
  std::istringstream in(text);
  std::int64_t number = 0, gpus = 0, nics = 0;
  std::vector<std::vector<std::int64_t>> bonds;  // NVLinks between two GPUs
  std::vector<std::string> header;
  for (std::string line; std::getline(in, line);) {
    ++number;
    // Underlined headers.
    for (std::size_t at = line.find('\x1b'); at != std::string::npos; at = line.find('\x1b')) {
      const std::size_t end = line.find('m', at);
      line.erase(at, end == std::string::npos ? std::string::npos : end - at + 1);
    }
    const auto words = words_of(line);
    if (words.empty()) continue;
    const Cursor at = at_line(file, number);
    if (header.empty()) {
      if (words[0] != "GPU0")
        at.fail("the header does not begin with GPU0", "allowed: what `nvidia-smi topo -m` prints");
      header = words;
      gpus = std::count_if(words.begin(), words.end(), [](const std::string& w) {
        return w.starts_with("GPU") && w.size() > 3 && std::isdigit(static_cast<unsigned char>(w[3])) != 0;
      });
      nics = std::count_if(words.begin(), words.end(), [](const std::string& w) {
        return (w.starts_with("NIC") && w.size() > 3) || w.starts_with("mlx");
      });
      continue;
    }
    if (static_cast<std::int64_t>(bonds.size()) == gpus) break;
    if (words[0] != "GPU" + std::to_string(bonds.size()))
      at.fail("expected the row of GPU" + std::to_string(bonds.size()));
    if (static_cast<std::int64_t>(words.size()) <= gpus) at.fail("too few cells");
    auto& row = bonds.emplace_back();
    for (std::int64_t g = 0; g < gpus; ++g) {
      const std::string& cell = words[static_cast<std::size_t>(g) + 1];
      std::int64_t links = 0;
      bool known = std::find(kSlots.begin(), kSlots.end(), cell) != kSlots.end();
      if (cell.starts_with("NV")) {
        const auto [end, error] = std::from_chars(cell.data() + 2, cell.data() + cell.size(), links);
        known = error == std::errc{} && end == cell.data() + cell.size() && links >= 1 && links <= 1000;
      }
      if (!known)
        at.fail(shown(Json(cell)) + " is not a connection",
                fmt::format("allowed: NV1 to NV1000, {}", fmt::join(kSlots, ", ")));
      row.push_back(links);
    }
  }
  if (gpus == 0 || gpus > 1024 || static_cast<std::int64_t>(bonds.size()) != gpus)
    throw InputError(file, "", fmt::format("{} GPUs in the header and {} rows", gpus, bonds.size()), {});
  // Through a switch every pair shows all links of a GPU; in a mesh a GPU's links are divided among the
  // others.
  std::set<std::int64_t> kinds;
  std::int64_t least_sum = std::numeric_limits<std::int64_t>::max();
  for (std::size_t g = 0; g < bonds.size(); ++g) {
    std::int64_t sum = 0;
    for (std::size_t o = 0; o < bonds.size(); ++o) {
      if (o == g) continue;
      kinds.insert(bonds[g][o]);
      sum += bonds[g][o];
    }
    least_sum = std::min(least_sum, sum);
  }
  const bool switched = kinds.size() == 1 && *kinds.begin() > 4;
  const std::int64_t links = switched ? *kinds.begin() : least_sum;
  c.nodes = 1;
  c.devices_per_node = gpus;
  c.nics = std::max<std::int64_t>(1, std::min<std::int64_t>(nics, 1024));
  if (gpus > 1 && links > 0) {
    c.intra_bandwidth = nvlink * links;
    c.origin["intra_bandwidth"] = fmt::format("{} NVLinks a GPU of {} each way, {}", links, format(nvlink),
                                              switched ? "through switches" : "a mesh");
  }
  return c;
}

}  // namespace

TopologyFormat format_of(const std::string& text) {
  const auto at = text.find_first_not_of(" \t\r\n\x1b[4m");
  if (at != std::string::npos && text[at] == '<') return TopologyFormat::kNccl;
  if (text.find("GPU0") != std::string::npos && text.find("GPU0") < 200) return TopologyFormat::kNvidiaSmi;
  return TopologyFormat::kEdges;
}

Cluster import_topology(const std::string& text, TopologyFormat format, Bandwidth nvlink, Cluster base,
                        const std::string& file) {
  const auto read = [&] {
    switch (format) {
      case TopologyFormat::kNccl:
        return read_nccl(text, std::move(base), file);
      case TopologyFormat::kNvidiaSmi:
        return read_nvidia_smi(text, nvlink, std::move(base), file);
      case TopologyFormat::kEdges:
        break;
    }
    return read_edges(text, std::move(base), file);
  };
  Cluster c = read();
  c.file = file;
  const Cursor at{file, ""};
  if (c.intra_bandwidth.value == 0 && c.inside.empty())
    at.fail("does not say how fast devices of a node reach each other",
            "give --intra, like \"900 GB/s\", or --links PROFILE");
  if (c.nic_bandwidth.value == 0)
    at.fail("does not say how fast the NICs of a node are together", "give --nic, like \"3200 Gb/s\"");
  (void)read_fields<Cluster>(write_fields(c), at);  // what is imported can be read, or this says why not
  return c;
}

}  // namespace orrery::sim
