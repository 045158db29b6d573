#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace ddp::wire {

// What workers do, where nobody has named it; as torchrun calls it.
inline constexpr const char* kDefaultRole = "default";

// A node's place in a round.
struct Member {
  NodeId node_id;
  std::string host;
  std::string address;
  int nproc = 1;
  Rank first_rank = 0;             // Ranks first_rank .. first_rank + nproc - 1 live there.
  std::string role{kDefaultRole};  // Of its workers.
};

// The nodes of a round. Every node of N is told all N of them, so copies share one list, and its
// encoded form: both are made once a round, and the messages to the nodes cost no N * N of memory
// or encoding. A change of a shared list copies it first. Not for use by several threads at once.
class MemberList {
 public:
  MemberList() = default;
  MemberList(std::initializer_list<Member> members) : MemberList(std::vector<Member>(members)) {}
  explicit MemberList(std::vector<Member> members)
      : list_(std::make_shared<List>(List{std::move(members), {}})) {}

  const std::vector<Member>& all() const {
    static const std::vector<Member> kNone;
    return list_ == nullptr ? kNone : list_->members;
  }
  std::size_t size() const { return all().size(); }
  bool empty() const { return all().empty(); }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }
  const Member& operator[](std::size_t index) const { return all()[index]; }
  const Member& at(std::size_t index) const { return all().at(index); }

  std::vector<Member>& edit() {
    if (list_ == nullptr || list_.use_count() > 1) list_ = std::make_shared<List>(List{all(), {}});
    list_->encoded.clear();
    return list_->members;
  }
  void push_back(Member member) { edit().push_back(std::move(member)); }
  void resize(std::size_t count) { edit().resize(count); }
  // Whether both are one list in memory; lists that are equal need not be.
  bool is_same_as(const MemberList& other) const { return list_ == other.list_; }

  // What `encode` makes of all(), which is never empty text; it is asked once a list.
  template <typename Encode>
  std::string encoded(Encode encode) const {
    if (list_ == nullptr) return encode(all());
    if (list_->encoded.empty()) list_->encoded = encode(all());
    return list_->encoded;
  }

 private:
  struct List {
    std::vector<Member> members;
    std::string encoded;  // Empty until somebody needs it.
  };
  std::shared_ptr<List> list_;
};

}  // namespace ddp::wire
