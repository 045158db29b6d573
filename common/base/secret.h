#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <string.h>

namespace ddp {

// Secret text. It has neither a formatter nor a stream operator, so code that prints it does not
// compile. Its bytes are wiped when it is destroyed. Not thread safe.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  Secret(const Secret&) = default;
  Secret(Secret&& other) noexcept : text_(std::move(other.text_)) { other.wipe(); }
  Secret& operator=(Secret other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~Secret() { wipe(); }

  bool empty() const { return text_.empty(); }
  // For computing with it, or for handing it to a process of the job. Never for output.
  std::string_view reveal() const { return text_; }

  // For values of this process's own: it does not take constant time.
  friend bool operator==(const Secret&, const Secret&) = default;

 private:
  void wipe() {
    ::explicit_bzero(text_.data(), text_.size());
    text_.clear();
  }

  std::string text_;
};

}  // namespace ddp
