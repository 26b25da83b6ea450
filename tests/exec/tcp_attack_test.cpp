// SPDX-License-Identifier: Apache-2.0
//
// A hub among strangers, and among ranks that break the rules.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "exec/tcp_hub.h"
#include "exec/tcp_world.h"
#include "tests/exec/tcp_stranger.h"

namespace orrery::exec {
namespace {

using namespace std::chrono_literals;

const Secret kSecret("a secret of the tests", "the tests");
const std::vector<tcp::endpoint> kLoopback{{asio::ip::address_v4::loopback(), 0}};

TcpHub::Job job(std::int64_t ranks, std::chrono::milliseconds deadline = 20s) {
  return {.name = "job 7", .ranks = ranks, .secret = kSecret, .deadline = deadline};
}

// --- strangers -------------------------------------------------------------------------------------

TEST(TcpAttack, ARankWithAnotherSecretJobOrSizeIsRefused) {
  TcpHub hub(job(2), kLoopback);
  const Secret other("another secret, as long", "the tests");
  EXPECT_EQ(FakeRank(hub.address(), 1, 2, other, "job 7").welcome.refusal, Refusal::kSecret);
  EXPECT_EQ(FakeRank(hub.address(), 1, 2, kSecret, "job 8").welcome.refusal, Refusal::kSecret);
  EXPECT_EQ(FakeRank(hub.address(), 1, 3, kSecret, "job 7").welcome.refusal, Refusal::kRanks);
  EXPECT_EQ(FakeRank(hub.address(), 2, 2, kSecret, "job 7").welcome.refusal, Refusal::kRanks);
  EXPECT_EQ(FakeRank(hub.address(), -1, 2, kSecret, "job 7").welcome.refusal, Refusal::kRanks);
  const FakeRank one(hub.address(), 1, 2, kSecret, "job 7");
  EXPECT_EQ(one.welcome.refusal, Refusal::kNone);
  EXPECT_TRUE(kSecret.verify(signed_text("hub", "job 7", one.hello, one.challenge), one.welcome.digest));
  EXPECT_EQ(FakeRank(hub.address(), 1, 2, kSecret, "job 7").welcome.refusal, Refusal::kTwice);
}

TEST(TcpAttack, AGreetingThatIsRepeatedIsRefused) {
  TcpHub hub(job(3), kLoopback);
  const FakeRank honest(hub.address(), 1, 3, kSecret, "job 7");
  Wire replay;
  replay.connect(hub.address(), Clock::now() + 5s);
  replay.write({std::as_bytes(std::span(&honest.hello, 1)), honest.proof}, kPatience);
  EXPECT_NE(replay.read_value<Challenge>(kPatience).nonce, honest.challenge.nonce);
  EXPECT_EQ(replay.read_value<Welcome>(kPatience).refusal, Refusal::kSecret);
}

// A rank does not believe a program that listens where rank 0 should, whatever it says.
TEST(TcpAttack, AFalseRankZeroIsNoticed) {
  asio::io_context context;
  tcp::acceptor acceptor(context, kLoopback[0]);
  const tcp::endpoint at = acceptor.local_endpoint();
  std::atomic<bool> over{false};
  std::jthread impostor([&] {
    for (int i = 0; !over; ++i) {
      tcp::socket socket(context);
      boost::system::error_code e;
      if (acceptor.accept(socket, e)) return;
      Hello hello;
      Digest proof;
      asio::read(socket, asio::buffer(&hello, sizeof hello), e);
      // It sends the rank's own nonce and proof back, or nothing.
      Challenge challenge{.nonce = i % 2 == 0 ? hello.nonce : Nonce{}};
      asio::write(socket, asio::buffer(&challenge, sizeof challenge), e);
      asio::read(socket, asio::buffer(proof), e);
      Welcome welcome{.digest = i % 2 == 0 ? proof : Digest{}};
      asio::write(socket, asio::buffer(&welcome, sizeof welcome), e);
    }
  });
  try {
    join_by_tcp({.rank = 1, .ranks = 2}, {.host = "127.0.0.1", .port = std::to_string(at.port())}, kSecret,
                300ms, kMostOfPayload);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the program that answers there does not know the job's secret"),
              std::string::npos)
        << e.what();
  }
  over = true;
  Wire().connect(at, Clock::now() + 5s);
}

TEST(TcpAttack, ASilentServerEndsAtTheDeadline) {
  asio::io_context context;
  const tcp::acceptor acceptor(context, kLoopback[0]);  // the kernel completes connections; nobody answers
  const auto begin = Clock::now();
  try {
    join_by_tcp({.rank = 1, .ranks = 2},
                {.host = "127.0.0.1", .port = std::to_string(acceptor.local_endpoint().port())}, kSecret,
                400ms, kMostOfPayload);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1 could not reach rank 0 within 400 ms: 127.0.0.1:"),
              std::string::npos)
        << e.what();
  }
  EXPECT_LT(Clock::now() - begin, 5s);
}

