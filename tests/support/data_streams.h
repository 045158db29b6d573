#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "tests/support/inproc.h"
#include "worker/transport/data_engine.h"

// The two ends of a data stream between nodes, over any engine.
namespace ddp::test {

// Limits UCX to the transports that tests should depend on, unless UCX_TLS is set. Call it before
// UCX is loaded.
inline void keep_ucx_to_tcp() { ::setenv("UCX_TLS", "tcp", 0); }

// The reason why tests cannot use the engine here; empty if they can.
inline std::string engine_missing(EngineKind kind) {
  keep_ucx_to_tcp();
  auto engine = transport::make_data_engine(kind);
  return engine ? std::string() : engine.error().message;
}

// One end of a stream. It is ready for data once the other end exists, too.
inline std::unique_ptr<transport::DataStream> make_stream(EngineKind kind, UniqueFd connection) {
  keep_ucx_to_tcp();
  auto engine = std::move(transport::make_data_engine(kind)).value();
  auto stream = engine->open_stream(std::move(connection));
  const auto ready = stream->establish(Clock::now() + std::chrono::seconds(30));
  DDP_CHECK(ready, "{}", ready.error().message);
  return stream;
}

struct StreamPair {
  StreamPair() = default;
  StreamPair(StreamPair&&) = default;
  // Each end needs the other one to send its last bytes.
  ~StreamPair() {
    std::thread ending([this] { one.reset(); });
    other.reset();
    ending.join();
  }

  std::unique_ptr<transport::DataStream> one;
  std::unique_ptr<transport::DataStream> other;
};

inline StreamPair make_stream_pair(EngineKind kind) {
  auto [one, other] = socket_pair();
  StreamPair pair;
  std::thread making(
      [&, fd = std::move(one)]() mutable { pair.one = make_stream(kind, std::move(fd)); });
  pair.other = make_stream(kind, std::move(other));
  making.join();
  return pair;
}

}  // namespace ddp::test
