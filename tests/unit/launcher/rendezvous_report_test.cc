// The texts about failures, and the order of nodes.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/rendezvous/ranks.h"
#include "launcher/rendezvous/report.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

wire::Failure worker(Rank rank, int exit_code, int signal) {
  wire::Failure failure;
  failure.node_id = "id2";
  failure.host = "n2";
  failure.group_rank = 1;
  failure.rank = rank;
  failure.local_rank = 0;
  failure.pid = 4'711;
  failure.exit_code = exit_code;
  failure.signal = signal;
  return failure;
}

TEST(Report, HasTheFormThatToolsKnow) {
  ReportInput input;
  input.program = "train.py";
  input.job_id = "a1b2";
  input.failures = {worker(0, 73, 0), worker(1, 0, 9)};
  input.failures[0].secondary = true;
  input.failures[1].time_ms = 1'700'000'000'123;
  input.failures[1].log_path = "/logs/rank_1.err";
  input.failures[1].message = "out of memory\nsecond line";
  input.failures[1].cause = "killed by the kernel: out of memory (memory.max of /x is 2.0 GiB)";
  input.failures[1].callstack = "File a.py, line 1\nFile b.py, line 2\n";
  input.failures[1].stderr_tail = {"first", "second"};
  input.round = 3;
  input.nodes = 2;
  input.world_size = 2;
  input.restarts = 3;
  input.max_restarts = 3;
  EXPECT_EQ(failure_report(input),
            R"(============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  [1]: rank 0 on n2 failed: exit code 73 (a consequence of another failure)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-11-14_22:13:20.123 UTC
  host      : n2
  node      : 1 (id2)
  rank      : 1 (local_rank: 0)
  exitcode  : -9 (pid: 4711)
  error_file: /logs/rank_1.err
  cause     : killed by the kernel: out of memory (memory.max of /x is 2.0 GiB)
  traceback : Signal 9 (SIGKILL) received by PID 4711
  message   : out of memory second line
  callstack : of the exception
    | File a.py, line 1
    | File b.py, line 2
  stderr    : last lines of its standard error
    | first
    | second
------------------------------------------------------------
round 3 of 2 workers on 2 nodes; 3 of 3 restarts used
============================================================
)");
}

TEST(Report, WithoutRestartsItNamesTheirFlagIfTheyMayHelp) {
  ReportInput input;
  input.job_id = "train";
  input.failures = {worker(1, 0, 9)};
  EXPECT_THAT(failure_report(input),
              HasSubstr("; 0 of 0 restarts used (--max-restarts N restarts the job)\n"));
  input.retry_would_not_help = true;
  EXPECT_THAT(failure_report(input), HasSubstr("; 0 of 0 restarts used\n"));
  input.retry_would_not_help = false;
  input.max_restarts = 2;
  EXPECT_THAT(failure_report(input), HasSubstr("; 0 of 2 restarts used\n"));
}

