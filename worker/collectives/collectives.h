#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "worker/collectives/all_reduce.h"
#include "worker/collectives/choice.h"
#include "worker/collectives/entry.h"
#include "worker/collectives/node_gather.h"
#include "worker/collectives/operation.h"
#include "worker/collectives/small.h"
#include "worker/transport/transport.h"

namespace ddp::collectives {

// Runs operations one after another over a transport. One thread at a time.
//
// A failed operation leaves its buffers undefined and the transport unusable. The text of a failure
// that this rank found does not name the operation; `told` says that another rank found it.
class Collectives {
 public:
  explicit Collectives(transport::Transport& transport);

  // Which algorithms to use. The same on all ranks; call choose() only between operations.
  const Choice& choice() const { return choice_; }
  void choose(const Choice& choice) { choice_ = choice; }

  // kTimeout says which ranks had arrived; kMismatch says which ranks called what.
  //
  // If needs_messages() (a gather, scatter, all_to_all or unequal all_gather between nodes that is
  // not small), this runs only the meeting: all ranks have shown the same record, but no data has
  // moved.
  Outcome run(const Operation& operation);
  bool needs_messages(const Operation& operation) const;

 private:
  Offer offer_of(const Operation& operation) const;
  bool is_small(const Operation& operation) const;
  // Whether a rank with this offer sends its payload along with the record.
  bool shows_payload(const Operation& operation, const Offer& offer) const;
  bool all_show_payload(const Operation& operation, const Entry& entry) const;

  // Whether the nodes meet before any data moves. Needed if a rank could finish its part although
  // another one calls something else or nothing: the root of a broadcast, for example, or any rank
  // of an operation without elements.
  bool meets_first(const Operation& operation) const;
  Outcome enter(const Operation& operation, Entry& entry);
  Outcome enter_with_lane(const Operation& operation, Entry& entry, NodeGather& meeting);
  Outcome run_small(const Operation& operation, const Entry& entry);
  Outcome run_large(const Operation& operation, const Entry& entry);
  Outcome run_between_nodes(const Operation& operation, const Entry& entry, NodeGather* meeting);
  // A reduction whose data follows the meeting of the nodes at once.
  bool meets_on_the_way(const Operation& operation) const;
  Outcome meet_nodes(const Operation& operation, NodeGather::Blocks blocks);
  Outcome check_counts(const Operation& operation, const Entry& entry) const;
  void prepare_staging();
  template <typename Stream>
  Outcome run_stream(const Operation& operation, Stream&& stream,
                     const NodeGather* meeting = nullptr);
  Failure not_arrived(const Operation& operation, const Entry* entry,
                      const NodeGather* gather) const;
  Failure stalled(const Operation& operation) const;

  // For a meeting of nodes that exchanges records only.
  NodeGather::Blocks no_blocks();
  void refresh_flags();

  transport::Transport& transport_;
  Choice choice_;
  // Memory for lists that live as long as an operation; kept, so that no operation allocates.
  std::pmr::unsynchronized_pool_resource memory_{{0, std::size_t{64} << 10}};
  small::Parts parts_;
  AllReduceScratch scratch_;
  std::vector<std::byte> ring_scratch_;
  std::uint32_t number_;  // Operations of the segment so far.
  bool staging_ready_ = false;
  std::uint32_t chunks_;  // Value of all this rank's chunk flags between operations.
};

}  // namespace ddp::collectives
