#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace ddp::wire {

// The role of workers if nobody has named one, as in torchrun.
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

// The nodes of a round. Each of N nodes is told all N of them. So copies share one list and its
// encoded form: both are made once per round, and the messages to all nodes do not cost N * N
// memory or encoding. Changing a shared list copies it first. Not thread safe.
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

  // Returns encode(all()). `encode` is called once per list and must never return an empty text.
  template <typename Encode>
  std::string encoded(Encode encode) const {
    if (list_ == nullptr) return encode(all());
    if (list_->encoded.empty()) list_->encoded = encode(all());
    return list_->encoded;
  }

 private:
  struct List {
    std::vector<Member> members;
    std::string encoded;  // Empty until it is needed.
  };
  std::shared_ptr<List> list_;
};

}  // namespace ddp::wire
