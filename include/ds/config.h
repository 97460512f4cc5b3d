/**
 * @file
 * ds/config.h - what may be asked about a configuration without an engine.
 */
#ifndef DS_CONFIG_H
#define DS_CONFIG_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Checks a configuration without an engine and lists everything that is wrong with it.
 * @param config_json   a DeepSpeed configuration (docs/configuration.md)
 * @param options_json  how it is read, as in ds_engine_create, and where it would be used:
 *                      "world", the number of ranks (default: the one that three given batch sizes
 *                      fit, else 1); "device", "cpu" or "cuda"; "model", the object of a
 *                      config.json. NULL for the defaults.
 * @param out_json      {"accepted": true or false, "world", "problems": [{"kind", "path", "text",
 *                      "advice"}], "warnings", "document", "config", "origins"}. A problem's kind
 * is "error", "auto", "missing_feature" (with "feature") or "ignored", which refuses nothing.
 * "document" is what was given and accepted, with "auto" resolved: strict reading accepts it, if
 * this document is accepted, with the same meaning. "config" and "origins" are those of
 * ds_engine_config; null for a document that is refused. A document that is refused is no error of
 * this call. Errors: DS_ERR_CONFIG (the options). Threads: any. Since: 0.5.
 */
DS_API ds_status ds_config_check(const char* config_json, const char* DS_NULLABLE options_json,
                                 char** out_json);

/**
 * Every key that a configuration may have, as a JSON Schema (draft 2020-12): types, defaults,
 * ranges, allowed values and descriptions. For editors and for checks outside the library; which
 * keys go together only ds_config_check knows.
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_config_schema(char** out_json);

/**
 * What training would take on each rank of a world that need not be there, from shapes alone.
 * @param model_json    a Hugging Face config.json, or {"parameters": N, "layers": L}: only a size
 * @param config_json   a DeepSpeed configuration
 * @param options_json  {"world": 1, "ranks_per_node": 0 (all), "sequence_length": 0 (the model's),
 *                      "device": "cpu" or "cuda" (unset: GPUs where offload_optimizer is given)},
 *                      and what the plan is compared with: "compare": true (does it fit, and what
 *                      would help?) or "fit": true (which variant is the fastest that fits?), with
 *                      "memory", "gpu_memory", "disk" (bytes of a rank; unset: this machine's,
 *                      but no GPU's), and for "fit" "folder" (of files, where the configuration
 *                      names none) and "rates" (per second: "product_flops", "pass_flops" (of
 *                      products in whole passes), "memory_bytes", "gpu_memory_bytes", "read_bytes",
 *                      "write_bytes", "near_bytes", "far_bytes"; those that are not given are
 *                      measured on this machine, in a second or two: passes by the model's own
 *                      block, those of a larger one, or beside a given product_flops, as products;
 *                      far_bytes is then 1.25e9, gpu_memory_bytes 5e11)
 * @param out_json      "model", "stage", "memory_per_rank" (bytes by use at the fullest moment,
 *                      passes of one micro batch counted by running them over no memory),
 *                      "host_memory_per_rank" (with offload_optimizer, of ranks with a GPU),
 *                      "files_per_rank" (with device nvme) and "moved_per_step" (a list of
 *                      collectives: bytes that a rank sends within its node and across); with the
 *                      configuration's distillation "teacher" ("parameters", "active_parameters",
 *                      "weights", "bytes" that each rank holds, "flops_per_token"). With
 *                      "compare" also "fits", "shortages" ("place", "limit", "needed_bytes",
 *                      "available_bytes") and "remedies", three at most, cheapest first ("merge":
 *                      what to merge into the configuration, "fits", "needed_bytes",
 *                      "saved_bytes", "cost"). With "fit" the plan is that of the variant, and
 *                      "fit" has "config", "changes", "seconds_per_step" (estimated, by what they
 *                      are spent on), "rates" and "tried"
 * Errors: DS_ERR_CONFIG, DS_ERR_UNSUPPORTED; DS_ERR_OUT_OF_MEMORY with "fit" where no variant fits;
 * DS_ERR_IO where a disk is to be measured and cannot be written. Threads: any. Since: 0.4.
 */
DS_API ds_status ds_plan(const char* model_json, const char* config_json, const char* options_json,
                         char** out_json);

#ifdef __cplusplus
}
#endif
#endif /* DS_CONFIG_H */
