/* Trains at ZeRO stage 3 with as many processes as a launcher starts, and goes on where an earlier
 * run stopped, whatever its number of processes was:
 *
 *   mpirun -n 3 zero3 FILE STEPS FOLDER        until step STEPS
 *   ds launch -n 2 -- zero3 FILE MORE FOLDER   goes on, until step MORE
 */
#include <ds.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#define TRY(call) \
  if ((call) != DS_OK) return fprintf(stderr, "%s\n", ds_last_error_message()), 1
int main(int argc, char** argv) {
  const char* shape =
      "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64,"
      " \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4}";
  /* A step has 12 samples however many processes share them. */
  const char* config =
      "{\"train_batch_size\": 12, \"zero_optimization\": {\"stage\": 3},"
      " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}}";
  char text[4096];
  ds_comm_info group = DS_COMM_INFO_INIT;
  ds_engine_info begin = DS_ENGINE_INFO_INIT;
  ds_step_report report = {.struct_size = sizeof report};
  ds_comm* comm;
  ds_dataset* data;
  ds_engine* engine;
  ds_model* model;
  if (argc != 4) return fprintf(stderr, "usage: %s FILE STEPS FOLDER\n", argv[0]), 2;
  TRY(ds_comm_create(-1, -1, NULL, NULL, &comm)); /* -1: what the launcher says */
  TRY(ds_comm_describe(comm, &group));
  snprintf(text, sizeof text, "{\"path\": \"%s\", \"sequence_length\": 64}", argv[1]);
  TRY(ds_dataset_open(text, NULL, &data));
  TRY(ds_model_create(shape, 1, &model));
  TRY(ds_engine_create(config, NULL, model, comm, &engine));
  TRY(ds_engine_set_dataset(engine, data));
  TRY(ds_engine_load(engine, argv[3], NULL, "{\"may_be_missing\": true}"));
  TRY(ds_engine_describe(engine, &begin));
  if (group.rank == 0)
    printf("after step %" PRId64 ": %d processes, ZeRO stage %d\n", begin.step, (int)group.size,
           (int)begin.zero_stage);
  for (int64_t step = begin.step; step < atoi(argv[2]); ++step) {
    TRY(ds_engine_train_batch(engine, &report));
    if (group.rank == 0 && report.step % 10 == 0)
      printf("step %" PRId64 "  loss %.4f\n", report.step, report.loss);
  }
  TRY(ds_engine_save(engine, argv[3], NULL));
  ds_engine_destroy(engine);
  ds_model_destroy(model);
  ds_dataset_destroy(data);
  TRY(ds_comm_finalize(comm)); /* waits for the others */
  ds_comm_destroy(comm);
}
