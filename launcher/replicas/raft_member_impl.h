#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "launcher/replicas/libraft.h"
#include "launcher/replicas/raft_member.h"

// The inside of RaftMember, for raft_member.cc and raft_member_io.cc.
namespace ddp::replicas {

// libraft asks for disk and network through `io_`. What it asks is done at once, but it is told so
// only after the call into libraft that asked (settle()), as its contract demands.
struct RaftMember::Impl {
  struct Request {
    Impl* self;
    Callback done;
    union {
      struct raft_apply apply;  // Functions have these names, too.
      struct raft_barrier barrier;
      raft_change change;
    };
  };

  MemberId id;
  std::string address;  // libraft wants one. It is the id's digits; JobReplica knows the real one.
  RaftOptions options;
  Events events;
  std::minstd_rand random;
  raft raft_{};
  raft_io io_{};
  raft_fsm fsm_{};
  struct raft_transfer transfer_ {};
  bool transferring_ = false;
  std::optional<std::uint64_t> order_;  // The term in which another one was told to take over.
  bool closed_ = false;
  bool settling_ = false;
  bool founds_ = false;
  raft_buffer founded_{};  // The first configuration, until libraft loads it.
  TimePoint now_;
  Duration skipped_{0};  // By stand().
  TimePoint heard_leader_;
  // The index up to which the append that is being answered says what the log is; no limit
  // otherwise. See send().
  static constexpr std::uint64_t kEverything = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t known_to_match_ = kEverything;
  raft_io_tick_cb tick_ = nullptr;
  raft_io_recv_cb receive_ = nullptr;
  std::deque<std::function<void(int status)>> completions_;
  std::deque<std::function<void()>> outcomes_;  // For the owner.

  Impl(MemberId own, RaftOptions with, Events told)
      : id(own),
        address(std::to_string(own)),
        options(with),
        events(std::move(told)),
        random(with.seed) {}

  static Impl& of(raft_io* io) { return *static_cast<Impl*>(io->impl); }

  // raft_member_io.cc
  void send(const raft_message& message);
  int load(raft_term& term, raft_entry*& entries, std::size_t& count) const;
  void fill_io();
  void fill_fsm();
  void settle();
  void end_requests();
  // raft_member.cc
  // Its place in the configuration that it knows; null if it has none.
  raft_server* own_server() const;
  void vote_without_right(raft_message& request, raft_server& own);
  void end_candidacy();
  void abdicate();
  bool has_voted_for_another(MemberId from, const RaftMessage& message) const;
  // The end of a request, whose address libraft has kept in its `data`. Frees it.
  static void finish(void* data, int status);
  // `ask` gives the request to libraft.
  template <typename Ask>
  bool request(Callback done, Ask ask);
  template <typename Ask>
  bool change(Callback done, Ask ask);
};

}  // namespace ddp::replicas
