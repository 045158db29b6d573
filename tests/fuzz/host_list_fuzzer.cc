// Feeds arbitrary text to the parser of SLURM's lists, under libFuzzer with the address and
// undefined behaviour sanitizers. The first byte of an input says what the rest is: a list of hosts
// (even) or of tasks per node (odd). An accepted list is written out in full and read again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/config/slurm_list.h"

namespace {

using namespace ddp::config;  // NOLINT(google-build-using-namespace): what is fuzzed.

constexpr std::size_t kLimit = 512;

void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not as it must be: %s\n", what);
  std::abort();
}

void read_hosts(std::string_view text) {
  const auto names = expand_host_list(text, kLimit);
  if (!names) return must(!names.error().message.empty(), "a refusal has a reason");
  must(!names->empty() && names->size() <= kLimit, "the number of names");
  std::string written;
  for (const std::string& name : *names) {
    must(!name.empty() && name.size() <= 253, "the length of a name");
    must(name.find_first_of("[](), ") == std::string::npos, "the characters of a name");
    written += (written.empty() ? "" : ",") + name;
  }
  const auto again = expand_host_list(written, kLimit);
  must(again && *again == *names, "reading what was written");
}

void read_counts(std::string_view text) {
  const auto counts = expand_task_counts(text, kLimit);
  if (!counts) return must(!counts.error().message.empty(), "a refusal has a reason");
  must(counts->size() <= kLimit, "the number of nodes");
  for (const int count : *counts) must(count >= 0, "the tasks of a node");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // In a block of its own size, so that reading behind it is found.
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    read_hosts(text);
  } else {
    read_counts(text);
  }
  return 0;
}
