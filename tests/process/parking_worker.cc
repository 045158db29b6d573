#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <variant>

#include "common/base/exit_codes.h"
#include "common/base/unique_fd.h"
#include "common/wire/control_messages.h"
#include "common/wire/frame.h"
#include "common/wire/shm_layout.h"

// A worker for tests of how an agent handles processes that survive rounds. It implements the
// control protocol itself and trains nothing: in each round it prints its rank and round, reports
// progress once and waits for orders. It says so when it is asked for a checkpoint.
//
//   parking_worker HOW LAST_ROUND
//
// HOW: park      leaves a round when told to
//      stubborn  rank 1 says that it can leave a round, but does not
//      die       rank 1 ends (status 3) as soon as it has left the first round; rank 2 leaves it
//                when the working folder has a file "leave"
//      commit    parks, and answers commit requests
//      meet      parks, and makes no step in the first round, as if it still waited for the others
// It exits with status 0 in round LAST_ROUND and later ones. A line of its output:
//   round 1 rank 0 of 2 local 0 restart 1 memory 1 of 2 pid 4711 (reason)
namespace {

using ddp::wire::WorkerMessage;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

class ParkingWorker {
 public:
  ParkingWorker(std::string how, long last_round)
      : how_(std::move(how)),
        last_round_(last_round),
        control_(std::atoi(variable("DDP_CONTROL_FD").c_str())) {}

  int run() {
    const bool standby = variable("DDP_STANDBY") == "1";
    ddp::wire::Hello hello;
    hello.rank = standby ? -1 : std::atoi(variable("RANK").c_str());
    hello.pid = ::getpid();
    hello.reconfigurable = true;
    if (!standby) hello.round = std::atol(variable("DDP_ROUND").c_str());
    send(hello);
    if (!standby && !begin_round(std::atoi(variable("DDP_SHM_FD").c_str()))) return 0;
    for (;;) {
      if (!receive()) return ddp::kExitInternal;
      for (;;) {
        const auto payload = decoder_.next();
        if (!payload) return ddp::kExitInternal;
        if (!*payload) break;
        const auto order = ddp::wire::decode_worker_order(**payload);
        if (!order) return ddp::kExitInternal;
        if (!obey(*order)) return 0;
      }
    }
  }

 private:
  void send(const WorkerMessage& message) {
    const std::string frame = ddp::wire::encode_frame(ddp::wire::encode(message));
    if (::send(control_, frame.data(), frame.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(frame.size())) {
      std::_Exit(ddp::kExitInternal);
    }
  }

  bool receive() {
    char buffer[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec bytes{buffer, sizeof(buffer)};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = ::recvmsg(control_, &message, MSG_CMSG_CLOEXEC);
    if (size <= 0) return false;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
      memory_.reset(descriptor);
    }
    decoder_.append({buffer, static_cast<std::size_t>(size)});
    return true;
  }

  // False when the job is done.
  bool begin_round(int memory) {
    void* page = ::mmap(nullptr, ddp::wire::kShmHeaderBytes, PROT_READ, MAP_SHARED, memory, 0);
    if (page == MAP_FAILED) std::_Exit(ddp::kExitInternal);
    const auto* header = static_cast<const ddp::wire::ShmHeader*>(page);
    round_ = std::atol(variable("DDP_ROUND").c_str());
    rank_ = std::atoi(variable("RANK").c_str());
    std::printf("round %s rank %s of %s local %s restart %s memory %ld of %d pid %d (%s)\n",
                variable("DDP_ROUND").c_str(), variable("RANK").c_str(),
                variable("WORLD_SIZE").c_str(), variable("LOCAL_RANK").c_str(),
                variable("TORCHELASTIC_RESTART_COUNT").c_str(), static_cast<long>(header->round),
                header->local_size, ::getpid(), variable("DDP_ROUND_REASON").c_str());
    std::fprintf(stderr, "errors of round %ld\n", static_cast<long>(round_));
    std::fflush(stdout);
    ::munmap(page, ddp::wire::kShmHeaderBytes);
    if (round_ >= last_round_) return false;
    if (how_ != "meet" || round_ > 0) send(ddp::wire::Progress{10 * (round_ + 1), 0, 0});
    return true;
  }

  bool obey(const ddp::wire::WorkerOrder& order) {
    if (const auto* abort = std::get_if<ddp::wire::Abort>(&order)) {
      if (how_ == "stubborn" && rank_ == 1) return true;
      while (how_ == "die" && rank_ == 2 && ::access("leave", F_OK) != 0) ::poll(nullptr, 0, 1);
      send(ddp::wire::Parked{abort->round, 10 * (round_ + 1)});
      if (how_ == "die" && rank_ == 1 && round_ == 0) std::_Exit(3);
    } else if (const auto* commit = std::get_if<ddp::wire::CommitRequest>(&order)) {
      if (how_ == "commit") send(ddp::wire::Committed{commit->round, 7});
    } else if (const auto* next = std::get_if<ddp::wire::NewRound>(&order)) {
      for (const auto& [name, value] : next->environment) ::setenv(name.c_str(), value.c_str(), 1);
      return begin_round(memory_.get());
    } else if (std::get_if<ddp::wire::CheckpointRequest>(&order) != nullptr) {
      std::printf("rank %d is asked for checkpoint %d\n", rank_, ++checkpoints_);
      std::fflush(stdout);
    }
    return true;
  }

  const std::string how_;
  const long last_round_;
  const int control_;
  ddp::wire::FrameDecoder decoder_;
  ddp::UniqueFd memory_;  // Of the latest round.
  ddp::Round round_ = ddp::kNoRound;
  int rank_ = -1;
  int checkpoints_ = 0;  // Asked for.
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return ddp::kExitUsage;
  return ParkingWorker(argv[1], std::atol(argv[2])).run();
}
