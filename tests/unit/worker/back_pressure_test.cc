#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/inproc.h"
#include "tests/support/link_streams.h"
#include "tests/support/on_ranks.h"
#include "tests/support/process.h"
#include "worker/collectives/collectives.h"

// A neighbour that receives nothing for a while; the test acts as the neighbour, byte by byte.
// Later data must not overwrite data that is still in flight to it.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kChunkElements = transport::kSlotBytes / sizeof(float);
constexpr std::size_t kPart = kChunkElements / 2;       // Each node's, of a chunk.
constexpr std::size_t kChunks = transport::kSlots + 4;  // So that slots are used again.

collectives::Operation sum_of(std::span<float> values) {
  collectives::Operation operation;
  operation.record.kind = collectives::OpKind::kAllReduce;
  operation.record.type = static_cast<std::uint32_t>(DType::kF32);
  operation.record.count = values.size();
  operation.in = operation.out = Buffer{values.data(), values.size(), DType::kF32};
  operation.timeout = seconds(60);
  operation.deadline = Clock::now() + operation.timeout;
  return operation;
}

// One way through the link, as AllReduce documents it: P(0) .. P(w-1), R(0), P(w), R(1), ...
struct Way {
  std::size_t partials = 0;
  std::size_t results = 0;
  collectives::Piece piece;

  bool at_partials() const { return partials < kChunks && partials - results < transport::kSlots; }
  std::size_t chunk() const { return at_partials() ? partials : results; }
  bool done() const { return results == kChunks; }
  void advance() { ++(at_partials() ? partials : results); }
};

// Rank 2, alone on node 1: owns the second part of every chunk.
class Neighbour {
 public:
  explicit Neighbour(transport::Transport& transport)
      : transport_(transport), values_(kChunks * kChunkElements) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      values_[i] = static_cast<float>(i / kChunkElements);
  }

  std::vector<float>& values() { return values_; }

  transport::Advance send() {
    if (out_.done()) return transport::Advance::kBlocked;
    const std::size_t chunk = out_.chunk();
    if (!out_.at_partials() && in_.partials <= chunk) return transport::Advance::kBlocked;
    const std::size_t begin = chunk * kChunkElements + (out_.at_partials() ? 0 : kPart);
    const transport::Advance progress =
        out_.piece.send(transport_, *transport_.link(0),
                        reinterpret_cast<const std::byte*>(&values_[begin]), kPart * sizeof(float));
    if (progress != transport::Advance::kDone) return progress;
    out_.advance();
    return transport::Advance::kMoved;
  }

  transport::Advance receive() {
    if (in_.done()) return transport::Advance::kBlocked;
    const std::size_t chunk = in_.chunk();
    const bool partials = in_.at_partials();
    std::vector<float>& target = partials ? partials_ : results_;
    target.resize(kPart);
    const transport::Advance progress =
        in_.piece.receive(transport_, *transport_.link(0),
                          reinterpret_cast<std::byte*>(target.data()), kPart * sizeof(float));
    if (progress != transport::Advance::kDone) return progress;
    for (std::size_t i = 0; i < kPart; ++i) {
      float& value = values_[chunk * kChunkElements + (partials ? kPart : 0) + i];
      value = partials ? target[i] + value : target[i];
    }
    in_.advance();
    return transport::Advance::kMoved;
  }

  bool sent_first() const { return out_.partials == transport::kSlots; }
  bool done() const { return out_.done() && in_.done(); }

 private:
  transport::Transport& transport_;
  std::vector<float> values_;
  std::vector<float> partials_;
  std::vector<float> results_;
  Way out_;
  Way in_;
};

// Private memory is held back by the slots for inputs, registered memory only by those for partial
// sums.
class BackPressure : public ::testing::TestWithParam<bool> {};

