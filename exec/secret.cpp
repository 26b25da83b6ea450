// SPDX-License-Identifier: Apache-2.0
#include "exec/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "exec/descriptor.h"

namespace orrery::exec {
namespace {

constexpr std::size_t kLeastCharacters = 16, kMostCharacters = 4096, kMostOfFile = 8192;

const std::uint8_t* bytes_of_text(const void* p) {
  return static_cast<const std::uint8_t*>(p);
}

[[noreturn]] void fail(const char* what, const std::filesystem::path& file) {
  throw Error(fmt::format("cannot {} {}: {}", what, file.string(), std::strerror(errno)));
}

}  // namespace

Nonce random_nonce() {
  Nonce n;
  // Up to 256 bytes come whole once the kernel has randomness.
  while (::getrandom(n.data(), n.size(), 0) != static_cast<ssize_t>(n.size())) {
    if (errno != EINTR)
      throw Error(fmt::format("this system gives no random bytes: {}", std::strerror(errno)));
  }
  return n;
}

Secret::Secret(std::string text, const std::string& source) : text_(std::move(text)) {
  if (text_.size() < kLeastCharacters || text_.size() > kMostCharacters) {
    throw Error(fmt::format(
        "the job secret of {} has {} characters (allowed: {} to {}; \"openssl rand -hex 32\" makes one)",
        source, text_.size(), kLeastCharacters, kMostCharacters));
  }
}

Secret Secret::random() {
  std::string text;
  for (const std::byte b : random_nonce()) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return Secret(text, "this program");
}

Digest Secret::sign(std::span<const std::byte> message) const {
  hmac_sha256_ctx context;
  hmac_sha256_set_key(&context, text_.size(), bytes_of_text(text_.data()));
  hmac_sha256_update(&context, message.size(), bytes_of_text(message.data()));
  Digest out;
  hmac_sha256_digest(&context, out.size(), reinterpret_cast<std::uint8_t*>(out.data()));
  return out;
}

bool Secret::verify(std::span<const std::byte> message, const Digest& digest) const {
  const Digest expected = sign(message);
  return memeql_sec(expected.data(), digest.data(), digest.size()) != 0;
}

std::optional<Secret> read_secret(const std::string& file, const Environment& environment) {
  constexpr const char* kVariable = "ORRERY_JOB_SECRET";
  const char* text = environment(kVariable);
  if (text != nullptr && !file.empty()) {
    throw InputError("command line", "/secret-file",
                     fmt::format("\"{}\" is given, and the environment has {} too", file, kVariable),
                     "allowed: one of them");
  }
  try {
    if (text != nullptr) return Secret(text, kVariable);
    if (file.empty()) return std::nullopt;
    const std::string all = read_private_file(file);
    return Secret(all.substr(0, all.find_first_of("\r\n")), file);
  } catch (const Error& e) {
    if (text != nullptr) throw InputError("environment", fmt::format("/{}", kVariable), e.what());
    throw InputError("command line", "/secret-file", e.what());
  }
}

std::string read_private_file(const std::filesystem::path& file) {
  // A pipe of this name must not make the program wait.
  const Descriptor in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (in.get() < 0 || ::fstat(in.get(), &about) != 0) fail("read", file);
  if (!S_ISREG(about.st_mode)) throw Error(fmt::format("{} is not a regular file", file.string()));
  if (about.st_uid != ::geteuid() && about.st_uid != 0) {
    throw Error(fmt::format("{} is refused: it belongs to user {}, and this is user {}", file.string(),
                            about.st_uid, ::geteuid()));
  }
  if ((about.st_mode & 077) != 0) {
    throw Error(fmt::format("{} is refused: other users may open it (mode {:04o}, allowed: 0600)",
                            file.string(), about.st_mode & 07777));
  }
  std::string text(kMostOfFile + 1, '\0');
  const ssize_t n = ::read(in.get(), text.data(), text.size());
  if (n < 0) fail("read", file);
  if (static_cast<std::size_t>(n) > kMostOfFile)
    throw Error(fmt::format("{} has more than {} bytes", file.string(), kMostOfFile));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

void write_private_file(const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path next = fmt::format("{}.{}.next", file.string(), ::getpid());
  ::unlink(next.c_str());  // of a process of this number that was killed
  std::error_code e;
  {
    const Descriptor out(::open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (out.get() < 0) fail("write", next);
    if (::write(out.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      fail("write", next);
  }
  std::filesystem::rename(next, file, e);
  if (!e) return;
  ::unlink(next.c_str());
  throw Error(fmt::format("cannot write {}: {}", file.string(), e.message()));
}

}  // namespace orrery::exec
