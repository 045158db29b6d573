#pragma once

#include <algorithm>
#include <array>
#include <fstream>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <stdlib.h>

#include "common/wire/c10d.h"

namespace ddp::test {

// A line of tests/unit/launcher/store_transcripts/*.txt: what a connection sends, the answer to it
// (no bytes: no answer; with `<keys`: a list of keys in any order), or that the server has closed
// it.
struct TranscriptLine {
  enum Kind { kSend, kAnswer, kKeys, kClosed };
  Kind kind = kSend;
  std::string connection;
  std::string bytes;
  std::string where;  // FILE:LINE and the comment above, for messages.
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

// The bytes of a list of keys, in alphabetical order.
inline std::string sorted_keys(std::string_view list) {
  std::vector<std::string_view> keys;
  for (std::size_t at = 8; at + 8 <= list.size();) {
    const auto size = static_cast<std::size_t>(wire::c10d::get_i64(list.data() + at));
    keys.push_back(list.substr(at, 8 + size));
    at += keys.back().size();
  }
  std::sort(keys.begin(), keys.end());
  std::string out(list.substr(0, 8));
  for (const std::string_view key : keys) out += key;
  return out;
}

// Every transcript by name, with the dialect of its clients without VALIDATE.
struct Transcript {
  const char* name;
  wire::c10d::Dialect old_dialect;
};
inline void PrintTo(const Transcript& transcript, std::ostream* out) { *out << transcript.name; }
inline constexpr std::array<Transcript, 9> kTranscripts{{
    {"legacy", wire::c10d::Dialect::kLegacy},
    {"interim", wire::c10d::Dialect::kInterim},
    {"newest", wire::c10d::Dialect::kLegacy},
    {"switch", wire::c10d::Dialect::kLegacy},
    {"python_client", wire::c10d::Dialect::kLegacy},
    {"cpp_client", wire::c10d::Dialect::kLegacy},
    {"recorded_gloo", wire::c10d::Dialect::kLegacy},
    {"recorded_torchrun_c10d", wire::c10d::Dialect::kLegacy},
    {"recorded_torchrun_static", wire::c10d::Dialect::kLegacy},
}};

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
    line.kind = mark == ">"       ? TranscriptLine::kSend
                : mark == "<"     ? TranscriptLine::kAnswer
                : mark == "<keys" ? TranscriptLine::kKeys
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
