/* The peer of bench-collectives: the same measurement with MPI's operations on floats.
 *
 * cc: mpicc -O2 mpi_collectives.c -o mpi_collectives   (bench/question_collectives.py does it)
 * usage: mpirun -np P mpi_collectives SECONDS OPS BYTES...   (OPS with commas; names as in bench/exercise.h)
 * BYTES is the input of a rank, for scatter its output. One JSON line per operation and size from rank 0, as
 * bench/samples.h has it.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 200000, kWarmups = 3, kSpots = 8 };

static int rank, size;
static const char *kNames[] = {"all_reduce", "broadcast", "reduce",     "all_gather", "reduce_scatter",
                               "gather",     "scatter",   "all_to_all", "send_recv",  NULL};
enum Op { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kGather, kScatter, kAllToAll, kSendRecv };

typedef struct {
  enum Op op;
  long in_count, out_count, part; /* Elements; part: what one rank sends to one other. */
  float *in, *out;
} Exercise;

static float pattern(int of, int run, long index) { return (float)(1 + of + run % 4 + index % 8); }

static Exercise make(enum Op op, long bytes) {
  long count = bytes / 4 > 0 ? bytes / 4 : 1, part = count / size > 0 ? count / size : 1;
  Exercise e = {op, count, 0, count, NULL, NULL};
  if (op == kAllGather) e.out_count = count * size;
  if (op == kReduceScatter) e.in_count = part * size, e.out_count = part, e.part = part;
  if (op == kGather) e.out_count = rank == 0 ? count * size : 0;
  if (op == kScatter) e.in_count = rank == 0 ? count * size : 0, e.out_count = count;
  if (op == kAllToAll) e.in_count = e.out_count = part * size, e.part = part;
  if (op == kSendRecv) e.in_count = rank == 0 ? count : 0, e.out_count = rank < 2 ? count : 0;
  e.in = malloc((e.in_count + 1) * sizeof(float));
  e.out = malloc((e.out_count + 1) * sizeof(float));
  return e;
}

static void dirty(Exercise *e, int run) {
  for (long i = 0; i < e->in_count; ++i) e->in[i] = pattern(rank, run, i);
  memset(e->out, 0, e->out_count * sizeof(float));
}

static void send_recv(Exercise *e) {
  int count = (int)e->part;
  if (rank == 0) {
    MPI_Send(e->in, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(e->out, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (rank == 1) {
    MPI_Recv(e->out, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(e->out, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
  }
}

static void execute(Exercise *e) {
  MPI_Comm world = MPI_COMM_WORLD;
  int in = (int)e->in_count, part = (int)e->part;
  switch (e->op) {
    case kAllReduce: MPI_Allreduce(MPI_IN_PLACE, e->in, in, MPI_FLOAT, MPI_SUM, world); break;
    case kBroadcast: MPI_Bcast(e->in, in, MPI_FLOAT, 0, world); break;
    case kReduce: MPI_Reduce(rank == 0 ? MPI_IN_PLACE : e->in, e->in, in, MPI_FLOAT, MPI_SUM, 0, world); break;
    case kAllGather: MPI_Allgather(e->in, part, MPI_FLOAT, e->out, part, MPI_FLOAT, world); break;
    case kReduceScatter: MPI_Reduce_scatter_block(e->in, e->out, part, MPI_FLOAT, MPI_SUM, world); break;
    case kGather: MPI_Gather(e->in, part, MPI_FLOAT, e->out, part, MPI_FLOAT, 0, world); break;
    case kScatter: MPI_Scatter(e->in, part, MPI_FLOAT, e->out, part, MPI_FLOAT, 0, world); break;
    case kAllToAll: MPI_Alltoall(e->in, part, MPI_FLOAT, e->out, part, MPI_FLOAT, world); break;
    case kSendRecv: send_recv(e); break;
  }
}

static float expected(const Exercise *e, int run, long i) {
  float total = 0;
  long own = rank * e->part;
  switch (e->op) {
    case kAllReduce:
    case kReduce:
      for (int r = 0; r < size; ++r) total += pattern(r, run, i);
      return total;
    case kReduceScatter:
      for (int r = 0; r < size; ++r) total += pattern(r, run, own + i);
      return total;
    case kAllGather:
    case kGather: return pattern((int)(i / e->part), run, i % e->part);
    case kScatter: return pattern(0, run, own + i);
    case kAllToAll: return pattern((int)(i / e->part), run, own + i % e->part);
    default: return pattern(0, run, i);
  }
}

static void verify(const Exercise *e, int run, int all) {
  int in_place = e->op == kAllReduce || e->op == kBroadcast || e->op == kReduce;
  const float *result = in_place ? e->in : e->out;
  long count = in_place ? e->in_count : e->out_count;
  long step = all || count < kSpots ? 1 : (count - 1) / (kSpots - 1);
  if (e->op == kReduce && rank != 0) return;
  for (long i = 0; i < count; i += step) {
    if (result[i] == expected(e, run, i)) continue;
    fprintf(stderr, "mpi_collectives: %s, run %d, rank %d: element %ld is %g\n", kNames[e->op], run, rank, i,
            (double)result[i]);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print(enum Op op, long bytes, double *times, int runs) {
  double *all = malloc((size_t)runs * size * sizeof *all);
  MPI_Gather(times, runs, MPI_DOUBLE, all, runs, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    double sum = 0;
    for (int i = 0; i < runs; ++i) {
      sum += times[i];
      for (int r = 1; r < size; ++r) {
        if (all[(size_t)r * runs + i] > all[i]) all[i] = all[(size_t)r * runs + i];
      }
    }
    qsort(times, runs, sizeof *times, by_value);
    qsort(all, runs, sizeof *all, by_value);
    printf("{\"op\": \"%s\", \"dtype\": \"f32\", \"memory\": \"private\", \"bytes\": %ld, \"median_s\": %.9f, \"min_s\": %.9f, "
           "\"p99_s\": %.9f, \"average_s\": %.9f, \"median_max_s\": %.9f, \"runs\": %d}\n",
           kNames[op], bytes, times[runs / 2], times[0], times[(size_t)runs * 99 / 100], sum / runs, all[runs / 2], runs);
    fflush(stdout);
  }
  free(all);
}

static void measure(enum Op op, long bytes, double budget, double *times) {
  Exercise e = make(op, bytes);
  int runs = 0, more = 1;
  double started = MPI_Wtime();
  for (int i = -kWarmups; more; ++i) {
    dirty(&e, i + kWarmups);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    execute(&e);
    double took = MPI_Wtime() - begin;
    verify(&e, i + kWarmups, i == -kWarmups);
    if (i < 0) {
      started = MPI_Wtime();
      continue;
    }
    times[runs++] = op == kSendRecv ? took / 2 : took;
    more = (MPI_Wtime() - started < budget || runs < 5) && runs < kMost;
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  print(op, bytes, times, runs);
  free(e.in);
  free(e.out);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 4) {
    fprintf(stderr, "usage: mpirun -np P mpi_collectives SECONDS OPS BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  double *times = malloc(kMost * sizeof *times);
  for (char *name = strtok(argv[2], ","); name; name = strtok(NULL, ",")) {
    int op = 0;
    while (kNames[op] && strcmp(kNames[op], name)) ++op;
    if (!kNames[op]) {
      fprintf(stderr, "mpi_collectives: unknown operation %s\n", name);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int a = 3; a < argc; ++a) measure((enum Op)op, atol(argv[a]), atof(argv[1]), times);
  }
  free(times);
  MPI_Finalize();
  return 0;
}
