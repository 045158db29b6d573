#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/result.h"
#include "launcher/ddp_run/command_line.h"
#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// What a reader of flags works with: the flags that were given, and a place for what is wrong with
// them. The first error stays; a reader may go on after one. Both arguments outlive the object.
class FlagReader {
 public:
  FlagReader(const CommandLine& line, const GetEnvironment& environment)
      : line_(line), environment_(environment) {}

  const CommandLine& line() const { return line_; }
  const char* environment(const char* name) const { return environment_(name); }
  // Null if it was not given.
  const GivenFlag* find(std::string_view name) const { return line_.find(name); }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // The flag's value as `parse` reads it; nothing if it was not given, or is wrong, which is noted.
  // `parse`: Result<T>(const std::string&), whose message does not name the flag.
  template <typename T, typename Parse>
  std::optional<T> value(std::string_view name, Parse parse) {
    const GivenFlag* given = find(name);
    if (given == nullptr) return std::nullopt;
    Result<T> parsed = parse(given->value);
    if (parsed) return std::move(*parsed);
    wrong(given->shown, "{}", parsed.error().message);
    return std::nullopt;
  }
  // The same into `option`, which is left alone without a right value.
  template <typename T, typename Parse>
  void take(std::string_view name, Parse parse, T& option) {
    if (auto read = value<T>(name, parse)) option = std::move(*read);
  }

  // A value that cannot be: "SHOWN: what is wrong; what to do", kExitInvalidValue.
  template <typename... Args>
  void wrong(const std::string& shown, fmt::format_string<Args...> format, Args&&... args) {
    fail(exit_error(kExitInvalidValue, "{}: {}", shown,
                    fmt::format(format, std::forward<Args>(args)...)));
  }
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const CommandLine& line_;
  const GetEnvironment& environment_;
  std::optional<Error> error_;
};

// The readers, one for each subject and file (flags_SUBJECT.cc). They are called in this order and
// may look at what the earlier ones have read.
void read_size_flags(FlagReader& reader, Options& options);
void read_host_flags(FlagReader& reader, Options& options);
void read_slurm_flags(FlagReader& reader, Options& options);
void read_rendezvous_flags(FlagReader& reader, Options& options);
void read_access_flags(FlagReader& reader, Options& options);
void read_limit_flags(FlagReader& reader, Options& options);
void read_output_flags(FlagReader& reader, Options& options);
void read_program_flags(FlagReader& reader, Options& options);

}  // namespace ddp::run
