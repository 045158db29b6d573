#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <stdlib.h>

namespace ddp::test {

// A line of tests/unit/launcher/store_transcripts/*.txt: what a connection sends, what it is
// answered (no bytes: nothing), or that the server has closed it.
struct TranscriptLine {
  enum Kind { kSend, kAnswer, kClosed };
  Kind kind = kSend;
  std::string connection;
  std::string bytes;
  std::string where;  // FILE:LINE and the comment above, for failure messages.
};

inline std::string to_hex(std::string_view bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (!out.empty()) out += ' ';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

inline std::vector<TranscriptLine> read_transcript(const std::string& name) {
  const char* const root = ::getenv("DDP_SOURCE_DIR");
  const std::string path = std::string(root == nullptr ? "." : root) +
                           "/tests/unit/launcher/store_transcripts/" + name + ".txt";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path + "; is DDP_SOURCE_DIR set?");
  std::vector<TranscriptLine> lines;
  std::string text, title;
  for (int number = 1; std::getline(file, text); ++number) {
    if (text.empty()) continue;
    if (text[0] == '#') {
      title = text;
      continue;
    }
    std::istringstream words(text);
    TranscriptLine line;
    std::string mark, hex;
    words >> line.connection >> mark;
    line.kind = mark == ">"   ? TranscriptLine::kSend
                : mark == "<" ? TranscriptLine::kAnswer
                              : TranscriptLine::kClosed;
    while (words >> hex && hex != "-") {
      line.bytes.push_back(static_cast<char>(std::stoi(hex, nullptr, 16)));
    }
    line.where = path + ":" + std::to_string(number) + " " + title;
    lines.push_back(line);
  }
  return lines;
}

}  // namespace ddp::test
