/* The all_reduce between nodes: partial sums and results share a stream to each node, without deadlock or early overwrite.
 *
 * Models AllReduce of worker/collectives/all_reduce.cc with several nodes: add_up, send, receive with spread, combine and
 * hand_out of a lane's owner, and copy_in and copy_out of a rank without a lane.
 *
 * NODES nodes with one lane; the last PAIRS of them have a second rank, in whose input slots the owner reads the inputs and
 * puts the results. Such owners, and with -DSCRATCH all, add up into scratch memory, as in the code those do that need wider
 * partial sums, or whose nodes' buffers are registered. The others send from the user's memory. Of scratch memory a slot is
 * reused once it was sent and combined; where there is a pair, the slots of the input already wait for as much.
 *
 * A stream between two nodes holds LINK pieces, and a piece goes through at once: the sender's and the receiver's orders of
 * pieces must agree. Slots and pieces hold the number of their chunk, input slots and the user's memory also whether input
 * or result lies there; whoever reads asserts that it finds what it expects. Stages run in any order. Nothing runs for ever,
 * so "no invalid end state" means that every rank gets every part of every chunk.
 *
 * Abstracted: bytes and sums, the flags' wrap and base (pipeline.pml), several lanes (independent of each other but for the
 * waits of copy_in and copy_out), the nodes' meeting (NodeGather), which goes ahead on every stream, waiting, aborts, broken
 * links.
 *
 *   case: holds -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1
 *   case: holds -DNODES=2 -DPAIRS=2 -DCHUNKS=3 -DLINK=3
 *   case: holds -DNODES=2 -DPAIRS=1 -DCHUNKS=5 -DLINK=1
 *   case: holds -DNODES=2 -DPAIRS=0 -DCHUNKS=5 -DLINK=1
 *   case: holds -DNODES=2 -DPAIRS=0 -DCHUNKS=5 -DLINK=1 -DSCRATCH
 *   case: holds -DNODES=2 -DPAIRS=1 -DCHUNKS=4 -DLINK=2 -DSCRATCH
 *   case: holds -DNODES=3 -DPAIRS=0 -DCHUNKS=2 -DSLOTS=1 -DLINK=1
 *   full: holds -DNODES=3 -DPAIRS=0 -DCHUNKS=3 -DSLOTS=1 -DLINK=1
 *   case: holds -DNODES=3 -DPAIRS=1 -DCHUNKS=2 -DSLOTS=1 -DLINK=1
 *   case: fails "theirs[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DTHEIRS_FREE_EARLY
 *   case: fails "own[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DSCRATCH -DOWN_FREE_BEFORE_SENT
 *   case: fails "own[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DSCRATCH -DOWN_FREE_BEFORE_COMBINED
 *   case: fails "input[" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DINPUT_FREE_EARLY
 *   case: fails "input[" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DADDED_BEFORE_COPY
 *   case: fails "input[" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DREADY_BEFORE_RECEIVED
 *   case: fails "input[" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DNOT_SPREAD
 *   case: fails "piece" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DORDERS_DIFFER
 *   case: fails "theirs[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DCOMBINE_BEFORE_ALL
 *   case: fails "invalid end state" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DMORE_AHEAD_THAN_SLOTS
 */
#ifndef SLOTS
#define SLOTS 2
#endif

/* Flags of each node: of its second rank in, and how far it has copied out; of its owner ready. */
byte in[NODES];
byte ready[NODES];

/* The slots of the second rank: chunk and what it is, by node and part. */
byte input[NODES * SLOTS * NODES];
#define INPUT(node, part) input[((node) * SLOTS + chunk % SLOTS) * NODES + (part)]
#define GIVEN (2 * chunk + 1)
#define RESULT (2 * chunk + 2)

/* The user's memory of each owner. */
#define INPUT_THERE 0
#define RESULT_THERE 1
bit user[NODES * CHUNKS * NODES];
#define USER(part) user[(self * CHUNKS + chunk) * NODES + (part)]

/* Partial sums, this node's and the others': chunk + 1. */
byte own[NODES * SLOTS * NODES];
#define OWN(part) own[(self * SLOTS + chunk % SLOTS) * NODES + (part)]
byte theirs[NODES * NODES * SLOTS];
#define THEIRS(peer) theirs[(self * NODES + (peer)) * SLOTS + chunk % SLOTS]

