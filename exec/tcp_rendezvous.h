// SPDX-License-Identifier: Apache-2.0
//
// Where ranks find rank 0 over TCP, and where rank 0 listens. Internal to exec/ and its tests.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exec/secret.h"

namespace orrery::exec {

struct Rendezvous {
  std::string host, port;  // by TCP; or
  std::string file;        // rank 0 writes a Contact here, which all hosts can read
};
// "tcp://HOST:PORT", "tcp://[IPv6]:PORT" or "file:PATH". Throws InputError.
Rendezvous parse_rendezvous(const std::string& text);

using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

// Throws Error when the name has no address.
Endpoints resolve(const std::string& host, const std::string& port);
// The addresses at which rank 0 may listen: that of HOST alone; with a file, those of loopback when all ranks
// are on one host, else all of the host.
Endpoints listening_addresses(const Rendezvous& at, bool one_host);

// What other hosts are told of this host: its name, or where the name has no address here, the IPv4 address
// of an interface, that of loopback where there is no other.
std::string reachable_as(const std::string& name);

// What rank 0 tells the others in a file that only their user may read.
struct Contact {
  std::string host, port;
  Secret secret;
};
void write_contact(const std::string& file, const Contact& contact);
// Throws Error when the file is not there, others may read it, or it is not such a file.
Contact read_contact(const std::string& file);

}  // namespace orrery::exec
