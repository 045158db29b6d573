/* Operations on registered buffers: nobody reads what its owner refilled, nobody overwrites a refilled buffer.
 *
 * Models DirectReduce of worker/collectives/direct_reduce.cc (Exchange::step_direct and AllReduce::leave end the same way),
 * between Entry and the return to the user, who then reads the results, refills the buffer and calls the next operation.
 *
 * P ranks; each owns one slice, reads it from every rank's buffer, one after the other, and writes the sum into every
 * buffer, one after the other. A slice holds the number of the operation whose input or result it is. With -DABORT a rank
 * may give up at any moment, after which contents are undefined and are not looked at, but everybody must end.
 *
 * With -DSKIPPED=N so many other operations, which do not say kDone, lie between two of these. Flags are compared by signed
 * difference and wrap, here at 256: after 128 such operations (in the code 2^31) an old kDone would seem to be ahead, and
 * the exit would not wait. So before every REFRESH_EVERY-th operation (in the code 2^20), of whatever kind, every rank
 * brings its kDone up to date (Collectives::refresh_flags of worker/collectives/collectives.cc, which treats kNodes alike).
 *
 * Abstracted: bytes and sums, memory order, waiting (doorbell.pml), what the entry compares (entry.pml), buffers that are
 * freed after an abort (their memory stays mapped).
 *
 *   case: holds -DP=2 -DOPERATIONS=5
 *   case: holds -DP=3 -DOPERATIONS=3
 *   case: holds -DP=4 -DOPERATIONS=2
 *   case: holds -DP=3 -DOPERATIONS=2 -DABORT
 *   case: holds -DP=2 -DOPERATIONS=3 -DSKIPPED=100
 *   case: holds -DP=2 -DOPERATIONS=3 -DSKIPPED=200
 *   case: holds -DP=2 -DOPERATIONS=4 -DREFRESH_EVERY=1
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=2 -DNO_EXIT
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=2 -DNO_ENTRY
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=2 -DDONE_BEFORE_WRITE
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=2 -DEXIT_ONE_EARLY
 *   case: fails "buffer[" -DP=3 -DOPERATIONS=2 -DEXIT_BY_ONE_OTHER
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=2 -DSKIPPED=128 -DNEVER_REFRESHED
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=2 -DSKIPPED=150 -DREFRESH_EVERY=256
 *   case: fails "buffer[" -DP=2 -DOPERATIONS=3 -DREFRESHED_AHEAD
 *   case: fails "invalid end state" -DP=2 -DOPERATIONS=2 -DABORT -DWAIT_IS_DEAF
 */
#define FIRST_FLAG 254
#define REACHED(flag, value) ((((flag) - (value)) & 255) < 128)
#ifndef SKIPPED
#define SKIPPED 0
#endif
#ifndef REFRESH_EVERY
#define REFRESH_EVERY 64
#endif
#ifdef REFRESHED_AHEAD
#define REFRESHED_VALUE (number + 1)
#else
#define REFRESHED_VALUE number
#endif

byte entry[P] = FIRST_FLAG;
byte finished[P] = FIRST_FLAG;
bool aborted;

byte buffer[P * P];
#define SLICE(rank, owner) buffer[(rank) * P + (owner)]
#define INPUT(operation) (1 + 2 * (operation))
#define RESULT(operation) (2 + 2 * (operation))

#ifdef ABORT
#define SEES(rank, owner, expected) assert(aborted || SLICE(rank, owner) == expected)
#else
#define SEES(rank, owner, expected) assert(SLICE(rank, owner) == expected)
#endif

#ifdef EXIT_ONE_EARLY
#define EXIT_VALUE number
#else
#define EXIT_VALUE (number + 1)
#endif
#ifdef EXIT_BY_ONE_OTHER
#define EXIT_RANKS(rank) ((rank) == (self + 1) % P)
#else
#define EXIT_RANKS(rank) true
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

#define HAS_ENTERED(rank) REACHED(entry[rank], number + 1)
#define IS_DONE(rank) (!EXIT_RANKS(rank) || REACHED(finished[rank], EXIT_VALUE))

inline fill() {
  other = 0;
  do
  :: atomic { other < P -> SLICE(self, other) = INPUT(operation); other++ }
  :: atomic { other == P -> other = 0; break }
  od
}

inline enter() {
#ifndef NEVER_REFRESHED
  finished[self] = (number % REFRESH_EVERY == 0 -> REFRESHED_VALUE : finished[self]);
#endif
  entry[self] = number + 1;
#ifndef NO_ENTRY
  do
  :: atomic { other < P && HAS_ENTERED(other) -> other++ }
  :: atomic { other == P -> other = 0; break }
  OR_END(other == P || HAS_ENTERED(other))
  od
#endif
}

inline add_up() {
  do
  :: atomic { other < P -> SEES(other, self, INPUT(operation)); other++ }
  :: atomic { other == P -> other = 0; break }
  od;
#ifdef DONE_BEFORE_WRITE
  finished[self] = number + 1;
#endif
  do
  :: atomic { other < P -> SLICE(other, self) = RESULT(operation); other++ }
  :: atomic { other == P -> other = 0; break }
  od
}

inline leave() {
#ifndef DONE_BEFORE_WRITE
  finished[self] = number + 1;
#endif
#ifndef NO_EXIT
  do
  :: atomic { other < P && IS_DONE(other) -> other++ }
  :: atomic { other == P -> other = 0; break }
  OR_END(other == P || IS_DONE(other))
  od
#endif
}

/* The results are there, and stay until this rank itself fills the buffer again. */
inline check() {
  do
  :: atomic { other < P -> SEES(self, other, RESULT(operation)); other++ }
  :: atomic { other == P -> other = 0; break }
  od
}

#if SKIPPED > 0
/* Operations that never say that they are done with others' memory: small ones, or such that work in slots. */
inline skip_some() {
  do
  :: skipped < SKIPPED ->
    enter();
    number++;
    skipped++
  :: else -> skipped = 0; break
  od
}
#endif

active [P] proctype Rank() {
  byte self = _pid;
  byte operation;
  byte number = FIRST_FLAG;
  byte other;
#if SKIPPED > 0
  byte skipped;
#endif
  do
  :: operation < OPERATIONS ->
    fill();
    enter();
    add_up();
    leave();
    check();
    number++;
#if SKIPPED > 0
    skip_some();
#endif
    operation++
  :: else -> break
  od;
ended:
  skip
}
