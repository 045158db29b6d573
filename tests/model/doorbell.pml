/* Sleeping and waking at a doorbell: no wake-up is lost.
 *
 * Models Idle (its last stage, and reset) and Transport::drive of worker/transport; publish, ring and raise_abort of
 * worker/transport/segment.cc; futex_wait and futex_wake_all of worker/transport/futex.cc.
 *
 * RANKS ranks, each with one thread for each of GROUPS groups. In every round a thread publishes its flag to the other ranks
 * of its group and waits for theirs. The threads of a rank share its doorbell. Nothing but a bell ends a sleep: the limit of
 * 20 ms is not there, and the kernel wakes nobody without reason. So a lost wake-up is a thread that sleeps for ever, which
 * the search reports as an invalid end state. No thread can run for ever, so a search without one shows that all end.
 *
 * With -DTSO a thread's stores pass through a buffer of one entry, as on x86: it is emptied at any later time, at the latest
 * by a fence or an instruction with a lock prefix. One entry is enough, because the flag's is the only store of the protocol
 * that is not such an instruction. A seq_cst store is a store and a fence. Without -DTSO, memory is sequentially consistent.
 *
 * With -DABORT one thread never publishes, so that its group depends on the abort that comes at any time. With -DGIVEN it has
 * published all that its group waits for when the abort comes: the other rank must not fail. That is a rank that is through with
 * an operation and dies.
 *
 * Abstracted: the busy loop and sched_yield (a thread may be slow anywhere instead), deadlines, links and ppoll, the wrap of
 * the bell (2^32 changes between a look and the wait for it).
 *
 *   case: holds -DRANKS=3 -DGROUPS=1
 *   full: holds -DTSO
 *   case: holds -DTSO -DRANKS=3 -DGROUPS=1
 *   case: holds -DTSO -DABORT
 *   case: holds -DABORT -DGIVEN
 *   case: fails "invalid end state" -DTSO -DRANKS=3 -DGROUPS=1 -DNO_FENCE
 *   case: fails "invalid end state" -DTSO -DPLAIN_ARM
 *   case: fails "invalid end state" -DSLEEPERS_IS_A_BIT
 *   case: fails "invalid end state" -DWAKE_ONE
 *   case: fails "invalid end state" -DWAKE_WITHOUT_BELL
 *   case: fails "invalid end state" -DLATE_BELL
 *   case: fails "invalid end state" -DNO_SECOND_LOOK
 *   case: fails "invalid end state" -DABORT -DQUIET_ABORT
 *   case: fails "assertion violated" -DABORT -DGIVEN -DROUNDS=1 -DLATE_LOOK_AT_ABORT
 *
 * The first case has no fences at all: it is the store buffer that they are for. QUIET_ABORT is what the agent does; the
 * limit of 20 ms is there for it.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef GROUPS
#define GROUPS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define THREADS (RANKS * GROUPS)
#define THREAD(rank, group) ((rank) * GROUPS + (group))
#define FIRST_FLAG 254 /* They wrap. */
#define REACHED(flag, value) ((((flag) - (value)) & 255) < 128)

byte flags[THREADS] = FIRST_FLAG;
byte sleepers[RANKS];
bool aborted;

/* The bell of a thread's rank as the thread knows it: how often it rang altogether makes no difference. */
#define UNREAD 0
#define SAME 1
#define CHANGED 2
byte bell[THREADS];

bool waits_in_kernel[THREADS];

/* The store buffers. */
bool is_buffered[THREADS];
byte buffered[THREADS];
#ifdef PLAIN_ARM
bool adds_sleeper[THREADS]; /* What is buffered is not a flag. */
#endif

#ifdef TSO
#define FENCE !is_buffered[self]
#define LOCKED FENCE
#else
#define FENCE true
#define LOCKED true
#endif

inline store_flag(value) {
#ifdef TSO
  d_step { FENCE; buffered[self] = value; is_buffered[self] = true }
#ifndef NO_FENCE
  FENCE;
#endif
#else
  flags[self] = value;
#endif
}

inline read_bell() {
  bell[self] = SAME
}

inline change_bell(thread) {
  if
  :: bell[thread] == SAME -> bell[thread] = CHANGED
  :: else
  fi
}

inline futex_wait() {
  d_step { /* The kernel compares and goes to sleep under one lock. */
    if
    :: bell[self] == SAME -> waits_in_kernel[self] = true
    :: else
    fi
  }
  !waits_in_kernel[self]
}

inline futex_wake(rang) {
#ifdef WAKE_ONE
  if
  :: waits_in_kernel[THREAD(rang, 0)] -> waits_in_kernel[THREAD(rang, 0)] = false
  :: waits_in_kernel[THREAD(rang, 1)] -> waits_in_kernel[THREAD(rang, 1)] = false
  :: else
  fi
#else
  d_step {
    waits_in_kernel[THREAD(rang, 0)] = false;
    waits_in_kernel[THREAD(rang, GROUPS - 1)] = false
  }
#endif
}

