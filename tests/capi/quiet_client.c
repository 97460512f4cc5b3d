/* The library leaves its host alone: a session with successes and failures, then a look at what it
 * may not have touched - standard output and error, signal handlers and mask, environment, locale,
 * working folder, file mode mask, rounding mode, threads and open files that stay behind.
 * Takes a folder to write to. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ds.h"

extern char** environ;

typedef struct Process {
  struct sigaction actions[65];
  sigset_t mask;
  char* environment;
  char* locale;
  char* folder;
  mode_t file_mode;
  int rounding;
  int files;
  int threads;
} Process;

static int entries(const char* path) {
  DIR* folder = opendir(path);
  int count = 0;
  if (folder == NULL) return -1;
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

static char* joined_environment(void) {
  size_t size = 1;
  char** each;
  char* out;
  for (each = environ; *each != NULL; ++each) size += strlen(*each) + 1;
  out = calloc(size, 1);
  for (each = environ; *each != NULL; ++each) {
    strcat(out, *each);
    strcat(out, "\n");
  }
  return out;
}

static Process look(void) {
  Process p;
  int i;
  memset(&p, 0, sizeof(p));
  for (i = 1; i < 65; ++i) sigaction(i, NULL, &p.actions[i]);
  sigprocmask(SIG_SETMASK, NULL, &p.mask);
  p.environment = joined_environment();
  p.locale = strdup(setlocale(LC_ALL, NULL));
  p.folder = getcwd(NULL, 0);
  p.file_mode = umask(0);
  umask(p.file_mode);
  p.rounding = fegetround();
  p.files = entries("/proc/self/fd");
  p.threads = entries("/proc/self/task");
  return p;
}

static int failures = 0;
static int sessions = 0;
static FILE* report_to;
static void expect(int condition, const char* what) {
  if (condition) return;
  ++failures;
  fprintf(report_to, "%s\n", what);
}

static void session(const char* folder) {
  char path[2000], spec[3000];
  FILE* file;
  ds_tokenizer* tokenizer = NULL;
  ds_dataset* dataset = NULL;
  ds_model* model = NULL;
  ds_engine* engine = NULL;
  char* text = NULL;
  int i;
  sprintf(path, "%s/quiet.txt", folder);
  sprintf(spec, "{\"path\": \"%s\", \"sequence_length\": 8, \"split\": \"1\"}", path);
  file = fopen(path, "w");
  for (i = 0; i < 300; ++i) fprintf(file, "sentence %d. ", i);
  fclose(file);
  expect(ds_tokenizer_create_bytes(&tokenizer) == DS_OK, "tokenizer");
  expect(ds_dataset_open(spec, tokenizer, &dataset) == DS_OK, "dataset");
  expect(ds_model_create("{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 16,"
                         "\"n_embd\": 16, \"n_layer\": 1, \"n_head\": 2}",
                         1, &model) == DS_OK,
         "model");
  expect(ds_engine_create("{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\":"
                          "{\"type\": \"Adam\", \"params\": {\"lr\": 0.001}}}",
                          NULL, model, NULL, &engine) == DS_OK,
         "engine");
  expect(ds_engine_set_dataset(engine, dataset) == DS_OK, "set_dataset");
  for (i = 0; i < 5; ++i) expect(ds_engine_train_batch(engine, NULL) == DS_OK, "train_batch");
  sprintf(path, "%s/quiet_saved_%d", folder, ++sessions); /* each run has a folder of its own */
  expect(ds_engine_save(engine, path, NULL) == DS_OK, "save");
  expect(ds_engine_load(engine, path, NULL, NULL) == DS_OK, "load");
  expect(ds_report(&text) == DS_OK, "report");
  ds_string_free(text);
  /* Mistakes are told by status and text, and by nothing else. */
  expect(ds_engine_backward(engine, NULL) != DS_OK, "backward without a loss");
  expect(ds_engine_load(engine, "/nowhere/at/all", NULL, NULL) != DS_OK, "load from nowhere");
  expect(ds_model_create("{\"model_type\": \"unheard of\"}", 1, &model) != DS_OK, "odd model");
  expect(ds_engine_create("{\"no such key\": 1}", NULL, model, NULL, &engine) != DS_OK,
         "odd config");
  expect(ds_tokenizer_open("/nowhere", &tokenizer) != DS_OK, "tokenizer from nowhere");
  ds_engine_destroy((ds_engine*)model); /* not an engine: nothing happens */
  ds_engine_destroy(engine);
  ds_model_destroy(model);
  ds_dataset_destroy(dataset);
  ds_tokenizer_destroy(tokenizer);
}

int main(int argc, char** argv) {
  char out_path[2000], error_path[2000];
  struct stat out_stat, error_stat;
  Process before, after;
  int i;
  if (argc != 2 || strlen(argv[1]) > 1500) return 2;
  sprintf(out_path, "%s/stdout", argv[1]);
  sprintf(error_path, "%s/stderr", argv[1]);
  report_to = fdopen(dup(2), "w");
  session(argv[1]); /* once before: what libc and loaders set up at first use is not counted */
  if (freopen(out_path, "w", stdout) == NULL || freopen(error_path, "w", stderr) == NULL) return 2;
  before = look();
  session(argv[1]);
  after = look();
  fflush(stdout);
  fflush(stderr);
  stat(out_path, &out_stat);
  stat(error_path, &error_stat);
  expect(out_stat.st_size == 0, "something was printed to standard output");
  expect(error_stat.st_size == 0, "something was printed to standard error");
  for (i = 1; i < 65; ++i) {
    expect(before.actions[i].sa_handler == after.actions[i].sa_handler &&
               before.actions[i].sa_flags == after.actions[i].sa_flags,
           "a signal handler was changed");
  }
  expect(memcmp(&before.mask, &after.mask, sizeof(sigset_t)) == 0, "the signal mask was changed");
  expect(strcmp(before.environment, after.environment) == 0, "the environment was changed");
  expect(strcmp(before.locale, after.locale) == 0, "the locale was changed");
  expect(strcmp(before.folder, after.folder) == 0, "the working folder was changed");
  expect(before.file_mode == after.file_mode, "the file mode mask was changed");
  expect(before.rounding == after.rounding, "the rounding mode was changed");
  expect(before.files == after.files, "files stayed open");
  expect(before.threads == after.threads, "threads stayed behind");
  free(before.environment);
  free(before.locale);
  free(before.folder);
  free(after.environment);
  free(after.locale);
  free(after.folder);
  fclose(report_to);
  return failures == 0 ? 0 : 1;
}
