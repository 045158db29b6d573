#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace ddp::server {

// Writes Prometheus' text format (version 0.0.4): families one after the other, each with its HELP
// and TYPE line and all of its samples behind them. A page is a few kilobytes built on request, so
// this is all that the daemon needs of a metrics library.
class MetricsText {
 public:
  using Label = std::pair<std::string_view, std::string_view>;  // Name, value (any bytes).

  // Begins a family. `type` is "counter" (its name ends with _total) or "gauge"; nothing of it
  // appears while it has no sample.
  void family(std::string_view name, std::string_view type, std::string_view help);
  // Of the family begun last. A value that is not a number is left out.
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
  std::string heading_;  // Of the family begun last, until it has a sample.
};

// The value as it stands between the quotes: \, " and line ends escaped, and what is not UTF-8
// replaced by U+FFFD, as the format demands.
std::string escape_label_value(std::string_view value);

}  // namespace ddp::server
