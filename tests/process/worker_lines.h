#pragma once

#include <string>

#include <fmt/format.h>

// The lines that line_worker writes, for itself and for the tests that look for them.
namespace ddp::test {

inline constexpr std::size_t kLongLineBytes = 1'000'000;
inline constexpr int kLongLineRank = 5;

inline bool ends_without_newline(int rank) { return rank % 3 == 0; }

// Line `number` of `count`, without its end. One of rank 5 has a million bytes.
inline std::string worker_line(int rank, int number, int count) {
  if (rank == kLongLineRank && number == count / 2) {
    std::string line;
    for (int i = 0; line.size() < kLongLineBytes; ++i) line += fmt::format("{} ", i);
    line.resize(kLongLineBytes);
    return line;
  }
  const auto size = static_cast<std::size_t>((rank * 31 + number * 7) % 90);
  return fmt::format("rank {} line {} {}", rank, number,
                     std::string(size, static_cast<char>('a' + rank % 26)));
}

inline std::string worker_output(int rank, int count) {
  std::string text;
  for (int number = 0; number < count; ++number) {
    text += worker_line(rank, number, count);
    if (number + 1 < count || !ends_without_newline(rank)) text += '\n';
  }
  return text;
}

}  // namespace ddp::test
