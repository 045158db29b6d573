#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "common/store/file_store.h"
#include "tests/support/inproc.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/worker_world.h"
#include "worker/runtime/node_links.h"
#include "worker/transport/data_engine.h"

namespace ddp {
namespace {

using std::chrono::seconds;
using test::LinkKind;
using ::testing::HasSubstr;

class LinkEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = test::links_missing(LinkKind::kUcx);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

// Element r: what rank r's connect() came to in a world of one rank a node.
std::vector<Outcome> connect_by(const std::vector<EngineKind>& engines) {
  const std::vector<int> nodes(engines.size(), 1);
  std::vector<Outcome> outcomes(engines.size());
  const auto store = std::make_shared<test::HashStore>();
  test::on_ranks(static_cast<int>(engines.size()), [&](Rank rank) {
    runtime::Meeting meeting = test::local_meeting(store);
    meeting.engine = engines[static_cast<std::size_t>(rank)];
    transport::LaneLinks links;
    runtime::NodeLinks node_links(meeting, static_cast<int>(engines.size()), 0,
                                  Clock::now() + seconds(30));
    outcomes[static_cast<std::size_t>(rank)] =
        node_links.connect(transport::Topology(nodes, rank), links);
  });
  return outcomes;
}

TEST_F(LinkEngine, ADisagreementNamesBothRanksAndTheVariable) {
  for (const auto& outcome : connect_by({EngineKind::kUcx, EngineKind::kTcp})) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->code, Errc::kMismatch);
    EXPECT_EQ(outcome->text,
              "rank 1 on node 1 sends data over tcp, but rank 0 on node 0 over ucx: "
              "DDP_LINK must choose the same engine on all nodes");
  }
}

TEST_F(LinkEngine, ManyNodesFindEachOther) {
  for (const auto& outcome : connect_by(std::vector<EngineKind>(5, EngineKind::kUcx)))
    EXPECT_FALSE(outcome) << outcome->text;
}

TEST_F(LinkEngine, ARankThatLeavesIsNamed) {
  auto groups = test::thread_groups({1, 1, 1}, LinkKind::kUcx);
  std::vector<std::string> texts(groups.size());
  test::on_ranks(3, [&](Rank rank) {
    auto& group = groups[static_cast<std::size_t>(rank)];
    group->barrier()->wait();
    if (rank == 2) return group.reset();
    std::vector<float> values(1 << 20, 1.0F);
    try {
      group->all_reduce({values.data(), values.size(), DType::kF32}, ReduceOp::kSum)->wait();
    } catch (const CollectiveError& error) {
      EXPECT_EQ(error.suspect_rank, 2);
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  for (const Rank rank : {0, 1}) {
    EXPECT_THAT(texts[static_cast<std::size_t>(rank)],
                HasSubstr("rank 2 on node 2 is gone: it closed the connection"));
  }
}

// A rank of a world of two nodes, each in a process of its own, that meet in a file.
std::shared_ptr<ProcessGroup> join_over_ucx(const std::string& path, Rank rank) {
  test::keep_ucx_to_tcp();
  runtime::Meeting meeting = test::local_meeting(std::move(store::open_file_store(path)).value());
  meeting.engine = EngineKind::kUcx;
  transport::Topology place({1, 1}, rank);
  transport::LaneLinks links;
  {
    runtime::NodeLinks node_links(meeting, 2, 0, Clock::now() + seconds(30));
    const auto failure = node_links.connect(place, links);
    DDP_CHECK(!failure, "{}", failure->text);
  }
  auto segment = std::move(test::make_segment(1, 0)).value();
  auto arena = std::make_shared<transport::Arena>(segment->mapping(), 0);
  auto transport = std::make_unique<transport::Transport>(
      std::move(place), std::move(segment), std::move(arena), std::move(links), false);
  return runtime::Group::make(std::move(transport), 0, test::options_of(seconds(60)),
                              std::move(meeting));
}

void sum_for_ever(ProcessGroup& group) {
  std::vector<float> values(2 << 20);
  for (;;) {
    std::fill(values.begin(), values.end(), 1.0F);
    group.all_reduce({values.data(), values.size(), DType::kF32}, ReduceOp::kSum)->wait();
  }
}

// The peer that AKilledRankIsNamedAtOnce runs.
TEST_F(LinkEngine, DISABLED_Peer) {
  sum_for_ever(*join_over_ucx(std::getenv("DDP_TEST_MEETING"), 1));
}

TEST_F(LinkEngine, AKilledRankIsNamedAtOnce) {
  const test::TempDir folder;
  const std::string path = folder.path() / "meeting";
  test::ProcessOptions options;
  options.environment["DDP_TEST_MEETING"] = path;
  test::Process peer(test::this_program("LinkEngine.DISABLED_Peer"), options);
  const auto group = join_over_ucx(path, 0);
  TimePoint killed;
  std::thread killing([&] {
    std::this_thread::sleep_for(seconds(1));  // sleep: the kill is to fall into an operation
    killed = Clock::now();
    peer.kill(SIGKILL);
  });
  try {
    sum_for_ever(*group);
  } catch (const CollectiveError& error) {
    killing.join();
    EXPECT_LT(Clock::now() - killed, seconds(5));
    EXPECT_EQ(error.suspect_rank, 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 on node 1 is gone: "));
    std::cout << error.what() << "\n";
  }
  EXPECT_EQ(peer.wait(), 128 + SIGKILL) << peer.err();
}

}  // namespace
}  // namespace ddp
