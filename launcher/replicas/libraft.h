#pragma once

#include <string_view>

#include "launcher/replicas/raft_message.h"

// The header of libraft 0.22 checks the sizes of its types in a way that only C allows.
#define static_assert(...)
extern "C" {
#include <raft.h>
}
#undef static_assert

// What RaftMember and libraft give each other, in libraft's types.
namespace ddp::replicas {

// The field is an enum or a number, by the release of libraft.
template <typename T>
void set_kind(T& field, int kind) {
  field = static_cast<T>(kind);
}

// A copy of the bytes, for libraft to take over.
raft_buffer buffer_of(std::string_view bytes);
RaftMessage from_libraft(const raft_message& in);
// libraft takes over the entries. `address` must live as long as the message.
raft_message to_libraft(MemberId from, const char* address, const RaftMessage& in);

}  // namespace ddp::replicas
