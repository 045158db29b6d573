/* Chunks move through the ranks' input slots, and no slot is overwritten before its readers are through.
 *
 * Models, on one node, the staged all_reduce and reduce (AllReduce::copy_in, add_up, hand_out and copy_out of
 * worker/collectives/all_reduce.cc), the staged Exchange (copy_in and take_chunk of worker/collectives/block_exchange.cc), which
 * uses the same slots, Collectives::run_stream with the flags it brings up to date, and the wait of Entry between two
 * operations. Which kind each operation is the search chooses, so every kind comes before and after every other one.
 *
 * P ranks, the first OWNERS of which own a slice of every chunk; ROOT is the root of reduce and broadcast. In an all_reduce
 * an owner reads its slice in everybody's slot and writes the result over it, and each rank takes the results out of its own
 * slot; in a reduce only the root gets them. In an Exchange whoever is the only reader of a piece writes it back unchanged
 * (Exchange::sole_reader, worker/transport/take_lines.h).
 *
 * Slots, instead of bytes, say of each slice which chunk's it is, and whether input or result. A rank sees what other ranks
 * wrote piece by piece: every copy of a slice, every flag is a step of its own. Stages run in any order, which is more than
 * the code does. Whoever reads a slot asserts that it finds what it expects: an overwrite too early, or a read before the
 * data are there, fails there. With -DABORT a rank may give up at any moment, and all others must end too. Nothing runs for
 * ever, so "no invalid end state" means that all end.
 *
 * Flags wrap at 8 here, several times in a run.
 *
 * Abstracted: bytes and sums (a reduce_scatter is an all_to_all here), the other kinds of Exchange, memory order (flags are
 * sequentially consistent, and cover the data), links to other nodes (nodes.pml), waiting (doorbell.pml), what the entry
 * compares (entry.pml).
 *
 *   case: holds -DP=2 -DCHUNKS=5 -DOPERATIONS=2
 *   case: holds -DP=2 -DCHUNKS=2 -DOPERATIONS=3
 *   full: holds -DP=2 -DCHUNKS=3 -DOPERATIONS=3
 *   case: holds -DP=2 -DCHUNKS=3 -DOPERATIONS=2 -DABORT
 *   case: holds -DP=3 -DCHUNKS=2 -DOPERATIONS=1
 *   full: holds -DP=3 -DCHUNKS=3 -DOPERATIONS=1
 *   case: holds -DP=3 -DCHUNKS=3 -DOPERATIONS=1 -DOWNERS=2 -DROOT=0
 *   case: holds -DP=3 -DCHUNKS=2 -DOPERATIONS=2 -DOWNERS=2 -DSLOTS=1
 *   case: holds -DP=2 -DCHUNKS=5 -DOPERATIONS=2 -DNO_EXCHANGE -DNO_ENTRY
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=2 -DNO_ENTRY
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_EXCHANGE -DIN_BEFORE_COPY
 *   case: fails "input[" -DP=3 -DCHUNKS=3 -DOPERATIONS=1 -DNO_EXCHANGE -DONE_INPUT_IS_ENOUGH
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_EXCHANGE -DREADY_BEFORE_PUSH
 *   case: fails "input[" -DP=3 -DCHUNKS=3 -DOPERATIONS=1 -DNO_EXCHANGE -DONE_OWNER_IS_ENOUGH
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_EXCHANGE -DSLOT_FREE_EARLY
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_EXCHANGE -DONLY_ROOT_WAITS
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_REDUCE -DEXCHANGE_SLOT_FREE_EARLY
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_REDUCE -DOUT_BEFORE_COPY
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DNO_REDUCE -DWRITTEN_BACK_LATE
 *   case: fails "input[" -DP=2 -DCHUNKS=4 -DOPERATIONS=2 -DFLAGS_LAG
 *   case: fails "invalid end state" -DP=2 -DCHUNKS=3 -DOPERATIONS=1 -DABORT -DWAIT_IS_DEAF
 */
#ifndef OWNERS
#define OWNERS P
#endif
#ifndef ROOT
#define ROOT (P - 1)
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#define FIRST_FLAG 6
#define REACHED(flag, value) ((((flag) - (value)) & 7) < 4)

#define ALL_REDUCE 0
#define REDUCE 1
#define BROADCAST 2
#define ALL_TO_ALL 3
byte kind[OPERATIONS];
#define KIND kind[operation]

byte entry[P];
byte in[P] = FIRST_FLAG;
byte ready[P] = FIRST_FLAG;
byte out[P] = FIRST_FLAG;
bool aborted;

