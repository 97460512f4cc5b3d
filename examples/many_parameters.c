/* Host time of a step does not grow with the number of parameters: the same 8 million numbers as
   100 tensors and as 10,000; medians of the time to hand over all gradients in one call, and of the
   step. (A program that writes its gradients into ds_engine_view_gradient hands nothing over.)
   many_parameters [STEPS] */
#define _POSIX_C_SOURCE 199309L
#include <ds.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRY(call) \
  if ((call) != DS_OK) return fprintf(stderr, "%s\n", ds_last_error_message()), 1

enum { kNumbers = 8000000, kFew = 100, kMany = 10000, kMaxSteps = 1000 };

typedef struct Run {
  int64_t count;
  ds_model* model;
  ds_engine* engine;
  ds_tensor** gradients;
  double give[kMaxSteps], step[kMaxSteps]; /* seconds */
} Run;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void report(const char* what, double* few, double* many, int steps) {
  qsort(few, (size_t)steps, sizeof(double), compare);
  qsort(many, (size_t)steps, sizeof(double), compare);
  const double a = few[steps / 2], b = many[steps / 2];
  printf("%s: %d tensors %.2f ms, %d tensors %.2f ms, ratio %.2f\n", what, kFew, 1e3 * a, kMany,
         1e3 * b, b / a);
}

static int make(Run* run, int64_t count, float* numbers) {
  const int64_t size = kNumbers / count;
  ds_parameter* const parameters = calloc((size_t)count, sizeof(ds_parameter));
  char(*names)[32] = calloc((size_t)count, sizeof *names);
  run->count = count;
  run->gradients = calloc((size_t)count, sizeof(ds_tensor*));
  if (!parameters || !names || !run->gradients) return fprintf(stderr, "out of memory\n"), 1;
  for (int64_t i = 0; i < count; ++i) {
    snprintf(names[i], sizeof names[i], "tensor.%d", (int)i);
    parameters[i].struct_size = sizeof(ds_parameter);
    parameters[i].name = names[i];
    parameters[i].shape = &size;
    parameters[i].ndim = 1;
    TRY(ds_tensor_from_buffer(numbers + i * size, DS_FLOAT32, &size, NULL, 1, NULL, NULL,
                              &run->gradients[i]));
  }
  TRY(ds_model_create_from_parameters(parameters, count, &run->model));
  TRY(
      ds_engine_create("{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\":"
                       " {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}}",
                       NULL, run->model, NULL, &run->engine));
  free(parameters);
  free(names);
  return 0;
}

static int step(Run* run, int i) {
  const double begin = now();
  TRY(ds_engine_add_gradients(run->engine, NULL, run->gradients, run->count));
  const double given = now();
  TRY(ds_engine_step(run->engine, NULL));
  run->give[i] = given - begin;
  run->step[i] = now() - given;
  return 0;
}

static void end(Run* run) {
  for (int64_t i = 0; i < run->count; ++i) ds_tensor_destroy(run->gradients[i]);
  free(run->gradients);
  ds_engine_destroy(run->engine);
  ds_model_destroy(run->model);
}

int main(int argc, char** argv) {
  static Run few, many;
  const int steps = argc > 1 ? atoi(argv[1]) : 30;
  float* const numbers = malloc(sizeof(float) * kNumbers);
  if (steps < 1 || steps > kMaxSteps || numbers == NULL) return 2;
  for (int i = 0; i < kNumbers; ++i) numbers[i] = 1e-3f * (float)(i % 1001 - 500);
  if (make(&few, kFew, numbers) || make(&many, kMany, numbers)) return 1;
  for (int i = 0; i < steps; ++i) { /* in turn, so that a busy machine slows both */
    if (step(&few, i) || step(&many, i)) return 1;
  }
  report("hand over", few.give, many.give, steps);
  report("step", few.step, many.step, steps);
  end(&few);
  end(&many);
  free(numbers);
  return 0;
}
