#pragma once

#include <sys/resource.h>

#include <cstddef>

// A process that serves many others needs more descriptors than the 1024 of the usual soft limit.
// The programs that it starts must not inherit the higher limit: programs that call select() would
// break.
namespace ddp {

// Raises this process's soft limit of open files to the hard one, as far as the system allows.
// Returns how many files may now be open. Call once, while there is one thread.
std::size_t raise_descriptor_limit();

// The limit that this process was started with.
const rlimit& descriptor_limit_at_start();

// While an object lives, the limit is the one that this process was started with. Use it around the
// start of a program. Open files stay open, but no file beyond the limit can be opened.
class DescriptorLimitOfStart {
 public:
  DescriptorLimitOfStart();
  ~DescriptorLimitOfStart();
  DescriptorLimitOfStart(const DescriptorLimitOfStart&) = delete;
  DescriptorLimitOfStart& operator=(const DescriptorLimitOfStart&) = delete;

 private:
  rlimit raised_{};
};

}  // namespace ddp
