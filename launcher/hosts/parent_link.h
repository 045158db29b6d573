#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/wire/frame.h"
#include "launcher/hosts/node_order.h"

namespace ddp::hosts {

// The other end of a Launcher's connection: what a ddp-run that was started by another one has of
// it. Reports go to standard output.
class ParentLink {
 public:
  // Whether this process was started so; `arguments` without argv[0].
  static bool is_wanted(const std::vector<std::string>& arguments);

  // Takes standard input, which reads nothing afterwards, and waits for the order on it. kProtocol
  // if something else comes, kPeerLost if it ends.
  static Result<std::unique_ptr<ParentLink>> open();

  const NodeOrder& order() const { return order_; }
  // The host this process is on, as it was named.
  const std::string& host() const { return order_.places.front().host; }

  // A line of its own, in one write; nothing else of this process may be in the middle of one.
  void report(const NodeReport& report) const;

  struct Events {
    std::function<void(int signal)> on_signal;
    // The launcher or the connection is gone; once.
    std::function<void()> on_hang_up;
  };
  // From now on; events come from the loop, on the thread of `io`.
  void watch(asio::io_context& io, Events events);
  // Before `io` goes.
  void stop_watching() { stream_.reset(); }

 private:
  explicit ParentLink(UniqueFd input) : input_(std::move(input)) {}
  Result<NodeOrder> receive_order();
  void read_later();
  void take_frames();

  UniqueFd input_;
  wire::FrameDecoder decoder_;
  NodeOrder order_;
  Events events_;
  std::unique_ptr<asio::posix::stream_descriptor> stream_;
};

// Goes to the order's folder and puts its environment into this process's. kNotFound or kIo, naming
// the folder.
Result<void> take_surroundings(const NodeOrder& order);

}  // namespace ddp::hosts
