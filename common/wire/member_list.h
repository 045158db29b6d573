#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace ddp::wire {

// A node's place in a round.
struct Member {
  NodeId node_id;
  std::string host;
  std::string address;
  int nproc = 1;
  Rank first_rank = 0;  // Ranks first_rank .. first_rank + nproc - 1 live there.
};

// The nodes of a round. Every node of N is told all N of them, so copies share one list: it is made
// once a round, and the messages to the nodes cost no N * N of memory. A change of a shared list
// copies it first. Not for use by several threads at once.
class MemberList {
 public:
  MemberList() = default;
  MemberList(std::initializer_list<Member> members) : MemberList(std::vector<Member>(members)) {}
  explicit MemberList(std::vector<Member> members)
      : members_(std::make_shared<std::vector<Member>>(std::move(members))) {}

  const std::vector<Member>& all() const {
    static const std::vector<Member> kNone;
    return members_ == nullptr ? kNone : *members_;
  }
  std::size_t size() const { return all().size(); }
  bool empty() const { return all().empty(); }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }
  const Member& operator[](std::size_t index) const { return all()[index]; }
  const Member& at(std::size_t index) const { return all().at(index); }

  std::vector<Member>& edit() {
    if (members_ == nullptr || members_.use_count() > 1) {
      members_ = std::make_shared<std::vector<Member>>(all());
    }
    return *members_;
  }
  void push_back(Member member) { edit().push_back(std::move(member)); }
  void resize(std::size_t count) { edit().resize(count); }
  // Whether both are one list in memory; lists that are equal need not be.
  bool is_same_as(const MemberList& other) const { return members_ == other.members_; }

 private:
  std::shared_ptr<std::vector<Member>> members_;
};

}  // namespace ddp::wire
