#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::hosts {

// A child process, such as ssh, whose standard input, output and error are pipes to this process.
// It has a session of its own, so signals from a terminal do not reach it and it cannot ask for a
// password. When this process dies, the child's input ends. Lives on the thread of `io`.
class HostProcess : public std::enable_shared_from_this<HostProcess> {
 public:
  enum class Stream { kOutput, kError };
  struct Events {
    // Bytes as they arrive. The view is valid only during the call.
    std::function<void(Stream stream, std::string_view bytes)> on_bytes;
    // Called once, when the child has ended and is reaped, and all that it wrote has been read. Its
    // own children may still hold the pipes. `status` is waitpid's. Nothing is called afterwards.
    std::function<void(int status)> on_end;
  };

  // argv[0] is looked up in PATH. kNotFound or kIo if it cannot be started.
  static Result<std::shared_ptr<HostProcess>> start(asio::io_context& io,
                                                    const std::vector<std::string>& argv,
                                                    Events events);
  ~HostProcess();  // Neither ends the process nor waits for it; its input ends.
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;

  // Writes to its standard input, after what was sent before.
  void send(std::string bytes);
  // Closes its standard input, after what was sent before.
  void close_input();
  // Only before on_end: until then the process id cannot be reused.
  void kill(int signal) const;
  void pause_reading();
  void resume_reading();

 private:
  HostProcess(asio::io_context& io, pid_t pid, UniqueFd pidfd, UniqueFd input, UniqueFd output,
              UniqueFd error, Events events);
  struct Source {
    Stream stream;
    asio::posix::stream_descriptor pipe;
    bool waiting = false;
    bool ended = false;
  };
  void begin();
  void wait();
  void read(Source& source);
  bool read_what_is_there(Source& source);
  void write_next();
  void finish();

  pid_t pid_;
  asio::posix::stream_descriptor pidfd_;
  asio::posix::stream_descriptor input_;
  Source output_;
  Source error_;
  Events events_;
  std::deque<std::string> to_send_;
  bool writing_ = false;
  bool close_wanted_ = false;
  bool paused_ = false;
  bool exited_ = false;  // And reaped.
  int status_ = 0;
};

}  // namespace ddp::hosts
