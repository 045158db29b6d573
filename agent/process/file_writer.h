#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::agent {

class WrittenFile;

// Opens files and writes to them from a thread of its own. A disk may stand still, for example
// while an NFS server restarts, and an agent that stood still with it would be taken for lost.
// Everything happens in the order of the calls.
//
// What is to be written waits in memory. Whoever reads it from a source stops reading while full().
// Lives on the thread of `io`. The thread begins with the first file.
class FileWriter {
 public:
  // Of all files together.
  static constexpr std::size_t kQueueLimitBytes = 1u << 20;
  // Called by the thread that writes.
  using Opener = std::function<Result<UniqueFd>()>;
  using Work = std::function<Result<void>()>;
  struct Failure {
    int error = 0;     // Of writing, an errno; 0: opening or work has failed.
    std::string why;   // For people.
    std::string rest;  // All that could not be written, in order.
  };
  using OnFailure = std::function<void(const Failure& failure)>;

  struct Events {
    // Nothing could be written for so long. Called again each time when twice as long has passed.
    std::function<void(Duration stood)> on_standing{};
    Duration standing_limit{10'000};
  };

  explicit FileWriter(asio::io_context& io);
  FileWriter(asio::io_context& io, Events events);
  // Writes what waits, unless the disk stands still: then the thread is left alone with it.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // `on_failure` is called once, on the thread of `io`, perhaps after the file has been closed.
  // Nothing is written to the file after a failure, because a hole in the middle would mislead.
  WrittenFile open(Opener opener, OnFailure on_failure);
  WrittenFile open(UniqueFd file, OnFailure on_failure);
  // For what waits for the disk besides opening and writing.
  void run(Work work, OnFailure on_failure);

  bool full() const;
  // Calls back once, when full() no longer holds.
  void when_not_full(std::function<void()> callback);
  // Whether nothing waits to be opened, run or written, and every failure has been told.
  bool empty() const;
  std::size_t queued_bytes() const;
  // When the disk last took something. Valid while something waits.
  TimePoint last_taken() const;

 private:
  friend class WrittenFile;
  struct State;
  struct File;
  WrittenFile add(std::shared_ptr<File> file, OnFailure on_failure);
  std::shared_ptr<State> state_;
};

// A file of a FileWriter, which must live longer. Closed when all that was written before is on its
// way to the disk.
class WrittenFile {
 public:
  WrittenFile() = default;  // No file.
  WrittenFile(WrittenFile&& other) noexcept = default;
  WrittenFile& operator=(WrittenFile&& other) noexcept;
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;
  ~WrittenFile() { close(); }

  explicit operator bool() const { return file_ != nullptr; }
  // Never waits. Needs a file. Does nothing once a failure was told.
  void write(std::string_view bytes);
  void close();

 private:
  friend class FileWriter;
  WrittenFile(std::shared_ptr<FileWriter::State> state, std::shared_ptr<FileWriter::File> file)
      : state_(std::move(state)), file_(std::move(file)) {}

  std::shared_ptr<FileWriter::State> state_;
  std::shared_ptr<FileWriter::File> file_;
};

}  // namespace ddp::agent