#define PARTIAL 0
#define FINAL 1
chan link[NODES * NODES] = [LINK] of { bit, byte };
#define TO(peer) link[self * NODES + (peer)]
#define FROM(peer) link[(peer) * NODES + self]

/* What the next piece of a stream is, by how many of each kind went before. */
#ifdef MORE_AHEAD_THAN_SLOTS
#define AHEAD (SLOTS + 1)
#else
#define AHEAD SLOTS
#endif
#define IS_PARTIAL(partials, results) ((partials) < CHUNKS && (partials) - (results) < AHEAD)
#ifdef ORDERS_DIFFER
#define IS_PARTIAL_IN(partials, results) ((partials) < CHUNKS && (partials) - (results) < AHEAD - 1)
#else
#define IS_PARTIAL_IN(partials, results) IS_PARTIAL(partials, results)
#endif

#define IS_PAIR(node) ((node) >= NODES - PAIRS)
#ifdef SCRATCH
#define HAS_SCRATCH(node) true
#else
#define HAS_SCRATCH(node) IS_PAIR(node)
#endif
#define ALL(condition) (condition(0) && condition(1) && (NODES < 3 || condition(NODES - 1)))
#define FREED(chunk) ((chunk) - SLOTS + 1)
#define HAS_SENT_PARTIALS(peer) ((peer) == self || sent_partials[peer] >= FREED(added))
#define HAS_PARTIALS(peer) ((peer) == self || received_partials[peer] > combined)
#define HAS_RESULTS(peer) ((peer) == self || received_results[peer] > handed_out)
#define SENT_ALL(peer) ((peer) == self || sent_results[peer] == CHUNKS)

#ifdef OWN_FREE_BEFORE_SENT
#define OWN_FREE (added < SLOTS || combined >= FREED(added))
#elif defined(OWN_FREE_BEFORE_COMBINED)
#define OWN_FREE (added < SLOTS || ALL(HAS_SENT_PARTIALS))
#else
#define OWN_FREE (added < SLOTS || (combined >= FREED(added) && ALL(HAS_SENT_PARTIALS)))
#endif
#ifdef INPUT_FREE_EARLY
#define UNDER_WAY (SLOTS + 1)
#else
#define UNDER_WAY SLOTS
#endif
#ifdef ADDED_BEFORE_COPY
#define INPUTS_THERE true
#else
#define INPUTS_THERE (!IS_PAIR(self) || in[self] > added)
#endif
#ifdef THEIRS_FREE_EARLY
#define THEIRS_FREE(peer) true
#else
#define THEIRS_FREE(peer) (received_partials[peer] < combined + SLOTS)
#endif
#ifdef COMBINE_BEFORE_ALL
#define PARTIALS_THERE true
#else
#define PARTIALS_THERE ALL(HAS_PARTIALS)
#endif
#ifdef READY_BEFORE_RECEIVED
#define RESULTS_THERE true
#else
#define RESULTS_THERE ALL(HAS_RESULTS)
#endif
#define CAN_SEND(peer) \
  (IS_PARTIAL(sent_partials[peer], sent_results[peer]) -> added > sent_partials[peer] : combined > sent_results[peer])
#define CAN_RECEIVE(peer) \
  (IS_PARTIAL_IN(received_partials[peer], received_results[peer]) -> THEIRS_FREE(peer) : added > received_results[peer])

/* The parts of the sum over this node's ranks, one for each node. Alone, the user's memory is that. */
inline add_up() {
  chunk = added;
  do
#if PAIRS > 0 || defined(SCRATCH)
  :: atomic {
      peer < NODES && HAS_SCRATCH(self) -> assert(USER(peer) == INPUT_THERE);
      assert(!IS_PAIR(self) || INPUT(self, peer) == GIVEN);
      OWN(peer) = chunk + 1;
      peer++
    }
#endif
  :: atomic { peer == NODES || !HAS_SCRATCH(self) -> peer = 0; chunk = 0; added++; break }
  od
}

