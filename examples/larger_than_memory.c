/* Trains a model that is given less memory than its training state needs: what does not fit is
 * refused before anything is allocated, with a configuration that does; then that state lies in
 * files of a folder.
 *
 *   larger_than_memory FILE FOLDER STEPS
 */
#include <ds.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#define TRY(call) \
  if ((call) != DS_OK) return fprintf(stderr, "%s\n", ds_last_error_message()), 1
int main(int argc, char** argv) {
  /* 3.3 million parameters: 52 MB of weights, gradients and moments in fp32. */
  const char* shape =
      "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64,"
      " \"n_embd\": 256, \"n_layer\": 4, \"n_head\": 4}";
  /* 40 MB may be used, of samples of 64 tokens. A budget for a job beside others is given so;
   * without it the limits of the machine, of control groups and of the process count. */
  const char* in_memory =
      "{\"train_micro_batch_size_per_gpu\": 2, \"memory_plan\": {\"limit_bytes\": 40000000,"
      " \"sequence_length\": 64}}";
  const char* in_files =
      "{\"train_micro_batch_size_per_gpu\": 2, \"memory_plan\": {\"limit_bytes\": 40000000,"
      " \"sequence_length\": 64}, \"zero_optimization\": {\"stage\": 1, \"sub_group_size\": 262144,"
      " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
      " \"pipeline_read\": true, \"pipeline_write\": true}}}";
  char text[4096];
  ds_step_report report = {.struct_size = sizeof report};
  ds_dataset* data;
  ds_engine* engine;
  ds_model* model;
  if (argc != 4) return fprintf(stderr, "usage: %s FILE FOLDER STEPS\n", argv[0]), 2;
  snprintf(text, sizeof text, "{\"path\": \"%s\", \"sequence_length\": 64}", argv[1]);
  TRY(ds_dataset_open(text, NULL, &data));
  TRY(ds_model_create(shape, 1, &model));
  if (ds_engine_create(in_memory, NULL, model, NULL, &engine) != DS_ERR_OUT_OF_MEMORY)
    return fprintf(stderr, "it was not refused\n"), 1;
  printf("%s\n", ds_last_error_message());
  snprintf(text, sizeof text, in_files, argv[2]);
  TRY(ds_engine_create(text, NULL, model, NULL, &engine));
  TRY(ds_engine_set_dataset(engine, data));
  for (int step = 0; step < atoi(argv[3]); ++step) {
    TRY(ds_engine_train_batch(engine, &report));
    if (report.step % 10 == 0) printf("step %" PRId64 "  loss %.4f\n", report.step, report.loss);
  }
  ds_engine_destroy(engine);
  ds_model_destroy(model);
  ds_dataset_destroy(data);
  return 0;
}
