#include "launcher/slurm/munge.h"

#include <unistd.h>

#include <charconv>
#include <utility>
#include <vector>

#include "launcher/slurm/command.h"
#include "launcher/slurm/scontrol.h"

namespace ddp::slurm {
namespace {

// Statuses of unmunge with which it gives the text all the same: it has expired, comes from a clock
// that is ahead, was opened before.
constexpr int kExpired = 15;
constexpr int kReplayed = 17;

// By the daemon that the program takes by itself; where there is none, by SLURM's own.
Result<FinishedCommand> run_munge(std::vector<std::string> command, std::string_view input) {
  auto finished = run_command(command, input);
  if (!finished || finished->status == 0 ||
      (finished->status >= kExpired && finished->status <= kReplayed)) {
    return finished;
  }
  const std::string socket = ask_munge_socket();
  if (socket.empty()) return finished;
  command.insert(command.begin() + 1, "--socket=" + socket);
  return run_command(command, input);
}

Error refusal(const char* program, std::string output) {
  while (output.ends_with('\n')) output.pop_back();
  return make_error(Errc::kIo, "{}: {}", program, output);
}

}  // namespace

Result<std::string> seal(std::string_view text) {
  auto finished =
      run_munge({"munge", fmt::format("--restrict-uid={}", ::geteuid()), "--ttl=-1"}, text);
  if (!finished) return finished.error();
  std::string& sealed = finished->output;
  while (sealed.ends_with('\n')) sealed.pop_back();
  if (finished->status != 0) return refusal("munge", sealed);
  return std::move(sealed);
}

Result<std::string> unseal(std::string_view sealed) {
  auto finished = run_munge({"unmunge", "--keys=UID"}, sealed);
  if (!finished) return finished.error();
  if (finished->status != 0 && (finished->status < kExpired || finished->status > kReplayed))
    return refusal("unmunge", finished->output);
  auto opened = parse_unmunge(finished->output);
  if (!opened) return opened.error();
  if (opened->uid != ::geteuid())
    return make_error(Errc::kInvalidArgument, "it was sealed by user {}", opened->uid);
  return std::move(opened->text);
}

// "UID:    name (0)", an empty line, the text.
Result<Unsealed> parse_unmunge(std::string_view output) {
  const auto unreadable = [] {
    return make_error(Errc::kProtocol, "unmunge printed something else than a user and a text");
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