// A rank 0 that is killed before the others come leaves its file behind. A rank that found nobody at the
// address removes it; where a program answers, the file may belong to another job.
TEST(TcpAttack, AFileThatNamesNobodyIsRemoved) {
  const auto file = std::filesystem::temp_directory_path() / ("orrery-nobody-" + std::to_string(::getpid()));
  asio::io_context context;
  auto acceptor = std::make_optional<tcp::acceptor>(context, kLoopback[0]);
  const std::string port = std::to_string(acceptor->local_endpoint().port());
  for (const bool answers : {true, false}) {
    if (!answers) acceptor.reset();
    write_contact(file.string(), {"127.0.0.1", port, kSecret});
    EXPECT_THROW(
        join_by_tcp({.rank = 1, .ranks = 2}, {.file = file.string()}, kSecret, 400ms, kMostOfPayload), Error);
    EXPECT_EQ(std::filesystem::exists(file), answers);
  }
}

// Every kind of stranger, many at a time, while ranks come and before the last of them does.
TEST(TcpAttack, StrangersDoNotDisturbAJob) {
  const auto file =
      std::filesystem::temp_directory_path() / ("orrery-strangers-" + std::to_string(::getpid()));
  const Launch launch{.ranks = 3};
  const auto work = [](ProcessWorld& world) {
    const GroupId all = world.communicator().open(std::array<std::int64_t, 3>{0, 1, 2});
    float x = 1;
    for (int i = 0; i < 3; ++i)
      world.communicator().collective(all, {CollectiveKind::kAllReduce, "a sum", &x, &x, 1});
    EXPECT_EQ(x, 27);
  };
  std::vector<std::jthread> ranks;
  const auto start = [&](std::int64_t r) {
    ranks.emplace_back([&, r] {
      Launch mine = launch;
      mine.rank = r;
      mine.local_ranks = 3;
      ASSERT_NO_THROW(work(*join_by_tcp(mine, {.file = file.string()}, {}, 60s, kMostOfPayload)));
    });
  };
  start(0);
  start(1);
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(1ms);
  const Contact contact = read_contact(file.string());
  const tcp::endpoint hub = resolve(contact.host, contact.port).front();
  const std::int64_t before = resident_kb("self");
  std::vector<std::unique_ptr<Wire>> silent;
  for (int i = 0; i < 400; ++i) {
    EXPECT_TRUE(disturb(hub, i)) << i;
    silent.push_back(std::make_unique<Wire>());  // these stay until they are dropped
    silent.back()->connect(hub, Clock::now() + 5s);
  }
  EXPECT_LT(resident_kb("self") - before, kMostGrowth);
  start(2);
  ranks.clear();
  EXPECT_FALSE(disturb(hub, 0));  // nobody listens any more
}

