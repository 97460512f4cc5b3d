/* A client in plain C99 that knows nothing but ds.h: trains, saves, resumes, generates, and checks
 * what it gets. Takes a folder to write to. Exits with 0 when all is well. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ds.h"

static int failures = 0;

static void expect(int condition, const char* what, int line) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "line %d: %s: %s\n", line, what, ds_last_error_message());
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define OK(call) expect((call) == DS_OK, #call, __LINE__)

static const char kModel[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 16, \"n_embd\": 16,"
    " \"n_layer\": 1, \"n_head\": 2}";
static const char kConfig[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\","
    " \"params\": {\"lr\": 0.01}}}";

static void write_text(const char* path) {
  FILE* file = fopen(path, "w");
  int i;
  if (file == NULL) {
    EXPECT(file != NULL);
    return;
  }
  for (i = 0; i < 500; ++i) fprintf(file, "line %d of a text that repeats itself. ", i % 7);
  fclose(file);
}

static double train(ds_engine* engine, int steps) {
  ds_step_report report;
  double loss = 0;
  int i;
  memset(&report, 0, sizeof(report));
  report.struct_size = (int64_t)sizeof(report);
  for (i = 0; i < steps; ++i) {
    OK(ds_engine_train_batch(engine, &report));
    EXPECT(report.applied != 0 && report.skip_reason == DS_SKIP_NONE);
    EXPECT(report.first_bad_parameter == -1);
    loss = report.loss;
  }
  return loss;
}

static int32_t count_token(void* user_data, int32_t token) {
  int* count = (int*)user_data;
  ++*count;
  return token < 0;
}

static void generate(ds_model* model, const ds_tokenizer* tokenizer) {
  ds_generate_options options = DS_GENERATE_OPTIONS_INIT;
  ds_tensor_info info = DS_TENSOR_INFO_INIT;
  ds_generator* generator = NULL;
  ds_tensor *prompt = NULL, *ids = NULL;
  char* text = NULL;
  int seen = 0;
  options.max_tokens = 24; /* more than the positions: the window slides */
  OK(ds_tokenizer_encode(tokenizer, "line ", -1, 0, &prompt));
  OK(ds_generator_create(model, NULL, &generator));
  OK(ds_generator_generate(generator, prompt, &options, count_token, &seen, &ids));
  ds_generator_destroy(generator);
  OK(ds_tensor_describe(ids, &info));
  EXPECT(info.elements == 24 && seen == 24);
  OK(ds_tokenizer_decode(tokenizer, ids, 0, &text));
  EXPECT(text != NULL && strlen(text) > 0);
  ds_string_free(text);
  ds_tensor_destroy(prompt);
  ds_tensor_destroy(ids);
}

static void step_by_hand(ds_engine* engine) {
  const int64_t shape[2] = {2, 8};
  int32_t tokens[16];
  ds_tensor* inputs[2] = {NULL, NULL};
  ds_batch batch = DS_BATCH_INIT;
  ds_tensor* loss = NULL;
  ds_step_report report;
  double value = 0;
  int i;
  for (i = 0; i < 16; ++i) tokens[i] = (i * 37) % 256;
  OK(ds_tensor_from_buffer(tokens, DS_INT32, shape, NULL, 2, NULL, NULL, &inputs[0]));
  OK(ds_tensor_create(DS_INT32, shape, 2, &inputs[1]));
  OK(ds_tensor_write(inputs[1], tokens, (int64_t)sizeof(tokens)));
  batch.ids = inputs[0];
  batch.labels = inputs[1];
  OK(ds_engine_forward(engine, &batch, &loss));
  OK(ds_tensor_item(loss, &value));
  EXPECT(value > 0 && value < 20);
  OK(ds_engine_backward(engine, loss));
  memset(&report, 0, sizeof(report));
  report.struct_size = (int64_t)sizeof(report);
  OK(ds_engine_step(engine, &report));
  EXPECT(report.applied && fabs(report.loss - value) < 1e-6 * value);
  EXPECT(ds_engine_step(engine, &report) == DS_ERR_STATE);
  EXPECT(ds_engine_backward(engine, loss) == DS_ERR_STATE);
  ds_tensor_destroy(loss);
  ds_tensor_destroy(inputs[0]);
  ds_tensor_destroy(inputs[1]);
}

int main(int argc, char** argv) {
  char text_path[2000], spec[3000], save_path[2000];
  ds_tokenizer* tokenizer = NULL;
  ds_dataset* dataset = NULL;
  ds_model *model = NULL, *again = NULL;
  ds_engine *engine = NULL, *resumed = NULL;
  double first, last;
  ds_optimizer* optimizer = NULL;
  ds_engine_info progress = DS_ENGINE_INFO_INIT;
  ds_optimizer_info updates = DS_OPTIMIZER_INFO_INIT;
  char* report = NULL;

  if (argc != 2 || strlen(argv[1]) > 1500) {
    fprintf(stderr, "usage: c99_client FOLDER\n");
    return 2;
  }
  if (ds_abi_version() / 1000000 != DS_VERSION_MAJOR) return 3;
  sprintf(text_path, "%s/text.txt", argv[1]);
  sprintf(save_path, "%s/saved", argv[1]);
  sprintf(spec, "{\"path\": \"%s\", \"sequence_length\": 8, \"split\": \"1\"}", text_path);
  write_text(text_path);

  OK(ds_tokenizer_create_bytes(&tokenizer));
  OK(ds_dataset_open(spec, tokenizer, &dataset));
  OK(ds_model_create(kModel, 42, &model));
  OK(ds_engine_create(kConfig, NULL, model, NULL, &engine));
  OK(ds_engine_set_dataset(engine, dataset));
  OK(ds_engine_set_tokenizer(engine, tokenizer));
  first = train(engine, 1);
  last = train(engine, 40);
  EXPECT(last < first);
  step_by_hand(engine);
  OK(ds_engine_save(engine, save_path, NULL));
  OK(ds_checkpoint_verify(save_path, NULL));
  OK(ds_checkpoint_inspect(save_path, "global_step42", &report));
  EXPECT(report != NULL && strstr(report, "global_step42") != NULL);
  ds_string_free(report);
  generate(model, tokenizer);
  ds_engine_destroy(engine);
  ds_model_destroy(model);

  /* The checkpoint holds the model, the tokenizer and the place in the data. */
  ds_tokenizer_destroy(tokenizer);
  tokenizer = NULL;
  OK(ds_tokenizer_open(save_path, &tokenizer));
  OK(ds_model_open(save_path, NULL, &again));
  OK(ds_engine_create(kConfig, NULL, again, NULL, &resumed));
  OK(ds_engine_load(resumed, save_path, NULL, NULL));
  OK(ds_engine_describe(resumed, &progress));
  OK(ds_engine_optimizer(resumed, &optimizer));
  OK(ds_optimizer_describe(optimizer, &updates));
  ds_optimizer_destroy(optimizer);
  EXPECT(progress.step == 42 && updates.steps == 42);
  OK(ds_engine_set_dataset(resumed, dataset));
  EXPECT(train(resumed, 1) < first);
  generate(again, tokenizer);

  ds_model_destroy(again);
  ds_dataset_destroy(dataset);
  ds_tokenizer_destroy(tokenizer);
  ds_engine_destroy(resumed);
  return failures == 0 ? 0 : 1;
}
