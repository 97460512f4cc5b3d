/* The ABI in numbers: sizes, offsets and values that compiled clients rely on. Compiled as C11. */
#include <stddef.h>

#include "ds.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define OFFSET(type, member, bytes) \
  _Static_assert(offsetof(type, member) == (bytes), "place of " #type "." #member)
#define VALUE(name, number) _Static_assert((name) == (number), "value of " #name)

SIZE(ds_status, 4);
SIZE(ds_store, 32);
OFFSET(ds_store, struct_size, 0);
OFFSET(ds_store, user_data, 8);
OFFSET(ds_store, put, 16);
OFFSET(ds_store, get, 24);

SIZE(ds_comm_info, 32);
OFFSET(ds_comm_info, struct_size, 0);
OFFSET(ds_comm_info, rank, 8);
OFFSET(ds_comm_info, size, 12);
OFFSET(ds_comm_info, local_rank, 16);
OFFSET(ds_comm_info, local_size, 20);
OFFSET(ds_comm_info, node, 24);
OFFSET(ds_comm_info, nodes, 28);

SIZE(ds_collective, 80);
OFFSET(ds_collective, struct_size, 0);
OFFSET(ds_collective, kind, 8);
OFFSET(ds_collective, op, 12);
OFFSET(ds_collective, output, 16);
OFFSET(ds_collective, input, 24);
OFFSET(ds_collective, root, 32);
OFFSET(ds_collective, tag, 36);
OFFSET(ds_collective, output_counts, 40);
OFFSET(ds_collective, input_counts, 48);
OFFSET(ds_collective, label, 56);
OFFSET(ds_collective, timeout_ms, 64);
OFFSET(ds_collective, average_over_participants, 72);
OFFSET(ds_collective, reserved, 76);

SIZE(ds_io_info, 56);
OFFSET(ds_io_info, struct_size, 0);
OFFSET(ds_io_info, block_size, 8);
OFFSET(ds_io_info, alignment, 16);
OFFSET(ds_io_info, queue_depth, 24);
OFFSET(ds_io_info, intra_op_parallelism, 28);
OFFSET(ds_io_info, single_submit, 32);
OFFSET(ds_io_info, overlap_events, 36);
OFFSET(ds_io_info, validate, 40);
OFFSET(ds_io_info, checksum, 44);
OFFSET(ds_io_info, backend, 48);
OFFSET(ds_io_info, reserved, 52);

SIZE(ds_io_transfer, 64);
OFFSET(ds_io_transfer, struct_size, 0);
OFFSET(ds_io_transfer, path, 8);
OFFSET(ds_io_transfer, tensor, 16);
OFFSET(ds_io_transfer, data, 24);
OFFSET(ds_io_transfer, size, 32);
OFFSET(ds_io_transfer, offset, 40);
OFFSET(ds_io_transfer, descriptor, 48);
OFFSET(ds_io_transfer, write, 52);
OFFSET(ds_io_transfer, whole_file, 56);
OFFSET(ds_io_transfer, reserved, 60);

VALUE(DS_IO_URING, 1);
VALUE(DS_IO_LIBAIO, 2);
VALUE(DS_IO_THREADS, 3);

SIZE(ds_dataset_info, 24);
OFFSET(ds_dataset_info, struct_size, 0);
OFFSET(ds_dataset_info, samples, 8);
OFFSET(ds_dataset_info, sequence_length, 16);

SIZE(ds_step_report, 152);
OFFSET(ds_step_report, struct_size, 0);
OFFSET(ds_step_report, step, 8);
OFFSET(ds_step_report, micro_steps, 16);
OFFSET(ds_step_report, samples, 24);
OFFSET(ds_step_report, tokens, 32);
OFFSET(ds_step_report, applied, 40);
OFFSET(ds_step_report, skip_reason, 44);
OFFSET(ds_step_report, loss, 48);
OFFSET(ds_step_report, grad_norm, 56);
OFFSET(ds_step_report, lr, 64);
OFFSET(ds_step_report, loss_scale, 72);
OFFSET(ds_step_report, seconds, 80);
OFFSET(ds_step_report, first_bad_parameter, 88);
OFFSET(ds_step_report, first_bad_element, 96);
OFFSET(ds_step_report, first_bad_value, 104);
OFFSET(ds_step_report, forward_seconds, 112);
OFFSET(ds_step_report, backward_seconds, 120);
OFFSET(ds_step_report, update_seconds, 128);
OFFSET(ds_step_report, label_loss, 136);
OFFSET(ds_step_report, teacher_loss, 144);

SIZE(ds_engine_info, 72);
OFFSET(ds_engine_info, struct_size, 0);
OFFSET(ds_engine_info, step, 8);
OFFSET(ds_engine_info, micro_steps, 16);
OFFSET(ds_engine_info, samples, 24);
OFFSET(ds_engine_info, micro_batch_size, 32);
OFFSET(ds_engine_info, accumulation_steps, 40);
OFFSET(ds_engine_info, train_batch_size, 48);
OFFSET(ds_engine_info, loss_scale, 56);
OFFSET(ds_engine_info, zero_stage, 64);
OFFSET(ds_engine_info, compute_dtype, 68);

SIZE(ds_generator_info, 80);
OFFSET(ds_generator_info, struct_size, 0);
OFFSET(ds_generator_info, bytes, 8);
OFFSET(ds_generator_info, bytes_per_token, 16);
OFFSET(ds_generator_info, group_size, 24);
OFFSET(ds_generator_info, weights, 32);
OFFSET(ds_generator_info, threads, 36);
OFFSET(ds_generator_info, symmetric, 40);
OFFSET(ds_generator_info, reserved, 44);
OFFSET(ds_generator_info, bytes_saved, 48);
OFFSET(ds_generator_info, bytes_read, 56);
OFFSET(ds_generator_info, expert_uses, 64);
OFFSET(ds_generator_info, expert_hits, 72);

SIZE(ds_generate_options, 64);
OFFSET(ds_generate_options, struct_size, 0);
OFFSET(ds_generate_options, max_tokens, 8);
OFFSET(ds_generate_options, temperature, 16);
OFFSET(ds_generate_options, top_k, 24);
OFFSET(ds_generate_options, top_p, 32);
OFFSET(ds_generate_options, seed, 40);
OFFSET(ds_generate_options, stop_token, 48);
OFFSET(ds_generate_options, has_stop_token, 52);
OFFSET(ds_generate_options, no_graphs, 56);
OFFSET(ds_generate_options, reserved, 60);

SIZE(ds_prompts, 32);
OFFSET(ds_prompts, struct_size, 0);
OFFSET(ds_prompts, ids, 8);
OFFSET(ds_prompts, counts, 16);
OFFSET(ds_prompts, at_once, 24);
SIZE(ds_batch, 48);
OFFSET(ds_batch, struct_size, 0);
OFFSET(ds_batch, ids, 8);
OFFSET(ds_batch, labels, 16);
OFFSET(ds_batch, attention_mask, 24);
OFFSET(ds_batch, segments, 32);
OFFSET(ds_batch, token_types, 40);

SIZE(ds_allocator, 32);
OFFSET(ds_allocator, struct_size, 0);
OFFSET(ds_allocator, user_data, 8);
OFFSET(ds_allocator, allocate, 16);
OFFSET(ds_allocator, deallocate, 24);

SIZE(ds_parameter, 80);
OFFSET(ds_parameter, struct_size, 0);
OFFSET(ds_parameter, name, 8);
OFFSET(ds_parameter, shape, 16);
OFFSET(ds_parameter, value, 24);
OFFSET(ds_parameter, group, 32);
OFFSET(ds_parameter, alias, 40);
OFFSET(ds_parameter, ndim, 48);
OFFSET(ds_parameter, dtype, 52);
OFFSET(ds_parameter, lend, 56);
OFFSET(ds_parameter, frozen, 60);
OFFSET(ds_parameter, no_decay, 64);
OFFSET(ds_parameter, has_expert, 68);
OFFSET(ds_parameter, expert, 72);

SIZE(ds_model_info, 56);
OFFSET(ds_model_info, struct_size, 0);
OFFSET(ds_model_info, parameters, 8);
OFFSET(ds_model_info, elements, 16);
OFFSET(ds_model_info, trainable_elements, 24);
OFFSET(ds_model_info, vocab_size, 32);
OFFSET(ds_model_info, max_positions, 40);
OFFSET(ds_model_info, device_kind, 48);
OFFSET(ds_model_info, device_index, 52);

SIZE(ds_parameter_info, 96);
OFFSET(ds_parameter_info, struct_size, 0);
OFFSET(ds_parameter_info, elements, 8);
OFFSET(ds_parameter_info, shape, 16);
OFFSET(ds_parameter_info, ndim, 80);
OFFSET(ds_parameter_info, dtype, 84);
OFFSET(ds_parameter_info, trainable, 88);
OFFSET(ds_parameter_info, decays, 92);

SIZE(ds_optimizer_info, 32);
OFFSET(ds_optimizer_info, struct_size, 0);
OFFSET(ds_optimizer_info, steps, 8);
OFFSET(ds_optimizer_info, rate_count, 16);
OFFSET(ds_optimizer_info, lr, 24);

SIZE(ds_tensor_info, 184);
OFFSET(ds_tensor_info, struct_size, 0);
OFFSET(ds_tensor_info, data, 8);
OFFSET(ds_tensor_info, elements, 16);
OFFSET(ds_tensor_info, bytes, 24);
OFFSET(ds_tensor_info, shape, 32);
OFFSET(ds_tensor_info, strides, 96);
OFFSET(ds_tensor_info, ndim, 160);
OFFSET(ds_tensor_info, dtype, 164);
OFFSET(ds_tensor_info, device_kind, 168);
OFFSET(ds_tensor_info, device_index, 172);
OFFSET(ds_tensor_info, read_only, 176);
OFFSET(ds_tensor_info, contiguous, 180);

SIZE(ds_tokenizer_info, 24);
OFFSET(ds_tokenizer_info, struct_size, 0);
OFFSET(ds_tokenizer_info, vocab_size, 8);
OFFSET(ds_tokenizer_info, end_of_text, 16);
OFFSET(ds_tokenizer_info, reserved, 20);

VALUE(DS_OK, 0);
VALUE(DS_ERR_INVALID_ARGUMENT, -1);
VALUE(DS_ERR_CONFIG, -2);
VALUE(DS_ERR_OUT_OF_MEMORY, -3);
VALUE(DS_ERR_DEVICE, -4);
VALUE(DS_ERR_COMM, -5);
VALUE(DS_ERR_IO, -6);
VALUE(DS_ERR_UNSUPPORTED, -7);
VALUE(DS_ERR_ABORTED, -8);
VALUE(DS_ERR_CALLBACK, -9);
VALUE(DS_ERR_INTERNAL, -10);
VALUE(DS_ERR_STATE, -11);
VALUE(DS_ERR_CORRUPT, -12);
VALUE(DS_ERR_NOT_FOUND, -13);

VALUE(DS_LOG_UNKNOWN, -1);
VALUE(DS_LOG_DEBUG, 0);
VALUE(DS_LOG_INFO, 1);
VALUE(DS_LOG_WARNING, 2);
VALUE(DS_LOG_ERROR, 3);
VALUE(DS_LOG_OFF, 4);

VALUE(DS_REDUCE_UNKNOWN, -1);
VALUE(DS_REDUCE_SUM, 0);
VALUE(DS_REDUCE_AVERAGE, 1);
VALUE(DS_REDUCE_MIN, 2);
VALUE(DS_REDUCE_MAX, 3);

VALUE(DS_COLLECTIVE_UNKNOWN, -1);
VALUE(DS_COLLECTIVE_ALL_REDUCE, 1);
VALUE(DS_COLLECTIVE_REDUCE, 2);
VALUE(DS_COLLECTIVE_REDUCE_SCATTER, 3);
VALUE(DS_COLLECTIVE_ALL_GATHER, 4);
VALUE(DS_COLLECTIVE_BROADCAST, 5);
VALUE(DS_COLLECTIVE_ALL_TO_ALL, 6);
VALUE(DS_COLLECTIVE_GATHER, 7);
VALUE(DS_COLLECTIVE_SCATTER, 8);
VALUE(DS_COLLECTIVE_SEND, 9);
VALUE(DS_COLLECTIVE_RECV, 10);
VALUE(DS_COLLECTIVE_BARRIER, 11);

VALUE(DS_SKIP_UNKNOWN, -1);
VALUE(DS_SKIP_NONE, 0);
VALUE(DS_SKIP_ACCUMULATING, 1);
VALUE(DS_SKIP_NON_FINITE, 2);
VALUE(DS_SKIP_LARGE_NORM, 3);

VALUE(DS_SCOPE_UNKNOWN, -1);
VALUE(DS_SCOPE_COMPUTE, 1);
VALUE(DS_SCOPE_MODIFY, 2);
VALUE(DS_SCOPE_NO_SYNC, 3);

VALUE(DS_VALUE_UNKNOWN, -1);
VALUE(DS_VALUE_PARAMETER, 1);
VALUE(DS_VALUE_GRADIENT, 2);
VALUE(DS_VALUE_STATE, 3);

VALUE(DS_EXTENT_UNKNOWN, -1);
VALUE(DS_EXTENT_WHOLE, 1);
VALUE(DS_EXTENT_LOCAL, 2);

VALUE(DS_WEIGHTS_UNKNOWN, -1);
VALUE(DS_WEIGHTS_MODEL, 0);
VALUE(DS_WEIGHTS_FLOAT32, 1);
VALUE(DS_WEIGHTS_BFLOAT16, 2);
VALUE(DS_WEIGHTS_INT8, 3);
VALUE(DS_WEIGHTS_INT4, 4);

VALUE(DS_DTYPE_UNKNOWN, -1);
VALUE(DS_FLOAT32, 1);
VALUE(DS_FLOAT64, 2);
VALUE(DS_FLOAT16, 3);
VALUE(DS_BFLOAT16, 4);
VALUE(DS_INT8, 5);
VALUE(DS_INT16, 6);
VALUE(DS_INT32, 7);
VALUE(DS_INT64, 8);
VALUE(DS_UINT8, 9);
VALUE(DS_UINT16, 10);
VALUE(DS_UINT32, 11);
VALUE(DS_UINT64, 12);
VALUE(DS_BOOL, 13);

VALUE(DS_DEVICE_UNKNOWN, -1);
VALUE(DS_DEVICE_CPU, 1);
VALUE(DS_DEVICE_CUDA, 2);

/* The header is of the version that the library says. */
int count_null_references(void);
int main(void) {
  const int32_t mine = DS_VERSION_MAJOR * 1000000 + DS_VERSION_MINOR * 1000 + DS_VERSION_PATCH;
  return count_null_references() == 0 && ds_abi_version() == mine ? 0 : 1;
}
