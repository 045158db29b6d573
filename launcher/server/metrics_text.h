#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace ddp::server {

// Writes Prometheus' text format (version 0.0.4): one family after another, each with its HELP and
// TYPE lines and then all of its samples. A page has a few kilobytes and is built on request, so
// the daemon needs no metrics library.
class MetricsText {
 public:
  using Label = std::pair<std::string_view, std::string_view>;  // Name, value (any bytes).

  // Begins a family. `type` is "counter" (the name then ends with _total) or "gauge". A family
  // without samples does not appear.
  void family(std::string_view name, std::string_view type, std::string_view help);
  // Adds a sample to the last family. A value that is not a number is left out.
  template <std::integral T>
  void sample(std::initializer_list<Label> labels, T value) {
    put(labels, std::to_string(value));
  }
  void sample(std::initializer_list<Label> labels, double value);
  // A family of one sample without labels.
  template <std::integral T>
  void single(std::string_view name, std::string_view type, std::string_view help, T value) {
    family(name, type, help);
    sample({}, value);
  }

  const std::string& text() const { return text_; }

 private:
  void put(std::initializer_list<Label> labels, std::string_view value);

  std::string text_;
  std::string name_;
  std::string heading_;  // Heading of the last family, until it has a sample.
};

// The value for use between quotes, as the format demands: \, " and line ends are escaped, and what
// is not UTF-8 is replaced by U+FFFD.
std::string escape_label_value(std::string_view value);

}  // namespace ddp::server