// The strangers that are kept are the newest 64: the older ones are dropped long before their deadline.
TEST(TcpAttack, StrangersAreFew) {
  TcpHub hub(job(2), kLoopback);
  const auto begin = Clock::now();
  std::vector<std::unique_ptr<Wire>> all;
  for (std::size_t i = 0; i < 2 * kMostStrangers; ++i)
    all.emplace_back(std::make_unique<Wire>())->connect(hub.address(), Clock::now() + 5s);
  for (std::size_t i = 0; i < kMostStrangers; ++i) EXPECT_FALSE(all[i]->wait()) << i;
  EXPECT_LT(Clock::now() - begin, kGreetingDeadline);
  const Hello hello{.rank = 1, .ranks = 2};
  all.back()->write({std::as_bytes(std::span(&hello, 1))}, kPatience);
  EXPECT_TRUE(all.back()->wait());  // it is challenged
}

// A stranger that goes on too slowly is dropped, and so is one that says nothing.
TEST(TcpAttack, StrangersAreShort) {
  TcpHub hub(job(2, 600ms), kLoopback);
  Wire slow, silent;
  for (Wire* wire : {&slow, &silent}) wire->connect(hub.address(), Clock::now() + 5s);
  const std::byte one{0x32};
  EXPECT_THROW(
      for (int i = 0; i < 50; ++i) {
        slow.write({std::span(&one, 1)}, kPatience);
        std::this_thread::sleep_for(100ms);
      },
      Error);
  EXPECT_FALSE(silent.wait());
}

// --- ranks that break the rules --------------------------------------------------------------------

CollectivePart sum_of_two() {
  CollectivePart part;
  part.members = {0, 1};
  part.name = "a sum";
  part.call = {.kind = CollectiveKind::kAllReduce, .elements = 2, .type = DType::kFloat32};
  return part;
}

// What rank 0 hears when rank 1 sends a frame.
std::string answer_to(const FrameHead& head, std::span<const std::byte> description) {
  TcpHub hub(job(2), kLoopback);
  FakeRank zero(hub.address(), 0, 2, kSecret, "job 7"), one(hub.address(), 1, 2, kSecret, "job 7");
  one.send(head, description);
  return zero.failure();
}