inline send() {
  if
  :: IS_PARTIAL(sent_partials[peer], sent_results[peer]) ->
    chunk = sent_partials[peer];
    assert(HAS_SCRATCH(self) || USER(peer) == INPUT_THERE);
    assert(!HAS_SCRATCH(self) || OWN(peer) == chunk + 1);
    TO(peer)!PARTIAL, chunk + 1;
    sent_partials[peer]++
  :: else ->
    chunk = sent_results[peer];
    assert(USER(self) == RESULT_THERE);
    TO(peer)!FINAL, chunk + 1;
    sent_results[peer]++
  fi;
  chunk = 0;
  peer = 0
}

inline receive() {
  FROM(peer)?kind, piece;
  if
  :: IS_PARTIAL_IN(received_partials[peer], received_results[peer]) ->
    chunk = received_partials[peer];
    assert(kind == PARTIAL && piece == chunk + 1);
    THEIRS(peer) = piece;
    received_partials[peer]++
  :: else ->
    chunk = received_results[peer];
    assert(kind == FINAL && piece == chunk + 1);
    USER(peer) = RESULT_THERE;
#ifndef NOT_SPREAD
    INPUT(self, peer) = (IS_PAIR(self) -> RESULT : 0);
#endif
    received_results[peer]++
  fi;
  chunk = 0;
  peer = 0;
  kind = 0;
  piece = 0
}

/* The result of this node's part. */
inline combine() {
  chunk = combined;
  do
  :: peer < NODES && peer != self -> assert(THEIRS(peer) == chunk + 1); peer++
  :: peer == self ->
    assert(HAS_SCRATCH(self) || USER(self) == INPUT_THERE);
    assert(!HAS_SCRATCH(self) || OWN(self) == chunk + 1);
    peer++
  :: peer == NODES -> peer = 0; break
  od;
  USER(self) = RESULT_THERE;
  INPUT(self, self) = (IS_PAIR(self) -> RESULT : 0);
  chunk = 0;
  combined++
}

#define IS_PEER(node) ((node) != self && (node) < NODES)
#define SENDING(node) \
  IS_PEER(node) && sent_results[node] < CHUNKS && len(TO(node)) < LINK && CAN_SEND(node)
#define RECEIVING(node) \
  IS_PEER(node) && received_results[node] < CHUNKS && len(FROM(node)) > 0 && CAN_RECEIVE(node)

proctype Owner(byte self) {
  byte added;
  byte combined;
  byte handed_out;
  byte sent_partials[NODES];
  byte sent_results[NODES];
  byte received_partials[NODES];
  byte received_results[NODES];
  byte chunk;
  byte peer;
  bit kind;
  byte piece;
  do
  :: added < CHUNKS && INPUTS_THERE && OWN_FREE -> add_up()
  :: atomic { SENDING(0) -> peer = 0; send() }
  :: atomic { SENDING(1) -> peer = 1; send() }
  :: atomic { RECEIVING(0) -> peer = 0; receive() }
  :: atomic { RECEIVING(1) -> peer = 1; receive() }
#if NODES == 3
  :: atomic { SENDING(2) -> peer = 2; send() }
  :: atomic { RECEIVING(2) -> peer = 2; receive() }
#endif
  :: atomic { combined < added && PARTIALS_THERE -> combine() }
  :: atomic { handed_out < combined && RESULTS_THERE -> handed_out++; ready[self] = handed_out }
  :: handed_out == CHUNKS && ALL(SENT_ALL) -> break
  od
}

#if PAIRS > 0
/* A rank that owns nothing. */
proctype Neighbour(byte self) {
  byte out;
  byte chunk;
  byte part;
  do
  :: in[self] < CHUNKS && in[self] - out < UNDER_WAY ->
    chunk = in[self];
    do
    :: atomic { part < NODES -> INPUT(self, part) = GIVEN; part++ }
    :: atomic { part == NODES -> part = 0; chunk = 0; break }
    od;
    in[self]++
  :: out < CHUNKS && ready[self] > out ->
    chunk = out;
    do
    :: atomic { part < NODES -> assert(INPUT(self, part) == RESULT); part++ }
    :: atomic { part == NODES -> part = 0; chunk = 0; break }
    od;
    out++
  :: in[self] == CHUNKS && out == CHUNKS -> break
  od
}
#endif

init {
  byte node;
  atomic {
    do
    :: node < NODES ->
      run Owner(node);
#if PAIRS > 0
      if
      :: IS_PAIR(node) -> run Neighbour(node)
#if PAIRS < NODES
      :: else
#endif
      fi;
#endif
      node++
    :: else -> break
    od
  }
}
