#include <charconv>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/running_call.h"
#include "tests/support/sanitizer.h"
#include "tests/support/worker_world.h"

// Random operations, most of them small, on four ranks: in the world and in subgroups that come and
// go, several at a time. Every result is checked. By hand:
//   random_operations --count 1000000 [--seed N]
namespace ddp {
namespace {

using test::Call;
using test::CallMemory;
using test::CallShape;
using test::RunningCall;

std::uint64_t operations = 20'000 / test::kSlowness;
std::uint64_t seed = 0;  // 0: another one each time.

constexpr std::size_t kInFlight = 8;
constexpr std::uint64_t kRenewal = 700;  // After so many operations there are new sub-groups.
constexpr std::size_t kMostElements = 20'000;

// One rank. All ranks draw the same numbers from `random_`.
class Player {
 public:
  explicit Player(ProcessGroup& world) : world_(world), random_(seed) {
    for (std::size_t i = 0; i < kInFlight; ++i) {
      memories_.push_back(
          std::make_unique<CallMemory>(world, kMostElements * 8 * 2 * 4 * 2 + 4096));
      calls_.emplace_back();
    }
  }

  void play() {
    for (std::uint64_t turn = 0; turn < operations; ++turn) {
      if (turn % kRenewal == 0) renew();
      step(turn);
      if (::testing::Test::HasFailure()) break;
    }
    drain();
  }

 private:
  void renew() {
    drain();
    groups_.clear();
    const Rank rank = world_.rank();
    groups_.push_back(world_.split(rank / 2));
    groups_.push_back(world_.split(rank % 2, -rank));
    groups_.push_back(world_.split(rank == static_cast<Rank>(random_() % 4) ? 1 : 0, -rank));
  }

  void drain() {
    for (auto& call : calls_) finish(call);
  }

  void finish(std::unique_ptr<RunningCall>& call) {
    if (call) call->check();
    call.reset();
  }

  std::size_t random_count() {
    const std::uint64_t draw = random_();
    if (draw % 100 < 85) return (draw >> 8) % 64;
    if (draw % 100 < 97) return (draw >> 8) % 3'000;
    return (draw >> 8) % kMostElements;
  }

  CallShape random_shape(int size) {
    CallShape shape;
    shape.call = static_cast<Call>(random_() % test::kCalls);
    shape.type = static_cast<DType>(random_() % kDTypes);
    do {
      shape.reduction = static_cast<ReduceOp::Kind>(random_() % ReduceOp::kKinds);
    } while (!valid(shape.type, shape.reduction));
    shape.count = random_count();
    shape.root = static_cast<Rank>(random_() % static_cast<std::uint64_t>(size));
    shape.seed = random_() % 1'000'000'007;
    shape.in_place = random_() % 2 == 0;
    return shape;
  }

  void step(std::uint64_t turn) {
    const std::uint64_t draw = random_();
    ProcessGroup& group = draw % 2 == 0 ? world_ : *groups_[draw / 2 % groups_.size()];
    // Groups of one color may be larger than those of another: what depends on that is drawn apart.
    CallShape shape = random_shape(1);
    shape.root = static_cast<Rank>(shape.seed % static_cast<std::uint64_t>(group.size()));
    auto& call = calls_[turn % kInFlight];
    CallMemory& memory = *memories_[turn % kInFlight];
    finish(call);
    memory.clear();
    const std::uint64_t own = test::mixed(shape.seed + static_cast<std::uint64_t>(world_.rank()));
    OpOptions options;
    options.synchronous = own % 4 == 0;
    call = std::make_unique<RunningCall>(group, shape, test::answer_of(shape, group.size()), memory,
                                         own / 4 % 2 == 0, options);
    // The caller may be early or late to ask.
    if (own / 8 % 3 == 0) finish(call);
  }

  ProcessGroup& world_;
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  std::vector<std::unique_ptr<CallMemory>> memories_;
  std::vector<std::unique_ptr<RunningCall>> calls_;  // Beside the memory that each uses.
};

class RandomOperations : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(RandomOperations, GiveTheRightResults) {
  if (seed == 0) seed = std::random_device{}();
  std::cout << "--seed " << seed << " --count " << operations << "\n";
  test::with_groups(GetParam(), [](ProcessGroup& world) { Player(world).play(); });
}

INSTANTIATE_TEST_SUITE_P(Worlds, RandomOperations,
                         ::testing::Values(std::vector<int>{4}, std::vector<int>{2, 2}),
                         [](const auto& world) {
                           return world.param.size() == 1 ? "one_node" : "two_nodes";
                         });

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    std::uint64_t& value = std::string_view(argv[i]) == "--seed" ? ddp::seed : ddp::operations;
    const char* end = argv[i + 1] + std::strlen(argv[i + 1]);
    if (std::from_chars(argv[i + 1], end, value).ptr != end) return 2;
  }
  return RUN_ALL_TESTS();
}
