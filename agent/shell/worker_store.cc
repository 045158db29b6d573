#include "agent/shell/worker_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <variant>

#include "agent/process/spawn_program.h"
#include "agent/process/torch_build.h"
#include "common/base/unique_fd.h"
#include "common/process/this_process.h"

namespace ddp::agent {
namespace {

// Finds torch without importing it. Removes the current folder from the path, because a script's
// path does not have it.
constexpr const char* kWhereTorchIs = R"(
import sys
sys.path[:] = filter(None, sys.path)
for finder in sys.meta_path:
    spec = finder.find_spec('torch', None)
    if spec:
        print(spec.origin)
        break
)";
// For an interpreter on a slow file system. The start of the workers would take as long there.
constexpr Duration kLimit{10'000};

// The folder of the last line, "/usr/lib/python3/dist-packages/torch/__init__.py"; empty if it is
// not such a path.
std::string package_in(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const std::string_view line = text.substr(text.rfind('\n') + 1);  // 0 if there is only one line.
  constexpr std::string_view kFile = "/__init__.py";
  if (!line.starts_with('/') || !line.ends_with(kFile)) return {};
  return std::string(line.substr(0, line.size() - kFile.size()));
}

}  // namespace

WorkerStore::WorkerStore(asio::io_context& io, const config::JobSpec& spec)
    : spec_(spec), answer_(io), limit_(io) {}

void WorkerStore::examine(std::function<void()> done) {
  std::array<int, 2> ends{-1, -1};
  if (spec_.python.empty() || ::pipe2(ends.data(), O_CLOEXEC) != 0) return done();
  UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  SpawnRequest request;
  request.command = {spec_.python, "-c", kWhereTorchIs};
  request.environment = own_environment();
  request.stdout_fd = write_end.get();
  request.stderr_fd = null.get();
  if (!spawn(request)) return done();
  done_ = std::move(done);
  answer_.assign(read_end.release());
  answer_.non_blocking(true);
  limit_.after(kLimit, [this] { finish(); });
  read();
}

void WorkerStore::read() {
  answer_.async_wait(
      asio::posix::stream_descriptor::wait_read, [this](const std::error_code& error) {
        if (error) return;
        std::array<char, 4096> chunk;
        const ssize_t size = ::read(answer_.native_handle(), chunk.data(), chunk.size());
        text_.append(chunk.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
        if (size > 0 || (size < 0 && errno == EAGAIN)) return read();
        finish();
      });
}

void WorkerStore::finish() {
  limit_.cancel();
  answer_.close();
  const std::string package = package_in(text_);
  torch_lacks_libuv_ = !package.empty() && lacks_libuv(package);
  if (const auto done = std::exchange(done_, nullptr)) done();
}

// For a Python program the port is reserved even if this node could share the store: the workers of
// another node may not be able to, and rank 0 may be here.
int WorkerStore::port() { return is_needed() || !spec_.python.empty() ? port_.next() : 0; }

wire::AgentMessage WorkerStore::completed(wire::AgentMessage message) {
  if (auto* join = std::get_if<wire::Join>(&message)) {
    join->needs_own_store = is_needed();
    join->store_port = port();
  } else if (auto* stopped = std::get_if<wire::Stopped>(&message)) {
    stopped->store_port = port();
  }
  return message;
}

void WorkerStore::begin_round(const wire::RoundStart& round) {
  if (round.store_port != 0 && round.group_rank == 0) port_.use(round.store_port);
}

}  // namespace ddp::agent
