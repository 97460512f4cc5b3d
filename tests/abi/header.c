/* ds.h alone, twice, under whichever language standard the test compiles this with. */
#include "ds.h"

int32_t header_is_usable(const ds_tensor* tensor, ds_step_report* report);
int32_t header_is_usable(const ds_tensor* tensor, ds_step_report* report) {
  report->struct_size = (int64_t)sizeof(ds_step_report);
  return tensor != 0 && DS_OK == 0 && report->applied;
}
