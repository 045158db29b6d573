/* all_reduce and reduce between nodes: partial sums and results share a stream to each node, no deadlock, no early overwrite.
 *
 * Models AllReduce of worker/collectives/all_reduce.cc with several nodes: add_up, send, receive with spread, combine and
 * hand_out of a lane's owner, and copy_in and copy_out of a rank without a lane.
 *
 * NODES nodes with one lane; the last PAIRS of them have a second rank, in whose input slots the owner reads the inputs and
 * puts the results. Such owners, and with -DSCRATCH all, add up into scratch memory, as in the code those do that need wider
 * partial sums, or whose nodes' buffers are registered. The others send from the user's memory. Of scratch memory a slot is
 * reused once it was sent and combined; where there is a pair, the slots of the input already wait for as much.
 *
 * -DEXCHANGE: two nodes send each other all their partial sums and both combine them; there are no results on the streams.
 *
 * -DREDUCE: a reduce to the first rank. Only its node gets results, which the others' owners pass on from a slot of their own;
 * of a part that goes nowhere the piece is empty, and takes no room on a stream. The last piece from the root says that it
 * has its result, which whoever is through asserts.
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
 *   case: holds -DNODES=2 -DPAIRS=0 -DCHUNKS=5 -DLINK=1 -DEXCHANGE
 *   case: holds -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DEXCHANGE
 *   case: holds -DNODES=2 -DPAIRS=1 -DCHUNKS=5 -DLINK=2 -DEXCHANGE
 *   case: holds -DNODES=2 -DPAIRS=0 -DCHUNKS=5 -DLINK=1 -DREDUCE
 *   case: holds -DNODES=2 -DPAIRS=1 -DCHUNKS=4 -DLINK=1 -DREDUCE
 *   full: holds -DNODES=3 -DPAIRS=0 -DCHUNKS=2 -DSLOTS=1 -DLINK=1 -DREDUCE
 *   case: fails "user[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DEXCHANGE -DCOMBINE_BEFORE_SENT
 *   case: fails "own[" -DNODES=2 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DEXCHANGE -DOWN_FREE_BEFORE_SENT
 *   case: fails "theirs[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DEXCHANGE -DTHEIRS_FREE_EARLY
 *   case: fails "ready[" -DNODES=3 -DPAIRS=0 -DCHUNKS=2 -DSLOTS=1 -DLINK=1 -DREDUCE -DLAST_WORD_EARLY
 *   case: fails "passing[" -DNODES=2 -DPAIRS=0 -DCHUNKS=4 -DLINK=1 -DREDUCE -DPASSING_FREE_EARLY
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

/* Results on the way through another node than the root's: chunk + 1. */
#ifdef REDUCE
byte passing[NODES * SLOTS];
#define PASSING passing[self * SLOTS + chunk % SLOTS]
#endif

/* The part of the results that a node computes, and how many there are. */
#ifdef EXCHANGE
#define PART(node) 0
#define PARTS 1
#else
#define PART(node) (node)
#define PARTS NODES
#endif

/* Where results go on streams, and which of those pieces are not empty. */
#ifdef REDUCE
#define ROOT 0
#define GETS_RESULTS(node) ((node) == ROOT)
#define RESULTS_BETWEEN(from, to) ((from) == ROOT || (to) == ROOT)
#define IS_LAST_WORD(chunk, from) ((from) == ROOT && (chunk) + 1 == CHUNKS)
#define IS_EMPTY(chunk, from, to) ((to) != ROOT && !IS_LAST_WORD(chunk, from))
#elif defined(EXCHANGE)
#define GETS_RESULTS(node) true
#define RESULTS_BETWEEN(from, to) false
#define IS_EMPTY(chunk, from, to) false
#else
#define GETS_RESULTS(node) true
#define RESULTS_BETWEEN(from, to) true
#define IS_EMPTY(chunk, from, to) false
#endif

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
#if defined(COMBINE_BEFORE_SENT) || !defined(EXCHANGE)
#define TARGET_FREE true
#else
#define TARGET_FREE (HAS_SCRATCH(self) || sent_partials[1 - self] > combined)
#endif
#if defined(PASSING_FREE_EARLY) || !defined(REDUCE)
#define PASSING_FREE true
#else
#define PASSING_FREE (self == ROOT || combined - sent_results[ROOT] < SLOTS)
#endif
#if defined(LAST_WORD_EARLY) || !defined(REDUCE)
#define WORD_IS_TRUE(peer) true
#else
#define WORD_IS_TRUE(peer) (!IS_LAST_WORD(sent_results[peer], self) || handed_out == CHUNKS)
#endif
#define CAN_SEND(peer) \
  (IS_PARTIAL(sent_partials[peer], sent_results[peer]) -> added > sent_partials[peer] : \
   (combined > sent_results[peer] && WORD_IS_TRUE(peer)))
#define CAN_RECEIVE(peer) \
  (IS_PARTIAL_IN(received_partials[peer], received_results[peer]) -> THEIRS_FREE(peer) : added > received_results[peer])

