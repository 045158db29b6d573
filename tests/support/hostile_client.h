#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/wire/c10d.h"
#include "tests/support/raw_client.h"
#include "tests/support/store_transcript.h"

namespace ddp::test {

// What one connection sends in the transcripts: one request or several, after the VALIDATE that
// began its connection, if there was one.
inline std::vector<std::string> request_vectors() {
  static constexpr std::string_view kValidate("\x00\xCE\xF7\x85\x3C", 5);
  std::set<std::string> out;
  for (const Transcript& transcript : kTranscripts) {
    std::set<std::string> newest;
    for (const TranscriptLine& line : read_transcript(transcript.name)) {
      if (line.kind != TranscriptLine::kSend || line.bytes.size() < 2) continue;
      const bool begins = line.bytes.starts_with(kValidate);
      if (begins) newest.insert(line.connection);
      const bool greets = !begins && newest.contains(line.connection);
      out.insert((greets ? std::string(kValidate) : std::string()) + line.bytes);
    }
  }
  return {out.begin(), out.end()};
}

// Makes connections that no PyTorch client makes, to a store on a port of 127.0.0.1. Each call
// returns when the kernel has the bytes; answers are not read. Equal seeds send equal bytes.
class HostileClient {
 public:
  HostileClient(int port, std::uint64_t seed)
      : port_(port), random_(seed), vectors_(request_vectors()) {}

  // Sends all requests of the transcripts, each cut after each byte; returns the number of
  // connections.
  std::size_t truncate_all() {
    std::size_t count = 0;
    for (const std::string& vector : vectors_) {
      for (std::size_t size = 1; size < vector.size(); ++size, ++count) {
        send_and_leave(std::string_view(vector).substr(0, size));
      }
    }
    return count;
  }

  // Sends some requests with up to four bytes changed.
  void flip() {
    std::string bytes = any_vector();
    while (random_() % 3 == 0) bytes += any_vector();
    for (std::uint64_t i = 0, count = 1 + random_() % 4; i < count; ++i) {
      bytes[random_() % bytes.size()] = static_cast<char>(random_());
    }
    send_and_leave(bytes);
  }

  // Sends a request in which a length or count is a large number.
  void announce_much() {
    static constexpr std::uint64_t kNumbers[] = {std::numeric_limits<std::uint64_t>::max(),
                                                 std::numeric_limits<std::uint64_t>::max() - 7,
                                                 1ull << 63,
                                                 (1ull << 63) - 1,
                                                 1ull << 40,
                                                 1ull << 32,
                                                 (128ull << 10) + 1,
                                                 64ull << 20};
    std::string bytes = any_vector();
    std::string number;
    wire::c10d::put_i64(number, static_cast<std::int64_t>(kNumbers[random_() % 8]));
    bytes.replace(1 + random_() % bytes.size(), 8, number);
    send_and_leave(bytes);
  }

  // Sends `count` random bytes, every second time as a client of the newest dialect.
  void babble(std::size_t count) {
    std::string bytes;
    if (random_() % 2 == 0) bytes.assign("\x00\xCE\xF7\x85\x3C", 5);
    for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(random_()));
    send_and_leave(bytes);
  }

  // Connects and closes.
  void knock() { RawClient(port_).reset(); }

  // Sends one more byte of a request that takes forever. `at_once` such connections are open; the
  // oldest one closes before its last byte.
  void dawdle(std::size_t at_once) {
    if (slow_.size() < at_once) {
      slow_.push_back({std::make_unique<RawClient>(port_), any_vector(), 0});
    }
    Slow& one = slow_[random_() % slow_.size()];
    if (one.sent + 1 < one.bytes.size()) {
      one.client->send(std::string_view(one.bytes).substr(one.sent++, 1));
    } else {
      std::swap(one, slow_.front());
      slow_.pop_front();
    }
  }
  void stop_dawdling() { slow_.clear(); }

  // Does any of the above.
  void step() {
    switch (random_() % 6) {
      case 0:
        return send_and_leave(std::string_view(any_vector()).substr(0, 1 + random_() % 20));
      case 1:
        return flip();
      case 2:
        return announce_much();
      case 3:
        return babble(1 + random_() % 2'000);
      case 4:
        return knock();
      default:
        for (int i = 0; i < 8; ++i) dawdle(100);
    }
  }

 private:
  struct Slow {
    std::unique_ptr<RawClient> client;
    std::string bytes;
    std::size_t sent = 0;
  };

  const std::string& any_vector() { return vectors_[random_() % vectors_.size()]; }

  void send_and_leave(std::string_view bytes) {
    RawClient client(port_);
    client.send(bytes);
    if (random_() % 2 == 0) client.reset();
  }

  int port_;
  std::mt19937_64 random_;
  std::vector<std::string> vectors_;
  std::deque<Slow> slow_;
};

}  // namespace ddp::test
