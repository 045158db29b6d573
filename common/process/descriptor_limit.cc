#include "common/process/descriptor_limit.h"

namespace ddp {
namespace {

rlimit current_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit = {1'024, 1'024};
  return limit;
}

// Read before anything can have changed it.
rlimit& at_start() {
  static rlimit limit = current_limit();
  return limit;
}

}  // namespace

std::size_t raise_descriptor_limit() {
  rlimit limit = at_start();
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return current_limit().rlim_cur;
}

const rlimit& descriptor_limit_at_start() { return at_start(); }

DescriptorLimitOfStart::DescriptorLimitOfStart() : raised_(current_limit()) {
  ::setrlimit(RLIMIT_NOFILE, &at_start());
}

DescriptorLimitOfStart::~DescriptorLimitOfStart() { ::setrlimit(RLIMIT_NOFILE, &raised_); }

}  // namespace ddp
