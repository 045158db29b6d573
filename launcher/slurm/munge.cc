#include "launcher/slurm/munge.h"

#include <unistd.h>

#include <charconv>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "launcher/slurm/command.h"
#include "launcher/slurm/scontrol.h"

namespace ddp::slurm {
namespace {

// Exit statuses with which unmunge still prints the text: it has expired, comes from a clock that
// is ahead, or was opened before.
constexpr int kExpired = 15;
constexpr int kReplayed = 17;

bool has_text(const FinishedCommand& finished) {
  return finished.status == 0 || (finished.status >= kExpired && finished.status <= kReplayed);
}

// Uses MUNGE's default daemon, or SLURM's own if there is none.
Result<std::string> run_munge(std::vector<std::string> command, std::string_view input) {
  auto finished = run_command(command, input);
  if (finished && !has_text(*finished)) {
    const std::string socket = ask_munge_socket();
    if (!socket.empty()) {
      command.insert(command.begin() + 1, "--socket=" + socket);
      finished = run_command(command, input);
    }
  }
  if (!finished) return finished.error();
  std::string& output = finished->output;
  if (has_text(*finished)) return std::move(output);
  while (output.ends_with('\n')) output.pop_back();
  return make_error(Errc::kIo, "{}: {}", command.front(), output);
}

}  // namespace

Result<std::string> seal(std::string_view text) {
  auto sealed =
      run_munge({"munge", fmt::format("--restrict-uid={}", ::geteuid()), "--ttl=-1"}, text);
  while (sealed && sealed->ends_with('\n')) sealed->pop_back();
  return sealed;
}

Result<std::string> unseal(std::string_view sealed) {
  const auto output = run_munge({"unmunge", "--keys=UID"}, sealed);
  if (!output) return output.error();
  auto opened = parse_unmunge(*output);
  if (!opened) return opened.error();
  if (opened->uid != ::geteuid())
    return make_error(Errc::kInvalidArgument, "another user ({}) has sealed it", opened->uid);
  return std::move(opened->text);
}

// "UID:    name (0)", an empty line, the text.
Result<Unsealed> parse_unmunge(std::string_view output) {
  const auto unreadable = [] {
    return make_error(Errc::kProtocol, "unmunge did not print a user and a text");
  };
  if (!output.starts_with("UID:")) return unreadable();
  const std::size_t line_end = output.find("\n\n");
  const std::size_t open = output.substr(0, line_end).rfind('(');
  if (line_end == std::string_view::npos || open == std::string_view::npos) return unreadable();
  Unsealed unsealed;
  const char* end = output.data() + line_end;
  const auto [rest, error] = std::from_chars(output.data() + open + 1, end, unsealed.uid);
  if (error != std::errc() || rest == end || *rest != ')') return unreadable();
  unsealed.text = output.substr(line_end + 2);
  return unsealed;
}

}  // namespace ddp::slurm
