#include "launcher/server/metrics_text.h"

#include <cmath>
#include <cstddef>

#include <fmt/format.h>

namespace ddp::server {
namespace {

bool is_continuation(std::string_view text, std::size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u;
}

// The length of the UTF-8 character at the start of `text`; 0 if there is none. Surrogates and
// overlong forms do not count.
std::size_t utf8_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text, i)) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

std::string escape_help(std::string_view help) {
  std::string out;
  for (const char c : help) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string escape_label_value(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    const std::size_t length = utf8_length(value);
    if (value[0] == '\\' || value[0] == '"') {
      out += '\\';
      out += value[0];
    } else if (value[0] == '\n') {
      out += "\\n";
    } else if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else {
      out += value.substr(0, length);
    }
    value.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  heading_ = fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, escape_help(help), type);
}

void MetricsText::sample(std::initializer_list<Label> labels, double value) {
  if (std::isfinite(value)) put(labels, fmt::format("{}", value));
}

void MetricsText::put(std::initializer_list<Label> labels, std::string_view value) {
  text_ += heading_;
  heading_.clear();
  text_ += name_;
  char separator = '{';
  for (const auto& [label, label_value] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", separator, label, escape_label_value(label_value));
    separator = ',';
  }
  if (labels.size() > 0) text_ += '}';
  text_ += fmt::format(" {}\n", value);
}

}  // namespace ddp::server
