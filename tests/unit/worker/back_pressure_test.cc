#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "worker/collectives/collectives.h"
#include "worker/transport/inproc.h"

// A neighbour that takes nothing for a while, played by the test byte by byte: what is on its way
// to it must not be overwritten by what follows.
namespace ddp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kChunkElements = kSlotBytes / sizeof(float);
constexpr std::size_t kChunks = 12;
// What the others can take without their results leaving: their result slots, then their slots for
// sums.
constexpr std::size_t kAhead = kSlots + 2;

Operation sum_of(std::vector<float>& values) {
  Operation operation;
  operation.record.kind = OpKind::kAllReduce;
  operation.record.type = static_cast<std::uint32_t>(DType::kF32);
  operation.record.count = values.size();
  operation.in = operation.out = Buffer{values.data(), values.size(), DType::kF32};
  operation.timeout = seconds(60);
  operation.deadline = Clock::now() + operation.timeout;
  return operation;
}

TEST(BackPressure, ResultsWaitForANeighbourThatDoesNotRead) {
  // Rank 0 is a node of its own and the test; ranks 1 and 2 share the other node.
  auto transports = std::move(make_inproc_transports({1, 2}, 0)).value();
  std::vector<float> values[2];
  std::vector<std::thread> threads;
  for (const std::size_t local : {0U, 1U}) {
    values[local].assign(kChunks * kChunkElements, local == 0 ? 10.0F : 100.0F);
    threads.emplace_back([&, local] {
      Transport& transport = *transports[local + 1];
      EXPECT_FALSE(Collectives(transport).run(sum_of(values[local])));
    });
  }
  Transport& self = *transports[0];
  std::vector<float> sums(kChunks * kChunkElements);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i / kChunkElements);
  std::vector<float> results(sums.size());
  Entry entry(self, sum_of(sums).record, 0, nullptr, 0);
  const TimePoint deadline = Clock::now() + seconds(60);
  ASSERT_FALSE(self.drive(deadline, [&] { return entry.step(); }));

  const auto* outgoing = reinterpret_cast<const std::byte*>(sums.data());
  auto* incoming = reinterpret_cast<std::byte*>(results.data());
  Piece sending;
  ASSERT_FALSE(self.drive(
      deadline, [&] { return sending.send(self, *self.next(), outgoing, kAhead * kSlotBytes); }));
  // Everything that can move has moved; less would test less, but not fail.
  std::this_thread::sleep_for(milliseconds(200));  // sleep: nothing tells that nothing happens
  Piece receiving;
  bool sent = false;
  bool received = false;
  ASSERT_FALSE(self.drive(deadline, [&] {
    StepResult step;
    if (!sent) {
      const Progress progress = sending.send(self, *self.next(), outgoing + kAhead * kSlotBytes,
                                             (kChunks - kAhead) * kSlotBytes);
      sent = progress == Progress::kDone;
      if (!step.add(progress)) return step.get(false);
    }
    if (!received) {
      const Progress progress =
          receiving.receive(self, *self.next(), incoming, kChunks * kSlotBytes);
      received = progress == Progress::kDone;
      if (!step.add(progress)) return step.get(false);
    }
    return step.get(sent && received);
  }));
  for (std::thread& thread : threads) thread.join();
  for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
    const float expected = static_cast<float>(chunk) + 110.0F;
    for (const auto& vector : {results, values[0], values[1]}) {
      EXPECT_EQ(vector[chunk * kChunkElements], expected) << chunk;
      EXPECT_EQ(vector[(chunk + 1) * kChunkElements - 1], expected) << chunk;
    }
  }
}

}  // namespace
}  // namespace ddp
