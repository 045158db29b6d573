#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "launcher/replicas/raft_message.h"

namespace ddp::replicas {

struct RaftOptions {
  Duration heartbeat{100};
  // A member that has not heard from the leader for this long, or up to twice as long, stands for
  // election. A leader that has not heard from a majority for this long steps down.
  Duration election{800};
  std::uint32_t seed = 1;  // Of the random part of the election time.
};

// One member of a Raft group: libraft with its log in memory. Messages and time in, messages out:
// no socket, clock or thread. A member that ends is gone, since it has nothing on a disk; the
// process that takes its place is another member with another id. The log is never shortened, so
// commands must be few and small.
//
// Events come from inside start(), tick() and receive(), and from inside the calls below that
// change something. A callback may call any member function.
class RaftMember {
 public:
  struct Events {
    // The message may be lost or late. Messages to a member must not overtake each other.
    std::function<void(MemberId to, const RaftMessage& message)> send;
    // A majority has this command. Every member gets the same commands in the same order.
    std::function<void(std::string_view command)> apply;
  };
  struct Server {
    MemberId id = 0;
    bool votes = false;

    friend bool operator==(const Server&, const Server&) = default;
  };
  // `done`: it is in the log of a majority. Otherwise the member no longer leads; whether the
  // others have it is not known.
  using Callback = std::function<void(bool done)>;

  RaftMember(MemberId id, RaftOptions options, Events events);
  ~RaftMember();  // No callback runs from here on.
  RaftMember(const RaftMember&) = delete;
  RaftMember& operator=(const RaftMember&) = delete;

  // `alone`: founds the group and leads it. Otherwise it waits until a leader adds it.
  void start(TimePoint now, bool alone);
  // Call it every few tens of milliseconds.
  void tick(TimePoint now);
  void receive(TimePoint now, MemberId from, const RaftMessage& message);
  // The leader is known to be gone: stand for election now. Only if there is another leader does
  // this do harm, and then the others refuse.
  void stand(TimePoint now);

  MemberId id() const;
  bool leads() const;
  std::uint64_t term() const;
  MemberId leader() const;  // 0: not known.
  bool votes() const;
  // When a leader of its group has last sent something.
  TimePoint heard_leader() const;
  // As far as this member knows. Empty before a leader has added it.
  std::vector<Server> servers() const;

  // Only while it leads. False: it does not, or another change is under way; no callback follows.
  bool propose(std::string_view command, Callback done);
  // Makes sure that it leads, and that everything that was ever in the log of a majority is
  // applied.
  bool barrier(Callback done);
  bool add(MemberId id, Callback done);  // Without a vote.
  bool give_vote(MemberId id, Callback done);
  bool remove(MemberId id, Callback done);
  // Lets another voter lead. Nothing follows if there is none. If that one does not take over in an
  // election time, somebody is elected, who may be this one.
  void hand_over();
  // From hand_over() on, until it is known what has come of it: another one may lead at any moment,
  // because those that vote do not wait until their leader has been silent.
  bool hands_over() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::replicas
