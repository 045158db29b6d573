#include "launcher/etcd/leadership.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/etcd_cluster.h"
#include "tests/support/event_loop.h"
#include "tests/support/relay.h"

namespace ddp::etcd {
namespace {

using rendezvous::JobRecord;
using test::EtcdCluster;
using testing::HasSubstr;

// One ddp-run's part, with what it was told.
struct Candidate {
  Candidate(asio::io_context& io, const std::vector<std::string>& urls, const std::string& name,
            Duration patience = Duration(10'000), Duration lease = Duration(1'000),
            Duration record_life = Duration(600'000))
      : client(std::move(*EtcdClient::create(io, {.endpoints = urls, .tls = {}}))),
        leadership(
            io, *client,
            {.job_id = "job", .patience = patience, .lease = lease, .record_life = record_life},
            {.stand =
                 [=, this] {
                   if (before_claim) before_claim();
                   return Leader{name, name, "127.0.0.1", 1};
                 },
             .won = [this](const JobRecord& record) { won.push_back(record); },
             .lost = [this](const std::string& why) { lost.push_back(why); },
             .leader = [this](const Leader& who) { leaders.push_back(who.node_id); },
             .was_over = [this](const wire::Finish& result) { over = result; },
             .failed = [this](const Error& why) { failed = why; },
             .notice = [this](const std::string& text) { notices.push_back(text); }}) {
    leadership.start();
  }

  std::unique_ptr<EtcdClient> client;
  Leadership leadership;
  std::vector<JobRecord> won;
  std::vector<std::string> lost;
  std::vector<std::string> leaders;
  std::vector<std::string> notices;
  std::function<void()> before_claim;
  std::optional<wire::Finish> over;
  std::optional<Error> failed;
};

class LeadershipTest : public testing::Test {
 protected:
  bool until(const std::function<bool()>& condition) { return test::run_until(io_, condition); }
  bool store(Candidate& candidate, const JobRecord& record) {
    bool stored = false;
    candidate.leadership.store(record, [&] { stored = true; });
    return until([&] { return stored; });
  }
  bool stop(Candidate& candidate) {
    bool stopped = false;
    candidate.leadership.stop([&] { stopped = true; });
    return until([&] { return stopped; });
  }
  // As if its lease had ended and another one had come while it was asleep.
  static void depose(const EtcdCluster& cluster) {
    const std::string key = "/ddp-run/job/leader";
    const std::string other = to_json(Leader{"other", "other", "127.0.0.1", 2});
    const std::string at = cluster.endpoints();
    ASSERT_EQ(cluster.etcdctl({"--endpoints", at, "del", key}).status, 0);
    ASSERT_EQ(cluster.etcdctl({"--endpoints", at, "put", key, other}).status, 0);
  }
  static JobRecord record(Round next_round, bool finished = false) {
    JobRecord made;
    made.job_id = "job";
    made.next_round = next_round;
    made.finished = finished;
    return made;
  }

  asio::io_context io_{1};
};

TEST_F(LeadershipTest, OneOfManyLeadsAndAllKnowIt) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  std::vector<std::unique_ptr<Candidate>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::make_unique<Candidate>(io_, cluster.urls(), "n" + std::to_string(i),
                                              Duration(20'000), Duration(20'000)));
  }
  ASSERT_TRUE(until([&] {
    return std::all_of(all.begin(), all.end(),
                       [](const auto& one) { return !one->leaders.empty(); });
  }));
  std::size_t leading = 0;
  for (const auto& one : all) {
    leading += one->leadership.leads() ? 1 : 0;
    EXPECT_EQ(one->leaders, all.front()->leaders);
  }
  EXPECT_EQ(leading, 1u);
}

TEST_F(LeadershipTest, ASuccessorStartsFromTheRecordAtOnceAfterAnOrderlyEnd) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  ASSERT_EQ(first.won.size(), 1u);
  EXPECT_EQ(first.won[0].next_round, 0);
  Candidate second(io_, cluster.urls(), "second");
  ASSERT_TRUE(until([&] { return !second.leaders.empty(); }));
  ASSERT_TRUE(store(first, record(3)));
  ASSERT_TRUE(store(first, record(4)));
  EXPECT_THAT(cluster.get("/ddp-run/job/state"), HasSubstr(R"("next_round":4)"));
  ASSERT_TRUE(stop(first));
  ASSERT_TRUE(until([&] { return second.leadership.leads(); }));
  EXPECT_EQ(second.won.at(0).next_round, 4);
  EXPECT_EQ(second.leaders, (std::vector<std::string>{"first", "second"}));
}

