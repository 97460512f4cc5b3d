/**
 * @file
 * ds/checkpoint.h - checkpoints on disk, without an engine.
 */
#ifndef DS_CHECKPOINT_H
#define DS_CHECKPOINT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Describes a checkpoint as JSON: "tags" of the folder by their steps (those that cannot be opened
 * first) and "runs", the id of the training run by tag (null when unknown); of the one that is
 * described "run", counters, tensors with shapes, slices and places, and the "config" that it was
 * trained with.
 * @param tag  NULL for the newest valid one
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Threads: any. Since: 0.1.
 */
DS_API ds_status ds_checkpoint_inspect(const char* folder, const char* DS_NULLABLE tag,
                                       char** out_json);

/**
 * Deletes one checkpoint of a folder, valid or not. Where `latest` names it, `latest` first moves
 * to the valid one with the most steps of the others, or goes when there is none. Nobody may be
 * reading it; an engine deletes old ones by itself with the configuration's checkpoint.keep.
 * @param tag  its name; NULL is refused
 * Errors: DS_ERR_NOT_FOUND (also a folder that is no checkpoint), DS_ERR_IO (files that are not a
 * checkpoint's keep its folder; the checkpoint itself is gone), DS_ERR_INVALID_ARGUMENT. Threads:
 * any. Since: 0.5.
 */
DS_API ds_status ds_checkpoint_delete(const char* folder, const char* tag);

/**
 * Reads every byte of a checkpoint and compares checksums; the error names file, tensor and bytes.
 * Errors: as ds_checkpoint_inspect. Threads: any. Since: 0.1.
 */
DS_API ds_status ds_checkpoint_verify(const char* folder, const char* DS_NULLABLE tag);

#ifdef __cplusplus
}
#endif
#endif /* DS_CHECKPOINT_H */
