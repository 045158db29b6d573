#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/worker/kernels_reference.h"

namespace ddp {
namespace {

// Sets of sources that are targets at the same time: each one, each ordered pair, all of them.
std::vector<std::vector<std::size_t>> choices_of(std::size_t ranks) {
  std::vector<std::vector<std::size_t>> choices;
  std::vector<std::size_t> all;
  for (std::size_t a = 0; a < ranks; ++a) {
    choices.push_back({a});
    all.push_back(a);
    for (std::size_t b = 0; b < ranks; ++b) {
      if (a != b) choices.push_back({a, b});
    }
  }
  choices.push_back(all);
  return choices;
}

template <typename E>
void check_in_place(ReduceOp::Kind kind, std::uint64_t seed) {
  constexpr std::size_t kCount = 2083;
  std::mt19937_64 random(seed);
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    const auto inputs = test::inputs_of<E>(ranks, kCount, random);
    const std::vector<double> factors(kind == ReduceOp::kPremulSum ? ranks : 0, 0.3);
    const auto expected =
        test::expected_of<E>(kind, inputs, kCount, factors, static_cast<int>(ranks));
    for (const collectives::KernelTable* table : collectives::kernel_tables()) {
      for (const auto& choice : choices_of(ranks)) {
        for (const bool one_more : {false, true}) {
          auto values = inputs;
          test::Elements<typename E::Stored> elsewhere(kCount, 2);
          std::vector<std::byte*> targets;
          for (const std::size_t source : choice) targets.push_back(values[source].data());
          if (one_more) targets.push_back(elsewhere.data());
          collectives::reduce_with(
              *table, {E::kType, E::kType, kind, static_cast<int>(ranks), factors},
              test::ranks_of(ranks), test::sources_of(values), targets, kCount);
          const std::string what = test::describe_case(*table, E::kType, kind, ranks, kCount);
          for (const std::size_t source : choice) {
            ASSERT_EQ(test::first_difference(values[source], expected, kCount), kCount)
                << what << " into source " << source << " of " << choice.size() << " targets";
          }
          if (one_more) {
            ASSERT_EQ(test::first_difference(elsewhere, expected, kCount), kCount) << what;
          }
        }
      }
    }
  }
}

TEST(KernelsInPlace, AnySourcesMayBeTargets) {
  const std::uint64_t seed = 31;
  RecordProperty("seed", static_cast<int>(seed));
  test::for_each_element([&]<typename E>(E) {
    check_in_place<E>(ReduceOp::kSum, seed);
    check_in_place<E>(ReduceOp::kMax, seed + 1);
    if (is_floating(E::kType)) check_in_place<E>(ReduceOp::kPremulSum, seed + 2);
  });
}

// A reduction writes the elements of its targets and nothing next to them.
TEST(KernelsInPlace, BytesAroundTheTargetsStay) {
  std::mt19937_64 random(3);
  test::for_each_element([&]<typename E>(E) {
    using S = typename E::Stored;
    for (std::size_t count = 0; count <= 70; ++count) {
      const auto inputs = test::inputs_of<E>(2, count, random);
      for (const collectives::KernelTable* table : collectives::kernel_tables()) {
        std::vector<std::byte> memory(count * sizeof(S) + 256, std::byte{0xA5});
        collectives::reduce_with(*table, {E::kType, E::kType, ReduceOp::kSum}, test::ranks_of(2),
                                 test::sources_of(inputs),
                                 std::vector<std::byte*>{memory.data() + 101}, count);
        for (std::size_t i = 0; i < memory.size(); ++i) {
          if (i == 101) i += count * sizeof(S);
          ASSERT_EQ(memory[i], std::byte{0xA5})
              << table->name << " " << name_of(E::kType) << " " << count << " elements, byte " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace ddp
