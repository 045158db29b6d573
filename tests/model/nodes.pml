/* The all_reduce between nodes: partial sums and results share a stream to each node, without deadlock or early overwrite.
 *
 * Models AllReduce of worker/collectives/all_reduce.cc with several nodes: add_up, send, receive, combine, hand_out and
 * result_slot_free of a lane's owner, and copy_in and copy_out of a rank without a lane.
 *
 * NODES nodes with one lane. With LOCALS=2 each has a second rank, whose input and result pass through slots; with LOCALS=1
 * the owner is alone and works in the user's memory. A stream between two nodes holds LINK pieces, and a piece goes through
 * at once: the sender's and the receiver's orders of pieces must agree. Slots and pieces hold the number of their chunk;
 * whoever reads asserts that it is the expected one. Stages run in any order. Nothing runs for ever, so "no invalid end
 * state" means that every rank gets every part of every chunk.
 *
 * Abstracted: bytes and sums, the flags' wrap and base (pipeline.pml), several lanes (independent of each other but for the
 * waits of copy_in and copy_out), waiting, aborts, broken links.
 *
 *   case: holds -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1
 *   case: holds -DNODES=2 -DLOCALS=2 -DCHUNKS=3 -DLINK=3
 *   case: holds -DNODES=2 -DLOCALS=1 -DCHUNKS=5 -DLINK=1
 *   case: holds -DNODES=3 -DLOCALS=1 -DCHUNKS=3 -DSLOTS=1 -DLINK=1
 *   case: fails "theirs[" -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1 -DTHEIRS_FREE_EARLY
 *   case: fails "own[" -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1 -DOWN_FREE_BEFORE_SENT
 *   case: fails "own[" -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1 -DOWN_FREE_BEFORE_COMBINED
 *   case: fails "result[" -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1 -DRESULT_FREE_BEFORE_SENT
 *   case: fails "result[" -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1 -DREADY_BEFORE_RECEIVED
 *   case: fails "piece" -DNODES=2 -DLOCALS=2 -DCHUNKS=4 -DLINK=1 -DORDERS_DIFFER
 *   case: fails "theirs[" -DNODES=2 -DLOCALS=1 -DCHUNKS=4 -DLINK=1 -DCOMBINE_BEFORE_ALL
 */
#ifndef SLOTS
#define SLOTS 2
#endif

/* Flags of each node: of its second rank in and out, of its owner reduced and ready. */
byte in[NODES];
byte reduced[NODES];
byte ready[NODES];
byte out[NODES];

/* What lies where: chunk + 1, by node. */
#if LOCALS == 2
byte input[NODES * SLOTS];
byte own[NODES * SLOTS * NODES];
byte result[NODES * SLOTS * NODES];
#define OWN(part) own[(self * SLOTS + chunk % SLOTS) * NODES + (part)]
#define RESULT(node, part) result[((node) * SLOTS + chunk % SLOTS) * NODES + (part)]
#else
/* The user's memory holds input, then result. */
#define INPUT_THERE 0
#define RESULT_THERE 1
bit user[NODES * CHUNKS * NODES];
#define USER(part) user[(self * CHUNKS + chunk) * NODES + (part)]
#endif
byte theirs[NODES * NODES * SLOTS];
#define THEIRS(peer) theirs[(self * NODES + (peer)) * SLOTS + chunk % SLOTS]

#define PARTIAL 0
#define FINAL 1
chan link[NODES * NODES] = [LINK] of { bit, byte };
#define TO(peer) link[self * NODES + (peer)]
#define FROM(peer) link[(peer) * NODES + self]

/* What the next piece of a stream is, by how many of each kind went before. */
#define IS_PARTIAL(partials, results) ((partials) < CHUNKS && (partials) - (results) < SLOTS)
#ifdef ORDERS_DIFFER
#define IS_PARTIAL_IN(partials, results) ((partials) < CHUNKS && (partials) - (results) < SLOTS - 1)
#else
#define IS_PARTIAL_IN(partials, results) IS_PARTIAL(partials, results)
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
#if LOCALS == 1
#define RESULT_FREE(chunk) true
#elif defined(RESULT_FREE_BEFORE_SENT)
#define RESULT_FREE(chunk) ((chunk) < SLOTS || out[self] >= FREED(chunk))
#else
#define RESULT_FREE(chunk) ((chunk) < SLOTS || (out[self] >= FREED(chunk) && \
  (0 == self || sent_results[0] >= FREED(chunk)) && (1 == self || sent_results[1] >= FREED(chunk)) && \
  (NODES < 3 || NODES - 1 == self || sent_results[NODES - 1] >= FREED(chunk))))
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
  (IS_PARTIAL_IN(received_partials[peer], received_results[peer]) -> \
    THEIRS_FREE(peer) : (added > received_results[peer] && RESULT_FREE(received_results[peer])))