// It is gone without a word: nobody drives it any more.
TEST_F(LeadershipTest, ASuccessorFollowsWhenTheLeaseHasEnded) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  {
    Candidate first(io_, cluster.urls(), "first");
    ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
    ASSERT_TRUE(store(first, record(7)));
  }
  Candidate second(io_, cluster.urls(), "second");
  ASSERT_TRUE(until([&] { return second.leadership.leads(); }));
  EXPECT_EQ(second.won.at(0).next_round, 7);
}

// Fencing: the old one does not know yet that it was replaced.
TEST_F(LeadershipTest, ADeposedLeaderStoresNothing) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  depose(cluster);
  bool stored = false;
  first.leadership.store(record(9), [&] { stored = true; });
  ASSERT_TRUE(until([&] { return !first.lost.empty(); }));
  EXPECT_FALSE(stored);
  EXPECT_FALSE(first.leadership.leads());
  EXPECT_THAT(cluster.get("/ddp-run/job/state"), HasSubstr(R"("next_round":0)"));
  EXPECT_TRUE(until([&] { return first.leaders.back() == "other"; }));
}

// Its lease has ended, nobody else has come: it goes on, and what waited to be stored is stored.
TEST_F(LeadershipTest, AnOfficeThatNobodyTookIsTakenBack) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  ASSERT_EQ(
      cluster.etcdctl({"--endpoints", cluster.endpoints(), "del", "/ddp-run/job/leader"}).status,
      0);
  EXPECT_TRUE(store(first, record(5)));
  EXPECT_TRUE(first.lost.empty());
  EXPECT_EQ(first.won.size(), 1u);
  EXPECT_THAT(cluster.get("/ddp-run/job/leader"), HasSubstr("first"));
}

TEST_F(LeadershipTest, ConfirmsOnlyWhatIsTrue) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  int confirmed = 0;
  first.leadership.confirm([&] { ++confirmed; });
  ASSERT_TRUE(until([&] { return confirmed == 1; }));
  depose(cluster);
  first.leadership.confirm([&] { ++confirmed; });
  ASSERT_TRUE(until([&] { return !first.lost.empty(); }));
  EXPECT_EQ(confirmed, 1);
}

// It hears of it without asking.
TEST_F(LeadershipTest, ADeposedLeaderKnowsAtOnce) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first", Duration(10'000), Duration(600'000));
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  depose(cluster);
  EXPECT_TRUE(until([&] { return !first.lost.empty(); }));
}

// The key is free, but another one has coordinated meanwhile, which the record shows.
TEST_F(LeadershipTest, AnOfficeThatAnotherOneHadIsNotTakenBack) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  StoredState others;
  others.record = record(12);
  others.coordinators = 2;
  ASSERT_EQ(cluster
                .etcdctl({"--endpoints", cluster.endpoints(), "put", "/ddp-run/job/state",
                          to_json(others)})
                .status,
            0);
  ASSERT_EQ(
      cluster.etcdctl({"--endpoints", cluster.endpoints(), "del", "/ddp-run/job/leader"}).status,
      0);
  bool stored = false;
  first.leadership.store(record(5), [&] { stored = true; });
  ASSERT_TRUE(until([&] { return first.lost.size() == 1; }));
  EXPECT_FALSE(stored);
  // It stands again, and starts from the other one's record.
  ASSERT_TRUE(until([&] { return first.won.size() == 2; }));
  EXPECT_EQ(first.won[1].next_round, 12);
}