TEST(TcpAttack, CallsThatCannotBeEndTheJobAndNameTheRank) {
  const auto collective = [](const auto& change, std::uint64_t payload = 8) {
    CollectivePart part = sum_of_two();
    change(part);
    return answer_to({.kind = FrameKind::kCollective, .payload = payload}, describe(part));
  };
  const auto call = [&](const auto& change) {
    return collective([&](CollectivePart& p) { change(p.call); });
  };
  const std::string gone = "rank 1 is gone: ";
  // The two that overflowed the heap of rank 0.
  EXPECT_EQ(call([](CollectiveCall& c) { c.elements = std::size_t{1} << 62; }),
            gone + "\"a sum\" of 4611686018427387904 x 4 bytes (allowed: 68719476736 bytes)");
  EXPECT_EQ(call([](CollectiveCall& c) { c.root = 1000000000000000000; }),
            gone + "\"a sum\": root 1000000000000000000 of a group of 2");
  // The members of a group of 2 are 0 and 1.
  EXPECT_EQ(call([](CollectiveCall& c) { c.root = 2; }), gone + "\"a sum\": root 2 of a group of 2");
  EXPECT_EQ(call([](CollectiveCall& c) { c.elements = 3; }),
            gone + "\"a sum\" comes with 8 bytes and needs 12");
  EXPECT_EQ(call([](CollectiveCall& c) { c.kind = static_cast<CollectiveKind>(10); }),
            gone + "collective 10 is not one of 9");
  EXPECT_EQ(call([](CollectiveCall& c) { c.type = static_cast<DType>(6); }), gone + "type 6 is not one of 6");
  EXPECT_EQ(collective([](CollectivePart& p) {
              p.members = {0, 2};
            }),
            gone + "rank 2 cannot be a member of this group");
  EXPECT_EQ(collective([](CollectivePart& p) {
              p.members = {1, 1};
            }),
            gone + "rank 1 cannot be a member of this group");
  EXPECT_EQ(collective([](CollectivePart& p) { p.members = {0}; }),
            gone + "a call of a group to which the rank does not belong");
  EXPECT_EQ(collective([](CollectivePart& p) {
              p.members = {0, 1, 0};
            }),
            gone + "a group of 3 members (allowed: 1 to 2)");
  EXPECT_EQ(collective([](CollectivePart&) {}, std::uint64_t{1} << 37),
            gone + "a message of kind 0 has no 68 and 137438953472 bytes");

  const auto message = [](const MessagePart& part, std::uint64_t payload) {
    return answer_to({.kind = FrameKind::kSend, .payload = payload}, describe(part));
  };
  EXPECT_EQ(message({.peer = 5, .name = "m", .bytes = 8}, 8),
            gone + "\"m\": rank 5 is not another rank of the job");
  EXPECT_EQ(message({.peer = 1, .name = "m", .bytes = 8}, 8),
            gone + "\"m\": rank 1 is not another rank of the job");
  EXPECT_EQ(message({.peer = 0, .name = "m", .bytes = 9}, 8), gone + "\"m\" comes with 8 bytes and needs 9");

  EXPECT_EQ(answer_to({.kind = static_cast<FrameKind>(8)}, {}), gone + "ranks send no messages of kind 8");
  EXPECT_EQ(answer_to({.magic = 1}, {}), gone + "this is not a message of the job");
  EXPECT_EQ(answer_to({.kind = FrameKind::kLeave, .payload = 1}, {}),
            gone + "a message of kind 7 has no 0 and 1 bytes");
}

// Every description that is cut short or continued is refused, wherever it is cut.
TEST(TcpAttack, DescriptionsThatAreCutAreRefused) {
  std::vector<std::byte> whole = describe(sum_of_two());
  const FrameHead head{.kind = FrameKind::kCollective, .payload = 8};
  EXPECT_EQ(parse_collective(head, whole, 1, 2).self, 1U);
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_THROW(parse_collective(head, std::span(whole).first(n), 1, 2), Error) << n;
  whole.push_back(std::byte{0});
  EXPECT_THROW(parse_collective(head, whole, 1, 2), Error);
}

// 48 GiB are promised by a call that could be, and 3 MiB come.
TEST(TcpAttack, MemoryGrowsWithWhatComes) {
  TcpHub hub(job(2), kLoopback);
  FakeRank zero(hub.address(), 0, 2, kSecret, "job 7"), one(hub.address(), 1, 2, kSecret, "job 7");
  CollectivePart part = sum_of_two();
  part.call.elements = std::size_t{12} << 30;
  const std::vector<std::byte> some(3 << 20);
  const std::int64_t before = resident_kb("self");
  one.send({.kind = FrameKind::kCollective, .payload = std::uint64_t{48} << 30}, describe(part), some);
  std::this_thread::sleep_for(100ms);
  EXPECT_LT(resident_kb("self") - before, kMostGrowth);
  one.wire.shut();
  EXPECT_EQ(zero.failure(), "rank 1 is gone: its connection to rank 0 ended");
}

