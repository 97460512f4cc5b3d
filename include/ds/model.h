/**
 * @file
 * ds/model.h - architecture and weights: making, opening, adapting, reading and writing models.
 *
 * Parameters are numbered from 0 in the model's order, tied ones once; every function takes the
 * number, ds_model_parameter_index finds that of a name. Numbers stay until adapters are added or
 * removed.
 */
#ifndef DS_MODEL_H
#define DS_MODEL_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Making and opening -------------------------------------------------------------------- */

/**
 * Makes a model with fresh weights: N(0, initializer_range), output projections scaled by
 * 1/sqrt(2 layers), biases 0, norms 1 (Shoeybi et al., arXiv:1909.08053).
 * @param config_json  a Hugging Face config.json; docs/models.md lists the families
 * @param seed         same seed, same weights
 * Errors: DS_ERR_CONFIG, DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_model_create(const char* config_json, int64_t seed, ds_model** out_model);

/**
 * Opens weights from a folder: Hugging Face (config.json and safetensors) or a checkpoint of
 * ds_engine_save (the folder that holds `latest`, or one tag's folder).
 * @param options_json  NULL, or {"config": {...}, "head_seed": N}, each optional, for a Hugging
 * Face folder with another head or changed options, such as an encoder with a classifier on top.
 *     "config": members that replace those of config.json, such as {"architectures":
 *     ["BertForSequenceClassification"], "num_labels": 3}. "head_seed", 0 or more: parameters of
 *     the head that the files lack start fresh from this seed; without it they must be there.
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT, DS_ERR_UNSUPPORTED, DS_ERR_CONFIG.
 * Since: 0.5.
 */
DS_API ds_status ds_model_open(const char* folder, const char* DS_NULLABLE options_json,
                               ds_model** out_model);

