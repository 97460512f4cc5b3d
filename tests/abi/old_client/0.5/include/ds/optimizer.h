/**
 * @file
 * ds/optimizer.h - the optimizer inside an engine. A handle enters the engine: calls on either
 * exclude calls on the other. After the engine has ended every call gives DS_ERR_STATE.
 */
#ifndef DS_OPTIMIZER_H
#define DS_OPTIMIZER_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The optimizer of an engine.
 * @param out_optimizer  ended with ds_optimizer_destroy, which leaves the engine as it is
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_engine_optimizer(ds_engine* engine, ds_optimizer** out_optimizer);

/** What an optimizer has done and will do. Set struct_size before the call. Since: 0.5. */
typedef struct ds_optimizer_info {
  int64_t struct_size; /**< sizeof(ds_optimizer_info) of the caller's header */
  int64_t steps;       /**< updates applied so far (Adam's t) */
  int64_t rate_count;  /**< learning rates: one per parameter group, two for Muon's (matrices, the
                            rest) */
  double lr;           /**< the first of them, for the next step */
} ds_optimizer_info;
/** A ds_optimizer_info to be filled. */
#define DS_OPTIMIZER_INFO_INIT \
  { (int64_t)sizeof(ds_optimizer_info), 0, 0, 0 }
/** Steps and rates. Since: 0.5. */
DS_API ds_status ds_optimizer_describe(ds_optimizer* optimizer, ds_optimizer_info* out_info);
/** Learning rate `index` of the next step, in [0, rate_count). Since: 0.2. */
DS_API ds_status ds_optimizer_rate(ds_optimizer* optimizer, int64_t index, double* out_lr);
/**
 * Sets every group's rate of the next step; a configured scheduler overrides it again after that
 * step. Since: 0.1.
 */
DS_API ds_status ds_optimizer_set_lr(ds_optimizer* optimizer, double lr);
/**
 * Names of the state tensors that the optimizer keeps for a parameter, as a JSON list, such as
 * ["exp_avg", "exp_avg_sq"]; ds_engine_get_values and ds_engine_set_values take them.
 * @param parameter  its index in the model
 * Errors: DS_ERR_NOT_FOUND. Since: 0.5.
 */
DS_API ds_status ds_optimizer_state_names(ds_optimizer* optimizer, int64_t parameter,
                                          char** out_json);
/** Ends the handle, not the optimizer; NULL is fine. Threads: any. Since: 0.5. */
DS_API void ds_optimizer_destroy(ds_optimizer* DS_NULLABLE optimizer);

#ifdef __cplusplus
}
#endif
#endif /* DS_OPTIMIZER_H */
