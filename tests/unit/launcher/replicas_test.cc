#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/replicas/raft_member.h"
#include "launcher/replicas/replica_message.h"

namespace ddp::replicas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- messages ----

ReplicaMessage raft_message() {
  RaftMessage raft;
  raft.kind = RaftMessage::Kind::kAppend;
  raft.term = 7;
  raft.index = 3;
  raft.index_term = 6;
  raft.commit_index = 2;
  raft.entries = {{.term = 7, .type = 1, .data = std::string("\0\xff{}", 4)}, {}};
  return {.job_id = "job",
          .group = 1,
          .from = 2,
          .number = 3,
          .at = {.host = "n2", .port = 29'400},
          .raft = raft};
}

TEST(ReplicaMessages, AreTheSameOnTheOtherSide) {
  const ReplicaMessage announcement{.job_id = "job",
                                    .group = 1,
                                    .from = 2,
                                    .number = 3,
                                    .at = {.host = "fd00::1", .port = 1},
                                    .announcement = Announcement{.term = 9, .next_round = 4}};
  ReplicaMessage history = announcement;
  history.announcement.reset();
  history.history = History{.term = 9, .text = R"({"elapsed_ms": 5})"};
  for (const ReplicaMessage& message : {raft_message(), announcement, history}) {
    const auto decoded = decode_replica_message(encode(message));
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, message);
  }
}

TEST(ReplicaMessages, OtherBytesAreRefused) {
  const std::string whole = encode(raft_message());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_replica_message(whole.substr(0, size))) << size;
  }
  const auto with = [&whole](const std::string& from, const std::string& to) {
    std::string text = whole;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& bad :
       {std::string("null"), std::string("[]"), with("\"from\":2", "\"from\":0"),
        with("\"group\":1", "\"group\":0"), with("\"port\":29400", "\"port\":65536"),
        with("\"kind\":1", "\"kind\":5"), with("00ff7b7d", "00ff7b7"), with("00ff7b7d", "00ff7bxx"),
        with("\"type\":\"replica\"", "\"type\":\"join\"")}) {
    EXPECT_FALSE(decode_replica_message(bad)) << bad;
  }
  // Of a newer release: there is nothing for this one in it.
  const auto newer = decode_replica_message(with("\"raft\":", "\"other\":"));
  ASSERT_TRUE(newer);
  EXPECT_FALSE(newer->raft || newer->announcement || newer->history);
}

// ---- members ----

// Members whose messages arrive at once, except at those that are cut off.
class Group {
 public:
  RaftMember& add(MemberId id, bool founds) {
    applied_[id];
    members_[id] = std::make_unique<RaftMember>(
        id, RaftOptions{.seed = static_cast<std::uint32_t>(id)},
        RaftMember::Events{
            .send =
                [this, id](MemberId to, const RaftMessage& message) {
                  std::size_t bytes = 0;
                  for (const RaftEntry& entry : message.entries) bytes += entry.data.size();
                  largest_append_ = std::max(largest_append_, bytes);
                  on_its_way_.push_back({id, to, message});
                },
            .apply = [this, id](std::string_view command) { applied_[id].emplace_back(command); }});
    members_[id]->start(now_, founds);
    return *members_[id];
  }
  void end(MemberId id) { members_.erase(id); }
  void cut(MemberId id) { cut_.insert(id); }
  void mend(MemberId id) { cut_.erase(id); }
  // Nothing of the log beyond this index arrives at any member.
  void keep_back_beyond(std::uint64_t index) { kept_back_ = index; }

