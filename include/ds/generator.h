/**
 * @file
 * ds/generator.h - runs a model without training it: text, logits, hidden states.
 */
#ifndef DS_GENERATOR_H
#define DS_GENERATOR_H

#include "comm.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A ds_weight_form_code. Since: 0.5. */
typedef int32_t ds_weight_form;
/** How a generator holds weights. */
enum ds_weight_form_code {
  DS_WEIGHTS_UNKNOWN = -1,
  DS_WEIGHTS_MODEL = 0,    /**< the model's own, as they are at each call */
  DS_WEIGHTS_FLOAT32 = 1,  /**< its own copy */
  DS_WEIGHTS_BFLOAT16 = 2, /**< its own copy */
  DS_WEIGHTS_INT8 = 3,     /**< matrices of linear layers in 8 bits, the rest bfloat16 */
  DS_WEIGHTS_INT4 = 4      /**< the same in 4 bits */
};

/**
 * Makes what runs a model. Without "weights" it runs the model's own, as they are at each call:
 * also those that an engine trains, between two calls of that engine. With "weights" it holds a
 * copy prepared for running alone and needs the model no longer: destroy that to have its memory
 * back. docs/inference.md describes the forms.
 * @param options_json  NULL, or an object of: "weights": "model" (default), "fp32", "bf16", or
 *     "int8", "int4" for the matrices of linear layers beside bfloat16 for everything else
 *     (activations are float32 with "fp32" and bfloat16 otherwise); "group_size": 64, elements of a
 *     row that share a scale in "int8" and "int4", a multiple of 8, 0 = the whole row;
 *     "symmetric": true, false gives groups of "int4" a minimum beside the scale; "threads": 0, the
 *     CPUs that the process may run on; "int8_activations": false, true lets products with "int8"
 *     and "int4" of more than 16 rows (a prompt) round these to 8 bits as well, in pieces of 32, 64
 *     or 256 that share a scale, "all" those of any number of rows: faster on a CPU with
 *     AVX512-VNNI (most with group sizes of 0 and multiples of 256) or with AVX2 and no AVX-512,
 *     where group_size is 0 or a multiple of 32, without effect elsewhere; "overrides":
 *     [{"match": "h.0.*", "weights": "int8", ...}], another form, group size or symmetry for the
 *     matrices of linear layers whose names match (* is any text, ? any character; the last match
 *     counts), not with "fp32"; "offload_param":
 *     {"device": "nvme", "nvme_path": folder, "max_in_cpu": 1e9, "buffer_count": 5, "buffer_size":
 *     1e8}, of a model on the CPU: matrices of linear layers but for the first max_in_cpu elements
 *     rest in a file there without a name, and are read where they are used, ahead of that at most
 *     buffer_count times buffer_size elements (ZeRO-Inference, arXiv:2207.00032); of experts those
 *     that tokens chose are read, and what max_in_cpu leaves beside other matrices keeps the ones
 *     used last. All but "weights"
 *     need a prepared form; those of keys and values do not: "kv_block_tokens": 0, tokens of a
 *     block of the key-value cache, of a model on the CPU: blocks are taken as a text grows (Kwon
 *     et al., arXiv:2309.06180), 0 = one piece for the longest text that the call may make;
 *     "kv_pool_tokens": 0, tokens that the blocks of a call hold at most, rounded down to whole
 *     blocks, 0 = any number. The text is the same, bit for bit. "kv_cache": "auto", keys and
 *     values in the type that the model computes in; "int8", of a model on the CPU without latent
 *     attention: as 8-bit codes with a scale in fp32 for each token and head, which a number is off
 *     by half of at most, so that texts differ from those of "auto".
 * @param out_generator  keeps the model alive while it runs the model's own weights
 * While an engine trains the model and its ranks share experts (expert_parallel), every rank makes
 * the calls that run the model's own weights, each with texts of its own.
 * Errors: DS_ERR_CONFIG, DS_ERR_INVALID_ARGUMENT (weights that are not finite), DS_ERR_IO (the
 * file), DS_ERR_STATE, DS_ERR_UNSUPPORTED (own parameters; weights spread over processes in a
 * prepared form, which every process would have to make: copy the model first; kv_block_tokens and
 * kv_cache "int8" of a model on a GPU, and "int8" with latent attention, for the model's own
 * weights when they run). Since: 0.5.
 */
