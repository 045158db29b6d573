#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/exit_error.h"
#include "common/base/result.h"
#include "launcher/flags/command_line.h"
#include "launcher/flags/flags.h"

namespace ddp::flags {

// What the readers of flags share: the flags that were given, and the first error. A reader may go
// on after an error; later errors are dropped. Both arguments must outlive the object.
class FlagReader {
 public:
  FlagReader(const CommandLine& line, const GetEnvironment& environment)
      : line_(line), environment_(environment) {}

  const CommandLine& line() const { return line_; }
  const char* environment(const char* name) const { return environment_(name); }
  // Null if it was not given.
  const GivenFlag* find(std::string_view name) const { return line_.find(name); }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  bool names_an_endpoint() const { return has("rdzv-endpoint") || has("master-addr"); }

  // The flag's value as `parse` reads it. Nothing if the flag was not given, or if its value is
  // wrong, which is recorded as the error. `parse` is Result<T>(const std::string&); its error
  // message does not name the flag.
  template <typename T, typename Parse>
  std::optional<T> value(std::string_view name, Parse parse) {
    const GivenFlag* given = find(name);
    if (given == nullptr) return std::nullopt;
    Result<T> parsed = parse(given->value);
    if (parsed) return std::move(*parsed);
    wrong(given->shown, "{}", parsed.error().message);
    return std::nullopt;
  }
  // Like value(), but stores the value in `option`. Without a valid value, `option` stays as it is.
  template <typename T, typename Parse>
  void take(std::string_view name, Parse parse, T& option) {
    if (auto read = value<T>(name, parse)) option = std::move(*read);
  }

  // Records the error of a wrong value: "SHOWN: what is wrong; what to do", with kExitInvalidValue.
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
// may use what earlier ones have read.
void read_size_flags(FlagReader& reader, Options& options);
void read_batch_hosts(FlagReader& reader, Options& options);
void read_host_flags(FlagReader& reader, Options& options);
void read_scheduler_flags(FlagReader& reader, Options& options);
void read_slurm_flags(FlagReader& reader, Options& options);
void read_rendezvous_flags(FlagReader& reader, Options& options);
void read_access_flags(FlagReader& reader, Options& options);
void read_limit_flags(FlagReader& reader, Options& options);
void read_output_flags(FlagReader& reader, Options& options);
void read_program_flags(FlagReader& reader, Options& options);

}  // namespace ddp::flags