// A frame of 16 GiB that agrees with itself, and is nothing that rank 0 has reason to expect: all ranks hear
// who sends it, and none of it is kept.
TEST(TcpAttack, NoMessageIsLargerThanRankZeroExpects) {
  struct Case {
    bool rank_0_has_come, message;
    const char* expected;
  };
  for (const auto& [rank_0_has_come, message, expected] :
       {Case{true, false, "rank 0 expects 16"}, Case{false, false, "the job's largest message has 1048576"},
        Case{true, true, "rank 0 expects 16"}, Case{false, true, "the job's largest message has 1048576"}}) {
    SCOPED_TRACE(testing::Message() << rank_0_has_come << message);
    TcpHub::Job bounded = job(3);
    bounded.largest_message = 1 << 20;
    TcpHub hub(bounded, kLoopback);
    std::vector<std::unique_ptr<FakeRank>> ranks;
    for (const std::int64_t r : {0, 1, 2})
      ranks.push_back(std::make_unique<FakeRank>(hub.address(), r, 3, kSecret, "job 7"));
    const auto hosts = [&](std::size_t part) {
      CollectivePart p;
      p.members = {0, 1, 2};
      p.name = "hosts";
      p.call = {.kind = CollectiveKind::kAllGather, .elements = 3 * part, .type = DType::kByte};
      return describe(p);
    };
    const std::vector<std::byte> sixteen(16);
    if (rank_0_has_come && message)
      ranks[0]->send({.kind = FrameKind::kReceive},
                     describe(MessagePart{.peer = 1, .name = "m", .bytes = 16}));
    else if (rank_0_has_come)
      ranks[0]->send({.kind = FrameKind::kCollective, .payload = 16}, hosts(16), sixteen);
    std::this_thread::sleep_for(50ms);
    const std::size_t large = (std::size_t{1} << 34) + (message ? 0 : 1);
    const std::int64_t before = resident_kb("self");
    if (message)
      ranks[1]->send({.kind = FrameKind::kSend, .payload = large},
                     describe(MessagePart{.peer = 0, .name = "m", .bytes = large}));
    else
      ranks[1]->send({.kind = FrameKind::kCollective, .payload = large}, hosts(large));
    const std::vector<std::byte> more(1 << 20);
    EXPECT_THROW(for (int i = 0; i < 10000; ++i) ranks[1]->wire.write({more}, kPatience), Error);
    EXPECT_LT(resident_kb("self") - before, kMostGrowth);
    const std::string text = fmt::format("rank 1 is gone: it sends {} bytes for \"{}\", and {}", large,
                                         message ? "m" : "hosts", expected);
    for (const auto& rank : ranks) EXPECT_EQ(rank->failure(), text);
  }
}

TEST(TcpAttack, ARankThatStopsWithinAMessageIsNamed) {
  TcpHub hub(job(2, 300ms), kLoopback);
  FakeRank zero(hub.address(), 0, 2, kSecret, "job 7"), one(hub.address(), 1, 2, kSecret, "job 7");
  one.send({.kind = FrameKind::kCollective, .payload = 8}, describe(sum_of_two()));
  EXPECT_EQ(zero.failure(), "rank 1 stopped within a message: nothing came for 300 ms");
}

TEST(TcpAttack, ARankThatReadsNothingIsNamed) {
  TcpHub hub(job(2, 500ms), kLoopback);
  FakeRank zero(hub.address(), 0, 2, kSecret, "job 7"), one(hub.address(), 1, 2, kSecret, "job 7");
  // 400 MB of answers: more than any kernel keeps for a socket.
  EXPECT_THROW(for (int i = 0; i < 10'000'000; ++i) one.send({.kind = FrameKind::kTime}, {}), Error);
  EXPECT_EQ(zero.failure(), "rank 1 is gone: it does not read its answers");
}

