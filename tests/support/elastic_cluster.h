#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <stdlib.h>

#include "agent/process/round_memory.h"
#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"
#include "tests/support/process.h"

namespace ddp::test {

// Acts as the agents of a few nodes and their coordinator, as workers see them: makes each round's
// memory, starts processes, announces new rounds, ends rounds. The test decides when. Workers are
// forked from this process, so it must have no threads; they are killed when it dies.
class ElasticCluster {
 public:
  using Say = std::function<void(const std::string&)>;

  // `body` runs in every worker; hear() receives the lines that it says. Then the process exits
  // with status 0, or with 99 after an exception, whose text it says.
  explicit ElasticCluster(std::function<void(const Say&)> body) : body_(std::move(body)) {
    DDP_CHECK(wait_until([this] { return store_.out().ends_with('\n') || store_.has_ended(); }) &&
                  !store_.has_ended(),
              "{}", store_.err());
    const std::string line = store_.out();
    port_ = std::stoi(line.substr(line.rfind(':') + 1));
  }
  ~ElasticCluster() {
    for (auto& [id, worker] : workers_) {
      if (worker.status || worker.pid <= 1) continue;
      ::kill(worker.pid, SIGKILL);
      ::waitpid(worker.pid, nullptr, 0);
    }
  }
  ElasticCluster(const ElasticCluster&) = delete;
  ElasticCluster& operator=(const ElasticCluster&) = delete;

  static constexpr int kNew = -1;