/* The parts of the sum over this node's ranks, one for each node. Alone, the user's memory is that. */
inline add_up() {
  chunk = added;
  do
#if PAIRS > 0 || defined(SCRATCH)
  :: atomic {
      peer < PARTS && HAS_SCRATCH(self) -> assert(USER(peer) == INPUT_THERE);
      assert(!IS_PAIR(self) || INPUT(self, peer) == GIVEN);
      OWN(peer) = chunk + 1;
      peer++
    }
#endif
  :: atomic { peer == PARTS || !HAS_SCRATCH(self) -> peer = 0; chunk = 0; added++; break }
  od
}

/* What is sent as a result: of whom, and whether it is what it should be. */
#ifdef REDUCE
#define RESULT_IS_RIGHT (self == ROOT || PASSING == chunk + 1)
#else
#define RESULT_IS_RIGHT (USER(self) == RESULT_THERE)
#endif

inline send() {
#ifndef EXCHANGE
  if
  :: IS_PARTIAL(sent_partials[peer], sent_results[peer]) ->
#endif
    chunk = sent_partials[peer];
    assert(HAS_SCRATCH(self) || USER(PART(peer)) == INPUT_THERE);
    assert(!HAS_SCRATCH(self) || OWN(PART(peer)) == chunk + 1);
    TO(peer)!PARTIAL, chunk + 1;
    sent_partials[peer]++;
    sent_results[peer] = (RESULTS_BETWEEN(self, peer) -> sent_results[peer] : sent_partials[peer])
#ifndef EXCHANGE
  :: else ->
    chunk = sent_results[peer];
    assert(RESULT_IS_RIGHT);
#ifdef REDUCE
    if
    :: IS_EMPTY(chunk, self, peer)
    :: else -> TO(peer)!FINAL, chunk + 1
    fi;
#else
    TO(peer)!FINAL, chunk + 1;
#endif
    sent_results[peer]++
  fi
#endif
  ;
  chunk = 0;
  peer = 0
}

#define IS_PARTIAL_FROM(peer) IS_PARTIAL_IN(received_partials[peer], received_results[peer])
#define NOTHING_FROM(peer) (!IS_PARTIAL_FROM(peer) && IS_EMPTY(received_results[peer], peer, self))

inline receive() {
#ifdef REDUCE
  if
  :: NOTHING_FROM(peer)
  :: else -> FROM(peer)?kind, piece
  fi;
#else
  FROM(peer)?kind, piece;
#endif
#ifndef EXCHANGE
  if
  :: IS_PARTIAL_FROM(peer) ->
#endif
    chunk = received_partials[peer];
    assert(kind == PARTIAL && piece == chunk + 1);
    THEIRS(peer) = piece;
    received_partials[peer]++;
    received_results[peer] = (RESULTS_BETWEEN(peer, self) -> received_results[peer] : received_partials[peer])
#ifndef EXCHANGE
  :: else ->
    chunk = received_results[peer];
    assert(IS_EMPTY(chunk, peer, self) || (kind == FINAL && piece == chunk + 1));
    USER(peer) = (GETS_RESULTS(self) -> RESULT_THERE : USER(peer));
#ifndef NOT_SPREAD
    INPUT(self, peer) = (IS_PAIR(self) -> RESULT : 0);
#endif
    received_results[peer]++
  fi
#endif
  ;
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
    assert(HAS_SCRATCH(self) || USER(PART(self)) == INPUT_THERE);
    assert(!HAS_SCRATCH(self) || OWN(PART(self)) == chunk + 1);
    peer++
  :: peer == NODES -> peer = 0; break
  od;
  USER(PART(self)) = (GETS_RESULTS(self) -> RESULT_THERE : USER(PART(self)));
  INPUT(self, PART(self)) = (IS_PAIR(self) -> RESULT : 0);
#ifdef REDUCE
  PASSING = (self != ROOT -> chunk + 1 : 0);
#endif
  chunk = 0;
  combined++
}

#define IS_PEER(node) ((node) != self && (node) < NODES)
#define SENDING(node) \
  IS_PEER(node) && sent_results[node] < CHUNKS && CAN_SEND(node) && \
  (len(TO(node)) < LINK || \
   (!IS_PARTIAL(sent_partials[node], sent_results[node]) && IS_EMPTY(sent_results[node], self, node)))
#define RECEIVING(node) \
  IS_PEER(node) && received_results[node] < CHUNKS && CAN_RECEIVE(node) && (len(FROM(node)) > 0 || NOTHING_FROM(node))

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
  :: atomic { combined < added && PARTIALS_THERE && TARGET_FREE && PASSING_FREE -> combine() }
  :: atomic { handed_out < combined && RESULTS_THERE -> handed_out++; ready[self] = handed_out }
  :: handed_out == CHUNKS && ALL(SENT_ALL) -> break
  od
#ifdef REDUCE
  ;
  assert(ready[ROOT] == CHUNKS)
#endif
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
    :: atomic { part < PARTS -> INPUT(self, part) = GIVEN; part++ }
    :: atomic { part == PARTS -> part = 0; chunk = 0; break }
    od;
    in[self]++
  :: out < CHUNKS && ready[self] > out ->
    chunk = out;
    do
    :: atomic { part < PARTS -> assert(INPUT(self, part) == RESULT); part++ }
    :: atomic { part == PARTS -> part = 0; chunk = 0; break }
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
