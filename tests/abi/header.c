/* ds.h alone, twice, under whichever language standard the test compiles this with, and every
 * struct as its macro begins it. */
#include "ds.h"
#include "ds.h" /* NOLINT: once more has no effect */

int64_t header_is_usable(const ds_tensor* tensor, ds_step_report* report);
int64_t header_is_usable(const ds_tensor* tensor, ds_step_report* report) {
  const ds_allocator of_allocator = DS_ALLOCATOR_INIT;
  const ds_batch of_batch = DS_BATCH_INIT;
  const ds_prompts of_prompts = DS_PROMPTS_INIT;
  const ds_collective of_collective = DS_COLLECTIVE_INIT;
  const ds_comm_info of_comm_info = DS_COMM_INFO_INIT;
  const ds_dataset_info of_dataset_info = DS_DATASET_INFO_INIT;
  const ds_engine_info of_engine_info = DS_ENGINE_INFO_INIT;
  const ds_generate_options of_generate_options = DS_GENERATE_OPTIONS_INIT;
  const ds_generator_info of_generator_info = DS_GENERATOR_INFO_INIT;
  const ds_io_info of_io_info = DS_IO_INFO_INIT;
  const ds_io_transfer of_io_transfer = DS_IO_TRANSFER_INIT;
  const ds_model_info of_model_info = DS_MODEL_INFO_INIT;
  const ds_optimizer_info of_optimizer_info = DS_OPTIMIZER_INFO_INIT;
  const ds_parameter_info of_parameter_info = DS_PARAMETER_INFO_INIT;
  const ds_parameter of_parameter = DS_PARAMETER_INIT;
  const ds_step_report of_step_report = DS_STEP_REPORT_INIT;
  const ds_store of_store = DS_STORE_INIT;
  const ds_tensor_info of_tensor_info = DS_TENSOR_INFO_INIT;
  const ds_tokenizer_info of_tokenizer_info = DS_TOKENIZER_INFO_INIT;
  report->struct_size = (int64_t)sizeof(ds_step_report);
  return of_allocator.struct_size + of_batch.struct_size + of_prompts.struct_size +
         of_collective.struct_size + of_comm_info.struct_size + of_dataset_info.struct_size +
         of_engine_info.struct_size + of_generate_options.struct_size +
         of_generator_info.struct_size + of_model_info.struct_size + of_optimizer_info.struct_size +
         of_parameter_info.struct_size + of_parameter.struct_size + of_step_report.struct_size +
         of_store.struct_size + of_tensor_info.struct_size + of_tokenizer_info.struct_size +
         of_io_info.struct_size + of_io_transfer.struct_size + (tensor != 0) + DS_OK +
         report->applied;
}
