#pragma once

#include <stdexcept>
#include <string>

namespace ddp::train {

// Training cannot continue, for a reason that is not a bug in this program. The program prints the
// text and exits with `exit_status`, one of common/base/exit_codes.h.
class TrainingFailure : public std::runtime_error {
 public:
  TrainingFailure(int status, const std::string& text)
      : std::runtime_error(text), exit_status(status) {}
  int exit_status;
};

}  // namespace ddp::train
