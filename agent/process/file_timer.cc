#include "agent/process/file_timer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/unique_fd.h"

namespace ddp::agent {
namespace {

constexpr std::size_t kMaxTimers = 65'536;
constexpr std::size_t kMaxLine = 4'096;  // PIPE_BUF: longer lines of several writers could mix.
constexpr int kLastTimerSignal = 64;
template <typename AnyClock>
double seconds_of() {
  return std::chrono::duration<double>(AnyClock::now().time_since_epoch()).count();
}

}  // namespace

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // The name before it may hold any characters.
  const auto name_end = text.rfind(')');
  int parent = 0;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1, " %*c %d", &parent) != 1) {
    return 0;
  }
  return parent;
}

Result<void> TimerTable::take_line(std::string_view line, double ahead) {
  try {
    const auto json = parse_json(line);
    const auto pid = json.at("pid").get<pid_t>();
    const auto scope = json.at("scope_id").get<std::string>();
    const auto expires = json.at("expiration_time").get<double>();
    const auto signal = json.at("signal").get<int>();
    if (pid <= 1 || signal > kLastTimerSignal || !std::isfinite(expires))
      return make_error(Errc::kProtocol, "a timer of process {} with signal {}", pid, signal);
    if (expires < 0) {
      timers_.erase({pid, scope});
    } else if (timers_.size() < kMaxTimers || timers_.contains({pid, scope})) {
      timers_[{pid, scope}] = Timer{expires - ahead, signal};
    } else {
      return make_error(Errc::kProtocol, "more than {} timers", kMaxTimers);
    }
    return {};
  } catch (const nlohmann::json::exception& error) {
    return make_error(Errc::kProtocol, "{}", error.what());
  }
}

std::vector<Expired> TimerTable::take_expired(double now) {
  std::map<pid_t, std::pair<double, Expired>> first;
  for (const auto& [key, timer] : timers_) {
    if (timer.expires > now) continue;
    const auto [found, is_new] =
        first.try_emplace(key.first, timer.expires, Expired{key.first, timer.signal, key.second});
    auto& [expires, expired] = found->second;
    const bool better = expired.signal <= 0 || timer.expires < expires;
    if (is_new || timer.signal <= 0 || !better) continue;
    expires = timer.expires;
    expired = Expired{key.first, timer.signal, key.second};
  }
  std::erase_if(timers_, [&first](const auto& entry) { return first.contains(entry.first.first); });
  std::vector<Expired> expired;
  for (const auto& [pid, one] : first) {
    if (one.second.signal > 0) expired.push_back(one.second);
  }
  return expired;
}

std::optional<double> TimerTable::next() const {
  std::optional<double> next;
  for (const auto& [key, timer] : timers_)
    next = next ? std::min(*next, timer.expires) : timer.expires;
  return next;
}

std::optional<std::string> timer_file_wanted(
    const std::function<const char*(const char*)>& environment, const std::string& folder) {
  const char* enabled = environment("TORCHELASTIC_ENABLE_FILE_TIMER");
  if (enabled == nullptr || std::string_view(enabled) != "1") return std::nullopt;
  const char* path = environment("TORCHELASTIC_TIMER_FILE");
  return path != nullptr && *path != '\0' ? std::string(path) : folder + "/timer";
}

struct FileTimers::State : std::enable_shared_from_this<FileTimers::State> {
  State(asio::io_context& io, int fd, std::string file,
        std::function<void(const Expired&)> callback)
      : pipe(io, fd), timer(io), path(std::move(file)), on_expired(std::move(callback)) {}
  ~State() { ::unlink(path.c_str()); }

  void wait() {
    pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                    [weak = weak_from_this()](const std::error_code& error) {
                      const auto self = weak.lock();
                      if (!self || error) return;
                      self->read();
                      self->look();
                      self->wait();
                    });
  }

  void read() {
    std::array<char, 4096> buffer;
    const double ahead = seconds_of<std::chrono::system_clock>() - seconds_of<Clock>();
    for (;;) {
      const ssize_t size = ::read(pipe.native_handle(), buffer.data(), buffer.size());
      if (size <= 0) return;
      text.append(buffer.data(), static_cast<std::size_t>(size));
      std::size_t begin = 0;
      for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        // A malformed line is ignored, so that the timers of other workers go on.
        [[maybe_unused]] const auto taken =
            table.take_line(std::string_view(text).substr(begin, end - begin), ahead);
      }
      text.erase(0, begin);
      if (text.size() > kMaxLine) text.clear();
    }
  }

  void look() {
    for (const Expired& expired : table.take_expired(seconds_of<Clock>())) on_expired(expired);
    const auto next = table.next();
    if (!next) return timer.cancel();
    constexpr double kLongestWait = 1e6;
    const double wait = std::clamp(*next - seconds_of<Clock>(), 0.0, kLongestWait);
    timer.after(Duration(static_cast<std::int64_t>(std::ceil(wait * 1'000))), [this] { look(); });
  }

  asio::posix::stream_descriptor pipe;
  net::Timer timer;
  const std::string path;
  const std::function<void(const Expired&)> on_expired;
  std::string text;  // The part of a line whose end has not come yet.
  TimerTable table;
};

FileTimers::FileTimers(std::shared_ptr<State> state) : state_(std::move(state)) {}
FileTimers::FileTimers(FileTimers&&) noexcept = default;
FileTimers& FileTimers::operator=(FileTimers&&) noexcept = default;
FileTimers::~FileTimers() = default;

Result<FileTimers> FileTimers::listen(asio::io_context& io, const std::string& path,
                                      std::function<void(const Expired&)> on_expired) {
  const auto fail = [&path](const std::string& why) {
    return make_error(Errc::kIo,
                      "TORCHELASTIC_TIMER_FILE={}: {}; ddp-run goes on without file timers", path,
                      why);
  };
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISFIFO(info.st_mode)) return fail("it exists and is not a FIFO");
    ::unlink(path.c_str());
  }
  if (::mkfifo(path.c_str(), 0600) != 0) return fail(std::generic_category().message(errno));
  // O_RDWR: with a writer of its own, the reader never sees an end of file when a worker closes it.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return fail(std::generic_category().message(errno));
  auto state = std::make_shared<State>(io, fd.release(), path, std::move(on_expired));
  state->wait();
  return FileTimers(std::move(state));
}

bool signal_descendant(pid_t pid, int signal) {
  // From here on the pidfd refers to this process, even if it ends.
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return false;
  pid_t ancestor = pid;
  while (ancestor > 1 && ancestor != ::getpid()) ancestor = parent_of(ancestor);
  if (ancestor != ::getpid() || pid == ::getpid()) return false;
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0) == 0;
}

}  // namespace ddp::agent
