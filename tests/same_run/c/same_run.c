/* The run of tests/same_run/README.md in C: same_run RUN_JSON TEXT built_in|external OUTPUT */
#include <ds.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                        \
  do {                                                   \
    if ((call) != DS_OK) {                               \
      fprintf(stderr, "%s\n", ds_last_error_message());  \
      exit(1);                                           \
    }                                                    \
  } while (0)

enum { kMostParameters = 16 };

static char* read_file(const char* path) {
  FILE* const file = fopen(path, "rb");
  char* text = calloc(1, 1 << 16);
  if (file == NULL || text == NULL || fread(text, 1, (1 << 16) - 1, file) == 0) exit(2);
  fclose(file);
  return text;
}

/* Where the value of a key begins. */
static const char* value_of(const char* json, const char* key) {
  char quoted[64];
  const char* at;
  snprintf(quoted, sizeof quoted, "\"%s\":", key);
  at = strstr(json, quoted);
  if (at == NULL) exit(2);
  for (at += strlen(quoted); *at == ' ';) ++at;
  return at;
}

/* A copy of the object or list that begins here. */
static char* copy_of(const char* at) {
  int depth = 0;
  size_t n = 0;
  char* copy;
  do {
    depth += (at[n] == '{' || at[n] == '[') - (at[n] == '}' || at[n] == ']');
    ++n;
  } while (depth > 0);
  copy = calloc(1, n + 1);
  if (copy == NULL) exit(2);
  memcpy(copy, at, n);
  return copy;
}

static void write_parameters(ds_model* model, const char* path) {
  FILE* const file = fopen(path, "wb");
  ds_model_info info = DS_MODEL_INFO_INIT;
  int64_t i;
  if (file == NULL) exit(2);
  TRY(ds_model_describe(model, &info));
  for (i = 0; i < info.parameters; ++i) {
    ds_tensor* value = NULL;
    ds_tensor_info of = DS_TENSOR_INFO_INIT;
    TRY(ds_model_get_parameter(model, i, &value));
    TRY(ds_tensor_describe(value, &of));
    if (fwrite(of.data, 4, (size_t)of.elements, file) != (size_t)of.elements) exit(2);
    ds_tensor_destroy(value);
  }
  if (fclose(file) != 0) exit(2);
}

static ds_model* train_built_in(const char* run, const char* text_path, const char* config) {
  const char* const part = value_of(run, "built_in");
  char* const shape = copy_of(value_of(part, "model"));
  const char* const data = value_of(part, "dataset");
  char spec[4096];
  ds_tokenizer* bytes = NULL;
  ds_dataset* dataset = NULL;
  ds_model* model = NULL;
  ds_engine* engine = NULL;
  long step;
  snprintf(spec, sizeof spec, "{\"path\": \"%s\", \"sequence_length\": %ld, \"seed\": %ld}", text_path,
           atol(value_of(data, "sequence_length")), atol(value_of(data, "seed")));
  TRY(ds_tokenizer_create_bytes(&bytes));
  TRY(ds_dataset_open(spec, bytes, &dataset));
  TRY(ds_model_create(shape, atol(value_of(strstr(part, "\"seed\""), "seed")), &model));
  TRY(ds_engine_create(config, NULL, model, NULL, &engine));
  TRY(ds_engine_set_dataset(engine, dataset));
  for (step = 0; step < atol(value_of(strstr(part, "\"steps\""), "steps")); ++step) {
    TRY(ds_engine_train_batch(engine, NULL));
  }
  ds_engine_destroy(engine);
  ds_dataset_destroy(dataset);
  ds_tokenizer_destroy(bytes);
  free(shape);
  return model;
}

static ds_tensor* gradient_of(ds_model* model, int64_t p, long step) {
  ds_tensor *value = NULL, *gradient = NULL;
  ds_tensor_info from = DS_TENSOR_INFO_INIT, to = DS_TENSOR_INFO_INIT;
  int64_t j;
  TRY(ds_model_get_parameter(model, p, &value));
  TRY(ds_tensor_describe(value, &from));
  TRY(ds_tensor_create(DS_FLOAT32, from.shape, from.ndim, &gradient));
  TRY(ds_tensor_describe(gradient, &to));
  for (j = 0; j < from.elements; ++j) {
    const float t = (float)((j * 7 + step * 3 + p * 5) % 11) / 8.0f;
    ((float*)to.data)[j] = (((const float*)from.data)[j] - t) / 2.0f;
  }
  ds_tensor_destroy(value);
  return gradient;
}

static ds_model* train_external(const char* run, const char* config) {
  const char* const part = value_of(run, "external");
  char* const list = copy_of(value_of(part, "parameters"));
  ds_parameter parameters[kMostParameters];
  int64_t shapes[kMostParameters][2];
  char names[kMostParameters][64];
  int64_t count = 0, p;
  ds_model* model = NULL;
  ds_engine* engine = NULL;
  const char* at = list;
  long step;
  while ((at = strstr(at, "\"name\"")) != NULL && count < kMostParameters) {
    const ds_parameter none = DS_PARAMETER_INIT;
    parameters[count] = none;
    sscanf(value_of(at, "name"), "\"%63[^\"]\"", names[count]);
    parameters[count].ndim = sscanf(value_of(at, "shape"), "[%ld, %ld]", &shapes[count][0],
                                    &shapes[count][1]);
    parameters[count].name = names[count];
    parameters[count].shape = shapes[count];
    ++count;
    ++at;
  }
  TRY(ds_model_create_from_parameters(parameters, count, &model));
  TRY(ds_engine_create(config, NULL, model, NULL, &engine));
  for (step = 0; step < atol(value_of(strstr(part, "\"steps\""), "steps")); ++step) {
    int micro;
    for (micro = 0; micro < 2; ++micro) {
      ds_tensor* gradients[kMostParameters];
      for (p = 0; p < count; ++p) gradients[p] = gradient_of(model, p, step);
      TRY(ds_engine_add_gradients(engine, NULL, gradients, count));
      TRY(ds_engine_step(engine, NULL));
      for (p = 0; p < count; ++p) ds_tensor_destroy(gradients[p]);
    }
  }
  ds_engine_destroy(engine);
  free(list);
  return model;
}

int main(int argc, char** argv) {
  char *run, *config;
  ds_model* model;
  if (argc != 5) return fprintf(stderr, "usage: same_run RUN_JSON TEXT built_in|external OUTPUT\n"), 2;
  run = read_file(argv[1]);
  config = copy_of(value_of(run, "engine"));
  model = strcmp(argv[3], "external") == 0 ? train_external(run, config)
                                           : train_built_in(run, argv[2], config);
  write_parameters(model, argv[4]);
  ds_model_destroy(model);
  free(config);
  free(run);
  return 0;
}
