#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp::net {

// Transforms bytes between a ByteStream and its socket. Its functions append to their output
// arguments. It keeps what cannot be sent yet.
class StreamFilter {
 public:
  virtual ~StreamFilter() = default;
  // Gives what to send before anything was received.
  virtual void begin(std::string& to_socket) = 0;
  // Takes bytes from the socket. After an error it is not called again; `to_socket` then tells the
  // peer why.
  virtual Result<void> receive(std::string_view from_socket, std::string& to_handler,
                               std::string& to_socket) = 0;
  virtual void send(std::string_view from_handler, std::string& to_socket) = 0;
  // Nothing more will be sent.
  virtual void finish(std::string& to_socket) = 0;
};

}  // namespace ddp::net
