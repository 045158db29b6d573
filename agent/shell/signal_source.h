#pragma once

#include <sys/types.h>

#include <vector>

namespace ddp::agent {

// While it lives, signals of these numbers that come from another process than `source` have no
// effect; those from `source` reach the handlers that were there before. One at a time in a
// process, made when these handlers are in place.
class SignalSource {
 public:
  SignalSource(pid_t source, const std::vector<int>& numbers);
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;

 private:
  std::vector<int> numbers_;
};

}  // namespace ddp::agent
