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

SIZE(ds_step_report, 360);
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
OFFSET(ds_step_report, first_bad_tensor, 88);
OFFSET(ds_step_report, first_bad_element, 344);
OFFSET(ds_step_report, first_bad_value, 352);

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

VALUE(DS_LOG_DEBUG, 0);
VALUE(DS_LOG_INFO, 1);
VALUE(DS_LOG_WARNING, 2);
VALUE(DS_LOG_ERROR, 3);
VALUE(DS_LOG_OFF, 4);

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

VALUE(DS_DEVICE_CPU, 1);
VALUE(DS_DEVICE_CUDA, 2);

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

VALUE(DS_SKIP_NONE, 0);
VALUE(DS_SKIP_ACCUMULATING, 1);
VALUE(DS_SKIP_NON_FINITE, 2);

/* The header is of the version that the library says. */
int count_null_references(void);
int main(void) {
  const int32_t mine = DS_VERSION_MAJOR * 1000000 + DS_VERSION_MINOR * 1000 + DS_VERSION_PATCH;
  return count_null_references() == 0 && ds_abi_version() == mine ? 0 : 1;
}