DS_API ds_status ds_generator_create(ds_model* model, const char* DS_NULLABLE options_json,
                                     ds_generator** out_generator);

/**
 * The same for ranks that share a model's experts: each copies its part of every layer's experts,
 * and everything that is no expert, and reads no other from the model's files. Rows of tokens go to
 * the ranks that hold the experts which they chose (docs/experts.md). Every rank of the group makes
 * this call, with the same model and form; then every rank makes each call of
 * ds_generator_generate, or ds_generator_generate_batch or ds_generator_take_part in its place, of
 * ds_generator_logits and of ds_generator_hidden_states, with texts and batches of its own.
 * @param model         must not be trained by an engine
 * @param options_json  as for ds_generator_create, but "weights" is "fp32" by default and cannot be
 *     "model"; and "expert_parallel": {"enabled": true, "autoep_size": n}: so many ranks, one after
 *     another, share the experts, a divisor of the group's ranks and of each layer's experts; by
 *     default all ranks of the group; with "hierarchical_all_to_all", as in the configuration,
 *     whether rows go between hosts first and then within them
 * @param comm          the group, which the generator keeps; a program ends it after the generator
 * An error of one rank is an error of all. Afterwards a rank that is lost, or fails within a pass,
 * ends the group: the others get DS_ERR_COMM or DS_ERR_ABORTED.
 * Errors: those of ds_generator_create, DS_ERR_CONFIG (experts that cannot be shared so),
 * DS_ERR_INVALID_ARGUMENT (ranks with different models), DS_ERR_STATE (an engine trains the model),
 * DS_ERR_COMM. Since: 0.5.
 */
DS_API ds_status ds_generator_create_shared(ds_model* model, const char* DS_NULLABLE options_json,
                                            ds_comm* comm, ds_generator** out_generator);

/** What a generator holds: the form of all but its overrides. Set struct_size before the call.
 * Since: 0.5. */