TEST_P(BackPressure, PartialSumsWaitForANeighbourThatDoesNotRead) {
  // Ranks 0 and 1 share node 0; the test is rank 2.
  auto transports = test::make_inproc_transports({2, 1}, 0);
  constexpr std::size_t kCount = kChunks * kChunkElements;
  std::shared_ptr<std::byte> registered[2];
  std::vector<float> own[2];
  std::span<float> values[2];
  std::vector<std::thread> threads;
  for (const std::size_t local : {0U, 1U}) {
    if (GetParam()) {
      registered[local] = transports[local]->arena()->allocate(kCount * sizeof(float));
      values[local] = {reinterpret_cast<float*>(registered[local].get()), kCount};
    } else {
      own[local].resize(kCount);
      values[local] = own[local];
    }
    // Other values in every chunk, so that one chunk's sum in place of another's is seen.
    for (std::size_t i = 0; i < kCount; ++i) {
      values[local][i] = local == 0 ? 10.0F : 1000.0F * static_cast<float>(i / kChunkElements);
    }
  }
  for (const std::size_t local : {0U, 1U}) {
    threads.emplace_back([&, local] {
      collectives::Collectives collectives(*transports[local]);
      collectives::CostTable costs;
      costs.forced_between =
          collectives::Algorithm::kParts;  // Else two nodes need no results of each other's.
      collectives.choose(collectives::Choice(costs));
      EXPECT_FALSE(collectives.run(sum_of(values[local])));
    });
  }
  transport::Transport& self = *transports[2];
  Neighbour neighbour(self);
  const TimePoint deadline = Clock::now() + seconds(60);
  collectives::NodeGather meeting(self, sum_of(neighbour.values()).record,
                                  collectives::NodeGather::Blocks(2), true);
  ASSERT_FALSE(self.drive(deadline, [&] { return meeting.step(); }));
  ASSERT_FALSE(self.drive(deadline, [&] {
    return neighbour.sent_first() ? transport::Advance::kDone : neighbour.send();
  }));
  // Everything that can move has moved; less would test less, but not fail.
  std::this_thread::sleep_for(milliseconds(200));  // sleep: nothing tells that nothing happens
  ASSERT_FALSE(self.drive(deadline, [&] {
    collectives::StepResult step;
    if (!step.add(neighbour.send()) || !step.add(neighbour.receive())) return step.get(false);
    return step.get(neighbour.done());
  }));
  for (std::thread& thread : threads) thread.join();
  for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
    const float expected = 1001.0F * static_cast<float>(chunk) + 10.0F;
    for (const std::span<float> vector :
         {std::span<float>(neighbour.values()), values[0], values[1]}) {
      EXPECT_EQ(vector[chunk * kChunkElements], expected) << chunk;
      EXPECT_EQ(vector[(chunk + 1) * kChunkElements - 1], expected) << chunk;
    }
  }
}

// In an exchange the result takes the place of what is being sent: the user's memory.
TEST(BackPressureInExchange, ResultsWaitForANeighbourThatDoesNotRead) {
  test::Dam dam;
  dam.allowed =
      sizeof(std::uint64_t) + sizeof(collectives::OpRecord);  // What is said before the data.
  const auto transports = test::transports_over(
      {1, 1},
      [&](Rank from, Rank /*to*/, UniqueFd socket) -> std::unique_ptr<transport::DataStream> {
        if (from == 0) return std::make_unique<transport::SocketStream>(std::move(socket));
        return std::make_unique<test::HeldStream>(std::move(socket), dam);
      });
  std::vector<float> values[2];
  // Lone ranks exchange chunks of 1 MiB.
  constexpr std::size_t kCount = kChunks * (std::size_t{1} << 20) / sizeof(float);
  for (const std::size_t rank : {0U, 1U}) {
    values[rank].resize(kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      values[rank][i] = (rank == 0 ? 1.0F : 1000.0F) * static_cast<float>(i / 1000);
  }
  std::thread releasing([&] {
    EXPECT_TRUE(test::wait_until([&] { return dam.reached.load(); }));
    // Everything that can move has moved; less would test less, but not fail.
    std::this_thread::sleep_for(milliseconds(200));  // sleep: nothing tells that nothing happens
    dam.released = true;
  });
  test::on_ranks(2, [&](Rank rank) {
    const auto index = static_cast<std::size_t>(rank);
    const auto failure = collectives::Collectives(*transports[index]).run(sum_of(values[index]));
    EXPECT_FALSE(failure) << failure->text;
  });
  releasing.join();
  for (const std::vector<float>& result : values) {
    for (std::size_t i = 0; i < result.size(); ++i)
      ASSERT_EQ(result[i], 1001.0F * static_cast<float>(i / 1000)) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, BackPressure, ::testing::Bool(), [](const auto& registered) {
  return registered.param ? "registered" : "private_memory";
});

}  // namespace
}  // namespace ddp
