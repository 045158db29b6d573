/* broadcast and all_gather between nodes: chunks travel along a chain of nodes, without deadlock or early overwrite.
 *
 * Models RootedStream of worker/collectives/rooted_stream.cc with several nodes: copy_in of a root, receive and both send()s
 * of a lane's owner with publish_passed, copy_out of every rank.
 *
 * NODES nodes with one lane; the last PAIRS of them have a second rank, which owns nothing. -DROOT=R is a broadcast from rank
 * R, otherwise the ranks' chunks follow in turn, as in an all_gather. A stream to the next or the previous node holds LINK
 * pieces, and a piece goes through at once. Slots and pieces hold the number of their chunk, and whoever reads asserts that
 * it finds what it expects. Stages run in any order. Nothing runs for ever, so "no invalid end state" means that every rank
 * gets every chunk.
 *
 * Abstracted: bytes, the flags' wrap and base (pipeline.pml), several lanes (independent of each other but for the waits for
 * kOut and kReduced, which are a second rank's here), waiting, aborts, broken links.
 *
 *   case: holds -DNODES=2 -DPAIRS=0 -DCHUNKS=5 -DLINK=1
 *   case: holds -DNODES=2 -DPAIRS=2 -DCHUNKS=6 -DLINK=1
 *   case: holds -DNODES=3 -DPAIRS=2 -DCHUNKS=5 -DLINK=1
 *   case: holds -DNODES=3 -DPAIRS=1 -DCHUNKS=4 -DLINK=2
 *   case: holds -DNODES=3 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DROOT=1
 *   case: holds -DNODES=3 -DPAIRS=2 -DCHUNKS=4 -DLINK=1 -DROOT=2
 *   full: holds -DNODES=3 -DPAIRS=3 -DCHUNKS=7 -DLINK=1
 *   full: holds -DNODES=4 -DPAIRS=1 -DCHUNKS=6 -DLINK=1
 *   case: fails "input[" -DNODES=2 -DPAIRS=2 -DCHUNKS=5 -DLINK=1 -DROOT=1 -DINPUT_FREE_BEFORE_PASSED
 *   case: fails "input[" -DNODES=2 -DPAIRS=2 -DCHUNKS=5 -DLINK=1 -DROOT=0 -DINPUT_FREE_BEFORE_COPIED
 *   case: fails "input[" -DNODES=3 -DPAIRS=2 -DCHUNKS=5 -DLINK=1 -DROOT=2 -DPASSED_ONE_WAY
 *   case: fails "result[" -DNODES=3 -DPAIRS=2 -DCHUNKS=5 -DLINK=1 -DROOT=0 -DRESULT_FREE_BEFORE_SENT
 *   case: fails "result[" -DNODES=2 -DPAIRS=1 -DCHUNKS=5 -DLINK=1 -DROOT=0 -DRESULT_FREE_BEFORE_COPIED
 *   case: fails "result[" -DNODES=2 -DPAIRS=1 -DCHUNKS=4 -DLINK=1 -DROOT=0 -DREADY_EARLY
 *   case: fails "piece" -DNODES=3 -DPAIRS=0 -DCHUNKS=6 -DLINK=1 -DPASSED_BACK
 *   case: fails "piece" -DNODES=3 -DPAIRS=0 -DCHUNKS=6 -DLINK=1 -DFROM_EITHER_SIDE
 */
#define SLOTS 2
#define SINGLES (NODES - PAIRS)
#define WORLD (NODES + PAIRS)
#define IS_PAIR(node) ((node) >= SINGLES)
#define FIRST(node) (IS_PAIR(node) -> 2 * (node) - SINGLES : (node))
#define NODE_OF(rank) ((rank) < SINGLES -> (rank) : (SINGLES + ((rank) - SINGLES) / 2))

#ifdef ROOT
#define ROOT_OF(chunk) ROOT
#else
#define ROOT_OF(chunk) ((chunk) % WORLD)
#endif
#define ROOT_NODE(chunk) NODE_OF(ROOT_OF(chunk))

/* Flags: of each rank kIn and kOut, of each owner kReady and kReduced. */
byte in[WORLD];
byte out[WORLD];
byte ready[NODES];
byte passed[NODES];

/* Slots of the ranks of pairs: chunk + 1. */
byte input[WORLD * SLOTS];
#define INPUT(rank, chunk) input[(rank) * SLOTS + (chunk) % SLOTS]
byte result[NODES * SLOTS];
#define RESULT(node, chunk) result[(node) * SLOTS + (chunk) % SLOTS]

chan link[2 * NODES] = [LINK] of { byte };
#define UP(node) link[node]
#define DOWN(node) link[NODES + (node)]

#define FREED(chunk) ((chunk) - SLOTS + 1)
#define PASSED(chunk) (sent_up >= (chunk) && sent_down >= (chunk))
#define OTHERS_ARE_OUT(chunk) (out[other] >= (chunk))

#ifdef INPUT_FREE_BEFORE_PASSED
#define INPUT_FREE (next < SLOTS || OTHERS_ARE_OUT(FREED(next)))
#elif defined(INPUT_FREE_BEFORE_COPIED)
#define INPUT_FREE (next < SLOTS || owner || passed[node] >= FREED(next))
#else
#define INPUT_FREE (next < SLOTS || (OTHERS_ARE_OUT(FREED(next)) && (owner || passed[node] >= FREED(next))))
#endif
#ifdef RESULT_FREE_BEFORE_SENT
#define RESULT_FREE (received < SLOTS || OTHERS_ARE_OUT(FREED(received)))
#elif defined(RESULT_FREE_BEFORE_COPIED)
#define RESULT_FREE (received < SLOTS || PASSED(FREED(received)))
#else
#define RESULT_FREE (received < SLOTS || (PASSED(FREED(received)) && OTHERS_ARE_OUT(FREED(received))))
#endif
#ifdef PASSED_ONE_WAY
#define PASSED_ON sent_down
#else
#define PASSED_ON (sent_up < sent_down -> sent_up : sent_down)
#endif
#ifdef READY_EARLY
#define READY true
#else
#define READY (ready[node] > out[self])
#endif

