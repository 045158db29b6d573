#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp {

// Assembles whole lines from pieces. Pure. Bytes are passed on unchanged. A line longer than
// kMaxLineBytes is passed on in several parts, of which only the last ends with a newline.
class LineAssembler {
 public:
  static constexpr std::size_t kMaxLineBytes = 16u << 20;

  // Calls sink(std::string_view) for each complete line, with its newline.
  template <typename Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    while (true) {
      const std::size_t end = bytes.find('\n');
      if (end == std::string_view::npos) break;
      const std::string_view rest = bytes.substr(0, end + 1);
      if (partial_.empty()) {
        sink(rest);
      } else {
        partial_ += rest;
        sink(std::string_view(partial_));
        partial_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
    partial_ += bytes;
    if (partial_.size() < kMaxLineBytes) return;
    sink(std::string_view(partial_));
    partial_.clear();
  }

  // At the end of the stream: passes on the rest with a newline added, so that nothing of another
  // stream is appended to it.
  template <typename Sink>
  void finish(Sink&& sink) {
    if (partial_.empty()) return;
    partial_ += '\n';
    sink(std::string_view(partial_));
    partial_.clear();
  }

 private:
  std::string partial_;
};

}  // namespace ddp
