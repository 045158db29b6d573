#include "agent/process/exit_cause.h"

#include <csignal>
#include <string_view>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/signal_name.h"

namespace ddp::agent {
namespace {

constexpr int kLastSignal = 64;

// For signals by which the kernel ends a program for a fault of its own.
const char* own_fault(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "segmentation fault: it used an invalid address";
    case SIGBUS:
      return "bus error: the memory behind a mapping was not there (a full /dev/shm, or a file "
             "that was cut short)";
    case SIGILL:
      return "illegal instruction: it was built for another processor, or its code is damaged";
    case SIGFPE:
      return "arithmetic error, such as an integer division by zero";
    case SIGABRT:
      return "it aborted itself";
    case SIGSYS:
      return "it made a system call that its sandbox forbids";
    case SIGPIPE:
      return "it wrote to a pipe or socket that nobody reads";
    case SIGXCPU:
      return "it used up its limit of processor time (ulimit -t)";
    case SIGXFSZ:
      return "a file that it wrote reached the limit of file sizes (ulimit -f)";
    default:
      return nullptr;
  }
}

std::string signal_text(const Ending& ending) {
  if (ending.signal == SIGKILL && ending.memory_kills > 0)
    return fmt::format("killed by the kernel: out of memory ({})", ending.memory_limit);
  if (const char* fault = own_fault(ending.signal)) return fault;
  if (ending.sent_by_agent)
    return fmt::format("ddp-run sent {} because the round ended", signal_name(ending.signal));
  if (ending.signal == SIGKILL && ending.memory_is_watched)
    return "SIGKILL came neither from ddp-run nor from the kernel for lack of memory: another "
           "process sent it";
  return fmt::format("{} came from outside ddp-run", signal_name(ending.signal));
}

// What the user can do about an exception; empty if nothing is known.
std::string remedy(const std::string& message) {
  const auto says = [&](std::string_view words) {
    return message.find(words) != std::string::npos;
  };
  // PyTorch has "is build without" and "was built without" in different releases.
  if (says("without libuv support"))
    return "this PyTorch is built without libuv, so it cannot connect to the store of a launcher; "
           "before ddp-run, on all nodes: export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 USE_LIBUV=0";
  if (says("Unknown backend type ddp") || says("Unknown c10d backend type DDP"))
    return "PyTorch does not know the backend ddp; write `import ddp_run` before "
           "init_process_group() (the package python3-ddp-run has it)";
  return "";
}

}  // namespace

std::string describe_ending(const Ending& ending) {
  if (ending.signal != 0) return signal_text(ending) + (ending.core_dumped ? "; core dumped" : "");
  if (ending.exit_code == 0) return "";
  std::string text = remedy(ending.message);
  const int inner = ending.exit_code - kExitSignalBase;
  if (text.empty() && inner > 0 && inner <= kLastSignal) {
    text = fmt::format("the status by which a shell says that signal {} ({}) ended a program",
                       inner, signal_name(inner));
  }
  if (ending.memory_kills > 0) {
    text += fmt::format("{}the kernel killed {} of this node's processes for lack of memory ({})",
                        text.empty() ? "" : "; ", ending.memory_kills, ending.memory_limit);
  }
  return text;
}

}  // namespace ddp::agent
