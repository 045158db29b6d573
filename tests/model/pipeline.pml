/* The staged all_reduce of one node: chunks move through shared slots, and no slot is overwritten too early.
 *
 * Models AllReduce::copy_in, add_up, hand_out and copy_out of worker/collectives/all_reduce.cc with their guards
 * (others_reached, result_slot_free), Collectives::run_stream with the flags it brings up to date, and the wait of Entry
 * between two operations. With -DBROADCAST_FIRST the first operation is a broadcast instead, as Exchange does it in slots.
 * All_reduce after all_reduce would do without the entry; after a broadcast it is needed.
 *
 * P ranks, the first OWNERS of which own a slice of every chunk. Slots, instead of bytes, hold the number of the chunk whose
 * data lie in them. A rank sees what other ranks wrote piece by piece: every copy of a slice, every flag is a step of its
 * own. Stages run in any order, which is more than the code does. Whoever reads a slot asserts that it finds the chunk that
 * it expects: an overwrite too early, or a read before the data are there, fails there. When an operation ends every rank
 * must have taken every slice. With -DABORT a rank may give up at any moment, and all others must end too. Nothing runs for
 * ever, so "no invalid end state" means that all end.
 *
 * Flags begin shortly before the wrap (of 256 here).
 *
 * Abstracted: bytes and sums, memory order (flags are sequentially consistent, and cover the data), links to other nodes,
 * waiting (doorbell.pml), what the entry compares (entry.pml).
 *
 *   case: holds -DP=2 -DCHUNKS=5 -DOPERATIONS=2
 *   case: holds -DP=2 -DCHUNKS=5 -DOPERATIONS=2 -DABORT
 *   case: holds -DP=3 -DCHUNKS=3 -DOPERATIONS=1
 *   case: holds -DP=3 -DCHUNKS=3 -DOPERATIONS=2 -DOWNERS=2
 *   case: fails "input[" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DINPUT_FREE_EARLY
 *   case: fails "result[" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DRESULT_FREE_EARLY
 *   case: fails "input[" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DIN_BEFORE_COPY
 *   case: fails "result[" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DREADY_BEFORE_SUM
 *   case: fails "input[" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DREDUCED_BEFORE_SUM
 *   case: fails "result[" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DOUT_BEFORE_COPY
 *   case: fails "input[" -DP=3 -DCHUNKS=3 -DOPERATIONS=1 -DOWNERS=2 -DONE_OWNER_IS_ENOUGH
 *   case: fails "result[" -DP=3 -DCHUNKS=3 -DOPERATIONS=1 -DONE_READER_IS_ENOUGH
 *   case: holds -DP=2 -DCHUNKS=3 -DOPERATIONS=2 -DBROADCAST_FIRST
 *   case: holds -DP=2 -DCHUNKS=5 -DOPERATIONS=2 -DNO_ENTRY
 *   case: fails "input[" -DP=2 -DCHUNKS=3 -DOPERATIONS=2 -DBROADCAST_FIRST -DNO_ENTRY
 *   case: fails "invalid end state" -DP=2 -DCHUNKS=5 -DOPERATIONS=1 -DABORT -DWAIT_IS_DEAF
 */
#ifndef OWNERS
#define OWNERS P
#endif
#define SLOTS 2
#define FIRST_FLAG 253
#define REACHED(flag, value) ((((flag) - (value)) & 255) < 128)

byte entry[P];
byte in[P] = FIRST_FLAG;
byte reduced[P] = FIRST_FLAG;
byte ready[P] = FIRST_FLAG;
byte out[P] = FIRST_FLAG;
bool aborted;

byte record[P * 2];
#define RECORD(rank) record[(rank) * 2 + operation % 2]

/* Of every rank SLOTS chunks of OWNERS slices; of every owner SLOTS slices. */
byte input[P * SLOTS * OWNERS];
byte result[OWNERS * SLOTS];
#define INPUT(rank, chunk, slice) input[((rank) * SLOTS + (chunk) % SLOTS) * OWNERS + (slice)]
#define RESULT(owner, chunk) result[(owner) * SLOTS + (chunk) % SLOTS]
#define CONTENT(chunk) (operation * CHUNKS + (chunk) + 1)

/* Whether all other ranks below `limit` have brought the flag to `value`. */
#define RANK_REACHED(rank, flag, value, limit) ((rank) == self || (rank) >= (limit) || REACHED(flag[rank], value))
#if P == 2
#define OTHERS_REACHED(flag, value, limit) (RANK_REACHED(0, flag, value, limit) && RANK_REACHED(1, flag, value, limit))
#else
#define OTHERS_REACHED(flag, value, limit) \
  (RANK_REACHED(0, flag, value, limit) && RANK_REACHED(1, flag, value, limit) && RANK_REACHED(2, flag, value, limit))
#endif

/* How many chunks before another one its slot was used, less one; whom its reuse waits for. */
#ifdef INPUT_FREE_EARLY
#define INPUT_AGE (SLOTS)
#else
#define INPUT_AGE (SLOTS - 1)
#endif
#ifdef RESULT_FREE_EARLY
#define RESULT_AGE (SLOTS)
#else
#define RESULT_AGE (SLOTS - 1)
#endif
#ifdef ONE_OWNER_IS_ENOUGH
#define WAITED_OWNERS 1
#else
#define WAITED_OWNERS OWNERS
#endif
#ifdef ONE_READER_IS_ENOUGH
#define WAITED_READERS 2
#else
#define WAITED_READERS P
#endif

#define INPUT_SLOT_FREE \
  (copied_in < SLOTS || OTHERS_REACHED(reduced, base + copied_in - INPUT_AGE, WAITED_OWNERS))
#define RESULT_SLOT_FREE (summed < SLOTS || OTHERS_REACHED(out, base + summed - RESULT_AGE, WAITED_READERS))