inline ring(rang) {
#ifndef WAKE_WITHOUT_BELL
  d_step {
    LOCKED;
    change_bell(THREAD(rang, 0));
    change_bell(THREAD(rang, GROUPS - 1))
  }
#endif
  futex_wake(rang)
}

/* A block `atomic` has one access to memory that others see; the rest of it is this thread's own. */
inline publish(value) {
  store_flag(value);
  peer = 0;
  do
  :: atomic { peer < RANKS && (peer == rank || sleepers[peer] == 0) -> peer++ }
  :: atomic { peer < RANKS && peer != rank && sleepers[peer] != 0 -> skip };
    ring(peer);
    peer++
  :: atomic { peer == RANKS -> peer = 0; break }
  od
}

inline arm() {
#ifdef SLEEPERS_IS_A_BIT
  atomic { sleepers[rank] = 1; armed = true }
#elif defined(PLAIN_ARM)
  atomic { FENCE; adds_sleeper[self] = true; is_buffered[self] = true; armed = true }
#else
  atomic { LOCKED; sleepers[rank]++; armed = true }
#endif
  read_bell()
}

inline reset() {
#ifdef SLEEPERS_IS_A_BIT
  atomic { armed -> sleepers[rank] = 0; armed = false; bell[self] = UNREAD }
#else
  atomic { armed && LOCKED -> sleepers[rank]--; armed = false; bell[self] = UNREAD }
#endif
}

inline sleep() {
#ifdef LATE_BELL
  read_bell();
#endif
  futex_wait();
  read_bell()
}

inline look_at_abort() {
#ifdef ABORT
  over = aborted
#else
  skip
#endif
}

/* A step of the operation looks at the other ranks' flags, one after the other. */
inline drive(value) {
  look_at_abort();
look:
  do
  :: atomic { seen < RANKS && (seen == rank || REACHED(flags[THREAD(seen, group)], value)) -> seen++ }
  :: atomic { seen == RANKS -> goto through }
  :: atomic { seen < RANKS && seen != rank && !REACHED(flags[THREAD(seen, group)], value) -> break }
  od;
#ifdef ABORT
#ifdef LATE_LOOK_AT_ABORT
  over = aborted;
#endif
  if
  :: atomic { over -> failed = true; goto through }
  :: !over
  fi;
#endif
  if
  :: armed -> sleep()
  :: else ->
    arm();
#ifdef NO_SECOND_LOOK
    sleep()
#endif
  fi;
  look_at_abort();
  goto look;
through:
  if
  :: reset()
  :: !armed
  fi;
#ifdef ABORT
  over = false;
#endif
  seen = 0
}

proctype Thread(byte rank; byte group) {
  byte self = THREAD(rank, group);
  byte round = 1;
  byte peer;
  byte seen;
  bool armed;
#ifdef ABORT
  bool over;
  bool failed;
#endif
next:
  publish((FIRST_FLAG + round) & 255);
  drive((FIRST_FLAG + round) & 255);
#ifdef GIVEN
  assert(!failed || group != 0);
#endif
  if
#ifdef ABORT
  :: failed
#endif
  :: round == ROUNDS
  :: else -> round++; goto next
  fi
}

#ifdef TSO
/* Empties the store buffer of a thread at any time. */
proctype Memory(byte self) {
end:
  do
  :: d_step {
    is_buffered[self] ->
    is_buffered[self] = false;
#ifdef PLAIN_ARM
    if
    :: adds_sleeper[self] -> adds_sleeper[self] = false; sleepers[self / GROUPS]++
    :: else -> flags[self] = buffered[self]
    fi
#else
    flags[self] = buffered[self];
    buffered[self] = 0
#endif
  }
  od
}
#endif

#ifdef ABORT
proctype Aborter() {
  byte rank;
  byte self = 0; /* Without stores of its own: the thread of rank 0 has none here. */
#ifdef GIVEN
  flags[THREAD(0, 0)] = (FIRST_FLAG + ROUNDS) & 255;
#endif
  aborted = true;
#ifndef QUIET_ABORT
  do
  :: rank < RANKS -> ring(rank); rank++
  :: else -> break
  od
#endif
}
#endif

init {
  byte rank;
  byte group;
  atomic {
    do
    :: rank < RANKS ->
      group = 0;
      do
      :: group < GROUPS ->
#ifdef ABORT
        if
        :: rank != 0 || group != 0 -> run Thread(rank, group)
        :: else /* It is dead. */
        fi;
#else
        run Thread(rank, group);
#endif
#ifdef TSO
        run Memory(THREAD(rank, group));
#endif
        group++
      :: else -> break
      od;
      rank++
    :: else -> break
    od;
#ifdef ABORT
    run Aborter()
#endif
  }
}
