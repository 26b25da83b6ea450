// SPDX-License-Identifier: Apache-2.0
//
// Flows on links, timed by SimGrid: an implementation that shares nothing with ours. Reads
//   LINKS, then a capacity in bytes per second for each; FLOWS, then for each: start in seconds, bytes,
//   number of links, links
// and prints when each flow ends, in seconds.
#include <cstdio>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  // The model of plain max-min sharing; the defaults are TCP's.
  for (const char* set : {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
                          "network/weight-S:0", "network/latency-factor:1", "network/bandwidth-factor:1"})
    sg::Engine::set_config(set);
  sg::NetZone* zone = sg::create_full_zone("all");
  std::size_t links = 0, flows = 0;
  std::cin >> links;
  std::vector<const sg::Link*> all;
  for (std::size_t i = 0; i < links; ++i) {
    double capacity = 0;
    std::cin >> capacity;
    all.push_back(zone->create_link("link" + std::to_string(i), capacity)->set_latency(0)->seal());
  }
  std::cin >> flows;
  std::vector<double> ends(flows);
  for (std::size_t f = 0; f < flows; ++f) {
    double start = 0, bytes = 0;
    std::size_t count = 0;
    std::cin >> start >> bytes >> count;
    std::vector<sg::LinkInRoute> path;
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t link = 0;
      std::cin >> link;
      path.emplace_back(all.at(link));
    }
    sg::Host* from = zone->create_host("from" + std::to_string(f), 1e9)->seal();
    sg::Host* to = zone->create_host("to" + std::to_string(f), 1e9)->seal();
    zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, path, false);
    sg::Actor::create("flow" + std::to_string(f), from, [=, &ends] {
      sg::this_actor::sleep_for(start);
      sg::Comm::sendto(from, to, static_cast<std::uint64_t>(bytes));
      ends[f] = sg::Engine::get_clock();
    });
  }
  zone->seal();
  engine.run();
  for (const double end : ends) std::printf("%.12g\n", end);
}