  void run(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end; now_ += Duration(20)) {
      for (const auto& [id, member] : members_) member->tick(now_);
      deliver();
    }
  }
  void deliver() {
    while (!on_its_way_.empty()) {
      const auto [from, to, message] = on_its_way_.front();
      on_its_way_.pop_front();
      if (message.kind == RaftMessage::Kind::kAppendResult)
        last_indices_[from] = message.last_index;
      const auto found = members_.find(to);
      if (found == members_.end() || cut_.contains(from) || cut_.contains(to)) continue;
      if (message.index + message.entries.size() > kept_back_) continue;
      found->second->receive(now_, from, message);
    }
  }
  // Makes all of them voters.
  void fill(const std::vector<MemberId>& ids) {
    RaftMember& leader = *members_.at(ids.front());
    for (std::size_t i = 1; i < ids.size(); ++i) {
      add(ids[i], false);
      EXPECT_TRUE(leader.add(ids[i], nullptr));
      run(Duration(100));
      EXPECT_TRUE(leader.give_vote(ids[i], nullptr));
      run(Duration(300));
    }
  }
  std::vector<MemberId> leaders() const {
    std::vector<MemberId> ids;
    for (const auto& [id, member] : members_) {
      if (member->leads()) ids.push_back(id);
    }
    return ids;
  }
  RaftMember& member(MemberId id) { return *members_.at(id); }
  const std::vector<std::string>& applied(MemberId id) { return applied_[id]; }
  TimePoint now() const { return now_; }
  // How far the member has said that its log is the leader's.
  std::uint64_t last_index(MemberId id) const { return last_indices_.at(id); }
  // The next message on its way, with its receiver; it does not arrive.
  std::pair<MemberId, RaftMessage> take_next() {
    const Sent sent = on_its_way_.front();
    on_its_way_.clear();
    return {sent.to, sent.message};
  }
  // To whom the member has given its votes, as far as they have not arrived.
  std::vector<MemberId> votes_of(MemberId id) const {
    std::vector<MemberId> ids;
    for (const auto& [from, to, message] : on_its_way_) {
      if (from == id && message.kind == RaftMessage::Kind::kVoteResult && message.granted)
        ids.push_back(to);
    }
    return ids;
  }
  std::size_t largest_append() const { return largest_append_; }  // In bytes.

 private:
  struct Sent {
    MemberId from;
    MemberId to;
    RaftMessage message;
  };
  TimePoint now_{};
  std::map<MemberId, std::unique_ptr<RaftMember>> members_;
  std::map<MemberId, std::vector<std::string>> applied_;
  std::deque<Sent> on_its_way_;
  std::set<MemberId> cut_;
  std::map<MemberId, std::uint64_t> last_indices_;
  std::uint64_t kept_back_ = UINT64_MAX;
  std::size_t largest_append_ = 0;
};

TEST(RaftMembers, OneAloneDecidesAtOnce) {
  Group group;
  RaftMember& member = group.add(1, true);
  EXPECT_TRUE(member.leads());
  bool done = false;
  EXPECT_TRUE(member.propose("first", [&done](bool success) { done = success; }));
  EXPECT_TRUE(done);
  EXPECT_THAT(group.applied(1), ElementsAre("first"));
}

// A leader that was cut off has given a member entries that nobody else has. The next leader's
// first append has none. If the answer counted them, that leader would take its own entries of the
// same indices for stored.
TEST(RaftMembers, AnAnswerDoesNotCountEntriesOfAnEarlierLeader) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  RaftMember& member = group.member(2);
  const std::uint64_t common = group.last_index(2);
  RaftMessage append{.term = 1, .index = common, .index_term = 1, .commit_index = common};
  append.entries.assign(3, {.term = 1, .type = 1, .data = "{}"});
  member.receive(group.now(), 1, append);
  EXPECT_EQ(group.take_next().second.last_index, common + 3);
  append = {.term = 2, .index = common, .index_term = 1, .commit_index = common + 1};
  member.receive(group.now(), 3, append);
  const auto [to, answer] = group.take_next();
  EXPECT_EQ(to, 3u);
  EXPECT_EQ(answer.index, 0u) << "it is refused";
  EXPECT_EQ(answer.last_index, common);
  EXPECT_THAT(group.applied(2), testing::IsEmpty()) << "an entry of the earlier leader";
  append.entries.assign(1, {.term = 2, .type = 1, .data = "{}"});
  member.receive(group.now(), 3, append);
  EXPECT_EQ(group.take_next().second.last_index, common + 1);
}

