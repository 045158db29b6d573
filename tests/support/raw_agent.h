#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

#include "common/wire/frame.h"
#include "common/wire/rendezvous_messages.h"
#include "tests/support/raw_client.h"

namespace ddp::test {

// An agent as bytes: preamble, then frames.
class RawAgent {
 public:
  explicit RawAgent(int port) : client_(port) {
    client_.send(wire::kRendezvousPreamble);
    EXPECT_EQ(client_.receive(wire::kRendezvousPreamble.size()), wire::kRendezvousPreamble);
  }
  void send(const wire::AgentMessage& message) {
    client_.send(wire::encode_frame(wire::encode(message)));
  }
  void send_frame(std::string_view payload) { client_.send(wire::encode_frame(payload)); }
  // The next message of this kind; others before it are passed over.
  template <typename Message>
  std::optional<Message> receive() {
    while (true) {
      const std::string header = client_.receive(4);
      if (header.size() < 4) return std::nullopt;
      std::uint32_t size = 0;
      for (unsigned i = 0; i < 4; ++i)
        size |= std::uint32_t{static_cast<unsigned char>(header[i])} << (8 * i);
      const auto message = wire::decode_coordinator_message(client_.receive(size)).value();
      if (std::holds_alternative<Message>(message)) return std::get<Message>(message);
    }
  }
  bool is_closed() { return client_.is_closed_by_peer(); }
  void reset() { client_.reset(); }

 private:
  RawClient client_;
};

}  // namespace ddp::test