TEST(Report, SaysWhatTheWorkersOfEachNodeWaitedFor) {
  ReportInput input;
  input.job_id = "train";
  input.failures = {worker(1, 0, 9)};
  input.operations = {{"n1", {"rank 0 has waited 2.1 s in barrier #1", "second\nline"}},
                      {"n2", {}}};
  EXPECT_THAT(failure_report(input), HasSubstr(R"(
------------------------------------------------------------
Operations when it failed:
  n1:
    rank 0 has waited 2.1 s in barrier #1
    second line
------------------------------------------------------------
)"));
  input.operations = {{"n1", std::vector<std::string>(4'000, std::string(100'000, 'x'))}};
  EXPECT_LT(failure_report(input).size(), 20'000u);
  input.operations = {{"n1", {}}};
  EXPECT_THAT(failure_report(input), Not(HasSubstr("Operations")));
}

TEST(Report, ALostNodeHasNoRank) {
  wire::Failure lost = worker(-1, 72, 0);
  lost.kind = "lease";
  lost.message = "no message came from it for 5.0 s";
  ReportInput input;
  input.job_id = "j";
  input.failures = {lost};
  const std::string report = failure_report(input);
  EXPECT_THAT(report, HasSubstr("<NO_OTHER_FAILURES>"));
  EXPECT_THAT(report, HasSubstr("  lost      : no message came from it for 5.0 s\n"));
  EXPECT_THAT(report, Not(HasSubstr("rank")));
  EXPECT_EQ(describe(lost), "node n2 was lost: no message came from it for 5.0 s");
  EXPECT_EQ(exit_status(lost), 72);
}

TEST(Report, IsBoundedWhateverWorkersWrite) {
  ReportInput input;
  input.job_id = "j";
  for (int i = 0; i < 4'000; ++i) {
    input.failures.push_back(worker(i, 1, 0));
  }
  input.failures[0].message = std::string(100'000, 'x');
  input.failures[0].stderr_tail.assign(100, std::string(100'000, '\x1b'));
  const std::string report = failure_report(input);
  EXPECT_LT(report.size(), 20'000u);
  EXPECT_THAT(report, HasSubstr("... and 3967 more"));
  EXPECT_THAT(report, Not(HasSubstr("\x1b"))) << "escape sequences stay out of the terminal";
}

TEST(Report, OneLineNamesTheCauseOrTheException) {
  wire::Failure failure = worker(1, 0, 9);
  EXPECT_EQ(describe(failure), "rank 1 on n2 failed: signal 9 (SIGKILL)");
  failure.message = "ValueError: bad\nbatch";
  EXPECT_EQ(describe(failure), "rank 1 on n2 failed: signal 9 (SIGKILL): ValueError: bad");
  failure.cause = "no progress for 5 s";
  EXPECT_EQ(describe(failure), "rank 1 on n2 failed: signal 9 (SIGKILL): no progress for 5 s");
  failure.cause = std::string(1'000, 'x');
  EXPECT_LT(describe(failure).size(), 300u);
  failure.secondary = true;
  EXPECT_EQ(describe(failure), "rank 1 on n2 failed: signal 9 (SIGKILL)");
  failure.kind = "collective";
  EXPECT_EQ(describe(failure), "rank 1 on n2 left the round: ValueError: bad batch");
}

// What torch.distributed.elastic.multiprocessing.errors reads and writes.
TEST(Report, ErrorFileForALauncherAbove) {
  wire::Failure failure = worker(1, 0, 9);
  failure.time_ms = 1'700'000'000'123;
  EXPECT_EQ(error_file(failure),
            R"json({"message":{"errorCode":137,"extraInfo":{"py_callstack":)json"
            R"json("rank 1 on n2 failed: signal 9 (SIGKILL)","timestamp":"1700000000"},)json"
            R"json("message":"rank 1 on n2 failed: signal 9 (SIGKILL)"}})json");
  failure.message = "ValueError: \xff";
  failure.callstack = "Traceback";
  EXPECT_THAT(error_file(failure), HasSubstr(R"("py_callstack":"Traceback")"));
  EXPECT_THAT(error_file(failure), HasSubstr("ValueError: "));
}

// They go into messages to all nodes, which have a limit.
TEST(Report, WhatANodeSaysIsCut) {
  const auto say = [](const wire::AgentMessage& message) {
    CoordinatorHarness h;
    const auto a = h.join(CoordinatorHarness::node("a", 2, 2));
    const auto b = h.join(CoordinatorHarness::node("b", 2, 2));
    h.say(b, message);
    for (const auto node : {a, b}) {
      if (!h.closed.contains(node)) h.say(node, wire::Stopped{0, {}});
    }
    std::size_t longest = 0;
    for (const auto& sent : h.sent[a]) longest = std::max(longest, wire::encode(sent).size());
    return longest;
  };
  const std::string escaped(2'000'000, '\x01');
  EXPECT_LT(say(wire::Leave{escaped}), 10'000u);
  wire::Failure failure = worker(1, 1, 0);
  failure.message = failure.callstack = failure.kind = failure.cause = failure.log_path = escaped;
  EXPECT_LT(say(wire::WorkerFailed{0, failure}), std::size_t{2} << 20);
}

TEST(Report, SaysThatAWorkerWasStoppedWhileItWasExiting) {
  ReportInput input;
  input.failures = {worker(1, 1, 0)};
  input.failures[0].message = "ValueError: bad batch";
  input.failures[0].was_ending = true;
  EXPECT_THAT(failure_report(input), HasSubstr("still exiting when the round was stopped"));
  EXPECT_THAT(describe(input.failures[0]), HasSubstr(": ValueError: bad batch"));
}

TEST(Report, StatusIsNeverSuccess) {
  EXPECT_EQ(exit_status(worker(0, 0, 0)), 70);
  EXPECT_EQ(exit_status(worker(0, 256, 0)), 70);
  EXPECT_EQ(exit_status(worker(0, 0, 15)), 143);
  EXPECT_EQ(exit_status(worker(0, 1, 0)), 1);
}

TEST(Ranks, NaturalOrder) {
  EXPECT_TRUE(natural_less("node2", "node10"));
  EXPECT_FALSE(natural_less("node10", "node2"));
  EXPECT_TRUE(natural_less("node", "node1"));
  EXPECT_TRUE(natural_less("a9-z", "a10-a"));
  EXPECT_TRUE(natural_less("n01", "n1")) << "equal but for zeros: still an order";
  EXPECT_FALSE(natural_less("n1", "n01"));
  EXPECT_FALSE(natural_less("x", "x"));
  EXPECT_TRUE(natural_less("n99999999999999999999998", "n99999999999999999999999"))
      << "no overflow";
}

std::vector<std::string> names(const std::vector<Candidate>& candidates) {
  std::vector<std::string> result;
  for (const Candidate& candidate : candidates) result.push_back(candidate.host);
  return result;
}

TEST(Ranks, WishesThenHistoryThenNames) {
  const std::vector<Candidate> candidates{
      {.node_id = "1", .host = "h10", .order = 0},
      {.node_id = "2", .host = "h2", .order = 1},
      {.node_id = "3", .host = "h3", .previous = 2, .order = 2},
      {.node_id = "4", .host = "h4", .wanted = 1, .previous = 0, .order = 3},
  };
  EXPECT_THAT(names(assign_group_ranks(candidates)), ElementsAre("h2", "h4", "h3", "h10"));
}

TEST(Ranks, AWishBeatsThePreviousHolder) {
  const std::vector<Candidate> candidates{{.node_id = "1", .host = "a", .previous = 0, .order = 0},
                                          {.node_id = "2", .host = "b", .wanted = 0, .order = 1}};
  EXPECT_THAT(names(assign_group_ranks(candidates)), ElementsAre("b", "a"));
}

TEST(Ranks, WishesBeyondTheWorldKeepTheirOrder) {
  const std::vector<Candidate> candidates{{.node_id = "1", .host = "a", .wanted = 3, .order = 0},
                                          {.node_id = "2", .host = "b", .wanted = 2, .order = 1}};
  EXPECT_THAT(names(assign_group_ranks(candidates)), ElementsAre("b", "a"));
}

TEST(Ranks, MembersBeforeWishesBeforeOthers) {
  const std::vector<Candidate> candidates{
      {.node_id = "1", .host = "first", .order = 0},
      {.node_id = "2", .host = "wish", .wanted = 0, .order = 1},
      {.node_id = "3", .host = "member", .previous = 5, .order = 2}};
  EXPECT_THAT(names(choose_members(candidates, 2)), ElementsAre("member", "wish"));
}

}  // namespace
}  // namespace ddp::rendezvous