/* Up go the chunks whose roots are here or below, down those whose roots are here or above. */
#ifdef PASSED_BACK
#define GOES_UP(chunk) true
#else
#define GOES_UP(chunk) (ROOT_NODE(chunk) <= node)
#endif
#define GOES_DOWN(chunk) (ROOT_NODE(chunk) >= node)

/* Whether an owner can send a chunk from where it lies. */
#define CAN_SEND(chunk) \
  (ROOT_OF(chunk) == self || (ROOT_NODE(chunk) == node -> in[ROOT_OF(chunk)] > (chunk) : received > (chunk)))
#define IN_ANOTHERS_SLOT(chunk) (ROOT_OF(chunk) != self && ROOT_NODE(chunk) == node)
#define IN_RESULT_SLOT(chunk) (ROOT_NODE(chunk) != node && IS_PAIR(node))

#define FROM_BELOW (ROOT_NODE(received) < node)
#ifdef FROM_EITHER_SIDE
/* Whatever has come, from below first. */
#define SOURCE (node > 0 -> node - 1 : NODES + node + 1)
#else
#define SOURCE (FROM_BELOW -> node - 1 : NODES + node + 1)
#endif
#define COMES (len(link[SOURCE]) > 0)

/* Each cursor stands at the next chunk that concerns it. */
#define SKIP(cursor, condition) cursor = (cursor < CHUNKS && (condition) -> cursor + 1 : cursor)
#define SKIP_ALL(cursor, condition) \
  SKIP(cursor, condition); SKIP(cursor, condition); SKIP(cursor, condition); SKIP(cursor, condition); \
  SKIP(cursor, condition); SKIP(cursor, condition); SKIP(cursor, condition)
inline settle() {
  d_step {
    SKIP_ALL(next, ROOT_OF(next) != self);
    SKIP_ALL(received, ROOT_NODE(received) == node);
    SKIP_ALL(sent_up, !GOES_UP(sent_up));
    SKIP_ALL(sent_down, !GOES_DOWN(sent_down));
    passed[node] = (owner -> PASSED_ON : passed[node])
  }
}

#define THERE(chunk) \
  (ROOT_OF(chunk) == self -> next > (chunk) : \
   (ROOT_NODE(chunk) == node -> in[ROOT_OF(chunk)] > (chunk) : \
    (owner -> received > (chunk) : READY)))

proctype Rank(byte self) {
  byte node;
  bool owner;
  byte other;
  byte next;
  byte received;
  byte sent_up;
  byte sent_down;
  byte piece;
  atomic {
    node = NODE_OF(self);
    owner = (self == FIRST(node));
    other = (!IS_PAIR(node) -> self : 2 * FIRST(node) + 1 - self);
    received = (owner -> 0 : CHUNKS);
    sent_up = (owner && node < NODES - 1 -> 0 : CHUNKS);
    sent_down = (owner && node > 0 -> 0 : CHUNKS);
    settle()
  }
  do
  :: atomic { next < CHUNKS && (!IS_PAIR(node) || INPUT_FREE) ->
      INPUT(self, next) = (IS_PAIR(node) -> next + 1 : 0);
      next++;
      in[self] = next;
      settle()
    }
  :: atomic { received < CHUNKS && (!IS_PAIR(node) || RESULT_FREE) && COMES ->
      link[SOURCE]?piece;
      assert(piece == received + 1);
      RESULT(node, received) = (IS_PAIR(node) -> piece : 0);
      piece = 0;
      received++;
      ready[node] = received;
      settle()
    }
  :: atomic { sent_up < CHUNKS && CAN_SEND(sent_up) && len(UP(node)) < LINK ->
      assert(!IN_ANOTHERS_SLOT(sent_up) || INPUT(ROOT_OF(sent_up), sent_up) == sent_up + 1);
      assert(!IN_RESULT_SLOT(sent_up) || RESULT(node, sent_up) == sent_up + 1);
      UP(node)!sent_up + 1;
      sent_up++;
      settle()
    }
  :: atomic { sent_down < CHUNKS && CAN_SEND(sent_down) && len(DOWN(node)) < LINK ->
      assert(!IN_ANOTHERS_SLOT(sent_down) || INPUT(ROOT_OF(sent_down), sent_down) == sent_down + 1);
      assert(!IN_RESULT_SLOT(sent_down) || RESULT(node, sent_down) == sent_down + 1);
      DOWN(node)!sent_down + 1;
      sent_down++;
      settle()
    }
  :: atomic { out[self] < CHUNKS && THERE(out[self]) ->
      assert(!IN_ANOTHERS_SLOT(out[self]) || INPUT(ROOT_OF(out[self]), out[self]) == out[self] + 1);
      assert(owner || !IN_RESULT_SLOT(out[self]) || RESULT(node, out[self]) == out[self] + 1);
      out[self]++
    }
  :: next == CHUNKS && out[self] == CHUNKS && received == CHUNKS && PASSED(CHUNKS) -> break
  od
}

init {
  byte rank;
  atomic {
    do
    :: rank < WORLD -> run Rank(rank); rank++
    :: else -> break
    od
  }
}