TEST(RaftMembers, AnotherOneLeadsWhenTheLeaderEnds) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  EXPECT_TRUE(group.member(1).propose("kept", nullptr));
  group.run(Duration(300));
  for (const MemberId id : {1, 2, 3}) EXPECT_THAT(group.applied(id), ElementsAre("kept"));
  group.end(1);
  // Told of the end, they need not wait for the election time.
  for (const MemberId id : {2, 3}) {
    group.member(id).stand(group.now());
    group.deliver();
  }
  ASSERT_EQ(group.leaders().size(), 1u);
  RaftMember& leader = group.member(group.leaders().front());
  bool done = false;
  EXPECT_TRUE(leader.propose("more", [&done](bool success) { done = success; }));
  group.run(Duration(300));
  EXPECT_TRUE(done);
  EXPECT_THAT(group.applied(5 - leader.id()), ElementsAre("kept", "more"));
}

// The log of a job of many rounds is larger than a message may be.
TEST(RaftMembers, ANewMemberGetsALongLogInPieces) {
  Group group;
  RaftMember& leader = group.add(1, true);
  constexpr std::size_t kCommands = 100;
  for (std::size_t i = 0; i < kCommands; ++i)
    EXPECT_TRUE(leader.propose(std::string(200'000, static_cast<char>('a' + i % 26)), nullptr));
  for (const MemberId id : {2, 3}) {
    group.add(id, false);
    EXPECT_TRUE(leader.add(id, nullptr));
    group.run(Duration(100));
    // It is given up if it takes too long, and goes on from there.
    for (int tries = 0; tries < 10 && !group.member(id).votes(); ++tries) {
      EXPECT_TRUE(leader.give_vote(id, nullptr));
      group.run(Duration(1'000));
    }
  }
  EXPECT_LE(group.largest_append(), std::size_t{4} << 20);
  for (const MemberId id : {2, 3}) {
    EXPECT_EQ(group.applied(id), group.applied(1)) << id;
    EXPECT_TRUE(group.member(id).votes()) << id;
  }
  EXPECT_EQ(group.applied(1).size(), kCommands);
}

TEST(RaftMembers, ALeaderThatIsCutOffDecidesNothing) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  group.cut(1);
  std::optional<bool> done;
  EXPECT_TRUE(group.member(1).propose("lost", [&done](bool success) { done = success; }));
  group.run(Duration(3'000));
  EXPECT_EQ(done, false);
  EXPECT_FALSE(group.member(1).leads());
  ASSERT_EQ(group.leaders().size(), 1u);
  group.mend(1);
  EXPECT_TRUE(group.member(group.leaders().front()).propose("kept", nullptr));
  group.run(Duration(1'000));
  EXPECT_THAT(group.applied(1), ElementsAre("kept"));
}

TEST(RaftMembers, StandingWithoutNeedHarmsNobody) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  for (int i = 0; i < 20; ++i) {
    group.member(2).stand(group.now());
    group.run(Duration(100));
  }
  EXPECT_THAT(group.leaders(), ElementsAre(1u));
  EXPECT_EQ(group.member(1).term(), 1u);
}

// The entry that gives the second member its vote does not arrive there; without the vote, the
// first one could never lead again.
TEST(RaftMembers, AVoteDoesNotDependOnWhatTheVoterKnows) {
  Group group;
  group.add(1, true);
  group.add(2, false);
  EXPECT_TRUE(group.member(1).add(2, nullptr));
  group.run(Duration(300));
  group.keep_back_beyond(2);  // The first configuration, and that with the new member.
  EXPECT_TRUE(group.member(1).give_vote(2, nullptr));
  group.run(Duration(5'000));
  EXPECT_FALSE(group.member(1).leads());
  EXPECT_TRUE(group.member(1).servers().at(1).votes);
  EXPECT_FALSE(group.member(2).votes());
  group.keep_back_beyond(UINT64_MAX);
  group.run(Duration(3'000));
  EXPECT_THAT(group.leaders(), ElementsAre(1u));
  EXPECT_TRUE(group.member(2).votes());
}

TEST(RaftMembers, ALeaderHandsOver) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  group.member(1).hand_over();
  group.run(Duration(200));
  ASSERT_EQ(group.leaders().size(), 1u);
  EXPECT_NE(group.leaders().front(), 1u);
}

// Else a member that is no longer in the group could end the term of every leader.
TEST(RaftMembers, AnOrderToTakeOverIsForOneElection) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  RaftMember& leader = group.member(1);
  leader.hand_over();
  const auto [to, order] = group.take_next();
  ASSERT_EQ(order.kind, RaftMessage::Kind::kTimeoutNow);
  group.cut(to);
  group.member(to).receive(group.now(), 1, order);
  group.run(Duration(5'000));
  ASSERT_EQ(group.leaders().size(), 1u);
  RaftMember& next = group.member(group.leaders().front());
  EXPECT_EQ(group.member(to).term(), order.term + 1);
  ASSERT_TRUE(next.remove(to, nullptr));
  group.run(Duration(500));
  const std::uint64_t term = next.term();
  group.mend(to);
  group.run(Duration(5'000));
  EXPECT_TRUE(next.leads());
  EXPECT_EQ(next.term(), term);
}

// The order may come late. In a newer term it is void, so that the next leader knows that it leads.
TEST(RaftMembers, ALeaderWhoseOrderIsLostGivesUpItsOffice) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  RaftMember& leader = group.member(1);
  const std::uint64_t term = leader.term();
  leader.hand_over();
  const auto [to, order] = group.take_next();
  ASSERT_EQ(order.kind, RaftMessage::Kind::kTimeoutNow);
  EXPECT_TRUE(leader.hands_over());
  group.run(Duration(5'000));
  ASSERT_EQ(group.leaders().size(), 1u);
  RaftMember& next = group.member(group.leaders().front());
  EXPECT_GT(next.term(), term);
  EXPECT_FALSE(next.hands_over());
  EXPECT_FALSE(leader.hands_over());
  group.member(to).receive(group.now(), 1, order);
  group.run(Duration(5'000));
  EXPECT_TRUE(next.leads());
}

// The one that is to take over is no exception, whichever it is.
TEST(RaftMembers, ALeaderThatHandsOverVotesOnceInATerm) {
  for (const auto& [first, second] : {std::pair<MemberId, MemberId>{2, 3}, {3, 2}}) {
    Group group;
    group.add(1, true);
    group.fill({1, 2, 3});
    RaftMember& leader = group.member(1);
    ASSERT_TRUE(leader.propose("last", nullptr));
    group.run(Duration(300));
    leader.hand_over();
    RaftMessage vote;
    vote.kind = RaftMessage::Kind::kVote;
    vote.term = leader.term() + 1;
    vote.index = 1'000;
    vote.index_term = leader.term();
    vote.disrupt_leader = true;
    leader.receive(group.now(), first, vote);
    leader.receive(group.now(), second, vote);
    EXPECT_THAT(group.votes_of(1), ElementsAre(first));
  }
}

// One of two has the newest log, the other one a newer term, because a member that is no longer in
// the group has stood for election. Neither may win before the first has that term, too.
TEST(RaftMembers, ARefusalTellsOfANewerTerm) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  group.cut(2);
  EXPECT_TRUE(group.member(1).propose("last", nullptr));
  group.run(Duration(300));
  group.end(1);
  RaftMessage vote{.kind = RaftMessage::Kind::kVote, .term = 10};
  vote.disrupt_leader = true;
  group.member(2).receive(group.now(), 4, vote);
  ASSERT_EQ(group.member(2).term(), 10u);
  group.mend(2);
  group.run(Duration(10'000));
  EXPECT_THAT(group.leaders(), ElementsAre(3u));
  EXPECT_THAT(group.applied(2), ElementsAre("last"));
}

TEST(RaftMembers, EndsWhileSomethingIsAsked) {
  Group group;
  group.add(1, true);
  group.fill({1, 2, 3});
  group.cut(1);
  EXPECT_TRUE(group.member(1).propose("never", [](bool) { FAIL(); }));
  EXPECT_TRUE(group.member(1).barrier([](bool) { FAIL(); }));
  group.member(1).hand_over();
  group.end(1);
}

}  // namespace
}  // namespace ddp::replicas