inline copy_in() {
#ifdef IN_BEFORE_COPY
  in[self] = base + copied_in + 1;
#endif
  other = 0;
  do
  :: atomic { other < OWNERS && other != self -> INPUT(self, copied_in, other) = CONTENT(copied_in); other++ }
  :: atomic { other < OWNERS && other == self -> other++ } /* Read from the user's memory. */
  :: atomic { other == OWNERS -> other = 0; break }
  od;
#ifndef IN_BEFORE_COPY
  in[self] = base + copied_in + 1;
#endif
  copied_in++
}

inline add_up() {
#ifdef READY_BEFORE_SUM
  ready[self] = base + summed + 1;
#endif
#ifdef REDUCED_BEFORE_SUM
  reduced[self] = base + summed + 1;
#endif
  other = 0;
  do
  :: atomic {
      other < P && other != self -> assert(INPUT(other, summed, self) == CONTENT(summed));
      other++
    }
  :: atomic { other < P && other == self -> other++ }
  :: atomic { other == P -> other = 0; break }
  od;
  RESULT(self, summed) = CONTENT(summed);
#ifndef REDUCED_BEFORE_SUM
  reduced[self] = base + summed + 1;
#endif
  summed++
}

inline hand_out() {
#ifndef READY_BEFORE_SUM
  ready[self] = base + handed_out + 1;
#endif
  handed_out++
}

inline copy_out() {
#ifdef OUT_BEFORE_COPY
  out[self] = base + copied_out + 1;
#endif
  other = 0;
  do
  :: atomic {
      other < OWNERS && other != self ->
      assert(RESULT(other, copied_out) == CONTENT(copied_out));
      assert(copied_out < copied_in); /* The result overwrites the input in the user's memory. */
      other++
    }
  :: atomic { other < OWNERS && other == self -> other++ }
  :: atomic { other == OWNERS -> other = 0; break }
  od;
#ifndef OUT_BEFORE_COPY
  out[self] = base + copied_out + 1;
#endif
  copied_out++
}

/* Two slots for what an operation says of itself, in turn. */
inline enter() {
  RECORD(self) = operation + 1;
#ifndef NO_ENTRY
  entry[self] = operation + 1;
  other = 0;
  do
  :: atomic {
      other < P && (other == self || entry[other] > operation) -> assert(RECORD(other) == operation + 1);
      other++
    }
  :: atomic { other == P -> other = 0; break }
#ifdef ABORT
  :: aborted -> goto ended
#endif
  od
#endif
}

/* The operation before, of Exchange: rank 0 shows whole chunks, the others take them. It owes nothing to anybody once all of
 * its chunks lie in slots, read or not. */
#ifdef BROADCAST_FIRST
#define BROADCASTS (operation == 0)
#else
#define BROADCASTS false
#endif
#define BROADCAST_THROUGH (copied_in == CHUNKS && copied_out == CHUNKS)
#define BROADCAST_SLOT_FREE (self != 0 || copied_in < SLOTS || OTHERS_REACHED(out, base + copied_in - INPUT_AGE, P))
#define BROADCAST_THERE (self == 0 || REACHED(in[0], base + copied_out + 1))

inline show_chunk() {
  other = 0;
  do
  :: atomic { other < OWNERS && self == 0 -> INPUT(0, copied_in, other) = CONTENT(copied_in); other++ }
  :: atomic { other == OWNERS || self != 0 -> other = 0; break }
  od;
  in[self] = base + copied_in + 1;
  copied_in++
}

inline take_chunk() {
  other = 0;
  do
  :: atomic { other < OWNERS && self != 0 -> assert(INPUT(0, copied_out, other) == CONTENT(copied_out)); other++ }
  :: atomic { other == OWNERS || self == 0 -> other = 0; break }
  od;
  out[self] = base + copied_out + 1;
  copied_out++
}

#define THROUGH (copied_in == CHUNKS && copied_out == CHUNKS && (self >= OWNERS || handed_out == CHUNKS))

active [P] proctype Rank() {
  byte self = _pid;
  byte operation;
  byte base = FIRST_FLAG;
  byte copied_in;
  byte summed;
  byte handed_out;
  byte copied_out;
  byte other;
again:
  enter();
#ifdef BROADCAST_FIRST
  if
  :: BROADCASTS ->
    do
    :: copied_in < CHUNKS && BROADCAST_SLOT_FREE -> show_chunk()
    :: copied_out < CHUNKS && BROADCAST_THERE -> take_chunk()
    :: BROADCAST_THROUGH -> goto through
    od
  :: else
  fi;
#endif
  do
  :: copied_in < CHUNKS && INPUT_SLOT_FREE -> copy_in()
  :: self < OWNERS && summed < CHUNKS && OTHERS_REACHED(in, base + summed + 1, P) && RESULT_SLOT_FREE -> add_up()
  :: handed_out < summed -> hand_out()
  :: copied_out < CHUNKS && OTHERS_REACHED(ready, base + copied_out + 1, OWNERS) -> copy_out()
  :: THROUGH -> break
#ifdef ABORT
  :: !aborted && !THROUGH -> aborted = true; goto ended
#ifndef WAIT_IS_DEAF
  :: aborted && !THROUGH -> goto ended
#endif
#endif
  od;
through:
  base = base + CHUNKS;
#if OWNERS < P || defined(BROADCAST_FIRST)
  /* Stages in which this rank had no part. */
  reduced[self] = base;
  ready[self] = base;
#endif
  copied_in = 0;
  summed = 0;
  handed_out = 0;
  copied_out = 0;
  operation++;
  if
  :: operation < OPERATIONS -> goto again
  :: else
  fi;
ended:
  skip
}
