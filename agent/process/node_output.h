#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/console.h"
#include "agent/process/file_writer.h"
#include "agent/process/filtered_log.h"
#include "agent/process/line_prefix.h"
#include "agent/process/output_capture.h"
#include "common/config/job_spec.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// What the outputs of a node's workers share: the consoles, the thread that writes files, the files
// of filtered lines, and the rules that say where a stream of a worker goes (config::OutputSpec).
// The spec must outlive it.
class NodeOutput {
 public:
  NodeOutput(asio::io_context& io, const config::JobSpec& spec, Console::Pair console);

  Console& console(int stream) const { return *console_pointer(stream); }
  const std::shared_ptr<Console>& console_pointer(int stream) const {
    return stream == config::kStdout ? console_.out : console_.err;
  }

  FileWriter& writer() { return writer_; }

  // Says `what` and why, for work of the writer whose bytes are lost with it.
  FileWriter::OnFailure log_trouble(const std::string& what) const;

  // Call before route() for this round.
  void begin_round(const wire::RoundStart& round);
  // Where a stream (config::kStdout or kStderr) of a worker goes in this round.
  OutputCapture::Route route(const wire::RoundStart& round, int local_rank, int stream) const;
  // For a process that has no rank yet.
  OutputCapture::Route standby_route(int stream) const;
  // Which streams have a file.
  int files(const wire::RoundStart& round, int local_rank) const;
  int standby_files() const;

 private:
  LinePrefix prefix_of(const std::string& rank, const std::string& local_rank,
                       const std::string& node_rank) const;
  config::StreamPlaces places(const wire::RoundStart& round, int local_rank) const;
  void tell_standing(Duration stood) const;
  void open_filtered(const wire::RoundStart& round, int stream);
  std::size_t index(int stream) const { return stream == config::kStdout ? 0 : 1; }

  const config::JobSpec& spec_;
  Console::Pair console_;
  FileWriter writer_;
  std::array<std::shared_ptr<FilteredLog>, 2> filtered_;  // By stream; null: none.
};

}  // namespace ddp::agent
