/**
 * @file
 * ds/dataset.h - samples of token ids. All functions: Threads: any.
 */
#ifndef DS_DATASET_H
#define DS_DATASET_H

#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Opens training samples. Kind "gpt" (default) has `sequence_length + 1` running tokens in the
 * order of Megatron's GPT data set: documents and samples shuffled with the seed, epoch after
 * epoch.
 * Kind "blend" draws from members by weight; "packed" packs fine-tuning examples (prompt and
 * completion, chats, texts) of a .jsonl file and learns the answers only; "mlm" hides tokens of
 * documents for BERT (Devlin et al., arXiv:1810.04805). docs/data.md has their keys.
 * @param spec_json  {"kind": "gpt", "path": FILE_OR_PREFIX, "sequence_length": N, "samples": N,
 *                   "split": "969,30,1", "split_rounding": "megatron"|"megatron_core",
 *                   "part": "train"|"valid"|"test", "seed": 1234}.
 *                   `path` names PREFIX.bin and PREFIX.idx, a text file or a .jsonl file whose
 *                   lines have "text". `samples` 0 (default) means one epoch.
 * @param tokenizer  encodes text; NULL reads bytes. Not used for PREFIX.
 * Errors: DS_ERR_CONFIG, DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Since: 0.1.
 */
DS_API ds_status ds_dataset_open(const char* spec_json, const ds_tokenizer* DS_NULLABLE tokenizer,
                                 ds_dataset** out_dataset);

/**
 * Tokenises a text or .jsonl file into PREFIX.bin and PREFIX.idx (Megatron's format).
 * @param input        the file; "text" is read from each line of a .jsonl file
 * @param append_end   nonzero: one end-of-text token after each document
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Since: 0.1.
 */
DS_API ds_status ds_dataset_build(const char* input, const ds_tokenizer* tokenizer,
                                  ds_bool append_end, const char* output_prefix);

/**
 * Writes the documents of several data sets one after another into PREFIX.bin and PREFIX.idx, in
 * Megatron's format; the inputs may have its older index (TNTIDX).
 * @param inputs_json    ["PREFIX", ...], all with tokens of one type
 * @param output_prefix  not one of them
 * Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT. Since: 0.5.
 */
DS_API ds_status ds_dataset_merge(const char* inputs_json, const char* output_prefix);

/** How much a data set holds. Set struct_size before the call. Since: 0.5. */
typedef struct ds_dataset_info {
  int64_t struct_size;     /**< sizeof(ds_dataset_info) of the caller's header */
  int64_t samples;         /**< number of samples */
  int64_t sequence_length; /**< tokens per sample less one */
} ds_dataset_info;
/** A ds_dataset_info to be filled. */
#define DS_DATASET_INFO_INIT \
  { (int64_t)sizeof(ds_dataset_info), 0, 0 }
/** Number and length of the samples. Since: 0.5. */
DS_API ds_status ds_dataset_describe(const ds_dataset* dataset, ds_dataset_info* out_info);
/** One sample of running tokens as an int32 tensor [sequence_length + 1].
 * Errors: DS_ERR_UNSUPPORTED (another kind: use ds_dataset_field). Since: 0.1. */
DS_API ds_status ds_dataset_sample(const ds_dataset* dataset, int64_t index,
                                   ds_tensor** out_tokens);
/**
 * One field of a sample as a tensor [sequence_length], "sentence_order" as a tensor [1].
 * @param field  "ids", "labels", "segments", "token_types", "sentence_order" (int32) or "mask"
 *               (uint8)
 * Errors: DS_ERR_NOT_FOUND (the data set has no such field). Since: 0.2.
 */
DS_API ds_status ds_dataset_field(const ds_dataset* dataset, int64_t index, const char* field,
                                  ds_tensor** out_values);
/** Ends a data set handle; NULL is fine. Since: 0.1. */
DS_API void ds_dataset_destroy(ds_dataset* DS_NULLABLE dataset);

#ifdef __cplusplus
}
#endif
#endif /* DS_DATASET_H */
