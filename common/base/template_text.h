#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp {

// A stretch of a text in which $name and ${name} stand for values, as in Python's string.Template.
struct TemplatePart {
  std::string_view text;  // What to print if the name has no value. For "$$": one dollar.
  std::string_view name;  // Empty: plain text.
};

// The parts in order, as views into `text`. A dollar that begins no name stands for itself.
std::vector<TemplatePart> template_parts(std::string_view text);

// Python's Template(text).safe_substitute(name=value): other names stay as they are.
std::string safe_substitute(std::string_view text, std::string_view name, std::string_view value);

}  // namespace ddp
