#pragma once

#include <memory>
#include <string>
#include <utility>

namespace ddp {

// An immutable text whose copies share the characters, for names that travel with every operation.
// The copies may belong to different threads.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text)
      : text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}

  bool empty() const { return !text_; }
  // Valid as long as there is a copy.
  const std::string& str() const {
    static const std::string none;
    return text_ ? *text_ : none;
  }

 private:
  std::shared_ptr<const std::string> text_;  // Null: empty.
};

}  // namespace ddp