TEST_F(LeadershipTest, TheOfficeIsKeptAlive) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first", Duration(10'000), Duration(3'000));
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  Candidate second(io_, cluster.urls(), "second", Duration(10'000), Duration(3'000));
  // Twice the lease.
  test::run_until(
      io_, [] { return false; }, std::chrono::milliseconds(6'500));
  EXPECT_EQ(second.leaders, std::vector<std::string>{"first"});
  EXPECT_TRUE(first.lost.empty());
}

// A job may run for longer than a day.
TEST_F(LeadershipTest, TheRecordLivesAsLongAsItsCoordinator) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  {
    Candidate first(io_, cluster.urls(), "first", Duration(10'000), Duration(3'000),
                    Duration(4'000));
    ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
    ASSERT_TRUE(store(first, record(1)));
    test::run_until(
        io_, [] { return false; }, std::chrono::milliseconds(6'500));
    EXPECT_THAT(cluster.get("/ddp-run/job/state"), HasSubstr(R"("next_round":1)"));
  }
  EXPECT_TRUE(test::wait_until([&] { return cluster.get("/ddp-run/job/state") == "none"; }));
}

TEST_F(LeadershipTest, AJobThatIsOverIsNotBegunAgain) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  JobRecord over = record(2, true);
  over.result = {3, "rank 0 failed", "report"};
  ASSERT_TRUE(store(first, over));
  ASSERT_TRUE(stop(first));
  Candidate late(io_, cluster.urls(), "late");
  ASSERT_TRUE(until([&] { return late.over.has_value(); }));
  EXPECT_EQ(late.over->exit_code, 3);
  EXPECT_EQ(late.over->summary, "rank 0 failed");
  EXPECT_TRUE(late.leaders.empty());
  EXPECT_EQ(cluster.get("/ddp-run/job/leader"), "none");
}

TEST_F(LeadershipTest, TheOfficeSurvivesTheDeathOfEtcdsLeader) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(3);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  const int leader = cluster.leader();
  ASSERT_GE(leader, 0);
  cluster.kill(leader);
  EXPECT_TRUE(store(first, record(1)));
  EXPECT_TRUE(first.lost.empty());
}

// Nobody needs etcd until the next round: its absence is waited out.
TEST_F(LeadershipTest, TheOfficeSurvivesAnAbsenceOfTheWholeCluster) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  cluster.kill(0);
  int confirmed = 0;
  for (int each = 0; each < 3; ++each) first.leadership.confirm([&] { ++confirmed; });
  bool stored = false;
  first.leadership.store(record(1), [&] { stored = true; });
  // Longer than the lease, and than a call of the client lasts.
  EXPECT_FALSE(test::run_until(
      io_, [&] { return stored; }, std::chrono::milliseconds(4'700)));
  EXPECT_TRUE(first.leadership.leads());
  cluster.start(0);
  EXPECT_TRUE(until([&] { return stored && confirmed == 3; })) << stored << " " << confirmed;
  EXPECT_TRUE(first.lost.empty());
}

TEST_F(LeadershipTest, ALeaderWhoseWritesAreRefusedSaysSo) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  const std::string at = cluster.endpoints();
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"user", "add", "root:secret"},
        {"user", "grant-role", "root", "root"},
        {"auth", "enable"}}) {
    std::vector<std::string> arguments{"--endpoints", at};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const auto done = cluster.etcdctl(arguments);
    ASSERT_EQ(done.status, 0) << done.err;
  }
  bool stored = false;
  first.leadership.store(record(1), [&] { stored = true; });
  ASSERT_TRUE(until([&] { return !first.notices.empty(); }));
  EXPECT_THAT(first.notices.front(), HasSubstr("refuses"));
  EXPECT_FALSE(stored);
  EXPECT_TRUE(first.leadership.leads());
}

// Between a candidate and etcd. Once armed, no answer passes from the next claim on.
class DeafRelay {
 public:
  explicit DeafRelay(const EtcdCluster& cluster)
      : relay_(
            std::stoi(cluster.endpoints().substr(cluster.endpoints().find(':') + 1)),
            [this](test::Relay::Way way, std::string_view bytes) { return passes(way, bytes); }) {}
  std::vector<std::string> urls() const {
    return {"http://127.0.0.1:" + std::to_string(relay_.port())};
  }
  void arm() { state_ = State::kArmed; }
  void heal() { state_ = State::kOpen; }
  // Whether an answer was lost.
  bool is_deaf() const { return state_ == State::kDeaf; }

 private:
  enum class State { kOpen, kArmed, kClaimed, kDeaf };
  bool passes(test::Relay::Way way, std::string_view bytes) {
    const bool is_answer = way == test::Relay::Way::kToClient;
    if (state_ == State::kArmed && bytes.find("request_put") != bytes.npos)
      state_ = State::kClaimed;
    if (state_ == State::kClaimed && is_answer) state_ = State::kDeaf;
    return state_ != State::kDeaf || !is_answer;
  }
  std::atomic<State> state_{State::kOpen};
  test::Relay relay_;
};

// etcd has made the key, but the candidate has given up before it hears of it. The key's lease
// would keep everybody away for a minute.
TEST_F(LeadershipTest, AClaimWithoutAnswerLeavesNoKey) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  DeafRelay relay(cluster);
  relay.arm();
  Candidate first(io_, relay.urls(), "first", Duration(10'000), Duration(60'000));
  ASSERT_TRUE(until([&] { return !first.lost.empty(); }));
  EXPECT_TRUE(relay.is_deaf());
  relay.heal();
  EXPECT_TRUE(until([&] { return first.leadership.leads(); }));
}

TEST_F(LeadershipTest, ACandidateThatStopsLeavesNoKey) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  DeafRelay relay(cluster);
  relay.arm();
  Candidate first(io_, relay.urls(), "first", Duration(10'000), Duration(60'000));
  ASSERT_TRUE(until([&] { return relay.is_deaf(); }));
  relay.heal();
  ASSERT_TRUE(stop(first));
  EXPECT_TRUE(test::wait_until([&] { return cluster.get("/ddp-run/job/leader") == "none"; }));
}

