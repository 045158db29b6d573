#include "launcher/plan/python_program.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

namespace ddp::plan {
namespace {

constexpr std::string_view kElf(
    "\x7f"
    "ELF");
constexpr std::string_view kZip("PK\x03\x04");
// The third and fourth byte of a byte code file of any Python version.
constexpr std::string_view kByteCode("\r\n");
constexpr std::string_view kInterpreter("#!");

// The file's first bytes, enough to tell texts from other files. Empty if it cannot be read.
std::string first_bytes(const std::string& path) {
  std::array<char, 4096> bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  return std::string(bytes.data(), static_cast<std::size_t>(file.gcount()));
}

// "/bin/sh" for "#!/bin/sh -e", "bash" for "#!/usr/bin/env -S bash"; empty if there is no such
// line.
std::string interpreter_in(const std::string& head) {
  if (!head.starts_with(kInterpreter)) return {};
  std::istringstream line(head.substr(kInterpreter.size(), head.find('\n') - kInterpreter.size()));
  std::string word;
  line >> word;
  if (word.ends_with("/env")) {
    while (line >> word && word.starts_with('-')) {
    }
  }
  return word;
}

}  // namespace

bool is_for_python(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status))
    return std::filesystem::is_regular_file(path + "/__main__.py", error);
  if (!std::filesystem::is_regular_file(status) || ::access(path.c_str(), R_OK) != 0) return false;
  const std::string head = first_bytes(path);
  if (head.starts_with(kElf)) return false;
  if (head.starts_with(kInterpreter))
    return ::access(path.c_str(), X_OK) != 0 && !interpreter_in(head).ends_with("sh");
  const bool is_text = head.find('\0') == std::string::npos;
  return is_text || head.starts_with(kZip) || head.find(kByteCode) == 2;
}

std::string interpreter_of(const std::string& path) { return interpreter_in(first_bytes(path)); }

bool is_python(const std::string& name) {
  constexpr std::string_view kName = "python";
  const std::string_view base = std::string_view(name).substr(name.rfind('/') + 1);
  return base.starts_with(kName) &&
         base.find_first_not_of("0123456789.", kName.size()) == std::string_view::npos;
}

}  // namespace ddp::plan
