#include "worker/train/agreement.h"

#include <sstream>
#include <string>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/ddp/tensors/text_exchange.h"
#include "worker/train/training_failure.h"

namespace ddp::train {
namespace {

std::string first_difference(const std::string& own, const std::string& other) {
  std::istringstream own_lines(own);
  std::istringstream other_lines(other);
  std::string own_line;
  std::string other_line;
  while (std::getline(own_lines, own_line) && std::getline(other_lines, other_line)) {
    if (own_line != other_line) return fmt::format("{}, but {} on rank 0", own_line, other_line);
  }
  return "their number differs from rank 0's";
}

}  // namespace

void agree_or_fail(ProcessGroup& group, const Result<void>& mine, int exit_status,
                   const std::string& prefix) {
  const auto agreed = agree(group, mine, prefix);
  if (!agreed)
    throw TrainingFailure(exit_status, fmt::format("{}: {}", prefix, agreed.error().message));
}

void check_same_flags(const Options& options, ProcessGroup& group) {
  const std::string own = agreed_flags(options);
  const std::string reference = broadcast_text(group, own, 0, "flags");
  Result<void> same;
  if (own != reference) same = make_error(Errc::kMismatch, "{}", first_difference(own, reference));
  agree_or_fail(group, same, kExitInvalidValue, "all workers need the same flags");
}

}  // namespace ddp::train
