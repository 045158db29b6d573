#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/full_matrix.h"
#include "tests/support/running_call.h"
#include "tests/support/worker_world.h"
#include "tests/unit/worker/kernels_reference.h"

// Every operation with buffers of many sizes, in memory of both kinds, in many worlds. Each size
// around a border between two paths of data runs with one of the three placements of buffers, a
// different one for each size: a third of the products. DDP_TEST_FULL=1 runs all of them.
namespace ddp {
namespace {

using test::Call;
using test::CallAnswer;
using test::CallMemory;
using test::CallShape;
using test::LinkKind;
using test::RunningCall;

struct World {
  std::vector<int> nodes;
  LinkKind kind = LinkKind::kSocketPair;
};

std::string name_of_world(const World& world) {
  std::string name = test::name_of(world.kind);
  for (const int size : world.nodes) name += "_" + std::to_string(size);
  return name;
}

// Which ranks have their buffers where all ranks of the node reach them.
enum class Places { kPrivate, kRegistered, kMixed };
constexpr std::array kPlaces = {Places::kPrivate, Places::kRegistered, Places::kMixed};

bool registered(Places places, Rank rank, std::size_t turn) {
  if (places == Places::kMixed) return (static_cast<std::size_t>(rank) + turn) % 2 == 0;
  return places == Places::kRegistered;
}

constexpr int kSmallWorld = 6;  // Larger ones take most of the time.
constexpr std::size_t kLargestBytes = (std::size_t{3} << 20) + 40;
constexpr std::size_t kGuards = 1024;  // Before, between and behind buffers.

using CallAndPlace = std::pair<Call, bool>;  // Whether it is called in place.

class Operations : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    const std::string missing = test::links_missing(GetParam().kind);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  int world_size() const { return test::world_size_of(GetParam().nodes); }

  // Around the borders between the ways that data goes: with the record, in place or not, one chunk
  // or several. In ascending order, so that those around one border follow each other.
  std::vector<std::size_t> counts_of(Call call, DType type) const {
    const std::size_t element = dtype_bytes(type);
    const auto size = static_cast<std::size_t>(world_size());
    std::vector<std::size_t> bytes = {0, element, 3 * element};
    for (const std::size_t border : {1024U, 4096U, 65536U, 131072U, 524288U, 1048576U}) {
      for (const std::size_t around : {border - element, border + 0U, border + element}) {
        bytes.push_back(around);
        if (test::has_block_for_each_rank(call)) bytes.push_back(around / size);
      }
    }
    bytes.push_back(kLargestBytes);
    // Enough of it lies in a buffer of many blocks. Unequal ones may have twice their mean.
    const bool unequal = call == Call::kAllGatherV || call == Call::kAllToAllV;
    const std::size_t most =
        test::has_block_for_each_rank(call)
            ? std::max<std::size_t>(kLargestBytes / size / (unequal ? 2 : 1), 5000)
            : kLargestBytes;
    std::vector<std::size_t> counts;
    for (const std::size_t each : bytes) counts.push_back(std::min(each, most) / element);
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
  }

  // Of the shape number `i` of a call: other ones than in other worlds and of other calls.
  std::vector<Places> places_of(std::size_t i, Call call) const {
    if (test::full_matrix()) return {kPlaces.begin(), kPlaces.end()};
    const std::size_t world = GetParam().nodes.size() + static_cast<std::size_t>(world_size());
    return {kPlaces[(i + world + static_cast<std::size_t>(call)) % kPlaces.size()]};
  }

  // In one world, as its memory is most of what a large one costs.
  void check(const std::vector<CallAndPlace>& calls) const {
    const auto groups = test::thread_groups(GetParam().nodes, GetParam().kind);
    std::vector<std::unique_ptr<CallMemory>> memories(groups.size());
    for (const auto& [call, in_place] : calls) {
      const std::vector<CallShape> shapes = shapes_of(call, in_place);
      std::vector<CallAnswer> answers;
      for (const CallShape& shape : shapes) answers.push_back(test::answer_of(shape, world_size()));
      test::on_ranks(world_size(), [&](Rank rank) {
        ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
        auto& memory = memories[static_cast<std::size_t>(rank)];
        if (!memory) memory = std::make_unique<CallMemory>(group, 2 * kLargestBytes + kGuards);
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          for (const Places places : places_of(i, call)) {
            memory->clear();
            RunningCall(group, shapes[i], answers[i], *memory, registered(places, rank, i)).check();
          }
        }
      });
    }
  }

  // Sizes with another root each, of a type and of f32.
  std::vector<CallShape> shapes_of(Call call, bool in_place) const {
    constexpr std::array kTypes = {DType::kU8, DType::kBF16, DType::kF64};
    std::vector<CallShape> shapes;
    std::vector<DType> types = {kTypes[static_cast<std::size_t>(call) % kTypes.size()]};
    if (test::full_matrix() || world_size() <= kSmallWorld) types.push_back(DType::kF32);
    for (const DType type : types) {
      for (const std::size_t count : counts_of(call, type)) {
        const auto number = static_cast<std::uint64_t>(shapes.size());
        shapes.push_back({call, type, ReduceOp::kSum, count,
                          static_cast<Rank>((number + number / kPlaces.size()) %
                                            static_cast<std::uint64_t>(world_size())),
                          1000 * static_cast<std::uint64_t>(call) + number, in_place});
      }
    }
    return shapes;
  }
};

