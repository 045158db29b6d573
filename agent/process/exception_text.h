#pragma once

#include <string>
#include <string_view>

namespace ddp::agent {

// Finds the reason of a failure in the lines of a program's standard error: the last Python
// exception ("ValueError: bad batch"), C++ exception ("std::runtime_error: bad batch") or failed
// assertion. Pure.
class ExceptionText {
 public:
  static constexpr std::size_t kMaxBytes = 2'000;
  // An exception further up than this was handled; otherwise the program would have ended.
  static constexpr int kMaxLinesAfter = 200;

  void add_line(std::string_view line);
  // Empty if there is none.
  std::string text() const { return lines_after_ <= kMaxLinesAfter ? text_ : std::string(); }
  void clear() { *this = {}; }

 private:
  enum class State {
    kOutside,
    kTraceback,   // In a Python traceback: the first line that is not indented is the exception.
    kTerminated,  // std::terminate has named the type; what() follows.
  };
  void set(std::string_view text);

  State state_ = State::kOutside;
  std::string text_;
  int lines_after_ = 0;
};

}  // namespace ddp::agent
