/* Whether the steps of two engines on two threads overlap: steps_overlap FILE [ROUNDS]
 *
 * Each engine computes on one thread. In every round one thread makes 20 steps on the text FILE
 * alone, then two threads make 20 steps each at once, and then two processes, which share nothing:
 * what the machine itself gives. Prints the ratios of the medians of these times to that of one
 * thread, and those of the lowest ones, which other programs have disturbed least: 1 where all
 * overlaps, 2 where one waits for the other. */
#include <ds.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 20, MAX_ROUNDS = 99 };

static void check(ds_status status) {
  if (status == DS_OK) return;
  fprintf(stderr, "steps_overlap: %s\n", ds_last_error_message());
  exit(1);
}

static ds_engine* make_engine(const char* file) {
  const char* shape =
      "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64,"
      " \"n_embd\": 128, \"n_layer\": 2, \"n_head\": 4}";
  const char* config =
      "{\"train_micro_batch_size_per_gpu\": 8, \"threads\": 1, \"optimizer\": {\"type\": "
      "\"AdamW\"}}";
  char text[4096];
  ds_dataset* data;
  ds_model* model;
  ds_engine* engine;
  snprintf(text, sizeof text, "{\"path\": \"%s\", \"sequence_length\": 64}", file);
  check(ds_dataset_open(text, NULL, &data));
  check(ds_model_create(shape, 1, &model));
  check(ds_engine_create(config, NULL, model, NULL, &engine));
  check(ds_engine_set_dataset(engine, data));
  return engine;
}

static void* train(void* engine) {
  ds_step_report report = DS_STEP_REPORT_INIT;
  for (int i = 0; i < STEPS; ++i) check(ds_engine_train_batch(engine, &report));
  return NULL;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds until `count` threads have trained an engine each. */
static double run(ds_engine** engines, int count) {
  pthread_t threads[2];
  const double begin = seconds();
  for (int i = 0; i < count; ++i) {
    if (pthread_create(&threads[i], NULL, train, engines[i]) != 0) abort();
  }
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  return seconds() - begin;
}

/* The other process: makes its steps whenever it is sent a byte, and answers with one. */
typedef struct {
  int to, from;
} other;

static other start_other(const char* file) {
  int to[2], from[2];
  char byte;
  if (pipe(to) != 0 || pipe(from) != 0) abort();
  if (fork() == 0) {
    close(to[1]);
    ds_engine* engine = make_engine(file);
    while (read(to[0], &byte, 1) == 1) {
      train(engine);
      if (write(from[1], &byte, 1) != 1) break;
    }
    _exit(0);
  }
  close(to[0]);
  close(from[1]);
  return (other){to[1], from[0]};
}

static double run_beside(other process, ds_engine** engines) {
  char byte = 0;
  const double begin = seconds();
  if (write(process.to, &byte, 1) != 1) abort();
  run(engines, 1);
  if (read(process.from, &byte, 1) != 1) abort();
  return seconds() - begin;
}

static int by_size(const void* a, const void* b) {
  return (*(const double*)a > *(const double*)b) - (*(const double*)a < *(const double*)b);
}

static void tell(const char* what, const double* alone, const double* times, int rounds) {
  printf("%s: one thread %.3f s, two %.3f s, ratio %.2f, of the lowest %.2f (%d rounds)\n", what,
         alone[rounds / 2], times[rounds / 2], times[rounds / 2] / alone[rounds / 2],
         times[0] / alone[0], rounds);
}

int main(int argc, char** argv) {
  double times[3][MAX_ROUNDS];
  const int rounds = argc > 2 ? atoi(argv[2]) : 11;
  if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS) {
    fprintf(stderr, "usage: %s FILE [ROUNDS, 1 to %d]\n", argv[0], MAX_ROUNDS);
    return 2;
  }
  const other process = start_other(argv[1]); /* before this process has threads */
  ds_engine* engines[2] = {make_engine(argv[1]), make_engine(argv[1])};
  run(engines, 2); /* warms up */
  run_beside(process, engines);
  for (int i = 0; i < rounds; ++i) {
    times[0][i] = run(engines, 1);
    times[1][i] = run(engines, 2);
    times[2][i] = run_beside(process, engines);
  }
  for (int i = 0; i < 3; ++i) qsort(times[i], (size_t)rounds, sizeof times[i][0], by_size);
  tell("C, threads", times[0], times[1], rounds);
  tell("C, processes", times[0], times[2], rounds);
  return 0;
}
