#pragma once

#include <sys/resource.h>

// A process that serves many others needs more descriptors than the 1024 of the usual soft limit.
// The programs that it starts must not inherit more: those that call select() would fail by it.
namespace ddp {

// Raises this process's soft limit of open files to the hard one, as far as the system lets it.
// Once, while there is one thread.
void raise_descriptor_limit();

// The limit that this process was started with.
const rlimit& descriptor_limit_at_start();

// While an object lives the limit is as it was at the start: around the start of a program. What is
// open stays open, but nothing beyond the limit can be opened.
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