/** One parameter of a program that computes its own gradients. Zero is default. */
typedef struct ds_parameter {
  int64_t struct_size; /**< sizeof(ds_parameter) of the caller's header, the same in all elements */
  const char* name;    /**< unlike all others; UTF-8 */
  const int64_t* shape; /**< the whole tensor's; may be NULL when `value` is given */
  const ds_tensor*
      value;          /**< first value (float32, bfloat16, float16), host or GPU; NULL = zeros */
  const char* group;  /**< of the optimizer's param_groups; NULL = the default one */
  const char* alias;  /**< another name of the same tensor (tied weights); NULL = none */
  int32_t ndim;       /**< sizes at `shape`, 0 to 8 */
  ds_dtype dtype;     /**< type in which the program holds it; 0 = that of `value`, else float32 */
  ds_bool lend;       /**< nonzero: `value` receives every new value, in its own type */
  ds_bool frozen;     /**< nonzero: never updated, takes no gradient */
  ds_bool no_decay;   /**< nonzero: weight decay does not apply */
  ds_bool has_expert; /**< nonzero: `expert` counts */
  int64_t expert;     /**< index of the expert that it belongs to */
} ds_parameter;
/** A ds_parameter with nothing set. */
#define DS_PARAMETER_INIT \
  { (int64_t)sizeof(ds_parameter), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Makes a model of the caller's own parameters, without a forward pass: the caller computes
 * gradients and gives them to an engine (ds_engine_add_gradients). It trains, saves, loads and
 * exports as any other; ds_model_open of a checkpoint gives it back. It lives on the GPU that
 * values lie on, packed; else on the CPU.
 * @param parameters  `count` elements; texts and shapes are copied
 * @param count       1 or more
 * Ownership: a lent `value` is counted: its memory is written after every applied step, load and
 * ds_model_set_parameter, inside those calls only. An engine of several processes at ZeRO stage 3
 * refuses lent values: no process has whole weights to write. A parameter that is not lent lies in
 * the library's memory, see ds_model_view_parameter; its dtype must then be float32 or the type in
 * which the engine's configuration computes, and a model may have both, such as float32 adapters
 * beside a bfloat16 base. Errors: DS_ERR_UNSUPPORTED (a type, two
 * places). Since: 0.2.
 */
DS_API ds_status ds_model_create_from_parameters(const ds_parameter* parameters, int64_t count,
                                                 ds_model** out_model);

/**
 * Makes a second model of the same weights (fp32), adapters and frozen parameters, on the same
 * device, which shares nothing with the first: it can generate, evaluate or be exported while an
 * engine trains the first one on. To be called between two calls of that engine. Where processes
 * share the weights of a model (ZeRO stage 3, expert_parallel), every one calls.
 * @param out_model  the copy; no engine trains it. Ownership: owned (ds_model_destroy).
 * Errors: DS_ERR_STATE (another call uses the model, or it is prepared for inference),
 * DS_ERR_UNSUPPORTED (own parameters), DS_ERR_OUT_OF_MEMORY. Since: 0.4.
 */
DS_API ds_status ds_model_copy(ds_model* model, ds_model** out_model);

/* ---- What a model is ----------------------------------------------------------------------- */

/** Sizes and place of a model. Set struct_size before the call. Since: 0.5. */
typedef struct ds_model_info {
  int64_t struct_size;        /**< sizeof(ds_model_info) of the caller's header */
  int64_t parameters;         /**< parameters (tensors), tied ones once */
  int64_t elements;           /**< numbers in all of them */
  int64_t trainable_elements; /**< numbers in those that are not frozen */
  int64_t vocab_size;         /**< token ids are in [0, vocab_size); 0 for own parameters */
  int64_t max_positions;      /**< longest sequence; 0 where nothing limits it */
  ds_device_kind device_kind; /**< where the weights are */
  int32_t device_index;       /**< which device of that kind */
} ds_model_info;
/** A ds_model_info to be filled. */
#define DS_MODEL_INFO_INIT \
  { (int64_t)sizeof(ds_model_info), 0, 0, 0, 0, 0, 0, 0 }
/** Sizes and place. Threads: any. Since: 0.5. */
DS_API ds_status ds_model_describe(const ds_model* model, ds_model_info* out_info);
/** The architecture as a config.json; "null" for own parameters. Threads: any. Since: 0.1. */
DS_API ds_status ds_model_config(const ds_model* model, char** out_json);
/**
 * Moves the weights to a device, where the model then runs and engines made later train it. Tensors
 * that are given and returned stay in host memory; docs/cuda.md says what runs on a GPU.
 * @param device  "cpu", where models begin; a GPU, "cuda:0", as ds_report counts them; "auto": see
 *     docs/cuda.md. Of several processes each takes another GPU, and their transport is "nccl".
 * Errors: DS_ERR_UNSUPPORTED (no CUDA in this build, no driver, no GPU; or lent parameters),
 * DS_ERR_INVALID_ARGUMENT (no such device), DS_ERR_STATE (the model has an engine, or is prepared
 * for inference), DS_ERR_OUT_OF_MEMORY, DS_ERR_DEVICE. Since: 0.4.
 */
DS_API ds_status ds_model_set_device(ds_model* model, const char* device);

/**
 * Orders the work on the model's GPU with a stream of the program: what a call of the model, its
 * engine or a scope does there begins after what the stream holds when the call is made, and what
 * the stream gets after the call begins after that. Calls then wait on the host for nothing but the
 * numbers that they return there (losses, norms, copied values): gradients, lent parameters and
 * views are written and read without one wait. Without it, which is the default, GPU memory that is
 * given must be ready, and a call of own parameters ends when the GPU has finished.
 * GPU memory whose values a call copies to the host must be ready in either case.
 * @param stream  a cudaStream_t of the model's GPU, with cudaStreamLegacy and cudaStreamPerThread;
 *     NULL ends it. It must live until then, or until model and engine are destroyed.
 *     ds_model_set_device, which moves the model, ends it too
 * Errors: DS_ERR_UNSUPPORTED (the model is in host memory), DS_ERR_STATE (in use), DS_ERR_DEVICE.
 * Since: 0.5.
 */
DS_API ds_status ds_model_set_stream(ds_model* model, void* DS_NULLABLE stream);

/* ---- Parameters ---------------------------------------------------------------------------- */

/**
 * Index of a parameter by its name, by that of a tied tensor, or by the one in Hugging Face files.
 * Errors: DS_ERR_NOT_FOUND (with the nearest name). Threads: any. Since: 0.5.
 */
DS_API ds_status ds_model_parameter_index(const ds_model* model, const char* name,
                                          int64_t* out_index);
/** Name of a parameter. Threads: any. Since: 0.5. */
DS_API ds_status ds_model_parameter_name(const ds_model* model, int64_t parameter, char** out_name);

/** What a parameter is. Set struct_size before the call. Since: 0.5. */
typedef struct ds_parameter_info {
  int64_t struct_size; /**< sizeof(ds_parameter_info) of the caller's header */
  int64_t elements;    /**< numbers in it */
  int64_t shape[8];    /**< sizes; 0 beyond ndim */
  int32_t ndim;        /**< 0 to DS_MAX_DIMS */
  ds_dtype dtype;      /**< type in which the program holds it; float32 for built-in models */
  ds_bool trainable;   /**< it is not frozen */
  ds_bool decays;      /**< weight decay applies */
} ds_parameter_info;
/** A ds_parameter_info to be filled. */
#define DS_PARAMETER_INFO_INIT \
  { (int64_t)sizeof(ds_parameter_info), 0, {0}, 0, 0, 0, 0 }
/** Shape and properties of a parameter. Threads: any. Since: 0.5. */
DS_API ds_status ds_model_parameter_describe(const ds_model* model, int64_t parameter,
                                             ds_parameter_info* out_info);
/**
 * All parameters in their order, as a JSON list of {"name", "shape", "dtype", "trainable",
 * "decays", "group", "aliases"}.
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_model_parameters(const ds_model* model, char** out_json);
/**
 * A copy of a parameter, full shape, float32: the master copy where an engine keeps one. Also while
 * an engine trains, between two of its calls.
 * Since: 0.5.
 */
DS_API ds_status ds_model_get_parameter(ds_model* model, int64_t parameter, ds_tensor** out_tensor);
/**
 * Sets a parameter (and its master copy) from a float32 tensor of the same shape.
 * Between backward and step too: the step works with it. Errors: DS_ERR_STATE (between forward and
 * backward). Since: 0.5.
 */
DS_API ds_status ds_model_set_parameter(ds_model* model, int64_t parameter, const ds_tensor* value);
/**
 * A parameter's memory as the model computes with it, without a copy: float32, or the type of the
 * engine's precision while an engine trains. To be read between steps. A view of float32 masters is
 * writable and what is written there counts; one of a lower precision is read-only, because the
 * next step would overwrite it from the master: writing is for ds_model_set_parameter.
 * Ownership: the memory lives as long as the tensor, and is the model's until an engine of the
 * model is made, loads a checkpoint or ends. Errors: DS_ERR_UNSUPPORTED (a built-in model's weights
 * on a GPU, or weights spread over processes). Since: 0.5.
 */
DS_API ds_status ds_model_view_parameter(ds_model* model, int64_t parameter,
                                         ds_tensor** out_tensor);
/**
 * Freezes parameters, or lets them train again. Frozen ones take no gradient and no optimizer
 * state.
 * @param pattern    of names: `*` is any text, `?` one character
 * @param trainable  0 freezes
 * Errors: DS_ERR_NOT_FOUND (no name matches), DS_ERR_STATE (the model has an engine). Since: 0.2.
 */
DS_API ds_status ds_model_set_trainable(ds_model* model, const char* pattern, ds_bool trainable);

/* ---- Low-rank adapters --------------------------------------------------------------------- */

/**
 * Adds low-rank adapters (LoRA: Hu et al., arXiv:2106.09685) and freezes everything else:
 * y = x W^T + (alpha / rank) dropout(x) A^T B^T, with B zero at first.
 * @param options_json  {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": false,
 *                      "target_modules": ["q_proj", "v_proj"], "seed": 0}; target_modules (ends of
 *                      module names, or "all-linear") must be given, the rest has these defaults
 * Errors: DS_ERR_CONFIG, DS_ERR_NOT_FOUND (no layer matches), DS_ERR_STATE (the model has an engine
 * or adapters). Since: 0.2.
 */
DS_API ds_status ds_model_add_lora(ds_model* model, const char* options_json);
/**
 * Adds the adapters' products to the weights and removes the adapters; all parameters train again.
 * Errors: DS_ERR_STATE (no adapters, or the model has an engine). Since: 0.2.
 */
DS_API ds_status ds_model_merge_lora(ds_model* model);
/**
 * Writes the adapters alone in PEFT's layout: adapter_config.json, adapter_model.safetensors.
 * @param dtype  DS_FLOAT32, DS_BFLOAT16 or DS_FLOAT16
 * Errors: DS_ERR_IO, DS_ERR_STATE (no adapters). Since: 0.2.
 */
DS_API ds_status ds_model_save_adapter(ds_model* model, const char* folder, ds_dtype dtype);
/**
 * Reads adapters in PEFT's layout onto the model they were made for, and freezes everything else.
 * Errors: as ds_model_open, and DS_ERR_STATE (the model has an engine or adapters). Since: 0.2.
 */
DS_API ds_status ds_model_load_adapter(ds_model* model, const char* folder);

/* ---- Writing ------------------------------------------------------------------------------- */

/**
 * Writes a checkpoint of the weights alone, which ds_model_open reads; it holds no optimizer state.
 * @param tag  NULL for "weights"
 * Errors: DS_ERR_IO, DS_ERR_STATE. Since: 0.2.
 */
DS_API ds_status ds_model_save(ds_model* model, const char* folder, const char* DS_NULLABLE tag);

/**
 * Writes config.json and model.safetensors so that Transformers loads them (a model of own
 * parameters: the tensors alone). While an engine of several processes trains the model,
 * every process makes this call, and the others of this section that read or write weights; the
 * process of rank 0 writes the files.
 * @param dtype            DS_FLOAT32, DS_BFLOAT16 or DS_FLOAT16
 * @param max_shard_bytes  of tensor data per file (a larger tensor has a file of its own), named by
 *                         model.safetensors.index.json; 0 = one file
 * Errors: DS_ERR_IO, DS_ERR_STATE (trained by an engine that is in the middle of a step).
 * Since: 0.5.
 */
DS_API ds_status ds_model_export(ds_model* model, const char* folder, ds_dtype dtype,
                                 int64_t max_shard_bytes);

/** Ends a model handle; an engine that uses the model keeps it. Threads: any. Since: 0.1. */
DS_API void ds_model_destroy(ds_model* DS_NULLABLE model);

#ifdef __cplusplus
}
#endif
#endif /* DS_MODEL_H */
