#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>

#include "common/base/ids.h"
#include "common/base/shared_text.h"
#include "worker/collectives/types.h"
#include "worker/transport/failure.h"

namespace ddp {

// A collective did not complete. Thrown by Work::wait and by every later call on the groups of the
// same round, with the first cause. Those groups are unusable; the process can end, or (in-process
// recovery) make the group of the next round. The contents of buffers that took part are undefined.
class CollectiveError : public std::runtime_error {
 public:
  CollectiveError(const std::string& text, std::error_code error_code, Rank suspect)
      : std::runtime_error(text), code(error_code), suspect_rank(suspect) {}
  explicit CollectiveError(const Failure& failure)
      : CollectiveError(failure.text, failure.code, failure.suspect) {}
  std::error_code code;  // kTimeout, kPeerLost, kAborted, kMismatch, kProtocol.
  Rank suspect_rank;     // The rank to blame, -1 if it is not known.
};

// One issued operation. Any thread may call; the object may outlive the group. Destruction never
// blocks.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the operation has completed; throws CollectiveError if it failed. Never waits
  // longer than until the operation's deadline plus the time an abort takes.
  virtual void wait() = 0;
  // The communication thread begins at once. Without this call it gives the caller some time, 5 ms
  // at most, to come and run the operation in wait() himself. For a caller who goes on computing
  // meanwhile, or who learns of the end in another way.
  virtual void start() {}
};
using WorkPtr = std::shared_ptr<Work>;

struct OpOptions {
  std::chrono::milliseconds timeout{0};  // 0: the group's.
  SharedText tag;                        // Named in error messages: "bucket 3 (layer4.*)".
  // The call itself runs the operation and throws what wait() would; the Work is done when it
  // returns. Saves waking the communication thread.
  bool synchronous = false;
  // Called once when the operation is done, with its failure or null: by the call itself, or by the
  // thread that has run the operation, which holds no lock of the group. It may issue operations
  // and wait for them; it must not throw. Not called if the call throws.
  std::function<void(std::exception_ptr)> on_done = {};
};

struct ProcessGroupOptions {
  std::chrono::milliseconds timeout{
      std::chrono::minutes(10)};  // Deadline of an operation, from its issue.
  std::chrono::milliseconds connect_timeout{std::chrono::minutes(2)};
  // A rank whose process does not run for this long ends the round; 0: never. The same on all
  // ranks. DDP_STALL_TIMEOUT_MS overrides it.
  std::chrono::milliseconds stall_timeout{std::chrono::seconds(5)};
};

