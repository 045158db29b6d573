#include "agent/process/stacks.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>

#include "agent/process/file_timer.h"
#include "common/base/unique_fd.h"
#include "common/process/write_file.h"

namespace ddp::agent {
namespace {

constexpr std::size_t kFramesMax = 64;
constexpr std::size_t kNameBytesMax = 200;

// libdw's functions. Loaded at run time and not linked, because an agent seldom needs them.
struct Libdw {
  void* const library = ::dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);

  template <typename Function>
  void load(Function*& function, const char* name) {
    function = library != nullptr ? reinterpret_cast<Function*>(::dlsym(library, name)) : nullptr;
    complete = complete && function != nullptr;
  }

  bool complete = true;
  decltype(::dwfl_begin)* begin;
  decltype(::dwfl_linux_proc_report)* linux_proc_report;
  decltype(::dwfl_linux_proc_attach)* linux_proc_attach;
  decltype(::dwfl_linux_proc_find_elf)* linux_proc_find_elf;
  decltype(::dwfl_standard_find_debuginfo)* standard_find_debuginfo;
  decltype(::dwfl_report_end)* report_end;
  decltype(::dwfl_getthread_frames)* getthread_frames;
  decltype(::dwfl_frame_pc)* frame_pc;
  decltype(::dwfl_addrmodule)* addrmodule;
  decltype(::dwfl_module_addrinfo)* module_addrinfo;
  decltype(::dwfl_module_info)* module_info;
  decltype(::dwfl_module_getsrc)* module_getsrc;
  decltype(::dwfl_lineinfo)* lineinfo;
  decltype(::dwfl_errmsg)* errmsg;

  Libdw() {
    load(begin, "dwfl_begin");
    load(linux_proc_report, "dwfl_linux_proc_report");
    load(linux_proc_attach, "dwfl_linux_proc_attach");
    load(linux_proc_find_elf, "dwfl_linux_proc_find_elf");
    load(standard_find_debuginfo, "dwfl_standard_find_debuginfo");
    load(report_end, "dwfl_report_end");
    load(getthread_frames, "dwfl_getthread_frames");
    load(frame_pc, "dwfl_frame_pc");
    load(addrmodule, "dwfl_addrmodule");
    load(module_addrinfo, "dwfl_module_addrinfo");
    load(module_info, "dwfl_module_info");
    load(module_getsrc, "dwfl_module_getsrc");
    load(lineinfo, "dwfl_lineinfo");
    load(errmsg, "dwfl_errmsg");
  }
};

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string demangled(const char* name) {
  int status = -1;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string result = status == 0 ? text.get() : name;
  if (result.size() > kNameBytesMax) result = result.substr(0, kNameBytesMax) + "...";
  return result;
}

// Reads the stacks of one process. If problem() is not empty, something went wrong and no stack is
// complete.
class StackReader {
 public:
  explicit StackReader(pid_t pid) {
    if (!dw_.complete) {
      problem_ = "libdw.so.1 (Debian package libdw1) cannot be loaded";
      return;
    }
    callbacks_.find_elf = dw_.linux_proc_find_elf;
    callbacks_.find_debuginfo = dw_.standard_find_debuginfo;
    dwfl_ = dw_.begin(&callbacks_);
    if (dwfl_ == nullptr || dw_.linux_proc_report(dwfl_, pid) != 0 ||
        dw_.report_end(dwfl_, nullptr, nullptr) != 0 ||
        dw_.linux_proc_attach(dwfl_, pid, false) != 0) {
      problem_ = error();
    }
  }

  const std::string& problem() const { return problem_; }

  std::vector<std::string> frames(pid_t thread) {
    frames_.clear();
    if (!problem_.empty()) return {};
    // The unwinder reports an error when it finds no further frame. The frames before it are valid.
    if (dw_.getthread_frames(dwfl_, thread, &StackReader::on_frame, this) != 0 && frames_.empty())
      frames_.push_back("(" + error() + ")");
    return std::move(frames_);
  }

 private:
  static int on_frame(Dwfl_Frame* frame, void* self) {
    return static_cast<StackReader*>(self)->add(frame);
  }

  int add(Dwfl_Frame* frame) {
    Dwarf_Addr address = 0;
    bool interrupted = false;
    if (!dw_.frame_pc(frame, &address, &interrupted)) return DWARF_CB_ABORT;
    // A return address may already belong to the next function.
    if (!interrupted) --address;
    auto& name = names_[address];
    if (name.empty()) name = describe(address);
    frames_.push_back(name);
    return frames_.size() < kFramesMax ? DWARF_CB_OK : DWARF_CB_ABORT;
  }

  std::string describe(Dwarf_Addr address) {
    Dwfl_Module* module = dw_.addrmodule(dwfl_, address);
    if (module == nullptr) return fmt::format("{:#x}", address);
    GElf_Off offset = 0;
    GElf_Sym symbol;
    const char* name =
        dw_.module_addrinfo(module, address, &offset, &symbol, nullptr, nullptr, nullptr);
    const char* file =
        dw_.module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
    std::string text = name != nullptr ? demangled(name) : fmt::format("{:#x}", address);
    if (file != nullptr)
      text += fmt::format(" ({})", std::filesystem::path(file).filename().string());
    if (Dwfl_Line* line = dw_.module_getsrc(module, address)) {
      int number = 0;
      const char* source = dw_.lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
      if (source != nullptr) text += fmt::format(" at {}:{}", source, number);
    }
    return text;
  }

