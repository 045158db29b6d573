#include "launcher/replicas/libraft.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/check.h"

namespace ddp::replicas {
namespace {

// A new member gets the whole log, which may be larger than a frame. In Raft, a leader may send as
// few entries as it likes: libraft sends the rest when it hears how far the member has come. In a
// message, each byte is two hexadecimal digits.
constexpr std::size_t kMaxAppendBytes = 4u << 20;

}  // namespace

raft_buffer buffer_of(std::string_view bytes) {
  raft_buffer buffer{};
  buffer.len = bytes.size();
  buffer.base = raft_malloc(std::max<std::size_t>(bytes.size(), 1));
  DDP_CHECK(buffer.base != nullptr, "{} bytes", bytes.size());
  std::memcpy(buffer.base, bytes.data(), bytes.size());
  return buffer;
}

RaftMessage from_libraft(const raft_message& in) {
  RaftMessage out;
  out.kind = static_cast<RaftMessage::Kind>(in.type);
  switch (out.kind) {
    case RaftMessage::Kind::kAppend: {
      const raft_append_entries& append = in.append_entries;
      out.term = append.term;
      out.index = append.prev_log_index;
      out.index_term = append.prev_log_term;
      out.commit_index = append.leader_commit;
      std::size_t bytes = 0;
      for (unsigned i = 0; i < append.n_entries; ++i) {
        const raft_entry& entry = append.entries[i];
        bytes += entry.buf.len;
        if (i > 0 && bytes > kMaxAppendBytes) break;
        out.entries.push_back(
            {.term = entry.term,
             .type = static_cast<int>(entry.type),
             .data = std::string(static_cast<const char*>(entry.buf.base), entry.buf.len)});
      }
      break;
    }
    case RaftMessage::Kind::kAppendResult:
      out.term = in.append_entries_result.term;
      out.index = in.append_entries_result.rejected;
      out.last_index = in.append_entries_result.last_log_index;
#ifdef RAFT_VERSION_NUMBER
      out.features = in.append_entries_result.features;
      out.capacity = in.append_entries_result.capacity;
#endif
      break;
    case RaftMessage::Kind::kVote:
      out.term = in.request_vote.term;
      out.index = in.request_vote.last_log_index;
      out.index_term = in.request_vote.last_log_term;
      out.disrupt_leader = in.request_vote.disrupt_leader;
      out.pre_vote = in.request_vote.pre_vote;
      break;
    case RaftMessage::Kind::kVoteResult:
      out.term = in.request_vote_result.term;
      out.granted = in.request_vote_result.vote_granted;
#ifdef RAFT_VERSION_NUMBER
      out.pre_vote = in.request_vote_result.pre_vote;
      out.features = in.request_vote_result.features;
      out.capacity = in.request_vote_result.capacity;
#else
      out.pre_vote = in.request_vote_result.pre_vote == raft_tribool_true;
#endif
      break;
    case RaftMessage::Kind::kTimeoutNow:
      out.term = in.timeout_now.term;
      out.index = in.timeout_now.last_log_index;
      out.index_term = in.timeout_now.last_log_term;
      break;
  }
  return out;
}

namespace {

// libraft takes over the entries, whose bytes lie in one piece of memory (`batch`).
void put_entries(const std::vector<RaftEntry>& in, raft_append_entries& out) {
  out.n_entries = static_cast<unsigned>(in.size());
  out.entries = nullptr;
  if (in.empty()) return;
  std::string all;
  for (const RaftEntry& entry : in) all += entry.data;
  auto* batch = static_cast<char*>(buffer_of(all).base);
  out.entries = static_cast<raft_entry*>(raft_calloc(in.size(), sizeof(raft_entry)));
  DDP_CHECK(out.entries != nullptr, "{} entries", in.size());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    raft_entry& entry = out.entries[i];
    entry.term = in[i].term;
    set_kind(entry.type, in[i].type);
    entry.buf = {batch + offset, in[i].data.size()};
    entry.batch = batch;
    offset += in[i].data.size();
  }
}

}  // namespace

raft_message to_libraft(MemberId from, const char* address, const RaftMessage& in) {
  raft_message out{};
  set_kind(out.type, static_cast<int>(in.kind));
  out.server_id = from;
  out.server_address = address;
  switch (in.kind) {
    case RaftMessage::Kind::kAppend:
      out.append_entries.term = in.term;
      out.append_entries.prev_log_index = in.index;
      out.append_entries.prev_log_term = in.index_term;
      out.append_entries.leader_commit = in.commit_index;
      put_entries(in.entries, out.append_entries);
      break;
    case RaftMessage::Kind::kAppendResult:
      out.append_entries_result.term = in.term;
      out.append_entries_result.rejected = in.index;
      out.append_entries_result.last_log_index = in.last_index;
#ifdef RAFT_VERSION_NUMBER
      out.append_entries_result.version = 1;
      out.append_entries_result.features = static_cast<unsigned short>(in.features);
      out.append_entries_result.capacity = static_cast<unsigned short>(in.capacity);
#endif
      break;
    case RaftMessage::Kind::kVote:
      out.request_vote.term = in.term;
      out.request_vote.candidate_id = from;
      out.request_vote.last_log_index = in.index;
      out.request_vote.last_log_term = in.index_term;
      out.request_vote.disrupt_leader = in.disrupt_leader;
      out.request_vote.pre_vote = in.pre_vote;
#ifdef RAFT_VERSION_NUMBER
      out.request_vote.version = 2;
#endif
      break;
    case RaftMessage::Kind::kVoteResult:
      out.request_vote_result.term = in.term;
      out.request_vote_result.vote_granted = in.granted;
#ifdef RAFT_VERSION_NUMBER
      out.request_vote_result.version = 2;
      out.request_vote_result.pre_vote = in.pre_vote;
      out.request_vote_result.features = static_cast<unsigned short>(in.features);
      out.request_vote_result.capacity = static_cast<unsigned short>(in.capacity);
#else
      out.request_vote_result.pre_vote = TO_RAFT_TRIBOOL(in.pre_vote);
#endif
      break;
    case RaftMessage::Kind::kTimeoutNow:
      out.timeout_now.term = in.term;
      out.timeout_now.last_log_index = in.index;
      out.timeout_now.last_log_term = in.index_term;
      break;
  }
  return out;
}

}  // namespace ddp::replicas
