#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

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
  virtual bool is_open() = 0;
  // Whether what the job has been through before belongs to it.
  virtual bool wants_the_past() const { return false; }

 protected:
  static constexpr std::string_view kHead = "[\n";
  // The last event has no comma.
  static constexpr std::string_view kEnd =
      "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"trace_end\",\"args\":{}}\n]\n";
};

// The answer to a request. A reader that leaves kMostQueued bytes is let go.
class TraceStream final : public TraceSink {
 public:
  static constexpr std::size_t kMostQueued = std::size_t{32} << 20;

  explicit TraceStream(std::shared_ptr<net::ByteStream> stream);
  void write(std::string_view events) override { stream_->send(events); }
  void finish() override;
  bool is_open() override { return stream_->is_open(); }

 private:
  std::shared_ptr<net::ByteStream> stream_;
};

// A file, which is made, or replaced, when the first event comes. It ends with the job, with an
// error, or once every rank has ended so many steps. A thread of its own writes, because a disk may
// stand still, and the job must not; then events beyond kMostQueued bytes are left out.
class TraceFile final : public TraceSink {
 public:
  static constexpr std::size_t kMostQueued = std::size_t{64} << 20;

  struct End {
    std::string path{};   // Empty: there were no events, and there is no file.
    std::string error{};  // Why it is not complete; empty: it is.
  };
  // Called once, from a call to this object.
  using OnEnd = std::function<void(const End& end)>;
  // path: asked for when the first event comes. steps: 0 for all, with what the job has been
  // through before.
  TraceFile(std::function<std::string()> path, std::size_t steps, OnEnd on_end);
  ~TraceFile() override;
  // Never waits.
  void write(std::string_view events) override;
  // Waits for the disk, for some seconds at most.
  void finish() override;
  bool is_open() override;
  bool wants_the_past() const override { return count_.wanted() == 0; }

 private:
  struct Disk;  // What it shares with the thread that writes.
  void add_last();
  void end();

  std::function<std::string()> ask_path_;
  std::string path_;  // From the first event on.
  StepCount count_;
  OnEnd on_end_;
  bool has_ended_ = false;
  std::shared_ptr<Disk> disk_;
  std::thread thread_;  // From the first event on. Left alone with a disk that stands still.
};

}  // namespace ddp::server