  std::string error() {
    const char* text = dw_.errmsg(-1);
    return text != nullptr ? text : "unknown error";
  }

  Libdw dw_;
  Dwfl_Callbacks callbacks_{};
  Dwfl* dwfl_ = nullptr;  // Freed with the process.
  std::string problem_;
  std::vector<std::string> frames_;
  std::map<Dwarf_Addr, std::string> names_;
};

struct Thread {
  pid_t id = 0;
  std::string title;  // Its name and what it does.
};

std::vector<Thread> threads_of(pid_t pid) {
  std::vector<Thread> threads;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    const std::string folder = entry.path().string();
    const std::string stat = first_line(folder + "/stat");
    const auto end = stat.rfind(')');
    const std::string state = end + 2 < stat.size() ? stat.substr(end + 2, 1) : "?";
    const std::string kernel = first_line(folder + "/wchan");
    Thread thread{std::atoi(entry.path().filename().c_str()),
                  fmt::format("{}, state {}", first_line(folder + "/comm"), state)};
    if (!kernel.empty() && kernel != "0") thread.title += " in " + kernel;
    threads.push_back(std::move(thread));
  }
  std::sort(threads.begin(), threads.end(),
            [](const Thread& a, const Thread& b) { return a.id < b.id; });
  return threads;
}

// What /proc says of a thread or a process.
struct Signals {
  std::uint64_t pending = 0;  // Of the process or of the thread.
  std::uint64_t blocked = 0;
  std::uint64_t caught = 0;
};

Signals signals_of(const std::string& folder) {
  Signals signals;
  std::ifstream file(folder + "/status");
  for (std::string line; std::getline(file, line);) {
    const auto bits = [&line](std::string_view name) -> std::uint64_t {
      return line.starts_with(name) ? std::strtoull(line.c_str() + name.size(), nullptr, 16) : 0;
    };
    signals.pending |= bits("SigPnd:") | bits("ShdPnd:");
    signals.blocked |= bits("SigBlk:");
    signals.caught |= bits("SigCgt:");
  }
  return signals;
}

// The threads in which the signal is blocked; a handler's thread is one of them while it runs.
std::set<std::string> threads_blocking(pid_t pid, std::uint64_t bit) {
  std::set<std::string> threads;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    if ((signals_of(entry.path()).blocked & bit) != 0) threads.insert(entry.path().filename());
  }
  return threads;
}

// Nobody is told if it cannot be written: the reader is gone.
void say(int out, std::string_view text) { write_all(out, text); }

}  // namespace

void ask_for_stacks(const StackSource& source) {
  constexpr Duration kLook{2};
  const pid_t pid = source.speaker;
  if (pid <= 1 || source.signal <= 0 || source.signal > SIGRTMAX) return;
  // From here on it refers to this process, even if the process ends.
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pid_t ancestor = pid;
  while (ancestor > 1 && ancestor != source.pid) ancestor = parent_of(ancestor);
  const std::uint64_t bit = std::uint64_t{1} << (source.signal - 1);
  const std::string folder = fmt::format("/proc/{}", pid);
  if (!process || ancestor != source.pid || (signals_of(folder).caught & bit) == 0) return;
  const std::set<std::string> before = threads_blocking(pid, bit);
  if (::syscall(SYS_pidfd_send_signal, process.get(), source.signal, nullptr, 0) != 0) return;
  const auto is_writing = [&] {
    if ((signals_of(folder).pending & bit) != 0) return true;
    const std::set<std::string> now = threads_blocking(pid, bit);
    return !std::includes(before.begin(), before.end(), now.begin(), now.end());
  };
  // Twice in a row: for a moment a signal is no longer pending and not blocked yet.
  const TimePoint limit = Clock::now() + kAskLimit;
  for (int quiet = 0; quiet < 2 && Clock::now() < limit; quiet = is_writing() ? 0 : quiet + 1)
    std::this_thread::sleep_for(kLook);
}

void write_stacks(pid_t pid, int out) {
  // Otherwise libdw would ask servers in the network for missing debug information.
  ::unsetenv("DEBUGINFOD_URLS");
  const std::vector<Thread> threads = threads_of(pid);
  StackReader reader(pid);
  if (!reader.problem().empty())
    say(out, fmt::format("the stacks cannot be read: {}\n", reader.problem()));
  std::map<std::vector<std::string>, pid_t> seen;
  for (const Thread& thread : threads) {
    std::string text = fmt::format("thread {} ({})", thread.id, thread.title);
    const std::vector<std::string> frames = reader.frames(thread.id);
    const auto [same, is_new] = seen.emplace(frames, thread.id);
    if (frames.empty()) {
      text += "\n";
    } else if (!is_new) {
      text += fmt::format(": as thread {}\n", same->second);
    } else {
      text += ":\n";
      for (std::size_t i = 0; i < frames.size(); ++i)
        text += fmt::format("  #{:<2} {}\n", i, frames[i]);
    }
    say(out, text);
  }
}

}  // namespace ddp::agent
