#include "worker/runtime/freed_memory.h"

#include <sys/resource.h>

#include <cstddef>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/sanitizer.h"

namespace ddp {
namespace {

// Larger than what the C library takes from its heap by default, whatever came before.
constexpr std::size_t kBytes = std::size_t{48} << 20;

void use_and_free() {
  auto* memory = static_cast<volatile char*>(std::malloc(kBytes));
  ASSERT_NE(memory, nullptr);
  for (std::size_t i = 0; i < kBytes; i += 4096) memory[i] = 1;
  std::free(const_cast<char*>(memory));
}

long page_faults() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(FreedMemory, IsUsedAgainWithoutThePagesBeingMadeAnew) {
  if (test::kSanitized) GTEST_SKIP() << "not the C library's allocator";
  keep_freed_memory();
  use_and_free();
  const long before = page_faults();
  for (int step = 0; step < 10; ++step) use_and_free();
  // A tenth of a percent of the pages that were touched.
  EXPECT_LT(page_faults() - before, 120);
}

TEST(FreedMemory, ServesOtherThreads) {
  if (test::kSanitized) GTEST_SKIP() << "not the C library's allocator";
  keep_freed_memory();
  use_and_free();
  const long before = page_faults();
  for (int step = 0; step < 10; ++step) std::thread(use_and_free).join();
  // A thread's stack has some pages of its own.
  EXPECT_LT(page_faults() - before, 500);
}

}  // namespace
}  // namespace ddp
