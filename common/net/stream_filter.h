#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp::net {

// What lies between the bytes of a ByteStream and those on its socket. It appends to what it is
// given, and keeps what cannot go yet.
class StreamFilter {
 public:
  virtual ~StreamFilter() = default;
  // What goes to the socket before anything has come.
  virtual void begin(std::string& to_socket) = 0;
  // Bytes of the socket. After an error it is not called again, and what stands in `to_socket`
  // tells the peer why.
  virtual Result<void> receive(std::string_view from_socket, std::string& to_handler,
                               std::string& to_socket) = 0;
  virtual void send(std::string_view from_handler, std::string& to_socket) = 0;
  // Nothing more is sent.
  virtual void finish(std::string& to_socket) = 0;
};

}  // namespace ddp::net