  // Begins the next round with these workers, node by node: a worker's number, or kNew for a new
  // process. Returns the numbers by rank.
  std::vector<int> begin(const std::vector<std::vector<int>>& nodes) {
    ++round_;
    memories_.clear();
    int world = 0;
    for (const auto& node : nodes) world += static_cast<int>(node.size());
    std::vector<int> ids;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      const int local_size = static_cast<int>(nodes[node].size());
      memories_.push_back(agent::RoundMemory::create(local_size, round_).value());
      for (int local = 0; local < local_size; ++local) {
        const std::map<std::string, std::string> environment = {
            {"RANK", std::to_string(ids.size())},
            {"WORLD_SIZE", std::to_string(world)},
            {"LOCAL_RANK", std::to_string(local)},
            {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
            {"GROUP_RANK", std::to_string(node)},
            {"GROUP_WORLD_SIZE", std::to_string(nodes.size())},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port_)},
            {"TORCHELASTIC_RUN_ID", "test"},
            {"DDP_ROUND", std::to_string(round_)}};
        int id = nodes[node][static_cast<std::size_t>(local)];
        if (id == kNew) {
          id = start(environment, memories_.back()->fd());
        } else {
          send_round(workers_.at(id), environment, memories_.back()->fd());
        }
        ids.push_back(id);
      }
    }
    return ids;
  }

  // Starts a standby, a process that waits for a rank.
  int start_standby() { return start({{"DDP_STANDBY", "1"}}); }

  // Tells the workers that the round is over; returns when each of them has parked or ended.
  void end_round(const std::vector<int>& ids, const std::string& reason = "a worker died") {
    for (const auto& memory : memories_) memory->abort(reason);
    for (const int id : ids) {
      Worker& worker = workers_.at(id);
      if (!worker.status) send(worker, wire::Abort{round_, reason});
    }
    for (const int id : ids) await_parked(id);
  }
  void abort_memory(const std::string& reason) {
    for (const auto& memory : memories_) memory->abort(reason);
  }
  void order(int id, const wire::WorkerOrder& order) { send(workers_.at(id), order); }

  // The step that the worker reported when it parked; nothing if it ended instead.
  std::optional<std::int64_t> await_parked(int id) {
    while (auto message = receive(id)) {
      if (const auto* parked = std::get_if<wire::Parked>(&*message)) {
        DDP_CHECK(parked->round == round_, "parked in round {}, not {}", parked->round, round_);
        return parked->step;
      }
    }
    return {};
  }
  // Reads messages up to one of this kind.
  template <typename Message>
  Message await(int id) {
    for (;;) {
      const auto message = receive(id);
      DDP_CHECK(message.has_value(), "worker {} ended", id);
      if (const auto* wanted = std::get_if<Message>(&*message)) return *wanted;
    }
  }

  void kill(int id, int signal = SIGKILL) {
    Worker& worker = workers_.at(id);
    DDP_CHECK(worker.pid > 1 && !worker.status, "worker {} has ended", id);
    ::kill(worker.pid, signal);
    if (signal == SIGKILL) (void)status_of(id);
  }
  // Waits for the worker's end; returns the status, or 128 + the signal.
  int status_of(int id) {
    Worker& worker = workers_.at(id);
    if (!worker.status) {
      int status = 0;
      const bool ended =
          wait_until([&] { return ::waitpid(worker.pid, &status, WNOHANG) == worker.pid; });
      DDP_CHECK(ended, "worker {} does not end", id);
      worker.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return *worker.status;
  }
  // The next line that the worker said; "" at its end.
  std::string hear(int id) {
    Worker& worker = workers_.at(id);
    for (;;) {
      const auto end = worker.said.find('\n');
      if (end != std::string::npos) {
        std::string line = worker.said.substr(0, end);
        worker.said.erase(0, end + 1);
        return line;
      }
      char buffer[4096];
      const ssize_t count = read_in_time(worker.voice.get(), buffer, sizeof(buffer));
      if (count <= 0) return {};
      worker.said.append(buffer, static_cast<std::size_t>(count));
    }
  }
  // The next line with this beginning, or the reason of the worker's end; drops all lines before
  // it.
  std::string hear(int id, const std::string& beginning) {
    for (;;) {
      const std::string line = hear(id);
      if (line.empty() || line.starts_with(beginning) || line.starts_with("exception: "))
        return line;
    }
  }
  // Kills the victims, given by rank, at a random moment after the first of them has said a line
  // with this beginning. Then begins the next round, on one node, with new processes in their
  // places.
  void lose(std::vector<int>& ids, const std::vector<std::size_t>& victims,
            const std::string& beginning, std::mt19937& random) {
    const std::string line = hear(ids[victims[0]], beginning);
    DDP_CHECK(line.starts_with(beginning), "\"{}\" instead of \"{}\"", line, beginning);
    ::usleep(static_cast<useconds_t>(random() % 2000));  // sleep: until a random moment
    for (const std::size_t victim : victims) kill(ids[victim]);
    end_round(ids);
    for (const std::size_t victim : victims) ids[victim] = kNew;
    ids = begin({ids});
  }
  Round round() const { return round_; }
  pid_t pid(int id) const { return workers_.at(id).pid; }

 private:
  static std::string daemon() {
    const char* folder = std::getenv("DDP_BIN_DIR");  // NOLINT(concurrency-mt-unsafe)
    return std::string(folder == nullptr ? "bin" : folder) + "/ddp-rendezvous";
  }

  struct Worker {
    pid_t pid = -1;
    UniqueFd socket;
    UniqueFd voice;
    wire::FrameDecoder decoder;
    std::string said;
    std::optional<int> status;
  };

  int start(const std::map<std::string, std::string>& environment, int memory = -1) {
    int ends[2];
    int sockets[2];
    DDP_CHECK(::pipe(ends) == 0 && ::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    Worker worker;
    worker.voice.reset(ends[0]);
    worker.socket.reset(sockets[0]);
    const UniqueFd voice(ends[1]);
    UniqueFd socket(sockets[1]);
    worker.pid = ::fork();
    DDP_CHECK(worker.pid >= 0);
    if (worker.pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // As after exec: no descriptor of the agents is open here.
      worker.socket.reset();
      worker.voice.reset();
      for (auto& [id, other] : workers_) {
        other.socket.reset();
        other.voice.reset();
      }
      if (memory >= 0) ::setenv("DDP_SHM_FD", std::to_string(::dup(memory)).c_str(), 1);
      memories_.clear();
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      ::setenv("DDP_CONTROL_FD", std::to_string(socket.release()).c_str(), 1);
      live(voice.get());
    }
    const int id = static_cast<int>(workers_.size());
    workers_.emplace(id, std::move(worker));
    return id;
  }

  [[noreturn]] void live(int voice) {
    const Say say = [voice](const std::string& text) {
      const std::string line = text + "\n";
      if (::write(voice, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
        ::_exit(98);
    };
    int status = 0;
    try {
      body_(say);
    } catch (const std::exception& error) {
      say(std::string("exception: ") + error.what());
      status = 99;
    }
    ::_exit(status);
  }

  static void send(Worker& worker, const wire::WorkerOrder& order) {
    const std::string frame = wire::encode_frame(wire::encode(order));
    (void)!::send(worker.socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  }

  void send_round(Worker& worker, const std::map<std::string, std::string>& environment, int fd) {
    const std::string frame =
        wire::encode_frame(wire::encode(wire::WorkerOrder{wire::NewRound{round_, environment}}));
    iovec data{const_cast<char*>(frame.data()), frame.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof(space);
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &fd, sizeof(fd));
    (void)!::sendmsg(worker.socket.get(), &message, MSG_NOSIGNAL);
  }

  // Nothing at the worker's end.
  std::optional<wire::WorkerMessage> receive(int id) {
    Worker& worker = workers_.at(id);
    for (;;) {
      auto payload = worker.decoder.next();
      if (payload && *payload) return wire::decode_worker_message(**payload).value();
      char buffer[4096];
      const ssize_t count = read_in_time(worker.socket.get(), buffer, sizeof(buffer));
      if (count <= 0) return {};
      worker.decoder.append({buffer, static_cast<std::size_t>(count)});
    }
  }

  static ssize_t read_in_time(int fd, char* buffer, std::size_t size) {
    pollfd entry{fd, POLLIN, 0};
    DDP_CHECK(::poll(&entry, 1, 120'000) == 1, "a worker says nothing for two minutes");
    return ::read(fd, buffer, size);
  }

  std::function<void(const Say&)> body_;
  Process store_{{daemon(), "--bind", "127.0.0.1", "--port", "0"}};
  int port_ = 0;
  Round round_ = -1;
  std::map<int, Worker> workers_;
  std::vector<std::unique_ptr<agent::RoundMemory>> memories_;  // Of the round.
};

}  // namespace ddp::test