// The workers of one round, or some of them, acting together. Shared memory carries data inside a
// node, TCP between nodes; the agent's environment says which ranks share a node.
//
// Collective operations are matched by the order of issue, which must be the same on all ranks.
// They run one after the other on the group's communication thread. Before data moves the ranks
// compare what they are about to do; a difference is an error on all of them. Buffers belong to the
// caller, who must keep them alive and unchanged until the Work is done. Input and output must not
// overlap unless an operation says so. Types, counts and reductions are the same on all ranks.
//
// Every element is reduced along one binary tree over the ranks (collectives/tree_order.h) that
// depends on the size of the group alone, so results are identical on all ranks, from run to run,
// for any bucket layout, algorithm and placement; half-precision types are added in f32 and rounded
// once. (The ring, which is chosen only for many nodes, has an order for each slice; see
// collectives/choice.h.)
//
// Any thread may call, but the order of issue must be agreed, so usually one does.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  // The group that the environment of this worker describes (RANK, WORLD_SIZE, LOCAL_RANK,
  // LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, DDP_ROUND, DDP_SHM_FD, MASTER_ADDR,
  // MASTER_PORT, or DDP_STORE_ADDR and DDP_STORE_PORT if ddp-run sets these for its own store,
  // DDP_VIRTUAL_NODE). Without WORLD_SIZE: what mpirun has started, or a
  // group of one. Collective. Throws CollectiveError, or
  // std::invalid_argument, which names the wrong variable. For processes that ddp-run did not
  // start, see runtime/init_process_group.h.
  static std::shared_ptr<ProcessGroup> from_environment(const ProcessGroupOptions& options = {});

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Round round() const = 0;

  // Allocates page-aligned memory with undefined content that the node's other ranks can read and
  // write in place ("registered"): a buffer in it saves a reduction half of its memory traffic.
  // Backed at once. Null if there is no room left; any other memory works too, only slower. Local;
  // the memory outlives the group.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  virtual WorkPtr all_reduce(Buffer in_out, ReduceOp op, OpOptions options = {}) = 0;
  // Reduces several buffers of one type in one operation; for many small ones.
  virtual WorkPtr all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                                       OpOptions options = {}) = 0;
  virtual WorkPtr broadcast(Buffer in_out, Rank root, OpOptions options = {}) = 0;
  // Only the root gets the result; the others' buffers do not change.
  virtual WorkPtr reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options = {}) = 0;
  // out.count == in.count * size(); rank r's input lands at out + r * in.count. in may be its own
  // slot of out.
  virtual WorkPtr all_gather(Buffer in, Buffer out, OpOptions options = {}) = 0;
  // Rank r provides counts[r] elements, which land behind those of the ranks before it. counts must
  // be the same on all ranks.
  virtual WorkPtr all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                              OpOptions options = {}) = 0;
  // in.count == out.count * size(); rank r gets the reduction of the elements from r * out.count.
  // out may be its own slot of in. The rest of in does not change.
  virtual WorkPtr reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options = {}) = 0;
  // out.count == in.count * size() on the root; unused elsewhere.
  virtual WorkPtr gather(Buffer in, Buffer out, Rank root, OpOptions options = {}) = 0;
  // in.count == out.count * size() on the root; unused elsewhere.
  virtual WorkPtr scatter(Buffer in, Buffer out, Rank root, OpOptions options = {}) = 0;
  // Elements [d * n, (d + 1) * n) of in go to rank d, where they land at r * n; n = in.count /
  // size().
  virtual WorkPtr all_to_all(Buffer in, Buffer out, OpOptions options = {}) = 0;
  // send_counts[d] elements go to rank d, receive_counts[r] come from rank r, both contiguous and
  // in rank order.
  virtual WorkPtr all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                              std::span<const std::size_t> receive_counts,
                              OpOptions options = {}) = 0;
  virtual WorkPtr barrier(OpOptions options = {}) = 0;

  // Point to point, independent of the collectives and in any order: a message matches the earliest
  // receive with the same peer and tag. Counts and types must agree.
  virtual WorkPtr send(Buffer buffer, Rank to, std::uint32_t tag = 0, OpOptions options = {}) = 0;
  virtual WorkPtr recv(Buffer buffer, Rank from, std::uint32_t tag = 0, OpOptions options = {}) = 0;

  // A barrier that finds out who is missing: rank 0 waits for every other rank until the timeout
  // (0: the group's). Then it fails the group with the list of ranks that did not arrive, or only
  // with the first of them if wait_all_ranks is false. Blocks.
  virtual void monitored_barrier(std::chrono::milliseconds timeout = {},
                                 bool wait_all_ranks = true) = 0;

  // Makes a group of some ranks (each once, in ascending order), numbered 0 .. n - 1 in this order.
  // All ranks of this group must call it with the same list; those that are not in it get null.
  // Blocks. The groups of a round fail together.
  virtual std::shared_ptr<ProcessGroup> new_group(std::span<const Rank> ranks) = 0;
  // Makes one group for each color, of the ranks that gave it, ordered by key and then by rank.
  // Returns null for a negative color. All ranks of this group must call it. Blocks.
  virtual std::shared_ptr<ProcessGroup> split(int color, int key = 0) = 0;

  // Fails every operation that is running or comes later, here and on all other ranks. Any thread,
  // any number of times; the first reason counts.
  virtual void abort(const std::string& reason) = 0;
  // The same with a cause that something else has found, as it is.
  virtual void abort_with(const Failure& cause) = 0;
  // Why the group has failed; nothing if it has not, as far as this rank knows. Never waits. Any
  // thread.
  virtual std::optional<Failure> failure() const = 0;
};

}  // namespace ddp