TEST_P(Operations, ThatReduce) {
  check({{Call::kAllReduce, false},
         {Call::kCoalesced, false},
         {Call::kReduce, false},
         {Call::kReduceScatter, false},
         {Call::kReduceScatter, true}});
}

TEST_P(Operations, ThatGather) {
  check({{Call::kAllGather, false},
         {Call::kAllGather, true},
         {Call::kAllGatherV, false},
         {Call::kGather, false}});
}

TEST_P(Operations, ThatSpread) {
  check({{Call::kBroadcast, false},
         {Call::kScatter, false},
         {Call::kAllToAll, false},
         {Call::kAllToAllV, false}});
}

template <typename E>
struct Reference {
  ReduceOp::Kind kind;
  std::size_t count;
  std::vector<test::Elements<typename E::Stored>> inputs;
  test::Elements<typename E::Stored> expected;
};

// The reference is written for one element at a time, apart from the kernels.
template <typename E>
std::vector<Reference<E>> references_of(int world_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> factors;
  for (Rank rank = 0; rank < world_size; ++rank) factors.push_back(test::factor_of(rank));
  std::vector<Reference<E>> references;
  for (const ReduceOp::Kind kind : test::kKinds) {
    if (!valid(E::kType, kind)) continue;
    for (const std::size_t count : {std::size_t{5}, std::size_t{700}, std::size_t{2600}}) {
      auto inputs = test::inputs_of<E>(static_cast<std::size_t>(world_size), count, random);
      const bool scaled = kind == ReduceOp::kPremulSum;
      auto expected = test::expected_of<E>(
          kind, inputs, count,
          scaled ? std::span<const double>(factors) : std::span<const double>(), world_size);
      references.push_back({kind, count, std::move(inputs), std::move(expected)});
    }
  }
  return references;
}

template <typename E>
void check_references(ProcessGroup& group, CallMemory& memory,
                      const std::vector<Reference<E>>& references) {
  const auto own = static_cast<std::size_t>(group.rank());
  std::size_t turn = 0;
  for (const Reference<E>& reference : references) {
    const ReduceOp op = reference.kind == ReduceOp::kPremulSum
                            ? ReduceOp::premul_sum(test::factor_of(group.rank()))
                            : ReduceOp(reference.kind);
    const std::size_t bytes = reference.count * sizeof(typename E::Stored);
    for (const bool to_all : {true, false}) {
      memory.clear();
      std::byte* data = memory.take(bytes, registered(kPlaces[turn % 3], group.rank(), turn), turn);
      ++turn;
      std::memcpy(data, reference.inputs[own].data(), bytes);
      const Buffer buffer{data, reference.count, E::kType};
      const Rank root = static_cast<Rank>(turn) % group.size();
      (to_all ? group.all_reduce(buffer, op) : group.reduce(buffer, root, op))->wait();
      const bool has_result = to_all || group.rank() == root;
      const auto& wanted = has_result ? reference.expected : reference.inputs[own];
      EXPECT_EQ(std::memcmp(data, wanted.data(), bytes), 0)
          << (to_all ? "all_reduce " : "reduce ") << name_of(reference.kind) << " of "
          << reference.count << " " << name_of(E::kType) << ", rank " << group.rank();
    }
  }
}

TEST_P(Operations, EveryTypeAndReductionIsTheReferenceAlongTheTree) {
  const std::uint64_t seed = 20240611;
  std::vector<std::function<void(ProcessGroup&, CallMemory&)>> checks;  // One a type.
  test::for_each_element([&](auto element) {
    using E = decltype(element);
    checks.push_back(
        [references = references_of<E>(world_size(), seed + static_cast<unsigned>(E::kType))](
            ProcessGroup& group, CallMemory& memory) {
          check_references<E>(group, memory, references);
        });
  });
  test::with_groups(
      GetParam().nodes,
      [&](ProcessGroup& group) {
        CallMemory memory(group, std::size_t{1} << 16);
        for (const auto& check_type : checks) check_type(group, memory);
      },
      GetParam().kind);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Operations,
    ::testing::Values(World{{1}}, World{{2}}, World{{3}}, World{{4}}, World{{9}}, World{{16}},
                      World{{1, 1}}, World{{2, 2}}, World{{1, 1, 1}}, World{{2, 1}}, World{{1, 2}},
                      World{{3, 2, 1}}, World{{1, 1, 1, 1, 1, 1, 1, 1, 1}},
                      World{{2, 2}, LinkKind::kTcp}, World{{1, 3}, LinkKind::kTcp},
                      World{{2, 2}, LinkKind::kEncrypted}, World{{2, 2}, LinkKind::kUcx}),
    [](const auto& world) { return name_of_world(world.param); });

}  // namespace
}  // namespace ddp