// A process that is stopped answers nothing, neither a call nor the question whether it is alive.
TEST(TcpAttack, AFrozenRankIsNamed) {
  TcpHub hub(job(3, 600ms), kLoopback);
  FakeRank zero(hub.address(), 0, 3, kSecret, "job 7"), one(hub.address(), 1, 3, kSecret, "job 7"),
      frozen(hub.address(), 2, 3, kSecret, "job 7");
  const auto part = [](std::vector<std::int64_t> members, const char* name) {
    CollectivePart p = sum_of_two();
    p.members = std::move(members);
    p.name = name;
    return describe(p);
  };
  const std::vector<std::byte> payload(8);
  const FrameHead head{.kind = FrameKind::kCollective, .payload = 8};
  // The frozen one has come to one call before; rank 0 waits for rank 1, which waits for the frozen one.
  frozen.send(head, part({1, 2, 0}, "earlier"), payload);
  zero.send(head, part({0, 1}, "first"), payload);
  one.send(head, part({1, 2}, "second"), payload);
  std::jthread alive([&] {
    while (one.wire.read_value<FrameHead>(kPatience).kind == FrameKind::kPing)
      one.send({.kind = FrameKind::kPong}, {});
  });
  EXPECT_EQ(zero.wire.read_value<FrameHead>(kPatience).kind, FrameKind::kPing);
  zero.send({.kind = FrameKind::kPong}, {});
  EXPECT_EQ(zero.failure(),
            "rank 2 did not come to \"second\" (call 0) within 600 ms: its process does not answer");
}

// A rank that dies before the last has come ends the job at once, and the last hears why.
TEST(TcpAttack, ARankThatDiesBeforeTheOthersHaveComeIsNamed) {
  TcpHub hub(job(3), kLoopback);
  const FakeRank zero(hub.address(), 0, 3, kSecret, "job 7");
  std::make_unique<FakeRank>(hub.address(), 1, 3, kSecret, "job 7").reset();
  try {
    hub.wait_for_ranks();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 1 is gone: its connection to rank 0 ended");
  }
  EXPECT_EQ(FakeRank(hub.address(), 2, 3, kSecret, "job 7").failure(),
            "rank 1 is gone: its connection to rank 0 ended");
}

// Also where rank 0 is about to end, as it has nothing else to do.
TEST(TcpAttack, ARankThatComesLateHearsWhyTheJobHasFailed) {
  auto hub = std::make_unique<TcpHub>(job(3), kLoopback);
  const tcp::endpoint at = hub->address();
  auto zero = std::make_unique<FakeRank>(at, 0, 3, kSecret, "job 7");
  std::make_unique<FakeRank>(at, 1, 3, kSecret, "job 7").reset();
  EXPECT_THROW(hub->wait_for_ranks(), Error);
  zero.reset();
  std::jthread end([&] { hub.reset(); });
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(FakeRank(at, 2, 3, kSecret, "job 7").failure(), "rank 1 is gone: its connection to rank 0 ended");
}

// --- where the hub listens, and who may read secrets ------------------------------------------------

TEST(TcpAttack, OnlyTheNamedAddressListens) {
  const TcpHub hub(job(1), kLoopback);
  Wire wire;
  // All of 127.0.0.0/8 is this host, and only 127.0.0.1 was named.
  EXPECT_THROW(wire.connect({asio::ip::make_address("127.0.0.2"), hub.address().port()}, Clock::now() + 5s),
               Error);
  EXPECT_NO_THROW(wire.connect(hub.address(), Clock::now() + 5s));
}

TEST(TcpAttack, IPv6Works) {
  std::optional<TcpHub> hub;
  try {
    hub.emplace(job(1), Endpoints{{asio::ip::address_v6::loopback(), 0}});
  } catch (const std::exception& e) {
    GTEST_SKIP() << "this host has no IPv6: " << e.what();
  }
  const FakeRank zero(hub->address(), 0, 1, kSecret, "job 7");
  EXPECT_EQ(zero.welcome.refusal, Refusal::kNone);
}

