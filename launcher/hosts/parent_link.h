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

// The other end of a Launcher's connection, in the ddp-run that the launcher has started. Reports
// go to standard output.
class ParentLink {
 public:
  // Whether another ddp-run started this process; `arguments` without argv[0].
  static bool is_wanted(const std::vector<std::string>& arguments);

  // Takes over standard input, which is empty for everybody else afterwards, and waits for the
  // order there. kProtocol if something else arrives, kPeerLost if the input ends.
  static Result<std::unique_ptr<ParentLink>> open();

  const NodeOrder& order() const { return order_; }
  // This process's host, as the launcher named it.
  const std::string& host() const { return order_.places.front().host; }

  // Prints the report as one line, in one write. Nothing else in this process may be writing a line
  // at that moment.
  void report(const NodeReport& report) const;

  struct Events {
    std::function<void(int signal)> on_signal;
    // Called once: the launcher or the connection is gone.
    std::function<void()> on_hang_up;
  };
  // Starts to watch the connection. Events come from the event loop, on the thread of `io`.
  void watch(asio::io_context& io, Events events);
  // Call it before `io` is destroyed.
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

// Changes to the order's folder and sets its variables in this process's environment. The message
// of kNotFound or kIo names the folder.
Result<void> take_surroundings(const NodeOrder& order);

}  // namespace ddp::hosts
