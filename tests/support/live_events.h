#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "tests/support/raw_client.h"

namespace ddp::test {

// A browser's connection to /live.
class LiveEvents {
 public:
  explicit LiveEvents(int port, int receive_buffer = 0) : client_(port, receive_buffer) {
    client_.send("GET /live HTTP/1.1\r\n\r\n");
    head_ = take("\r\n\r\n");
  }
  const std::string& head() const { return head_; }
  // The next event: its name and its data. No name: the feed has ended.
  std::pair<std::string, nlohmann::json> next() {
    const std::string name = take("\ndata: ");
    const std::string data = take("\n\n");
    if (name.empty()) return {};
    return {name.substr(7, name.size() - 14), nlohmann::json::parse(data)};
  }

 private:
  // Up to this text, with it.
  std::string take(std::string_view end) {
    std::size_t at = 0;
    while ((at = received_.find(end, searched_)) == std::string::npos) {
      searched_ = received_.size() < end.size() ? 0 : received_.size() - end.size() + 1;
      const std::string more = client_.receive_some();
      if (more.empty()) return {};
      received_ += more;
    }
    const std::string part = received_.substr(0, at + end.size());
    received_.erase(0, part.size());
    searched_ = 0;
    return part;
  }

  RawClient client_;
  std::string head_;
  std::string received_;
  std::size_t searched_ = 0;
};

}  // namespace ddp::test
