// Ranks that are late: who is told, what status and the end of the job say, and how a spare takes
// the place of their node.
#include <map>
#include <string>

#include <gmock/gmock.h>

#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Nodes a, b and c train with two workers each; d is a spare if there is one.
class Stragglers : public testing::Test, protected CoordinatorHarness {
 protected:
  ConnectionId join_as(const std::string& name, double limit) {
    wire::Join message = node(name, 3, 3, 1);
    message.nproc = 2;
    message.rules.exclude_stragglers = limit;
    return join(message);
  }
  void begin(double limit, bool with_spare = true) {
    for (const char* name : {"a", "b", "c"}) nodes_[name] = join_as(name, limit);
    if (with_spare) nodes_["d"] = join_as("d", limit);
    ASSERT_THAT(rounds, ElementsAre(0));
  }
  // Everybody makes ten steps of 0.1 s in a second; a step of rank 1 on `slow` takes `ratio` times
  // as long.
  void train(Duration time, const std::string& slow = "", double ratio = 1) {
    for (const TimePoint end = now + time; now < end;) {
      now += Duration{1'000};
      step_ += 10;
      for (const auto& [name, connection] : nodes_) {
        if (closed.contains(connection)) continue;
        wire::Heartbeat heartbeat;
        heartbeat.step = step_;
        first_[name] += 1'000;
        second_[name] += 1'000 * (name == slow ? ratio : 1);
        heartbeat.computed = {{.step = step_, .ms = first_[name]},
                              {.step = step_, .ms = second_[name]}};
        say(connection, heartbeat);
      }
      take(core.on_tick(now));
    }
  }
  std::vector<std::string> notices(const std::string& name) const {
    std::vector<std::string> texts;
    for (const wire::Notice& notice : all<wire::Notice>(nodes_.at(name)))
      texts.push_back(notice.text);
    return texts;
  }
  std::size_t count_stops() const {
    std::size_t stops = 0;
    for (const auto& [name, connection] : nodes_) stops += count<wire::Stop>(connection);
    return stops;
  }
  void all_commit(Round round) {
    for (const char* name : {"a", "b", "c"}) say(nodes_[name], wire::NodeCommitted{round, step_});
  }
  void all_stop(Round round, const std::vector<std::string>& names) {
    for (const std::string& name : names) say(nodes_[name], wire::Stopped{round, {}});
  }
  std::vector<std::string> members() const {
    std::vector<std::string> hosts;
    for (const auto& [name, connection] : nodes_) {
      const auto starts = all<wire::RoundStart>(connection);
      if (starts.empty() || starts.back().round != rounds.back()) continue;
      for (const wire::Member& member : starts.back().members.all()) hosts.push_back(member.host);
      break;
    }
    return hosts;
  }

  std::map<std::string, ConnectionId> nodes_;
  std::map<std::string, double> first_;  // What the workers of each node have computed.
  std::map<std::string, double> second_;
  std::int64_t step_ = 0;
};

TEST_F(Stragglers, OneTerminalIsToldOnce) {
  begin(0);
  train(Duration{60'000}, "b", 2);
  EXPECT_THAT(
      notices("a"),
      ElementsAre(HasSubstr(
          "rank 3 (b) is late: it computes 200 ms a step, the others 100 ms (median), for")));
  for (const char* name : {"b", "c", "d"}) EXPECT_THAT(notices(name), IsEmpty()) << name;
  EXPECT_THAT(rounds, ElementsAre(0)) << "without --exclude-stragglers nothing follows";
  train(Duration{60'000});
  EXPECT_THAT(notices("a"), ElementsAre(HasSubstr("is late"), "rank 3 (b) is no longer late"));
}

TEST_F(Stragglers, StatusSaysHowLong) {
  begin(0);
  train(Duration{60'000}, "b", 2);
  const JobStatus job = core.status(now).front();
  ASSERT_EQ(job.late.size(), 1u);
  EXPECT_EQ(job.late[0].rank, 3);
  EXPECT_EQ(job.late[0].host, "b");
  EXPECT_NEAR(job.late[0].computes_ms, 200, 1);
  EXPECT_NEAR(job.late[0].others_ms, 100, 1);
  EXPECT_GE(job.late[0].since, Duration{55'000});
  EXPECT_THAT(status_json(), HasSubstr("\"late\""));
}

TEST_F(Stragglers, TheEndOfTheJobNamesThem) {
  begin(0);
  train(Duration{60'000}, "b", 2);
  for (const char* name : {"a", "b", "c"}) say(nodes_[name], wire::Succeeded{0});
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_THAT(finished[0].summary, HasSubstr("after 0 restarts; rank 3 (b) was late for 1:0"));
  EXPECT_THAT(notices("a").back(), HasSubstr("rank 3 (b) was late for 1:0"));
}

TEST_F(Stragglers, TheReportOfAFailureNamesThem) {
  begin(0);
  train(Duration{60'000}, "b", 2);
  fail(nodes_["a"], 0, 0, 64);
  all_stop(0, {"a", "b", "c"});
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_THAT(finished[0].report, HasSubstr("\nrank 3 (b) was late for 1:0"));
}

TEST_F(Stragglers, ASpareTakesThePlaceAndNothingIsCharged) {
  begin(1.5);
  train(Duration{60'000}, "b", 2);
  ASSERT_EQ(count<wire::CommitRound>(nodes_["b"]), 1u);
  EXPECT_EQ(last<wire::CommitRound>(nodes_["b"]).reason, "rank 3 (b) is late; d takes its place");
  EXPECT_EQ(count_stops(), 0u) << "before all have committed";
  all_commit(0);
  EXPECT_EQ(last<wire::Stop>(nodes_["a"]).reason, "rank 3 (b) is late; d takes its place");
  all_stop(0, {"a", "b", "c"});
  EXPECT_THAT(rounds, ElementsAre(0, 1));
  EXPECT_THAT(members(), ElementsAre("a", "d", "c")) << "d has b's rank";
  EXPECT_EQ(last<wire::RoundStart>(nodes_["d"]).restarts, 0);
  EXPECT_THAT(last<wire::Waiting>(nodes_["b"]).text, HasSubstr("this node is a spare"));
  // The new round begins at a checkpoint: what b has reached is of the round before.
  const JobStatus job = core.status(now).front();
  for (const NodeStatus& of : job.nodes) EXPECT_EQ(of.step, -1) << of.host;
}

TEST_F(Stragglers, WithoutACommitTheChangeComesAtTheLimit) {
  begin(1.5);
  train(Duration{60'000}, "b", 2);
  train(Duration{61'000}, "b", 2);
  EXPECT_EQ(count<wire::Stop>(nodes_["b"]), 1u);
}

TEST_F(Stragglers, LessThanTheRatioIsOnlyTold) {
  begin(2.5);
  train(Duration{120'000}, "b", 2);
  EXPECT_EQ(notices("a").size(), 1u);
  EXPECT_EQ(count<wire::CommitRound>(nodes_["b"]), 0u);
}

TEST_F(Stragglers, WithoutASpareItSaysSoOnce) {
  begin(1.5, false);
  train(Duration{120'000}, "b", 2);
  EXPECT_THAT(notices("a"), ElementsAre(HasSubstr("is late"), HasSubstr("no spare waits")));
  EXPECT_EQ(count<wire::CommitRound>(nodes_["b"]), 0u);
  // A spare that comes later takes the place.
  nodes_["d"] = join_as("d", 1.5);
  train(Duration{10'000}, "b", 2);
  EXPECT_EQ(count<wire::CommitRound>(nodes_["b"]), 1u);
}

TEST_F(Stragglers, ASpareThatIsGoneReplacesNobody) {
  begin(1.5);
  train(Duration{60'000}, "b", 2);
  disconnect(nodes_["d"]);
  nodes_.erase("d");
  all_commit(0);
  EXPECT_EQ(count_stops(), 0u);
  EXPECT_THAT(rounds, ElementsAre(0));
}

// Where the place is slow and not the node, nodes must not change places for ever.
TEST_F(Stragglers, WhoWasLeftOutTakesNobodysPlaceForAnHour) {
  begin(1.5);
  train(Duration{60'000}, "b", 2);
  all_commit(0);
  all_stop(0, {"a", "b", "c"});
  ASSERT_THAT(members(), ElementsAre("a", "d", "c"));
  train(Duration{120'000}, "d", 2);
  EXPECT_EQ(count<wire::CommitRound>(nodes_["d"]), 0u);
  EXPECT_THAT(notices("a").back(), HasSubstr("no spare waits"));
  train(Duration{3'600'000}, "d", 2);
  EXPECT_EQ(count<wire::CommitRound>(nodes_["d"]), 1u) << "after an hour b is a spare like others";
}

TEST_F(Stragglers, WhoWasLeftOutComesInWhereAnotherNodeIsLost) {
  begin(1.5);
  train(Duration{60'000}, "b", 2);
  all_commit(0);
  all_stop(0, {"a", "b", "c"});
  ASSERT_THAT(members(), ElementsAre("a", "d", "c"));
  disconnect(nodes_["d"]);
  nodes_.erase("d");
  all_stop(1, {"a", "c"});
  EXPECT_THAT(members(), ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace ddp::rendezvous