/* Of every rank SLOTS chunks of P slices. */
byte input[P * SLOTS * P];
#define INPUT(rank, chunk, slice) input[((rank) * SLOTS + (chunk) % SLOTS) * P + (slice)]
#define GIVEN(chunk) (2 * (operation * CHUNKS + (chunk)) + 1)
#define RESULT(chunk) (GIVEN(chunk) + 1)

/* Whether all other ranks below `limit` have brought the flag to `value`. */
#define RANK_REACHED(rank, flag, value, limit) ((rank) == self || (rank) >= (limit) || REACHED(flag[rank], value))
#if P == 2
#define OTHERS_REACHED(flag, value, limit) (RANK_REACHED(0, flag, value, limit) && RANK_REACHED(1, flag, value, limit))
#else
#define OTHERS_REACHED(flag, value, limit) \
  (RANK_REACHED(0, flag, value, limit) && RANK_REACHED(1, flag, value, limit) && RANK_REACHED(2, flag, value, limit))
#endif

#ifdef SLOT_FREE_EARLY
#define UNDER_WAY (SLOTS + 1)
#else
#define UNDER_WAY SLOTS
#endif
#ifdef ONE_INPUT_IS_ENOUGH
#define WAITED_INPUTS 1
#else
#define WAITED_INPUTS P
#endif
#ifdef ONE_OWNER_IS_ENOUGH
#define WAITED_OWNERS 1
#else
#define WAITED_OWNERS OWNERS
#endif
#ifdef ONLY_ROOT_WAITS
#define NEEDS_NO_RESULT !HAS_RESULT(self)
#else
#define NEEDS_NO_RESULT false
#endif

#define HAS_RESULT(rank) (KIND == ALL_REDUCE || (rank) == ROOT)
#define INPUTS_THERE OTHERS_REACHED(in, base + added + 1, WAITED_INPUTS)
#define RESULTS_THERE \
  (NEEDS_NO_RESULT || \
   (OTHERS_REACHED(ready, base + copied_out + 1, WAITED_OWNERS) && (self >= OWNERS || handed_out > copied_out)))
#define THROUGH (copied_in == CHUNKS && copied_out == CHUNKS && (self >= OWNERS || handed_out == CHUNKS))

/* A rank's own slice stays in the user's memory. */
inline copy_in() {
#ifdef IN_BEFORE_COPY
  in[self] = base + copied_in + 1;
#endif
  do
  :: atomic { other < OWNERS && other != self -> INPUT(self, copied_in, other) = GIVEN(copied_in); other++ }
  :: atomic { other < OWNERS && other == self -> other++ }
  :: atomic { other == OWNERS -> other = 0; break }
  od;
#ifndef IN_BEFORE_COPY
  in[self] = base + copied_in + 1;
#endif
  copied_in++
}

inline add_up() {
#ifdef READY_BEFORE_PUSH
  ready[self] = base + added + 1;
#endif
  do
  :: atomic { other < P && other != self -> assert(INPUT(other, added, self) == GIVEN(added)); other++ }
  :: atomic { other < P && other == self -> other++ }
  :: atomic { other == P -> other = 0; break }
  od;
  do
  :: atomic { other < P && other != self && HAS_RESULT(other) -> INPUT(other, added, self) = RESULT(added); other++ }
  :: atomic { other < P && (other == self || !HAS_RESULT(other)) -> other++ }
  :: atomic { other == P -> other = 0; break }
  od;
  added++
}

inline hand_out() {
#ifndef READY_BEFORE_PUSH
  ready[self] = base + handed_out + 1;
#endif
  handed_out++
}

inline copy_out() {
  do
  :: atomic {
      HAS_RESULT(self) && other < OWNERS && other != self -> assert(INPUT(self, copied_out, other) == RESULT(copied_out));
      other++
    }
  :: atomic { HAS_RESULT(self) && other < OWNERS && other == self -> other++ }
  :: atomic { !HAS_RESULT(self) || other == OWNERS -> other = 0; break }
  od;
  copied_out++
}

#ifndef NO_EXCHANGE
#ifdef EXCHANGE_SLOT_FREE_EARLY
#define READ_BEFORE (SLOTS)
#else
#define READ_BEFORE (SLOTS - 1)
#endif
#define IS_SOURCE(rank) (KIND == ALL_TO_ALL || (rank) == ROOT)
#define PIECE_FREE (copied_in < SLOTS || !IS_SOURCE(self) || OTHERS_REACHED(out, base + copied_in - READ_BEFORE, P))
#define PIECE_THERE \
  (KIND == ALL_TO_ALL -> OTHERS_REACHED(in, base + copied_out + 1, P) : \
    (self == ROOT || REACHED(in[ROOT], base + copied_out + 1)))
