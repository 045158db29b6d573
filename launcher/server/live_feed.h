#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/net/byte_stream.h"
#include "common/net/timer.h"

namespace ddp::server {

// Tells browsers once a second what has changed in a JSON document, by server-sent events:
//   event: whole    the document
//   event: change   a JSON Merge Patch (RFC 7396) from the last one to this one
// A change is made and written as text once for all browsers, and not at all while there are none.
// A browser that has not taken the last event gets none until it has, and then the whole: so it
// costs at most one event of memory. If it takes nothing for kPatience, its connection is closed.
// On the thread of `io`.
class LiveFeed {
 public:
  static constexpr Duration kInterval{1'000};
  static constexpr Duration kPatience{60'000};
  // How long the end of a job may wait for browsers to take how it ended.
  static constexpr Duration kLastLimit{200};
  static constexpr std::size_t kMaxBrowsers = 256;

  LiveFeed(asio::io_context& io, std::function<nlohmann::json()> document);
  ~LiveFeed();
  LiveFeed(const LiveFeed&) = delete;
  LiveFeed& operator=(const LiveFeed&) = delete;

  bool is_full() const { return browsers_.size() >= kMaxBrowsers; }
  // Takes a stream on which the events may begin.
  void add(std::shared_ptr<net::ByteStream> stream);
  std::size_t size() const { return browsers_.size(); }
  // Closes the streams, once what was sent has left.
  void end();
  // Sends what `last` gives, and then ends. Calls back when the kernel has taken all of it, or
  // after kLastLimit; at once, and without asking `last`, if no browser looks.
  void finish(const std::function<nlohmann::json()>& last, std::function<void()> done);

 private:
  struct Browser {
    std::shared_ptr<net::ByteStream> stream;
    bool has_all = false;    // It was sent every event up to the last one.
    std::size_t queued = 0;  // Bytes that it had not taken at the last tick.
    TimePoint taken_at;      // When it was last seen to take some.
  };

  void tick();
  void forget_closed();
  // Replaces last_. Gives the event that makes it of what it was.
  std::string change_to(nlohmann::json document);
  void await_writes(TimePoint limit);
  bool takes_nothing(Browser& browser, TimePoint now) const;
  const std::string& whole();

  asio::io_context& io_;
  std::function<nlohmann::json()> document_;
  nlohmann::json last_;
  std::string whole_;  // last_ as an event; empty: not made yet.
  std::vector<Browser> browsers_;
  net::Timer timer_;
  std::vector<std::shared_ptr<net::ByteStream>> ending_;  // They have been sent the last event.
  net::Timer ending_look_;
  std::function<void()> finished_;  // Waits for those.
};

}  // namespace ddp::server
