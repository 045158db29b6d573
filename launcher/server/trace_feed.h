#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/net/timer.h"
#include "common/wire/rendezvous_messages.h"
#include "launcher/rendezvous/job_history.h"
#include "launcher/rendezvous/rendezvous_core.h"
#include "launcher/server/trace_sink.h"

namespace ddp::server {

// Asks the agents of a job what their workers do, and gives it to whoever wants to see it: one
// trace of all ranks on the coordinator's clock, with the job's rounds and why they ended. While
// there is a sink, each agent is asked ten times a second or less: each question interrupts ranks
// that compute, so they are no more than needed for the ranks to have room. On the thread of `io`.
class TraceFeed {
 public:
  static constexpr Duration kShortest{100};
  static constexpr Duration kLongest{1'000};

  struct Sources {
    // The agents of a job.
    std::function<std::vector<rendezvous::ConnectionId>(const std::string& job_id)> agents;
    std::function<void(rendezvous::ConnectionId agent, const wire::ReadTrace& question)> ask;
    // Null if there is no such job.
    std::function<const rendezvous::JobHistory*(const std::string& job_id)> history;
  };

  TraceFeed(asio::io_context& io, Sources sources);

  static constexpr std::size_t kMaxReaders = 16;

  // The sink gets events until it is closed or the job is over.
  void add(const std::string& job_id, std::shared_ptr<TraceSink> sink);
  bool is_full() const;
  // No agent has been told of the round yet. They are asked before, so that its first steps are
  // seen.
  void on_round_begins(const std::string& job_id);
  void on_events(rendezvous::ConnectionId from, const wire::TraceEvents& events);
  void on_job_finished(const std::string& job_id);
  // No sink gets anything any more.
  void end();

 private:
  struct Reader {
    std::shared_ptr<TraceSink> sink;
    Round told = kNoRound;  // The last round that it knows the end of.
    bool has_names = false;
    int ranks = 0;  // As it was told.
  };
  struct Agent {
    std::string job_id;
    bool is_asked = false;
    TimePoint asked_at;
    std::int64_t answered_ns = 0;
    std::int64_t received_ns = 0;
    std::size_t answers = 0;
    Duration interval = kShortest;
  };
  struct Job {
    bool has_begun = false;  // The coordinator knows it.
    std::vector<Reader> readers;
    bool has_newcomer = false;  // Who does not know the names yet.
  };

  void tick();
  void give(const std::string& job_id, Reader& reader, std::string_view events) const;
  void tell_rounds(const std::string& job_id, Reader& reader, bool all);
  void ask_agents(const std::string& job_id, bool names, bool at_once);
  void ask(rendezvous::ConnectionId id, Agent& agent, bool names);
  std::int64_t ns_since_zero(TimePoint time) const;

  Sources sources_;
  const TimePoint zero_ = Clock::now();
  const std::string clock_;
  const std::string began_;  // The wall clock at zero_, for people.
  std::map<std::string, Job> jobs_;
  std::map<rendezvous::ConnectionId, Agent> agents_;
  net::Timer timer_;
};

}  // namespace ddp::server