/* A source owes nothing to anybody once all of its chunks lie in slots, read or not. */
#define EXCHANGED (copied_in == CHUNKS && copied_out == CHUNKS)

inline show_chunk() {
  do
  :: atomic { IS_SOURCE(self) && other < P && other != self -> INPUT(self, copied_in, other) = GIVEN(copied_in); other++ }
  :: atomic { IS_SOURCE(self) && other < P && other == self -> other++ }
  :: atomic { !IS_SOURCE(self) || other == P -> other = 0; break }
  od;
  in[self] = base + copied_in + 1;
  copied_in++
}

/* Of a broadcast every reader takes all pieces, of an all_to_all its own, which it writes back. */
inline take_chunk() {
#ifdef OUT_BEFORE_COPY
  out[self] = base + copied_out + 1;
#endif
  do
  :: atomic {
      KIND == ALL_TO_ALL && other < P && other != self ->
      assert(INPUT(other, copied_out, self) == GIVEN(copied_out))
    }
#ifdef WRITTEN_BACK_LATE
    out[self] = base + copied_out + 1;
#endif
    INPUT(other, copied_out, self) = GIVEN(copied_out);
    other++
  :: atomic {
      KIND == BROADCAST && self != ROOT && other < P && other != ROOT ->
      assert(INPUT(ROOT, copied_out, other) == GIVEN(copied_out))
    }
#if P == 2
    INPUT(ROOT, copied_out, other) = GIVEN(copied_out);
#endif
    other++
  :: atomic { other < P && (KIND == ALL_TO_ALL -> other == self : self == ROOT || other == ROOT) -> other++ }
  :: atomic { other == P -> other = 0; break }
  od;
#ifndef OUT_BEFORE_COPY
  out[self] = base + copied_out + 1;
#endif
  copied_out++
}
#endif

/* A rank may give up in any wait, and in any it may learn that another one has. */
#ifdef ABORT
#ifdef WAIT_IS_DEAF
#define OR_END(condition) :: !aborted && !(condition) -> aborted = true; goto ended
#else
#define OR_END(condition) \
  :: !aborted && !(condition) -> aborted = true; goto ended \
  :: aborted && !(condition) -> goto ended
#endif
#else
#define OR_END(condition)
#endif

inline enter() {
  entry[self] = operation + 1;
#ifndef NO_ENTRY
  do
  :: atomic { other < P && (other == self || entry[other] > operation) -> other++ }
  :: atomic { other == P -> other = 0; break }
  OR_END(other == P || other == self || entry[other] > operation)
  od
#endif
}

/* Flags of stages in which this rank had no part. */
inline finish() {
  base = base + CHUNKS;
#ifndef FLAGS_LAG
  in[self] = base;
  ready[self] = base;
  out[self] = base;
#endif
  copied_in = 0;
  added = 0;
  handed_out = 0;
  copied_out = 0;
  operation++
}

proctype Rank(byte self) {
  byte operation;
  byte base = FIRST_FLAG;
  byte copied_in;
  byte added;
  byte handed_out;
  byte copied_out;
  byte other;
again:
  enter();
  if
#ifndef NO_EXCHANGE
  :: KIND >= BROADCAST ->
    do
    :: copied_in < CHUNKS && PIECE_FREE -> show_chunk()
    :: copied_out < CHUNKS && PIECE_THERE -> take_chunk()
    :: EXCHANGED -> break
    OR_END(EXCHANGED)
    od
#endif
#ifndef NO_REDUCE
  :: KIND < BROADCAST ->
    do
    :: copied_in < CHUNKS && copied_in - copied_out < UNDER_WAY -> copy_in()
    :: self < OWNERS && added < CHUNKS && INPUTS_THERE -> add_up()
    :: handed_out < added -> hand_out()
    :: copied_out < CHUNKS && RESULTS_THERE -> copy_out()
    :: THROUGH -> break
    OR_END(THROUGH)
    od
#endif
  fi;
  finish();
  if
  :: operation < OPERATIONS -> goto again
  :: else
  fi;
ended:
  skip
}

init {
  byte next;
  do
  :: next < OPERATIONS ->
    if
#ifndef NO_REDUCE
    :: kind[next] = ALL_REDUCE
    :: kind[next] = REDUCE
#endif
#ifndef NO_EXCHANGE
    :: kind[next] = BROADCAST
    :: kind[next] = ALL_TO_ALL
#endif
    fi;
    next++
  :: else -> next = 0; break
  od;
  atomic {
    do
    :: next < P -> run Rank(next); next++
    :: else -> break
    od
  }
}
