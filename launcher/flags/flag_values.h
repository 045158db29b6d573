#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "launcher/flags/flags.h"

// Parsers of flag values. Each error says what is wrong and what would be right. It does not name
// the flag; the caller puts the name in front.
namespace ddp::flags {

Result<int> parse_integer(std::string_view text, int minimum, int maximum);
// true/false, t/f, yes/no, y/n, on/off, 1/0, in upper or lower case.
Result<bool> parse_boolean(std::string_view text);
// Converts seconds, which may have a fraction, to milliseconds.
Result<std::int64_t> parse_seconds(std::string_view text, bool zero_allowed);
// The same for --lease, within its limits.
Result<std::int64_t> parse_lease(std::string_view text);
Result<std::int64_t> check_lease(std::int64_t milliseconds);
Result<double> parse_ratio(std::string_view text);                    // For --exclude-stragglers.
Result<std::pair<int, int>> parse_node_range(std::string_view text);  // N or MIN:MAX
Result<ProcessCount> parse_process_count(std::string_view text);
// CUDA devices, "2,4,7": numbers or names (GPU-..., MIG-...), each once.
Result<std::vector<std::string>> parse_devices(std::string_view text);
// A signal that can be handled: "USR1", "SIGUSR1" or "10".
Result<int> parse_signal(std::string_view text);
// A list of signals with commas between them, each listed once. Unknown names go to `unknown`.
struct Signals {
  std::vector<int> numbers;
  std::vector<std::string> unknown;
};
Result<Signals> parse_signals(std::string_view text);
// One of `words`; the message lists them.
Result<std::string> parse_word(std::string_view text, std::initializer_list<const char*> words);
// HOST, HOST:PORT, [V6]:PORT or V6. Blanks around it are ignored.
Result<HostPort> parse_endpoint(std::string_view text, int default_port);
Result<std::string> parse_host(std::string_view text);  // The same without a port.
// K=V,K=V in the order written. Blanks around keys and values are ignored. As in torchrun, neither
// may be empty, and quotes are part of the value.
Result<std::vector<std::pair<std::string, std::string>>> parse_pairs(std::string_view text);

}  // namespace ddp::flags
