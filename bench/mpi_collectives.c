/* One collective of MPI, timed as comm_bench times ours: the slowest rank's time of a call after a
 * barrier, median of several. Usage: mpirun ... mpi_collectives OPERATION BYTES CALLS, where
 * OPERATION is all_reduce, all_gather or reduce_scatter and BYTES those of the whole. The first two
 * work in place, as ours do. Rank 0 prints JSON. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int count, char** arguments) {
  int rank, size, i;
  MPI_Init(&count, &arguments);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long bytes = count == 4 ? atol(arguments[2]) : 0;
  const int calls = count == 4 ? atoi(arguments[3]) : 0;
  const int piece = (int)(bytes / 4 / size), whole = piece * size;
  const char* operation = count == 4 ? arguments[1] : "";
  const int reduce = strcmp(operation, "all_reduce") == 0;
  const int gather = strcmp(operation, "all_gather") == 0;
  if (piece < 1 || calls < 1 || !(reduce || gather || strcmp(operation, "reduce_scatter") == 0)) {
    if (rank == 0) fprintf(stderr, "usage: mpi_collectives OPERATION BYTES CALLS\n");
    MPI_Finalize();
    return 2;
  }
  float* const a = aligned_alloc(1 << 21, ((size_t)whole * 4 / (1 << 21) + 1) << 21);
  float* const b = aligned_alloc(1 << 21, ((size_t)piece * 4 / (1 << 21) + 1) << 21);
  double* const times = malloc(sizeof(double) * (size_t)calls);
  memset(a, 0, (size_t)whole * 4);
  memset(b, 0, (size_t)piece * 4);
  for (i = -2; i < calls; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    if (reduce) {
      MPI_Allreduce(MPI_IN_PLACE, a, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (gather) {
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, a, piece, MPI_FLOAT, MPI_COMM_WORLD);
    } else {
      MPI_Reduce_scatter_block(a, b, piece, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    double mine = MPI_Wtime() - began, worst = 0;
    MPI_Allreduce(&mine, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= 0) times[i] = worst;
  }
  qsort(times, (size_t)calls, sizeof(double), by_value);
  if (rank == 0) {
    printf("{\"operation\": \"%s\", \"bytes\": %ld, \"seconds\": %.9g}\n", operation,
           (long)whole * 4, times[calls / 2]);
  }
  free(a);
  free(b);
  free(times);
  MPI_Finalize();
  return 0;
}
