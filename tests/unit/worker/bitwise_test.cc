#include <array>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/full_matrix.h"
#include "tests/support/running_call.h"
#include "tests/support/sanitizer.h"
#include "tests/support/worker_world.h"

// The same inputs give the same bits on all ranks, whatever the placement of ranks and buffers and
// the path of the data. All results are compared with the reduction of the inputs along the tree.
namespace ddp {
namespace {

using test::Call;
using test::CallAnswer;
using test::CallMemory;
using test::CallShape;
using test::RunningCall;

const int kShapes = test::kSanitized ? 100 : test::full_matrix() ? 1000 : 300;
constexpr int kRanks = 4;
constexpr double kMostElements = 60'000;

struct Shape {
  CallShape whole;  // For all_reduce and all_reduce_coalesced.
  CallAnswer answer;
  CallShape scattered;  // The same elements, or some fewer, as blocks.
  CallAnswer scattered_answer;
};

std::vector<Shape> random_shapes(std::uint64_t seed) {
  constexpr std::array kTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProd,
                               ReduceOp::kPremulSum};
  std::mt19937_64 random(seed);
  std::vector<Shape> shapes;
  for (int i = 0; i < kShapes; ++i) {
    // As many small ones as large ones.
    const double magnitude = static_cast<double>(random() % 10'000) / 10'000;
    const auto count = static_cast<std::size_t>(std::pow(kMostElements, magnitude));
    Shape shape;
    shape.whole = {Call::kAllReduce,
                   kTypes[random() % kTypes.size()],
                   kOps[random() % kOps.size()],
                   count,
                   static_cast<Rank>(random() % kRanks),
                   random() % 1'000'000'000,
                   false};
    shape.answer = test::answer_of(shape.whole, kRanks);
    shape.scattered = shape.whole;
    shape.scattered.call = Call::kReduceScatter;
    shape.scattered.count = count / kRanks;
    shape.scattered_answer = test::answer_of(shape.scattered, kRanks);
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

void check(ProcessGroup& group, CallMemory& memory, const Shape& shape, std::uint64_t places) {
  const auto run = [&](const CallShape& call, const CallAnswer& answer, bool registered) {
    memory.clear();
    RunningCall(group, call, answer, memory, registered).check();
  };
  const bool mixed = (places + static_cast<std::uint64_t>(group.rank())) % 2 == 0;
  for (const bool registered : {false, true, mixed}) run(shape.whole, shape.answer, registered);
  CallShape other = shape.whole;
  other.call = Call::kCoalesced;
  run(other, shape.answer, mixed);
  other.call = Call::kReduce;
  run(other, shape.answer, places % 3 == 0);
  run(shape.scattered, shape.scattered_answer, places % 2 == 0);
}

TEST(Bitwise, ResultsDependOnInputsAndRanksAlone) {
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  RecordProperty("seed", std::to_string(seed));
  const std::vector<Shape> shapes = random_shapes(seed);
  for (const auto& nodes :
       {std::vector<int>{4}, std::vector<int>{2, 2}, std::vector<int>{1, 1, 1, 1},
        std::vector<int>{3, 1}, std::vector<int>{1, 3}}) {
    test::with_groups(nodes, [&](ProcessGroup& group) {
      CallMemory memory(group, std::size_t{4} << 20);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        check(group, memory, shapes[i], i);
        if (::testing::Test::HasFailure()) break;  // All ranks differ alike, or it is the deadline.
      }
    });
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", " << nodes.size() << " nodes, the first of "
                               << nodes.front() << " ranks";
  }
}

// Each way by force, also where it would not be chosen.
TEST(Bitwise, WhateverTheAlgorithm) {
  const std::vector<Shape> shapes = random_shapes(20240613);
  for (const auto& nodes : {std::vector<int>{4}, std::vector<int>{1, 3}, std::vector<int>{2, 2}}) {
    for (const collectives::Algorithm algorithm :
         {collectives::Algorithm::kOneShot, collectives::Algorithm::kDirect,
          collectives::Algorithm::kStaged}) {
      test::with_groups(nodes, [&](ProcessGroup& group) {
        collectives::CostTable costs;
        costs.forced_in_node = algorithm;
        if (algorithm == collectives::Algorithm::kStaged)
          costs.forced_between = collectives::Algorithm::kParts;
        costs.direct_nodes = algorithm == collectives::Algorithm::kDirect ? 1 : 8;
        static_cast<runtime::Group&>(group).choose(collectives::Choice(costs));
        CallMemory memory(group, std::size_t{4} << 20);
        for (std::size_t i = 0; i < shapes.size(); i += 5) check(group, memory, shapes[i], i);
      });
    }
  }
}

// Of the shapes above few are of this size.
TEST(Bitwise, LargeBuffersToo) {
  std::vector<Shape> shapes;
  std::uint64_t seed = 5;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Shape shape;
    shape.whole = {Call::kAllReduce, type, ReduceOp::kSum, 1'500'001, 1, ++seed, false};
    shape.answer = test::answer_of(shape.whole, kRanks);
    shape.scattered = shape.whole;
    shape.scattered.call = Call::kReduceScatter;
    shape.scattered.count /= kRanks;
    shape.scattered_answer = test::answer_of(shape.scattered, kRanks);
    shapes.push_back(std::move(shape));
  }
  for (const auto& nodes : {std::vector<int>{4}, std::vector<int>{2, 2},
                            std::vector<int>{1, 1, 1, 1}, std::vector<int>{3, 1}}) {
    test::with_groups(nodes, [&](ProcessGroup& group) {
      CallMemory memory(group, std::size_t{16} << 20);
      for (std::size_t i = 0; i < shapes.size(); ++i) check(group, memory, shapes[i], i);
    });
  }
}

}  // namespace
}  // namespace ddp