TEST_F(LeadershipTest, AnOfficeIsTakenBackAlsoIfTheFirstAnswerIsLost) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  DeafRelay relay(cluster);
  Candidate first(io_, relay.urls(), "first", Duration(10'000), Duration(60'000));
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  relay.arm();
  const std::string at = cluster.endpoints();
  ASSERT_EQ(cluster.etcdctl({"--endpoints", at, "del", "/ddp-run/job/leader"}).status, 0);
  ASSERT_TRUE(until([&] { return !first.notices.empty(); }));
  EXPECT_TRUE(relay.is_deaf());
  relay.heal();
  EXPECT_TRUE(store(first, record(5)));
  EXPECT_TRUE(first.lost.empty());
}

// It leads again when etcd's answer to what it wrote in its first term comes.
TEST_F(LeadershipTest, AnAnswerOfAnEarlierTermIsNotOneToThis) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  const std::string at = cluster.endpoints();
  const auto written = [](Round round, int term) {
    StoredState state;
    state.record = record(round);
    state.coordinators = term;
    return to_base64(to_json(state));
  };
  std::atomic<bool> second_passes{false};
  test::Relay relay(std::stoi(at.substr(at.find(':') + 1)),
                    [&, second = written(6, 2)](test::Relay::Way, std::string_view bytes) {
                      return second_passes || bytes.find(second) == bytes.npos;
                    });
  Candidate first(io_, {"http://127.0.0.1:" + std::to_string(relay.port())}, "first",
                  Duration(10'000), Duration(60'000));
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  relay.hold(written(5, 1));
  bool first_stored = false;
  first.leadership.store(record(5), [&] { first_stored = true; });
  ASSERT_TRUE(until([&] {
    return cluster.get("/ddp-run/job/state").find(R"("next_round":5)") != std::string::npos;
  }));
  depose(cluster);
  ASSERT_TRUE(until([&] { return !first.lost.empty(); }));
  ASSERT_EQ(cluster.etcdctl({"--endpoints", at, "del", "/ddp-run/job/leader"}).status, 0);
  ASSERT_TRUE(until([&] { return first.leadership.leads(); }));
  bool second_stored = false;
  bool confirmed = false;
  first.leadership.store(record(6), [&] { second_stored = true; });
  relay.hold("");
  first.leadership.confirm([&] { confirmed = true; });
  ASSERT_TRUE(until([&] { return confirmed; }));
  EXPECT_FALSE(second_stored);
  second_passes = true;
  EXPECT_TRUE(until([&] { return second_stored; }));
  EXPECT_FALSE(first_stored);
  EXPECT_THAT(cluster.get("/ddp-run/job/state"), HasSubstr(R"("next_round":6)"));
}

// Somebody writes there between the look and the claim.
TEST_F(LeadershipTest, AStateThatCannotBeReadAtTheClaimIsLookedAtAgain) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  const std::string at = cluster.endpoints();
  Candidate first(io_, cluster.urls(), "first", Duration(10'000), Duration(60'000));
  first.before_claim = [&] {
    EXPECT_EQ(cluster.etcdctl({"--endpoints", at, "put", "/ddp-run/job/state", "x"}).status, 0);
  };
  ASSERT_TRUE(until([&] { return !first.lost.empty(); }));
  first.before_claim = {};
  EXPECT_EQ(cluster.etcdctl({"--endpoints", at, "del", "/ddp-run/job/state"}).status, 0);
  EXPECT_TRUE(until([&] { return first.leadership.leads(); }));
}

TEST_F(LeadershipTest, EtcdIsNotThere) {
  Candidate first(io_, {"http://127.0.0.1:" + std::to_string(test::free_port())}, "first",
                  Duration(1'000));
  ASSERT_TRUE(until([&] { return first.failed.has_value(); }));
  EXPECT_THAT(first.failed->message, HasSubstr("etcd does not answer"));
}

TEST_F(LeadershipTest, SomebodyElsesBytesUnderTheJobsKey) {
  DDP_NEEDS_ETCD();
  EtcdCluster cluster(1);
  ASSERT_TRUE(cluster.wait_until_ready());
  ASSERT_EQ(cluster.etcdctl({"--endpoints", cluster.endpoints(), "put", "/ddp-run/job/state", "x"})
                .status,
            0);
  Candidate first(io_, cluster.urls(), "first");
  ASSERT_TRUE(until([&] { return first.failed.has_value(); }));
  EXPECT_THAT(first.failed->message, HasSubstr("/ddp-run/job/state"));
}

}  // namespace
}  // namespace ddp::etcd