TEST(TcpAttack, FilesThatOthersMayReadAreRefused) {
  const auto file = std::filesystem::temp_directory_path() / ("orrery-secret-" + std::to_string(::getpid()));
  write_contact(file.string(), {"host", "1", kSecret});
  struct stat about {};
  ASSERT_EQ(::stat(file.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600U);
  EXPECT_EQ(read_contact(file.string()).secret.text(), kSecret.text());
  for (const mode_t mode : {0640U, 0604U, 0620U}) {
    ::chmod(file.c_str(), mode);
    EXPECT_THROW(read_contact(file.string()), Error) << mode;
  }
  if (::geteuid() == 0) {
    ::chmod(file.c_str(), 0600);
    ASSERT_EQ(::chown(file.c_str(), 12345, 12345), 0);
    EXPECT_THROW(read_contact(file.string()), Error);
  }
  std::filesystem::remove(file);
}

TEST(TcpAttack, SecretsComeFromOnePlace) {
  const auto file = std::filesystem::temp_directory_path() / ("orrery-own-" + std::to_string(::getpid()));
  const char* text = nullptr;
  const Environment environment = [&](const char* name) {
    return std::string_view(name) == "ORRERY_JOB_SECRET" ? text : nullptr;
  };
  EXPECT_EQ(read_secret("", environment), std::nullopt);
  write_private_file(file, "0123456789abcdef\nnot this\n");
  EXPECT_EQ(read_secret(file.string(), environment)->text(), "0123456789abcdef");
  text = "fedcba9876543210";
  EXPECT_EQ(read_secret("", environment)->text(), text);
  EXPECT_THROW(read_secret(file.string(), environment), InputError);
  text = "15 characters..";
  EXPECT_THROW(read_secret("", environment), InputError);
  std::filesystem::remove(file);
}

// RFC 4231, test case 2.
TEST(TcpAttack, DigestsAreHmacSha256) {
  const std::string key = "Jefe", data = "what do ya want for nothing?";
  // A key of fewer than 16 characters is no secret; HMAC fills keys with zero bytes.
  const Secret secret(key + std::string(28, '\0'), "RFC 4231");
  std::string hex;
  for (const std::byte b : secret.sign(std::as_bytes(std::span(data)))) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += {kDigits[std::to_integer<unsigned>(b) / 16], kDigits[std::to_integer<unsigned>(b) % 16]};
  }
  EXPECT_EQ(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

// --- whom to blame ---------------------------------------------------------------------------------

TEST(TcpAttack, TheRankAtTheEndOfAChainIsBlamed) {
  const auto call = [](const char* name, std::vector<std::int64_t> present,
                       std::vector<std::int64_t> missing) {
    return Incomplete{name, 4, std::move(present), std::move(missing), {}};
  };
  // 0 waits for 1, 1 for 2, 2 for 3.
  const std::vector<Incomplete> chain{call("a", {0}, {1}), call("c", {2}, {3}), call("b", {1}, {2})};
  EXPECT_EQ(blame(chain, 0, {}, 10ms).sentence, "rank 3 did not come to \"c\" (call 4) within 10 ms");
  // A silent process is to blame even where it has come to another call.
  EXPECT_EQ(blame(chain, 0, {2}, 10ms).sentence,
            "rank 2 did not come to \"b\" (call 4) within 10 ms: its process does not answer");
  // One that nobody here waits for is not.
  EXPECT_EQ(blame(chain, 0, {7}, 10ms).sentence, "rank 3 did not come to \"c\" (call 4) within 10 ms");
  EXPECT_TRUE(blame(chain, 0, {}, 10ms).sure);
  // 3 waits for a rank of another host, which may be to blame.
  std::vector<Incomplete> beyond = chain;
  beyond.push_back(call("", {3}, {}));
  EXPECT_FALSE(blame(beyond, 0, {}, 10ms).sure);
  EXPECT_TRUE(blame(beyond, 0, {3}, 10ms).sure);
  const std::vector<Incomplete> circle{call("a", {0, 2}, {1, 3}), call("b", {1, 3}, {0, 2})};
  EXPECT_EQ(blame(circle, 0, {}, 10ms).sentence, "ranks 1 3 did not come to \"a\" (call 4) within 10 ms");
  EXPECT_EQ(blame(circle, 0, {1, 3}, 10ms).sentence,
            "ranks 1 3 did not come to \"a\" (call 4) within 10 ms: their processes do not answer");
}

}  // namespace
}  // namespace orrery::exec
