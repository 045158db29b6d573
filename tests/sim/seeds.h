#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string_view>

#include <gtest/gtest.h>

namespace ddp::sim {

// The histories that a simulation runs:
//   --seed N           one seed, with its history on standard output
//   --seeds N --from M seeds M .. M + N - 1, for long runs
struct Seeds {
  std::optional<std::uint64_t> one;
  std::uint64_t count = 0;
  std::uint64_t from = 1;
};

// False if the command line holds anything else.
inline bool parse_seeds(int argc, char** argv, Seeds& seeds) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string_view text = argv[i + 1];
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    if (std::from_chars(text.data(), end, value).ptr != end) return false;
    if (name == "--seed") {
      seeds.one = value;
    } else if (name == "--seeds") {
      seeds.count = value;
    } else if (name == "--from") {
      seeds.from = value;
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

// What main() of a simulation's test does.
inline int run_tests(int argc, char** argv, Seeds& seeds) {
  ::testing::InitGoogleTest(&argc, argv);
  if (parse_seeds(argc, argv, seeds)) return RUN_ALL_TESTS();
  std::fprintf(stderr, "usage: %s [--seed N | --seeds N --from N]\n", argv[0]);
  return 2;
}

}  // namespace ddp::sim