/* The parts of the sum over this node's ranks, one for each node. */
inline add_up() {
  chunk = added;
#if LOCALS == 2
  assert(input[self * SLOTS + chunk % SLOTS] == chunk + 1);
  peer = 0;
  do
  :: atomic { peer < NODES -> OWN(peer) = chunk + 1; peer++ }
  :: atomic { peer == NODES -> peer = 0; break }
  od;
  reduced[self] = added + 1;
#endif
  chunk = 0;
  added++
}

inline send() {
  if
  :: IS_PARTIAL(sent_partials[peer], sent_results[peer]) ->
    chunk = sent_partials[peer];
#if LOCALS == 2
    assert(OWN(peer) == chunk + 1);
#else
    assert(USER(peer) == INPUT_THERE);
#endif
    TO(peer)!PARTIAL, chunk + 1;
    sent_partials[peer]++
  :: else ->
    chunk = sent_results[peer];
#if LOCALS == 2
    assert(RESULT(self, self) == chunk + 1);
#else
    assert(USER(self) == RESULT_THERE);
#endif
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
#if LOCALS == 2
    RESULT(self, peer) = piece;
#else
    USER(peer) = RESULT_THERE;
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
#if LOCALS == 2
    assert(OWN(self) == chunk + 1);
#else
    assert(USER(self) == INPUT_THERE);
#endif
    peer++
  :: peer == NODES -> peer = 0; break
  od;
#if LOCALS == 2
  RESULT(self, self) = chunk + 1;
#else
  USER(self) = RESULT_THERE;
#endif
  chunk = 0;
  combined++
}

#define IS_PEER(node) ((node) != self && (node) < NODES)
#define SENDING(node) \
  IS_PEER(node) && sent_results[node] < CHUNKS && len(TO(node)) < LINK && CAN_SEND(node)
#define RECEIVING(node) \
  IS_PEER(node) && received_results[node] < CHUNKS && len(FROM(node)) > 0 && CAN_RECEIVE(node)
#if LOCALS == 2
#define INPUT_READY (in[self] > added)
#else
#define INPUT_READY true
#endif

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
  :: added < CHUNKS && INPUT_READY && OWN_FREE -> add_up()
  :: atomic { SENDING(0) -> peer = 0; send() }
  :: atomic { SENDING(1) -> peer = 1; send() }
  :: atomic { RECEIVING(0) -> peer = 0; receive() }
  :: atomic { RECEIVING(1) -> peer = 1; receive() }
#if NODES == 3
  :: atomic { SENDING(2) -> peer = 2; send() }
  :: atomic { RECEIVING(2) -> peer = 2; receive() }
#endif
  :: atomic { combined < added && RESULT_FREE(combined) && PARTIALS_THERE -> combine() }
  :: atomic { handed_out < combined && RESULTS_THERE -> handed_out++; ready[self] = handed_out }
  :: handed_out == CHUNKS && ALL(SENT_ALL) -> break
  od
}

#if LOCALS == 2
/* A rank that owns nothing. */
proctype Neighbour(byte self) {
  byte chunk;
  byte part;
  do
  :: atomic {
      in[self] < CHUNKS && (in[self] < SLOTS || reduced[self] >= FREED(in[self])) ->
      input[self * SLOTS + in[self] % SLOTS] = in[self] + 1
    }
    in[self]++
  :: out[self] < CHUNKS && ready[self] > out[self] ->
    chunk = out[self];
    do
    :: atomic { part < NODES -> assert(RESULT(self, part) == chunk + 1); part++ }
    :: atomic { part == NODES -> part = 0; chunk = 0; break }
    od;
    out[self]++
  :: in[self] == CHUNKS && out[self] == CHUNKS -> break
  od
}
#endif

init {
  byte node;
  atomic {
    do
    :: node < NODES ->
      run Owner(node);
#if LOCALS == 2
      run Neighbour(node);
#endif
      node++
    :: else -> break
    od
  }
}