typedef struct ds_generator_info {
  int64_t struct_size;     /**< sizeof(ds_generator_info) of the caller's header */
  int64_t bytes;           /**< of all weights; 0 for the model's own */
  int64_t bytes_per_token; /**< of those that each new token reads whole, of experts as many as it
                                goes through; 0 for the model's own */
  int64_t group_size;      /**< elements that share a scale; 0 = a row, or no such form */
  ds_weight_form weights;  /**< the form */
  int32_t threads;         /**< threads that it works with; 0 for the model's own weights */
  ds_bool symmetric;       /**< groups have no minimum */
  int32_t reserved;        /**< 0 */
  int64_t bytes_saved; /**< of those that the parameters take in float32; 0 for the model's own */
  int64_t bytes_read;  /**< of weights in a file: read since the generator was made, or asked for */
  int64_t expert_uses; /**< of experts' matrices in a file: how often a pass used one, ... */
  int64_t expert_hits; /**< ... and found it in memory, where the last ones stay */
} ds_generator_info;
/** A ds_generator_info to be filled. */
#define DS_GENERATOR_INFO_INIT \
  { (int64_t)sizeof(ds_generator_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/** Form and size of the weights. Since: 0.5. */
DS_API ds_status ds_generator_describe(const ds_generator* generator, ds_generator_info* out_info);

/**
 * A copy of a parameter as the generator's products see it, full shape, float32.
 * @param parameter  its index in the model
 * Since: 0.5.
 */
DS_API ds_status ds_generator_get_parameter(ds_generator* generator, int64_t parameter,
                                            ds_tensor** out_tensor);

/** How ds_generator_generate chooses tokens. Zero is default. */
typedef struct ds_generate_options {
  int64_t struct_size;    /**< sizeof(ds_generate_options) of the caller's header */
  int64_t max_tokens;     /**< new tokens at most; 0 = 64 */
  double temperature;     /**< 0 = always the likeliest token */
  int64_t top_k;          /**< keep the k likeliest; 0 = all */
  double top_p;           /**< keep the likeliest whose sum reaches p (Holtzman et al.,
                               arXiv:1904.09751); 0 = all */
  int64_t seed;           /**< same seed, same text */
  int32_t stop_token;     /**< ends the text when `has_stop_token` */
  ds_bool has_stop_token; /**< nonzero: use `stop_token` */
  ds_bool no_graphs;      /**< nonzero: on a GPU, launch the kernels of each token one by one
                               instead of recording them once as a CUDA graph; the text is the
                               same, bit for bit. Since: 0.4 */
  int32_t reserved;       /**< 0 */
} ds_generate_options;
/** A ds_generate_options with nothing set. */
#define DS_GENERATE_OPTIONS_INIT \
  { (int64_t)sizeof(ds_generate_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Receives each new token on the thread that makes the call; nonzero ends it with DS_ERR_CALLBACK.
 * It must not use the generator or its model.
 */
typedef int32_t (*ds_token_fn)(void* user_data, int32_t token);

/**
 * Continues a prompt, with a key-value cache.
 * @param prompt     int32 or int64 tensor [count], count >= 1
 * @param options    NULL for the defaults
 * @param on_token   called with each new token; may be NULL
 * @param user_data  passed to `on_token`
 * @param out_ids    int32 tensor [new tokens], without the prompt and the stop token
 * Text beyond the model's positions goes on from its last half alone, with a warning in the log.
 * Errors: DS_ERR_CALLBACK, DS_ERR_ABORTED (ds_generator_interrupt), DS_ERR_STATE (an engine trains
 * the model at this moment), DS_ERR_OUT_OF_MEMORY (also kv_pool_tokens, when `on_token` has had the
 * tokens before), DS_ERR_UNSUPPORTED (kv_block_tokens and kv_cache on a GPU; kv_cache "int8"
 * with latent attention). Since: 0.5.
 */
DS_API ds_status ds_generator_generate(ds_generator* generator, const ds_tensor* prompt,
                                       const ds_generate_options* DS_NULLABLE options,
                                       ds_token_fn DS_NULLABLE on_token,
                                       void* DS_NULLABLE user_data, ds_tensor** out_ids);

/** Prompts that are continued together. Zero is default; all tensors are in host memory. Since:
 * 0.5.
 */
typedef struct ds_prompts {
  int64_t struct_size; /**< sizeof(ds_prompts) of the caller's header */
  /** token ids: int32 or int64 [tokens of all prompts], one prompt behind the other */
  const ds_tensor* ids;
  /** tokens of each prompt: int32 or int64 [prompts], each 1 or more, in sum those of `ids` */
  const ds_tensor* counts;
  int64_t at_once; /**< texts that go through the model together at most; 0 = 16 */
} ds_prompts;
/** A ds_prompts with nothing set. */
#define DS_PROMPTS_INIT \
  { (int64_t)sizeof(ds_prompts), 0, 0, 0 }

/** A ds_text_reply_code. Since: 0.5. */
typedef int32_t ds_text_reply;
/** What a ds_text_token_fn returns; any other value is as DS_TEXTS_END. */
enum ds_text_reply_code {
  DS_TEXT_REPLY_UNKNOWN = -1,
  DS_TEXT_GOES_ON = 0, /**< this text goes on */
  DS_TEXT_ENDS = 1,    /**< this text is complete with the token; the others go on */
  DS_TEXTS_END = 2     /**< the call ends with DS_ERR_CALLBACK */
};
/**
 * Receives each new token of several texts, on the thread that makes the call; `text` is the index
 * of its prompt. It must not use the generator or its model. Since: 0.5.
 */
typedef ds_text_reply (*ds_text_token_fn)(void* user_data, int64_t text, int32_t token);

/**
 * Continues several prompts together: each weight is read once for a token of all texts, and where
 * one text ends the next prompt takes its place (iteration-level scheduling, Yu et al., Orca, OSDI
 * 2022). Keys and values of a model on the CPU lie in blocks: of kv_block_tokens, else of 64
 * tokens; where kv_pool_tokens has no room for all of a text, it waits for others to end.
 * @param prompts     `ids` and `counts` are needed
 * @param options     for each text, NULL for the defaults; text i has the seed options.seed + i
 * @param on_token    called with each new token; may be NULL
 * @param user_data   passed to `on_token`
 * @param out_ids     int32 tensor [new tokens of all texts], one text behind the other in the order
 * of their prompts, each as ds_generator_generate gives it
 * @param out_counts  int64 tensor [prompts]: the new tokens of each
 * A model whose rotation depends on a text's length (rope_scaling dynamic) has one text at a time.
 * On a CPU with `at_once` up to 16, text i is that of ds_generator_generate with its prompt and
 * seed, bit for bit; with more, and on a GPU, sums may round in another order (on a GPU no work is
 * recorded, either, and each text has room for the longest one).
 * Errors: those of ds_generator_generate; DS_ERR_INVALID_ARGUMENT says which prompt is meant.
 * ds_generator_interrupt ends the call. Since: 0.5.
 */
DS_API ds_status ds_generator_generate_batch(ds_generator* generator, const ds_prompts* prompts,
                                             const ds_generate_options* DS_NULLABLE options,
                                             ds_text_token_fn DS_NULLABLE on_token,
                                             void* DS_NULLABLE user_data, ds_tensor** out_ids,
                                             ds_tensor** out_counts);

/**
 * Of a rank without a text of its own, among ranks that share experts: computes what the others'
 * texts need of its experts, until every rank's ds_generator_generate and
 * ds_generator_generate_batch is done. Without other ranks
 * it returns at once.
 * Errors: DS_ERR_STATE, DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.5.
 */
DS_API ds_status ds_generator_take_part(ds_generator* generator);

/**
 * Ends the ds_generator_generate or ds_generator_generate_batch that runs now before its next
 * token, with DS_ERR_ABORTED; without such a call nothing happens. Threads: any, while another
 * thread is inside a call. Since: 0.5.
 */
DS_API ds_status ds_generator_interrupt(ds_generator* generator);

/**
 * Sequences that go through a model together. Zero is default; all tensors are in host memory.
 * Since: 0.5.
 */
typedef struct ds_batch {
  int64_t struct_size; /**< sizeof(ds_batch) of the caller's header */
  /** token ids: int32 or int64 [batch, length] */
  const ds_tensor* ids;
  /**
   * What shall be predicted: int32 or int64 [batch, length], -100 = not counted; label (b, t) is
   * the token that position (b, t) shall predict. A model that classifies takes [batch], and one
   * whose config.json says problem_type regression (or one label and no problem_type) or
   * multi_label_classification takes numbers: float32, int32 or int64 [batch, num_labels], also
   * [batch] for one label, from 0 to 1 for several labels. Their loss is the mean squared error, or
   * the binary cross entropy of the logits, over all numbers.
   */
  const ds_tensor* labels;
  /** 0 = padding: uint8, bool, int32 or int64 [batch, length]; NULL = none */
  const ds_tensor* attention_mask;
  /** numbers of packed sequences: int32 or int64 [batch, length]; tokens see their own segment
   * only, positions restart with each; NULL = one */
  const ds_tensor* segments;
  /** int32 or int64 [batch, length] for models that have them; NULL = 0 */
  const ds_tensor* token_types;
} ds_batch;
/** A ds_batch with nothing set. */
#define DS_BATCH_INIT \
  { (int64_t)sizeof(ds_batch), 0, 0, 0, 0, 0 }

/**
 * Logits of a batch, without training and without dropout.
 * @param batch       `labels` must be NULL
 * @param out_logits  float32 tensor [batch, length, vocabulary], or [batch, classes] of a model
 *                    that classifies
 * Errors: DS_ERR_STATE, DS_ERR_UNSUPPORTED (no head). Since: 0.5.
 */
DS_API ds_status ds_generator_logits(ds_generator* generator, const ds_batch* batch,
                                     ds_tensor** out_logits);

/**
 * Hidden states after the last norm, before the head.
 * @param batch       `labels` must be NULL
 * @param out_states  float32 tensor [batch, length, width]
 * Errors: DS_ERR_STATE. Since: 0.5.
 */
DS_API ds_status ds_generator_hidden_states(ds_generator* generator, const ds_batch* batch,
                                            ds_tensor** out_states);

/** Ends a generator; NULL is fine. Threads: any. Since: 0.5. */
DS_API void ds_generator_destroy(ds_generator* DS_NULLABLE generator);

#ifdef __cplusplus
}
#endif
#endif /* DS_GENERATOR_H */
