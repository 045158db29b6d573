#include "agent/process/exception_text.h"

namespace ddp::agent {
namespace {

constexpr std::string_view kTerminate = "terminate called after throwing an instance of '";
constexpr std::string_view kNoException = "terminate called without an active exception";
constexpr std::string_view kWhat = "  what():  ";

// PyTorch prints its exceptions with "[rank0]: " before each line.
std::string_view without_rank(std::string_view line) {
  if (!line.starts_with("[rank")) return line;
  const auto digits = line.find_first_not_of("0123456789", 5);
  if (digits == std::string_view::npos || !line.substr(digits).starts_with("]: ")) return line;
  return line.substr(digits + 3);
}

}  // namespace

void ExceptionText::set(std::string_view text) {
  text_ = text.substr(0, kMaxBytes);
  lines_after_ = 0;
}

void ExceptionText::add_line(std::string_view raw) {
  const std::string_view line = without_rank(raw);
  if (!text_.empty() && lines_after_ <= kMaxLinesAfter) ++lines_after_;
  if (line.starts_with(kTerminate)) {
    const auto end = line.find('\'', kTerminate.size());
    set(line.substr(kTerminate.size(), end - kTerminate.size()));
    state_ = State::kTerminated;
  } else if (state_ == State::kTerminated) {
    state_ = State::kOutside;
    if (line.starts_with(kWhat)) set(text_ + ": " + std::string(line.substr(kWhat.size())));
  } else if (line.starts_with("Traceback (most recent call last)") ||
             line.starts_with("  File \"")) {
    // A syntax error begins without the "Traceback" line.
    state_ = State::kTraceback;
  } else if (state_ == State::kTraceback) {
    if (line.empty() || line.front() == ' ') return;
    state_ = State::kOutside;
    set(line);
  } else if (line.starts_with(kNoException) ||
             (line.find(": Assertion `") != std::string_view::npos && line.ends_with("failed."))) {
    set(line);
  }
}

}  // namespace ddp::agent
