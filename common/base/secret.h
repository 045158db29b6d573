#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <string.h>

namespace ddp {

// Text that nobody but its users may see. It has neither a formatter nor a stream operator, so that
// printing one does not compile, and its bytes are wiped when it goes. Not thread safe.
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
  // For what is computed with it or handed to a process of the job; not for people.
  std::string_view reveal() const { return text_; }

  // Between values of this process's own; not constant in time.
  friend bool operator==(const Secret&, const Secret&) = default;

 private:
  void wipe() {
    ::explicit_bzero(text_.data(), text_.size());
    text_.clear();
  }

  std::string text_;
};

}  // namespace ddp
