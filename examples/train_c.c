/* Trains a small GPT on a text file, byte by byte: train_c FILE STEPS FOLDER */
#include <ds.h>
#include <stdio.h>
#include <stdlib.h>
#define TRY(call) \
  if ((call) != DS_OK) return fprintf(stderr, "%s\n", ds_last_error_message()), 1
int main(int argc, char** argv) {
  const char* shape =
      "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64,"
      " \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4}";
  const char* config =
      "{\"train_micro_batch_size_per_gpu\": 8, \"optimizer\":"
      " {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}}";
  char text[4096];
  ds_step_report report = {.struct_size = sizeof report};
  ds_dataset* data;
  ds_engine* engine;
  ds_model* model;
  if (argc != 4) return fprintf(stderr, "usage: %s FILE STEPS FOLDER\n", argv[0]), 2;
  snprintf(text, sizeof text, "{\"path\": \"%s\", \"sequence_length\": 64}", argv[1]);
  TRY(ds_dataset_open(text, NULL, &data)); /* NULL: no tokenizer, so bytes */
  TRY(ds_model_create(shape, 1, &model));
  TRY(ds_engine_create(config, NULL, model, NULL, &engine)); /* NULL: this process alone */
  TRY(ds_engine_set_dataset(engine, data));
  while (report.step < atoi(argv[2])) {
    TRY(ds_engine_train_batch(engine, &report));
    if (report.step % 10 == 0) printf("step %d  loss %.4f\n", (int)report.step, report.loss);
  }
  TRY(ds_engine_save(engine, argv[3], NULL));
}
