#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp::agent {

// Cuts a stream of bytes into lines. Pure. Holds at most one unfinished line of kMaxPieceBytes.
// Bytes are passed on unchanged, zeros and broken UTF-8 included.
class LineSplitter {
 public:
  // A line longer than this comes in several pieces.
  static constexpr std::size_t kMaxPieceBytes = 64 * 1024;

  struct Piece {
    std::string_view text;    // Without its line end; valid during the callback.
    bool continues = false;   // The piece before it belongs to the same line.
    bool unfinished = false;  // The piece after it belongs to the same line.
    bool resumed = false;     // continues, and the piece before it was taken early by take_early().
  };

  enum class Ends {
    kNewline,  // Lines end with \n.
    // Lines also end with a lone \r, as progress bars write it. Empty lines of these are dropped.
    kNewlineOrReturn
  };

  explicit LineSplitter(Ends ends = Ends::kNewline) : ends_(ends) {}

  // Calls sink(const Piece&) for each complete line.
  template <typename Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    while (!bytes.empty()) bytes.remove_prefix(take(bytes, sink));
  }

  bool is_within_line() const { return continues_ || held_return_ || !partial_.empty(); }
  // Whether the unfinished line has a \r. Then it is that of a progress bar, and may never end.
  bool is_rewritten() const { return has_return_; }
  // Passes the unfinished line on as a piece. A \r at its end stays, because a \n may follow.
  template <typename Sink>
  void take_early(Sink&& sink) {
    const std::size_t size = partial_.size() - (partial_.ends_with('\r') ? 1 : 0);
    if (size == 0) return;
    emit(std::string_view(partial_).substr(0, size), true, sink);
    partial_.erase(0, size);
    continues_ = resumed_ = true;
    has_return_ = false;
  }

  // The end of the stream: an unfinished line counts as a line.
  template <typename Sink>
  void finish(Sink&& sink) {
    if (!partial_.empty()) emit(partial_, false, sink);
    partial_.clear();
    begin_line();
    held_return_ = false;
  }

 private:
  void begin_line() { continues_ = resumed_ = has_return_ = false; }

  // Consumes bytes up to the end of one line. Returns their number.
  template <typename Sink>
  std::size_t take(std::string_view bytes, Sink&& sink) {
    if (held_return_) {
      held_return_ = false;
      if (bytes.front() != '\n') end_line({}, sink, true);
    }
    const std::size_t room = kMaxPieceBytes - partial_.size();
    const std::string_view window = bytes.substr(0, room + 1);
    const std::size_t end =
        ends_ == Ends::kNewline ? window.find('\n') : window.find_first_of("\n\r");
    if (end == std::string_view::npos) {
      const std::size_t size = bytes.size() < room ? bytes.size() : room;
      partial_.append(bytes.substr(0, size));
      has_return_ = has_return_ || bytes.substr(0, size).find('\r') != std::string_view::npos;
      if (partial_.size() == kMaxPieceBytes && bytes.size() > size) {
        emit(partial_, true, sink);
        partial_.clear();
        continues_ = true;
      }
      return size;
    }
    if (bytes[end] == '\r') {
      // \r\n is one line end. The \n may be in later bytes.
      partial_.append(bytes.substr(0, end));
      held_return_ = true;
      return end + 1;
    }
    end_line(bytes.substr(0, end), sink, false);
    return end + 1;
  }

  template <typename Sink>
  void end_line(std::string_view rest, Sink&& sink, bool drop_empty) {
    if (!partial_.empty()) {
      partial_.append(rest);
      emit(partial_, false, sink);
      partial_.clear();
    } else if (!rest.empty() || continues_ || !drop_empty) {
      emit(rest, false, sink);
    }
    begin_line();
  }

  template <typename Sink>
  void emit(std::string_view text, bool unfinished, Sink&& sink) {
    sink(Piece{text, continues_, unfinished, resumed_});
    resumed_ = false;
  }

  Ends ends_;
  std::string partial_;       // Invariant: at most kMaxPieceBytes.
  bool continues_ = false;    // Pieces of the current line have been passed on.
  bool resumed_ = false;      // The last of them by take_early().
  bool has_return_ = false;   // The bytes that came since have a \r.
  bool held_return_ = false;  // The last byte was a \r, and a \n may follow.
};

}  // namespace ddp::agent
