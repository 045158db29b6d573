/* The beginning of every operation: all ranks of a node show what they call, or all of them fail.
 *
 * Models Entry of worker/collectives/entry.cc (constructor, step, look) and what the result of an operation whose payload
 * travels with the entry is computed from (worker/collectives/small.cc).
 *
 * P ranks call OPERATIONS operations one after the other; one of them, at a time that the search chooses, calls something
 * else. With GROUP > 1 the first of every GROUP neighbours looks at its group and says so by its flag kGroup, and everybody
 * looks at these heads only. A rank that finds a difference aborts the round and ends; one that waits ends when it sees the
 * abort. Asserted: a record or payload is read only while it is that of the operation; its writer overwrites it only after
 * everybody has read it; no rank gets through an operation on which the ranks differ; and every rank ends.
 *
 * Flags begin shortly before the wrap (of 256 here).
 *
 * Abstracted: other nodes, what an operation does after its entry but for reading payloads (the other models), memory order,
 * waiting (doorbell.pml), deadlines.
 *
 *   case: holds -DP=3 -DGROUP=1 -DOPERATIONS=4
 *   case: holds -DP=4 -DGROUP=2 -DOPERATIONS=3
 *   case: holds -DP=3 -DGROUP=1 -DOPERATIONS=3 -DDIFFERENCE
 *   case: holds -DP=4 -DGROUP=2 -DOPERATIONS=2 -DDIFFERENCE
 *   full: holds -DP=4 -DGROUP=2 -DOPERATIONS=3 -DDIFFERENCE
 *   case: holds -DP=3 -DGROUP=2 -DOPERATIONS=3 -DDIFFERENCE
 *   case: fails "record[" -DP=3 -DGROUP=1 -DOPERATIONS=3 -DONE_SLOT
 *   case: fails "record[" -DP=3 -DGROUP=1 -DOPERATIONS=3 -DFLAG_BEFORE_RECORD
 *   case: fails "record[" -DP=3 -DGROUP=1 -DOPERATIONS=3 -DWAIT_FOR_ONE_LESS
 *   case: fails "payload[" -DP=4 -DGROUP=2 -DOPERATIONS=3 -DGROUP_BEFORE_LOOK
 *   case: fails "deviant_operation" -DP=4 -DGROUP=2 -DOPERATIONS=3 -DDIFFERENCE -DHEADS_DO_NOT_COMPARE
 *   case: fails "invalid end state" -DP=4 -DGROUP=2 -DOPERATIONS=3 -DDIFFERENCE -DNO_ABORT
 */
#define FIRST_FLAG 254
#define REACHED(flag, value) ((((flag) - (value)) & 255) < 128)

#define ENTRY 0
#define HEAD 1
byte flags[2 * P] = FIRST_FLAG;
#define FLAG(kind, rank) flags[(kind) * P + (rank)]
bool aborted;

#ifdef ONE_SLOT
#define SLOT(rank) (rank)
byte record[P];
byte payload[P];
#else
#define SLOT(rank) ((rank) * 2 + (operation & 1))
byte record[P * 2];
byte payload[P * 2];
#endif

/* Who calls something else, and when. */
byte deviant = P;
byte deviant_operation;
#define OTHER_CALL 100
#define CALL(rank) (operation + 1 + ((rank) == deviant && operation == deviant_operation -> OTHER_CALL : 0))

/* Operations of which each rank has read all that it reads. */
byte through[P];

#ifdef WAIT_FOR_ONE_LESS
#define WAITED number
#else
#define WAITED (number + 1)
#endif

inline show_record() {
  d_step { /* Nobody still reads what was in the slot. */
    other = 0;
    do
    :: other < P -> assert(operation < 2 || through[other] >= operation - 1); other++
    :: else -> break
    od;
    other = 0
  }
#ifdef FLAG_BEFORE_RECORD
  FLAG(ENTRY, self) = number + 1;
#endif
  record[SLOT(self)] = CALL(self);
  payload[SLOT(self)] = operation + 1;
#ifndef FLAG_BEFORE_RECORD
  FLAG(ENTRY, self) = number + 1
#endif
}

#ifdef NO_ABORT
#define FAIL goto ended
#else
#define FAIL aborted = true; goto ended
#endif
/* In any wait a rank may see the abort. */
#ifdef DIFFERENCE
#define OR_ABORTED(condition) :: aborted && !(condition) -> goto ended
#else
#define OR_ABORTED(condition)
#endif

/* Every `stride`-th rank from `seen` on, below `end`. */
inline look(stride, end, kind, compares) {
  do
  :: atomic {
      seen < end && REACHED(FLAG(kind, seen), WAITED) ->
      assert(record[SLOT(seen)] % OTHER_CALL == operation + 1);
      if
#ifdef DIFFERENCE
      :: compares && record[SLOT(seen)] != CALL(self) -> differs = true
#endif
      :: else -> seen = seen + stride
      fi
    }
#ifdef DIFFERENCE
    if
    :: differs -> FAIL
    :: else
    fi
#endif
  :: atomic { seen >= end -> seen = 0; break }
  OR_ABORTED(seen >= end || REACHED(FLAG(kind, seen), WAITED))
  od
}

inline enter() {
#if GROUP == 1
  look(1, P, ENTRY, true);
#else
  if
  :: self % GROUP == 0 ->
#ifdef GROUP_BEFORE_LOOK
    FLAG(HEAD, self) = number + 1;
#endif
    seen = self;
#ifdef HEADS_DO_NOT_COMPARE
    look(1, group_end, ENTRY, false);
#else
    look(1, group_end, ENTRY, true);
#endif
#ifndef GROUP_BEFORE_LOOK
    FLAG(HEAD, self) = number + 1
#endif
  :: else
  fi;
  look(GROUP, P, HEAD, true);
#endif
#ifdef DIFFERENCE
  assert(operation != deviant_operation);
#endif
}

inline read_payloads() {
  do
  :: atomic { seen < P -> assert(payload[SLOT(seen)] == operation + 1); seen++ }
  :: atomic { seen == P -> seen = 0; break }
  od
}

proctype Rank(byte self) {
  byte operation;
  byte number = FIRST_FLAG;
  byte other;
  byte seen;
#if GROUP > 1
  byte group_end = (self + GROUP < P -> self + GROUP : P); /* Of a head. */
#endif
#ifdef DIFFERENCE
  bool differs;
#endif
again:
  show_record();
  enter();
  read_payloads();
  through[self] = operation + 1;
  number++;
  operation++;
#ifdef DIFFERENCE
  goto again; /* There is an operation that nobody gets through. */
#else
  if
  :: operation < OPERATIONS -> goto again
  :: else
  fi;
#endif
ended:
  skip
}

init {
  byte rank;
#ifdef DIFFERENCE
  select(deviant : 0 .. P - 1);
  select(deviant_operation : 0 .. OPERATIONS - 1);
#endif
  atomic {
    do
    :: rank < P -> run Rank(rank); rank++
    :: else -> break
    od
  }
}
