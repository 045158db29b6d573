#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/unique_fd.h"
#include "common/net/byte_stream.h"
#include "launcher/server/step_count.h"

namespace ddp::server {

// Where a trace goes: a JSON array of events, in Chrome's trace format. Readers accept one that
// ends in the middle, so nothing that was written is lost if its writer is.
class TraceSink {
 public:
  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;

  // Events, each ended by ",\n".
  virtual void write(std::string_view events) = 0;
  // Nothing follows.
  virtual void finish() = 0;
  // Whether somebody still wants events.
  virtual bool is_open() const = 0;

 protected:
  static constexpr std::string_view kHead = "[\n";
  // The last event has no comma.
  static constexpr std::string_view kEnd =
      "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"trace_end\",\"args\":{}}\n]\n";
};

// The answer to a request. A reader that does not take kMostQueued bytes in time is let go.
class TraceStream final : public TraceSink {
 public:
  static constexpr std::size_t kMostQueued = std::size_t{32} << 20;

  explicit TraceStream(std::shared_ptr<net::ByteStream> stream);
  void write(std::string_view events) override;
  void finish() override;
  bool is_open() const override { return stream_->is_open(); }

 private:
  std::shared_ptr<net::ByteStream> stream_;
};

// A file, which is made, or replaced, when the first event comes. It ends with the job, with an
// error, or once every rank has ended so many steps.
class TraceFile final : public TraceSink {
 public:
  // Called once, when it ends. `error`: why it is not complete; empty: it is.
  using OnEnd = std::function<void(const std::string& error)>;
  // steps: 0 for all.
  TraceFile(std::string path, std::size_t steps, OnEnd on_end);
  void write(std::string_view events) override;
  void finish() override;
  bool is_open() const override { return !has_ended_; }

 private:
  void put(std::string_view bytes);
  void end(const std::string& error);

  std::string path_;
  StepCount count_;
  OnEnd on_end_;
  UniqueFd fd_;
  bool has_ended_ = false;
};

}  // namespace ddp::server
