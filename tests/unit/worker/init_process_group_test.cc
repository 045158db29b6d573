// Groups of processes that ddp-run did not start: env://, tcp://, file://, and a store.
#include "worker/runtime/init_process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/errc.h"
#include "common/store/file_store.h"
#include "common/store/tcp_store.h"
#include "tests/support/forked_ranks.h"
#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/worker_world.h"
#include "worker/runtime/init_method.h"

namespace ddp {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines of tests.
using test::expect_all;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(InitMethodTest, IsReadWhole) {
  EXPECT_EQ(runtime::parse_init_method("env://").value().kind,
            runtime::InitMethod::Kind::kEnvironment);
  const runtime::InitMethod tcp =
      runtime::parse_init_method("tcp://[fd00::1]:29500?rank=2&world_size=4").value();
  EXPECT_EQ(tcp.kind, runtime::InitMethod::Kind::kTcp);
  EXPECT_EQ(tcp.endpoint.host, "fd00::1");
  EXPECT_EQ(tcp.endpoint.port, 29500);
  EXPECT_EQ(tcp.rank, 2);
  EXPECT_EQ(tcp.world_size, 4);
  const runtime::InitMethod file =
      runtime::parse_init_method("file:///shared/job 7?world_size=2").value();
  EXPECT_EQ(file.path, "/shared/job 7");
  EXPECT_FALSE(file.rank);
}

TEST(InitMethodTest, EveryFaultIsNamed) {
  const auto complaint = [](const std::string& url) {
    const auto method = runtime::parse_init_method(url);
    return method ? std::string("accepted") : method.error().message;
  };
  EXPECT_THAT(complaint("tcp://host"),
              AllOf(HasSubstr("tcp://host"), HasSubstr("port is missing")));
  EXPECT_THAT(complaint("tcp://:1"), HasSubstr("the host is missing"));
  EXPECT_THAT(complaint("tcp://::1:29500"),
              AllOf(HasSubstr("needs brackets"), HasSubstr("[fd00::1]:29400")));
  EXPECT_THAT(complaint("tcp://host:70000"), HasSubstr("from 1 to 65535"));
  EXPECT_THAT(complaint("file://shared/job"), HasSubstr("the absolute path"));
  EXPECT_THAT(complaint("file:///"), HasSubstr("the absolute path"));
  EXPECT_THAT(complaint("mpi://"), HasSubstr("expected env://, tcp://HOST:PORT or file:///PATH"));
  EXPECT_THAT(complaint("env://?rnak=1"), HasSubstr("'rnak=1' is not rank=R"));
  EXPECT_THAT(complaint("env://?rank=-1"), HasSubstr("rank=-1: expected a number from 0"));
}

void set(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

std::vector<pid_t> start_ranks(int size, const std::function<int(Rank)>& body,
                               const std::vector<Rank>& absent = {}) {
  const auto with_daemon = [&](Rank rank) {
    set("DDP_RENDEZVOUS", std::string(::getenv("DDP_BIN_DIR")) + "/ddp-rendezvous");
    return body(rank);
  };
  return test::start_ranks(size, with_daemon, absent);
}

// Uses the group, and its store once more for a group of fewer.
int use(const std::shared_ptr<ProcessGroup>& group, int size, Rank rank) {
  if (group->size() != size || group->rank() != rank) return 1;
  double value = rank;
  group->all_reduce({&value, 1, DType::kF64}, ReduceOp::kSum)->wait();
  if (value != size * (size - 1) / 2.0) return 2;
  const std::vector<Rank> ends = {0, size - 1};
  const auto part = group->new_group(ends);
  if ((part != nullptr) != (rank == 0 || rank == size - 1)) return 3;
  if (part) part->barrier()->wait();
  group->barrier()->wait();
  return 0;
}

class InitProcessGroupTest : public testing::TestWithParam<int> {};

TEST_P(InitProcessGroupTest, ByTheEnvironment) {
  const int size = GetParam();
  const std::string port = std::to_string(test::free_port());
  expect_all(start_ranks(size, [&](Rank rank) {
    set("RANK", std::to_string(rank));
    set("WORLD_SIZE", std::to_string(size));
    set("MASTER_ADDR", "localhost");
    set("MASTER_PORT", port);
    return use(init_process_group(), size, rank);
  }));
}

TEST_P(InitProcessGroupTest, OverTcpWithArgumentsAndWithAQuery) {
  const int size = GetParam();
  const std::string url = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  expect_all(start_ranks(size, [&](Rank rank) {
    const int status = use(init_process_group(url, size, rank), size, rank);
    if (status != 0) return status;
    return use(init_process_group(fmt::format("{}?rank={}&world_size={}", url, rank, size)), size,
               rank);
  }));
}

TEST_P(InitProcessGroupTest, OverAFileThatIsGoneAfterwards) {
  const int size = GetParam();
  const test::TempDir dir;
  const std::string path = dir.path() / "meeting";
  expect_all(start_ranks(size, [&](Rank rank) {
    for (int turn = 0; turn < 3; ++turn) {
      const auto group = init_process_group("file://" + path, size, rank);
      if (const int status = use(group, size, rank); status != 0) return status;
      // Nobody has begun the next turn yet.
      if (std::filesystem::exists(path)) return 4;
      group->barrier()->wait();
    }
    return 0;
  }));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_P(InitProcessGroupTest, OverAStoreOfTheCallers) {
  const int size = GetParam();
  const test::TempDir dir;
  expect_all(start_ranks(size, [&](Rank rank) {
    InitProcessGroupOptions options;
    options.world_size = size;
    options.rank = rank;
    options.store = store::open_file_store(dir.path() / "store").value();
    return use(init_process_group(options), size, rank);
  }));
}

INSTANTIATE_TEST_SUITE_P(Processes, InitProcessGroupTest, testing::Values(2, 4),
                         [](const auto& given) { return std::to_string(given.param); });

TEST(InitProcessGroupDaemonTest, OneThatRunsAnywayServesOneStartAfterTheOther) {
  const std::string program = std::string(::getenv("DDP_BIN_DIR")) + "/ddp-rendezvous";
  test::Process daemon({program, "--port", "0", "--bind", "127.0.0.1"});
  ASSERT_TRUE(daemon.prints("\n"));
  const std::string out = daemon.out();
  std::string url = "tcp://127.0.0.1" + out.substr(out.rfind(':'));
  url.pop_back();
  for (int turn = 0; turn < 3; ++turn) {
    expect_all(
        start_ranks(2, [&](Rank rank) { return use(init_process_group(url, 2, rank), 2, rank); }));
  }
  EXPECT_FALSE(daemon.has_ended());
}

TEST(InitProcessGroupDaemonTest, TheOneThatRankZeroStartedEndsWithItHoweverThatEnds) {
  enum class End { kWithoutRankOne, kExit, kKill };
  for (const End end : {End::kWithoutRankOne, End::kExit, End::kKill}) {
    const int port = test::free_port();
    const test::TempDir dir;
    const auto children = start_ranks(end == End::kExit ? 2 : 1, [&](Rank rank) {
      InitProcessGroupOptions options;
      options.init_method = "tcp://127.0.0.1:" + std::to_string(port);
      options.world_size = 2;
      options.rank = rank;
      options.group.connect_timeout = end == End::kWithoutRankOne ? 200ms : 60s;
      try {
        const auto group = init_process_group(options);
        const auto go = dir.path() / "go";
        return test::wait_until([&] { return std::filesystem::exists(go); }) ? 0 : 1;
      } catch (const CollectiveError&) {
        return end == End::kWithoutRankOne ? 0 : 1;
      }
    });
    // Without rank 1 it may be gone before anybody sees it.
    if (end != End::kWithoutRankOne) {
      ASSERT_TRUE(connect_tcp_store("127.0.0.1", port, 20s)) << "it serves";
    }
    dir.write("go", "");
    if (end == End::kKill) ::kill(children[0], SIGKILL);
    expect_all(children, end == End::kKill ? 128 + SIGKILL : 0);
    EXPECT_TRUE(test::wait_until([&] { return !connect_tcp_store("127.0.0.1", port, 1ms); }));
  }
}

// What a call in a process of its own says, whatever it throws. The environment is `variables`.
std::string complaint(const InitProcessGroupOptions& options,
                      const std::map<std::string, std::string>& variables = {}) {
  const test::TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
    for (const auto& [name, value] : variables) set(name, value);
    std::string text = "accepted";
    try {
      init_process_group(options);
    } catch (const std::exception& error) {
      text = error.what();
    }
    dir.write("text", text);
    ::_exit(0);
  }
  EXPECT_EQ(test::reap(child, 40s), 0);
  return dir.read("text");
}

InitProcessGroupOptions options_of(const std::string& url, int world_size = -1, int rank = -1) {
  InitProcessGroupOptions options;
  options.init_method = url;
  options.world_size = world_size;
  options.rank = rank;
  options.group.connect_timeout = 300ms;
  return options;
}

TEST(InitProcessGroupErrorTest, NamesTheVariableOrTheArgument) {
  EXPECT_EQ(complaint(options_of("env://")), "accepted") << "a group of one";
  EXPECT_THAT(complaint(options_of("env://"), {{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(complaint(options_of("env://"), {{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(complaint(options_of("env://"), {{"WORLD_SIZE", "2"}, {"RANK", "2"}}),
              HasSubstr("RANK=2: expected a number from 0 to 1"));
  EXPECT_THAT(complaint(options_of("env://", 2, 0)),
              HasSubstr("MASTER_ADDR is not set; set it to"));
  EXPECT_THAT(complaint(options_of("env://", 2, 0), {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "x"}}),
              HasSubstr("MASTER_PORT=x: expected a number from 1 to 65535"));
  EXPECT_THAT(complaint(options_of("env://", 2, 0), {{"DDP_SHM_FD", "9"}}),
              HasSubstr("leave the arguments out"));
  EXPECT_THAT(complaint(options_of("tcp://a:1", 2)), HasSubstr("rank is missing"));
  EXPECT_THAT(complaint(options_of("tcp://a:1", -1, 0)), HasSubstr("world_size is missing"));
  EXPECT_THAT(complaint(options_of("tcp://a:1?rank=0&world_size=2", 2)),
              HasSubstr("world_size is given twice"));
  EXPECT_THAT(complaint(options_of("file:///x", 2, 2)),
              HasSubstr("rank=2: expected a number from 0 to 1, as world_size is 2"));
  EXPECT_THAT(complaint(options_of("file:///no/such/folder", 2, 0)),
              HasSubstr("cannot open store file '/no/such/folder'"));
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  EXPECT_THAT(complaint(options_of(nobody, 2, 1)),
              AllOf(HasSubstr("rank 1 at " + nobody), HasSubstr("Connection refused")));
  EXPECT_THAT(complaint(options_of(nobody, 2, 0), {{"DDP_RENDEZVOUS", "/no/such/program"}}),
              AllOf(HasSubstr("/no/such/program"), HasSubstr("DDP_RENDEZVOUS")));
}

TEST(InitProcessGroupErrorTest, NamesTheRanksThatDidNotCome) {
  const test::TempDir dir;
  const std::string path = dir.path() / "meeting";
  const auto expecting = [](const InitProcessGroupOptions& options, std::error_code code,
                            const std::vector<std::string>& parts) {
    try {
      init_process_group(options);
    } catch (const CollectiveError& error) {
      for (const std::string& part : parts) {
        if (std::string(error.what()).find(part) != std::string::npos) continue;
        std::fprintf(stderr, "'%s' is not in: %s\n", part.c_str(), error.what());
        return 1;
      }
      return error.code == code ? 0 : 2;
    }
    return 3;
  };
  const auto absent_two = [&](const std::string& url) {
    expect_all(start_ranks(4,
                           [&](Rank rank) {
                             InitProcessGroupOptions options = options_of(url, 4, rank);
                             options.group.connect_timeout = 5s;
                             const int status = expecting(options, Errc::kTimeout,
                                                          {"of 4 ranks, rank 2, 3 did not "});
                             // The store goes with rank 0, maybe before another rank has looked who
                             // is missing.
                             return url.starts_with("tcp") && rank != 0 ? 0 : status;
                           },
                           {2, 3}));
  };
  absent_two("file://" + path);
  absent_two("tcp://127.0.0.1:" + std::to_string(test::free_port()));
  // The file is what those left.
  expect_all(start_ranks(2, [&](Rank rank) {
    return expecting(options_of("file://" + path, 2, rank), Errc::kExists,
                     {"an earlier start was cut short", "remove " + path});
  }));
}

// By whoever comes second. If that is rank 0, the store goes with it, and the other one hears that.
TEST(InitProcessGroupErrorTest, ADisagreementIsFoundAtOnce) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(test::free_port());
  constexpr int kMismatch = 7;
  constexpr int kOther = 8;
  const auto children = start_ranks(2, [&](Rank rank) {
    InitProcessGroupOptions options = options_of(url, 2 + rank, rank);
    options.group.connect_timeout = 30s;
    try {
      init_process_group(options);
    } catch (const CollectiveError& error) {
      return error.code == Errc::kMismatch ? kMismatch : kOther;
    }
    return 9;
  });
  std::vector<int> statuses;
  for (const pid_t child : children) statuses.push_back(test::reap(child, 40s));
  EXPECT_THAT(statuses, testing::Each(testing::AnyOf(kMismatch, kOther)));
  EXPECT_THAT(statuses, testing::Contains(kMismatch));
}

}  // namespace
}  // namespace ddp
