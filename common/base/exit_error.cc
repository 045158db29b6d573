#include "common/base/exit_error.h"

#include <string>

namespace ddp {
namespace {

class ExitCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "exit status"; }
  std::string message(int value) const override { return fmt::format("exit status {}", value); }
};

}  // namespace

const std::error_category& exit_category() {
  static const ExitCategory category;
  return category;
}

int exit_code_of(const Error& error) {
  return error.code.category() == exit_category() ? error.code.value() : kExitInternal;
}

}  // namespace ddp
