// SPDX-License-Identifier: Apache-2.0
//
// A ring all-reduce played by SimGrid, to stand beside ours: K BYTES, then K x K host numbers in the order of
// the ring, on standard input; K leaves of K hosts under K spines, 50 GB/s and 0.5 us a link. Prints the
// simulated seconds.
#include <cstdio>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  // The model of plain max-min sharing; the defaults are TCP's.
  for (const char* set :
       {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/weight-S:0",
        "network/latency-factor:1", "network/bandwidth-factor:1", "contexts/stack-size:64"})
    sg::Engine::set_config(set);
  unsigned k = 0;
  double bytes = 0;
  std::cin >> k >> bytes;
  std::vector<sg::Host*> hosts;
  const auto host = [&](sg::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
    sg::Host* h = zone->create_host("host" + std::to_string(id), 1e9)->seal();
    hosts.push_back(h);
    return std::make_pair(h->get_netpoint(), static_cast<simgrid::kernel::routing::NetPoint*>(nullptr));
  };
  sg::create_fatTree_zone("tree", nullptr, {2, {k, k}, {1, k}, {1, 1}}, sg::ClusterCallbacks(host), 50e9,
                          0.5e-6, sg::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
  const std::size_t n = hosts.size();
  std::vector<sg::Host*> ring(n);
  for (sg::Host*& h : ring) {
    std::size_t id = 0;
    std::cin >> id;
    h = hosts.at(id);
  }
  // In 2(n - 1) rounds a member passes an n-th on, once it has received what it passes.
  const auto part = static_cast<std::uint64_t>(bytes / static_cast<double>(n));
  int token = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sg::Actor::create("member" + std::to_string(i), ring[i], [=, &token] {
      sg::Mailbox* mine = sg::Mailbox::by_name(std::to_string(i));
      sg::Mailbox* next = sg::Mailbox::by_name(std::to_string((i + 1) % n));
      int* received = nullptr;
      for (std::size_t round = 0; round < 2 * (n - 1); ++round) {
        const sg::CommPtr out = next->put_async(&token, part);
        const sg::CommPtr in = mine->get_async<int>(&received);
        in->wait();
        out->wait();
      }
    });
  }
  engine.run();
  std::printf("%.9f\n", sg::Engine::get_clock());
}
