/**
 * @file
 * ds/tokenizer.h - text to token ids and back. All functions: Threads: any.
 */
#ifndef DS_TOKENIZER_H
#define DS_TOKENIZER_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Makes the tokenizer whose tokens are the 256 byte values. Since: 0.1. */
DS_API ds_status ds_tokenizer_create_bytes(ds_tokenizer** out_tokenizer);

/**
 * Reads a tokenizer: a `tokenizer.json` file, a folder that holds one (or vocab.json and
 * merges.txt), or a checkpoint that holds one.
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT, DS_ERR_UNSUPPORTED (a component of the file
 * that this version does not know, by name). Since: 0.1.
 */
DS_API ds_status ds_tokenizer_open(const char* path, ds_tokenizer** out_tokenizer);

/**
 * Reads a tokenizer from the text of a `tokenizer.json`.
 * @param size  bytes of `json`; -1 when it ends with NUL
 * Errors: DS_ERR_CORRUPT, DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_tokenizer_from_json(const char* json, int64_t size,
                                        ds_tokenizer** out_tokenizer);

/**
 * Learns a byte-level byte-pair encoding from text (Sennrich et al., arXiv:1508.07909; GPT-2's
 * byte alphabet and pre-split). Deterministic.
 * @param text          the training text
 * @param size          its bytes
 * @param options_json  {"vocab_size": 32000, "min_frequency": 2,
 *                      "special_tokens": ["<|endoftext|>"]}; NULL for these defaults
 * Errors: DS_ERR_CONFIG. Since: 0.1.
 */
DS_API ds_status ds_tokenizer_train(const char* text, int64_t size,
                                    const char* DS_NULLABLE options_json,
                                    ds_tokenizer** out_tokenizer);

/**
 * Encodes text to token ids.
 * @param text         any bytes, not only UTF-8
 * @param size         bytes of `text`; -1 when it ends with NUL
 * @param add_special  nonzero: add the tokens that the tokenizer's template puts around a text
 * @param out_ids      int32 tensor [count]
 * Since: 0.1.
 */
DS_API ds_status ds_tokenizer_encode(const ds_tokenizer* tokenizer, const char* text, int64_t size,
                                     ds_bool add_special, ds_tensor** out_ids);

/**
 * Decodes token ids to text; bytes that are not UTF-8, and U+0000, become U+FFFD.
 * @param ids           int32 or int64 tensor [count]
 * @param skip_special  nonzero: leave special tokens out
 * Since: 0.1.
 */
DS_API ds_status ds_tokenizer_decode(const ds_tokenizer* tokenizer, const ds_tensor* ids,
                                     ds_bool skip_special, char** out_text);

/** What a tokenizer has. Set struct_size before the call. Since: 0.5. */
typedef struct ds_tokenizer_info {
  int64_t struct_size; /**< sizeof(ds_tokenizer_info) of the caller's header */
  int64_t vocab_size;  /**< number of token ids: ids are in [0, vocab_size) */
  int32_t end_of_text; /**< id of the end-of-text token, -1 when there is none */
  int32_t reserved;    /**< 0 */
} ds_tokenizer_info;
/** A ds_tokenizer_info to be filled. */
#define DS_TOKENIZER_INFO_INIT \
  { (int64_t)sizeof(ds_tokenizer_info), 0, 0, 0 }
/** Size of the vocabulary and the end-of-text token. Since: 0.5. */
DS_API ds_status ds_tokenizer_describe(const ds_tokenizer* tokenizer, ds_tokenizer_info* out_info);

/** Id of a token given as the file spells it. Errors: DS_ERR_NOT_FOUND. Since: 0.1. */
DS_API ds_status ds_tokenizer_token_to_id(const ds_tokenizer* tokenizer, const char* token,
                                          int32_t* out_id);
/** Spelling of a token id. Errors: DS_ERR_NOT_FOUND. Since: 0.1. */
DS_API ds_status ds_tokenizer_id_to_token(const ds_tokenizer* tokenizer, int32_t id,
                                          char** out_token);
/** The tokenizer as the text of a `tokenizer.json`. Since: 0.1. */
DS_API ds_status ds_tokenizer_to_json(const ds_tokenizer* tokenizer, char** out_json);
/** Ends a tokenizer handle; NULL is fine. Since: 0.1. */
DS_API void ds_tokenizer_destroy(ds_tokenizer* DS_NULLABLE tokenizer);

#ifdef __cplusplus
}
#endif
#endif /* DS_TOKENIZER_H */
