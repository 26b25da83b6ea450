// SPDX-License-Identifier: Apache-2.0
#include "exec/tcp_rendezvous.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <boost/asio/io_context.hpp>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>

#include "core/error.h"

namespace orrery::exec {

namespace asio = boost::asio;
using asio::ip::tcp;

Rendezvous parse_rendezvous(const std::string& text) {
  const auto fail = [&](const char* problem) -> Rendezvous {
    throw InputError("command line", "/rendezvous", fmt::format("\"{}\" {}", text, problem),
                     "allowed: tcp://HOST:PORT, tcp://[IPv6]:PORT, file:PATH");
  };
  if (text.starts_with("file:"))
    return text.size() > 5 ? Rendezvous{.file = text.substr(5)} : fail("names no file");
  if (!text.starts_with("tcp://")) return fail("is not a rendezvous");
  // The colons of an address in brackets are not that of the port.
  const std::string at = text.substr(6);
  const std::size_t bracket = at.rfind(']'), colon = at.rfind(':');
  const bool has_port = colon != at.npos && (bracket == at.npos || colon > bracket);
  std::string host = at.substr(0, has_port ? colon : at.npos);
  const std::string port = has_port ? at.substr(colon + 1) : "";
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find_first_of(":[]") != host.npos)
    return fail("names an IPv6 address without brackets");
  if (host.empty()) return fail("names no host");
  if (port.empty()) return fail("names no port");
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0)
    return fail("names a port that is not a number from 1 to 65535");
  return {.host = host, .port = port};
}

Endpoints resolve(const std::string& host, const std::string& port) {
  asio::io_context context;
  boost::system::error_code e;
  const auto found = tcp::resolver(context).resolve(host, port, e);
  if (e) throw Error(fmt::format("host \"{}\" is not known: {}", host, e.message()));
  Endpoints out;
  for (const auto& entry : found) out.push_back(entry.endpoint());
  return out;
}

Endpoints listening_addresses(const Rendezvous& at, bool one_host) {
  if (at.file.empty()) return resolve(at.host, at.port);
  if (one_host) return {{asio::ip::address_v4::loopback(), 0}, {asio::ip::address_v6::loopback(), 0}};
  return {{tcp::v6(), 0}, {tcp::v4(), 0}};
}

std::string reachable_as(const std::string& name) {
  try {
    resolve(name, "0");
    return name;
  } catch (const Error&) {  // an address does instead
  }
  ifaddrs* first = nullptr;
  const std::string loopback = asio::ip::address_v4::loopback().to_string();
  if (::getifaddrs(&first) != 0) return loopback;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    const bool is_up = (i->ifa_flags & IFF_UP) != 0, is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
    if (!is_up || is_loopback || i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address{};
    std::memcpy(&address, i->ifa_addr, sizeof address);
    return asio::ip::address_v4(ntohl(address.sin_addr.s_addr)).to_string();
  }
  return loopback;
}

void write_contact(const std::string& file, const Contact& c) {
  write_private_file(file, fmt::format("{} {}\n{}\n", c.host, c.port, c.secret.text()));
}

Contact read_contact(const std::string& file) {
  std::istringstream in(read_private_file(file));
  std::string host, port, secret;
  in >> host >> port >> std::ws;
  if (!std::getline(in, secret)) throw Error(fmt::format("{} is not a rendezvous file", file));
  return {host, port, Secret(secret, file)};
}

}  // namespace orrery::exec
