/**
 * @file
 * ds/engine.h - trains one model: steps, the caller's gradients, scopes, saving and loading.
 */
#ifndef DS_ENGINE_H
#define DS_ENGINE_H

#include "comm.h"
#include "dataset.h"
#include "generator.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Making an engine ---------------------------------------------------------------------- */

/**
 * Makes a training engine.
 * @param config_json   a DeepSpeed configuration (docs/configuration.md); unknown keys are errors
 * @param options_json  how the configuration is read, to take documents as people publish them:
 *   NULL, or an object of
 *   "resolve_auto": what the string "auto" becomes, by the rules of Hugging Face's Trainer and
 *       Accelerate: true, or an object of what the caller knows: "lr", "betas", "eps",
 *       "weight_decay", "gradient_clipping", "total_num_steps", "warmup_num_steps",
 *       "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
 *       "precision" ("fp32", "fp16", "bf16"), "stage", "offload_optimizer", "offload_param"
 *       (devices). What decides the training and is not said is refused.
 *   "lenient": true passes over trailing commas, comments that begin with #, keys that begin with
 *       _, # or //, and unknown keys where DeepSpeed does; each is a warning.
 *   "set": an object of values over the document's, by JSON pointer or dotted path, such as
 *       {"/optimizer/params/lr": 1e-4}.
 *   "require_optimizer": true refuses a document without an optimizer, as DeepSpeed does.
 * @param model         what to train; the engine keeps it alive and trains its weights in place. A
 *                      model serves one engine at a time.
 * @param comm          the group to train with; NULL for this process alone
 * Errors: DS_ERR_CONFIG, DS_ERR_UNSUPPORTED, DS_ERR_STATE (the model has an engine). Since: 0.5.
 */
DS_API ds_status ds_engine_create(const char* config_json, const char* DS_NULLABLE options_json,
                                  ds_model* model, ds_comm* DS_NULLABLE comm,
                                  ds_engine** out_engine);
/**
 * The same of a file; errors name it.
 * @param path  the file with the configuration
 * Errors: those of ds_engine_create, DS_ERR_IO, DS_ERR_NOT_FOUND. Since: 0.5.
 */
DS_API ds_status ds_engine_create_from_file(const char* path, const char* DS_NULLABLE options_json,
                                            ds_model* model, ds_comm* DS_NULLABLE comm,
                                            ds_engine** out_engine);

/* ---- Steps --------------------------------------------------------------------------------- */

/** A ds_skip_code. Since: 0.5. */
typedef int32_t ds_skip_reason;
/** Why a step was not applied. */
enum ds_skip_code {
  DS_SKIP_UNKNOWN = -1,
  DS_SKIP_NONE = 0,         /**< It was applied. */
  DS_SKIP_ACCUMULATING = 1, /**< Not a boundary: more micro batches belong to this step. */
  DS_SKIP_NON_FINITE = 2, /**< A gradient was NaN or infinite; weights and moments are untouched. */
  DS_SKIP_LARGE_NORM = 3  /**< The gradient norm was above gradient_skip_norm; the same. */
};

/** What a step did. Set struct_size before the call. */
typedef struct ds_step_report {
  int64_t struct_size;         /**< sizeof(ds_step_report) of the caller's header */
  int64_t step;                /**< optimizer steps so far, skipped ones included */
  int64_t micro_steps;         /**< micro batches so far */
  int64_t samples;             /**< samples so far */
  int64_t tokens;              /**< labels of this step that count towards the loss, of all micro
                                    batches and processes; -100 does not count */
  ds_bool applied;             /**< weights changed */
  ds_skip_reason skip_reason;  /**< why not */
  double loss;                 /**< mean loss of this step's micro batches; NaN when gradients were
                                    the caller's and it gave none (ds_engine_set_loss) */
  double grad_norm;            /**< global norm before clipping; -1 when not finite */
  double lr;                   /**< rate that this step used */
  double loss_scale;           /**< scale that multiplied the loss */
  double seconds;              /**< wall time of this step */
  int64_t first_bad_parameter; /**< index of the parameter with the first non-finite gradient, else
                                    -1 */
  int64_t first_bad_element;   /**< its row-major index in that parameter, else -1 */
  double first_bad_value;      /**< that gradient: NaN or an infinity, else 0 */
  double forward_seconds;      /**< of `seconds`, with wall_clock_breakdown (else 0): forward */
  double backward_seconds;     /**< in backward passes */
  double update_seconds;       /**< in ds_engine_step */
  double label_loss;           /**< with distillation the mean loss with the labels, else NaN */
  double teacher_loss;         /**< the same of kd_temp^2 x the divergence from the teacher */
} ds_step_report;
/** A ds_step_report to be filled. */
#define DS_STEP_REPORT_INIT \
  { (int64_t)sizeof(ds_step_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * Computes the loss of one micro batch and remembers what backward needs.
 * @param batch     `ids` and `labels` are needed
 * @param out_loss  float32 tensor [], mean over the counted labels
 * Errors: DS_ERR_STATE (the last forward still waits for its backward). Since: 0.5.
 */
DS_API ds_status ds_engine_forward(ds_engine* engine, const ds_batch* batch, ds_tensor** out_loss);
/**
 * Adds the gradient of the last forward's loss, divided by gradient_accumulation_steps.
 * @param loss  the tensor that ds_engine_forward gave; another one is refused
 * Errors: DS_ERR_STATE (no forward waits). Since: 0.1.
 */
DS_API ds_status ds_engine_backward(ds_engine* engine, const ds_tensor* loss);
/**
 * Ends a micro batch; at an accumulation boundary clips, updates and clears the gradients. Own
 * parameters without a gradient count as zero.
 * @param out_report  may be NULL
 * Errors: DS_ERR_STATE (no backward since the last step of a built-in model; or training cannot go
 * on: max_consecutive_skips steps in a row were skipped, or gradients overflow at the smallest loss
 * scale - that step is counted as skipped, weights are untouched). Since: 0.1.
 */
DS_API ds_status ds_engine_step(ds_engine* engine, ds_step_report* DS_NULLABLE out_report);
/**
 * Sets the data that ds_engine_train_batch reads; sampling begins at the engine's sample counter,
 * so that a loaded engine goes on where it was. NULL takes the data away.
 * Errors: DS_ERR_INVALID_ARGUMENT when the samples are longer than the model allows or hold tokens
 * outside its vocabulary. Up to 64 million stored tokens are checked here, which reads them; those
 * of larger data sets when they are drawn. The text names file, byte, sequence and document.
 * Since: 0.1.
 */
DS_API ds_status ds_engine_set_dataset(ds_engine* engine, const ds_dataset* DS_NULLABLE dataset);
/**
 * One optimizer step over the data set: gradient_accumulation_steps micro batches of forward and
 * backward, then the update.
 * @param out_report  may be NULL
 * Errors: DS_ERR_STATE (no data set, or a forward of the caller is open). Since: 0.1.
 */
DS_API ds_status ds_engine_train_batch(ds_engine* engine, ds_step_report* DS_NULLABLE out_report);
/**
 * Mean loss over a data set, without training and without dropout.
 * @param max_batches  micro batches at most, of the configuration's eval_micro_batch_size_per_gpu
 *                     samples, or train_micro_batch_size_per_gpu; 0 = all
 * Since: 0.1.
 */
DS_API ds_status ds_engine_evaluate(ds_engine* engine, const ds_dataset* dataset,
                                    int64_t max_batches, double* out_loss);
/**
 * Says whether the next calls of ds_engine_step are accumulation boundaries, until it is called
 * again; every process says the same.
 * @param boundary  1: they update; 0: they only end a micro batch; -1: gradient_accumulation_steps
 *                  decides, as without this call
 * Gradients are divided by gradient_accumulation_steps as before, however many micro batches there
 * are; the report's loss is their mean. Errors: DS_ERR_INVALID_ARGUMENT (another number),
 * DS_ERR_STATE (managed_gradient_accumulation is false: every step is a boundary). While it is set,
 * ds_engine_train_batch and ds_engine_join give DS_ERR_STATE. Since: 0.5.
 */
DS_API ds_status ds_engine_set_boundary(ds_engine* engine, int32_t boundary);
/**
 * For a process that has no further batches while others may: takes part in their steps, because it
 * owns a part of the state, with gradients of zero, and returns when every process has called it.
 * A step's gradient and loss are means over the micro batches that there were. Until then the
 * others make steps only. Afterwards all go on together.
 * Blocks: until every process has called. Errors: DS_ERR_STATE (a micro batch is open; or own
 * parameters at ZeRO stage 3, and this process has had no micro batch yet), DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.4.
 */
DS_API ds_status ds_engine_join(ds_engine* engine);

/* ---- The caller's gradients ---------------------------------------------------------------- */

/**
 * Adds gradients that the caller computed to those of the open step; nothing is added when one of
 * them is wrong. Parameters without one count as zero. The update uses the sum of all that was
 * added, divided by the loss scale: a mean over micro batches is the caller's to make, as
 * ds_engine_backward divides by gradient_accumulation_steps.
 * Of several processes the average counts; at ZeRO stage 3 it is made as soon as a few neighbouring
 * parameters have their gradients, so processes add them in the same order. With a built-in model
 * of several processes the first call (or view) of an engine is every process's, at the same point,
 * and there is none at stage 3.
 * @param parameters  indices in the model; NULL = 0, 1, ...
 * @param gradients   `count` tensors: float32, bfloat16 or float16 of the parameters' shapes, in
 *                    host memory with any strides or packed on the model's GPU; they carry the loss
 *                    scale (ds_engine_describe). They are read before the call returns
 * Errors: DS_ERR_STATE (a forward waits for its backward), DS_ERR_UNSUPPORTED (a built-in model at
 * stage 3). Since: 0.5.
 */
DS_API ds_status ds_engine_add_gradients(ds_engine* engine, const int64_t* DS_NULLABLE parameters,
                                         ds_tensor* const* gradients, int64_t count);
/**
 * The memory that a parameter's gradient gathers in, without a copy, in the type of
 * grad_accum_dtype: a program adds to it in place, between steps; every step clears it.
 * Ownership: the memory lives as long as the tensor, and is the engine's until it loads a
 * checkpoint or ends. Since: 0.5.
 */
DS_API ds_status ds_engine_view_gradient(ds_engine* engine, int64_t parameter,
                                         ds_tensor** out_tensor);
/**
 * Says what the loss of the open micro batch was, where gradients are the caller's: reports and
 * monitors show the mean of those that were given, over micro batches and processes, and leave the
 * loss out when none was. A second call before ds_engine_step replaces the first; NaN and
 * infinities are taken as they are. Errors: DS_ERR_STATE (the micro batch went through
 * ds_engine_forward). Since: 0.4.
 */
DS_API ds_status ds_engine_set_loss(ds_engine* engine, double loss);
/** Gives up the open step: its gradients are cleared, weights and progress are as before it (since
 * 0.5), so that ds_engine_train_batch reads its samples again. Since: 0.2. */
DS_API ds_status ds_engine_discard_gradients(ds_engine* engine);

/* ---- Scopes: parameters made whole, gradients not reduced ---------------------------------- */

/** A ds_scope_mode_code. Since: 0.5. */
typedef int32_t ds_scope_mode;
/** What a scope is for. */
enum ds_scope_mode_code {
  DS_SCOPE_UNKNOWN = -1,
  DS_SCOPE_COMPUTE = 1, /**< the caller computes with own parameters, each in its type */
  DS_SCOPE_MODIFY = 2,  /**< one process may change parameters of any model: float32 masters */
  DS_SCOPE_NO_SYNC = 3  /**< gradients are not averaged over processes inside */
};

/**
 * Opens a scope: parameters are whole in this process until it ends, at every ZeRO stage, or
 * gradients stay in this process.
 * DS_SCOPE_COMPUTE: own parameters for the caller's forward and backward pass, each in the type
 * that it was registered with (float32 where memory is lent and no parameter needs a lower one), to
 * be read only. At ZeRO stage 3 they are gathered from the processes that hold their parts: every
 * process opens and closes scopes and adds gradients for the same parameters in the same order, and
 * wherever that was the order of the step before, what comes next is gathered ahead. At other
 * stages the tensors are views of weights that are whole anyway, so a program need not know its
 * stage. A parameter may be in several scopes. ds_engine_step needs all closed. DS_SCOPE_MODIFY:
 * float32 copies of the master values of parameters of any model. Every process calls it, not in
 * the middle of a step, and ends it with ds_scope_commit or ds_scope_close; until then no step can
 * be made. A parameter is in one such scope at a time. DS_SCOPE_NO_SYNC: gradients of the passes
 * inside are summed in this process, and averaged over processes once, by the first ds_engine_step
 * after the scope, at ZeRO stages 0 and 1. A forward inside ends the micro batch before it, without
 * ds_engine_step, which is refused until the scope ends; so are another such scope,
 * ds_engine_train_batch and ds_engine_join. Each pass counts as one of gradient_accumulation_steps.
 * Every process opens it; the first one of an engine makes a buffer of the gradients' size.
 * @param parameters  indices in the model; NULL = 0, 1, ...
 * @param count       how many; 0 with DS_SCOPE_NO_SYNC
 * Blocks: until the values are there. Errors: DS_ERR_STATE (a scope of the other mode is open; in
 * the middle of a step; a DS_SCOPE_NO_SYNC inside another), DS_ERR_UNSUPPORTED (DS_SCOPE_COMPUTE
 * with a built-in model, DS_SCOPE_NO_SYNC at ZeRO stages 2 and 3), DS_ERR_COMM
 * (processes ask for different parameters: the text names them), DS_ERR_ABORTED. Since: 0.5.
 */
DS_API ds_status ds_engine_open_scope(ds_engine* engine, const int64_t* DS_NULLABLE parameters,
                                      int64_t count, ds_scope_mode mode, ds_scope** out_scope);
/**
 * A parameter of a scope.
 * @param position    in the list that opened the scope, in [0, count)
 * @param out_tensor  its whole values; ended with ds_tensor_destroy. Memory that is gathered for
 * the scope is given back when the scope and all such tensors have ended; until then it stays
 * readable, with the values of this step Errors: DS_ERR_STATE (the scope is closed). Since: 0.5.
 */
DS_API ds_status ds_scope_tensor(ds_scope* scope, int64_t position, ds_tensor** out_tensor);
/**
 * Ends a scope of mode DS_SCOPE_MODIFY: what process `modifier_rank` has in its tensors becomes
 * their value in every process. Every process calls it.
 * Blocks: yes. Errors: DS_ERR_STATE (another mode, or closed), DS_ERR_COMM, DS_ERR_ABORTED.
 * Since: 0.5.
 */
DS_API ds_status ds_scope_commit(ds_scope* scope, int32_t modifier_rank);
/**
 * Ends a scope; changes of mode DS_SCOPE_MODIFY are dropped, and with the configuration's
 * enable_sanity_checks a dropped change is an error and the scope stays open. A second call does
 * nothing.
 * Blocks: in mode DS_SCOPE_MODIFY. Errors: DS_ERR_STATE (dropped changes), DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.5.
 */
DS_API ds_status ds_scope_close(ds_scope* scope);
/**
 * Ends the handle. An open scope is closed with it, its changes dropped without a check and without
 * waiting for others; when the engine is in use by another thread, that happens when its call ends.
 * NULL is fine. Threads: any. Since: 0.5.
 */
DS_API void ds_scope_destroy(ds_scope* DS_NULLABLE scope);

/* ---- Values: parameters, gradients, optimizer states --------------------------------------- */

/** A ds_value_code. Since: 0.5. */
typedef int32_t ds_value_kind;
/** What values of a parameter are meant. */
enum ds_value_code {
  DS_VALUE_UNKNOWN = -1,
  DS_VALUE_PARAMETER = 1, /**< the float32 master */
  DS_VALUE_GRADIENT = 2,  /**< the gradient of the open step, as summed so far */
  DS_VALUE_STATE = 3      /**< a state tensor of the optimizer, by its name */
};
/** A ds_extent_code. Since: 0.5. */
typedef int32_t ds_extent;
/** How much of it. */
enum ds_extent_code {
  DS_EXTENT_UNKNOWN = -1,
  DS_EXTENT_WHOLE = 1, /**< all elements, in the parameter's shape; every process makes the call */
  DS_EXTENT_LOCAL = 2  /**< this process's part (ds_engine_local_range), of one dimension */
};
/**
 * A float32 copy of values of a parameter.
 * @param parameter   its index in the model
 * @param kind        which values
 * @param state       for DS_VALUE_STATE one of ds_optimizer_state_names; else NULL
 * @param extent      DS_EXTENT_WHOLE waits for other processes where values are spread over them;
 *                    DS_EXTENT_LOCAL waits for nobody, and of gradients holds what has been reduced
 * Blocks: with DS_EXTENT_WHOLE. Errors: DS_ERR_NOT_FOUND (no such state), DS_ERR_COMM,
 * DS_ERR_ABORTED. Since: 0.5.
 */
DS_API ds_status ds_engine_get_values(ds_engine* engine, int64_t parameter, ds_value_kind kind,
                                      const char* DS_NULLABLE state, ds_extent extent,
                                      ds_tensor** out_tensor);
/**
 * Sets values of a parameter, between backward and step too. Every process makes the call, with
 * DS_EXTENT_LOCAL each with its part.
 * @param parameter, kind, state, extent  as in ds_engine_get_values
 * @param value  float32 of the shape that ds_engine_get_values gives; for DS_VALUE_GRADIENT also
 *               bfloat16 and float16, and with DS_EXTENT_WHOLE it replaces the gathered gradient
 * Blocks: for DS_VALUE_PARAMETER, and to reduce gradients of the caller that wait. Errors:
 * DS_ERR_NOT_FOUND, DS_ERR_STATE (between forward and backward), DS_ERR_UNSUPPORTED (local ones of
 * the caller that are not reduced before the step), DS_ERR_COMM, DS_ERR_ABORTED. Since: 0.5.
 */
DS_API ds_status ds_engine_set_values(ds_engine* engine, int64_t parameter, ds_value_kind kind,
                                      const char* DS_NULLABLE state, ds_extent extent,
                                      const ds_tensor* value);
/**
 * The part of a parameter, as elements of its packed values, whose master and optimizer state this
 * process holds: everything at ZeRO stage 0, perhaps nothing at others.
 * Since: 0.5.
 */
DS_API ds_status ds_engine_local_range(ds_engine* engine, int64_t parameter, int64_t* out_first,
                                       int64_t* out_count);

/* ---- Progress and interruption of long calls ----------------------------------------------- */

/**
 * Hears how far a long call of an engine has come, on the thread that makes the call.
 * @param call   "train_batch" (parts are micro batches), "evaluate" (micro batches), "save"
 *               (parameters) or "load" (bytes); the text is static
 * @param done   parts that are done
 * @param total  parts of the call
 * @return 0 to go on; anything else ends the call with DS_ERR_CALLBACK before its next part
 * It must not use the engine, its model or its optimizer.
 */
typedef int32_t (*ds_progress_fn)(void* user_data, const char* call, int64_t done, int64_t total);
/**
 * Sets what hears the progress of this engine's calls, before each of their parts; NULL: nothing.
 * What an early end leaves: ds_engine_train_batch keeps the micro batches that are done and the
 * next call goes on with the step; ds_engine_evaluate has no effect; ds_engine_save leaves no
 * checkpoint of that tag, and what was there stays; ds_engine_load leaves what one that fails does.
 * In a group of several processes an early end of a training or evaluating call ends the group, as
 * ds_comm_abort does, because the others would wait; one of saving or loading fails in all alike.
 * @param release  called once with `user_data` when `fn` is no longer used; may be NULL
 * Since: 0.4.
 */
DS_API ds_status ds_engine_set_progress(ds_engine* engine, ds_progress_fn DS_NULLABLE fn,
                                        void* DS_NULLABLE user_data,
                                        ds_release_fn DS_NULLABLE release);
/**
 * Ends the call that runs in this engine before its next part, with DS_ERR_ABORTED, and leaves what
 * ds_engine_set_progress describes; without such a call nothing happens.
 * Threads: any, while another thread is inside a call. Since: 0.4.
 */
DS_API ds_status ds_engine_interrupt(ds_engine* engine);

/* ---- Saving and loading -------------------------------------------------------------------- */

/**
 * Saves everything a bitwise resume needs: weights, masters, moments, schedule, loss scale, random
 * state, data cursor, configuration, tokenizer. A crash at any moment leaves the older checkpoint.
 * @param folder  made when missing
 * @param tag     name of the checkpoint; NULL for "global_step<N>"
 * A checkpoint of the same tag is replaced; a folder of that name that is no checkpoint is refused.
 * Two programs that save into one folder are not kept apart: take a lock, as `ds train` does.
 * Errors: DS_ERR_IO, DS_ERR_STATE (between forward and step; between the micro batches of a step is
 * fine). Since: 0.1.
 */
DS_API ds_status ds_engine_save(ds_engine* engine, const char* folder, const char* DS_NULLABLE tag);

/**
 * Waits for a save that goes on beside the training (the configuration's
 * checkpoint.writer.decoupled: then ds_engine_save returns with a copy of the state taken, and the
 * checkpoint is there, and `latest` names it, some time later). The next save, ds_engine_load and
 * ds_engine_destroy wait too; a failure is reported once, by this call or by the next save, which
 * then saves nothing. Without a save under way it returns at once. Of several processes every one
 * makes the call, and it returns when the checkpoint is there for all. Errors: as ds_engine_save.
 * Since: 0.3. */
DS_API ds_status ds_engine_save_wait(ds_engine* engine);

/**
 * Loads a checkpoint into an engine made with the same model and a compatible configuration: one
 * whose optimizer has the state tensors that the checkpoint holds. Ranks, ZeRO stage, precision and
 * types of states are free; other settings that change results (optimizer, rate, clipping, batch,
 * data set, ...) are logged as warnings (docs/training.md lists them).
 * @param tag           NULL for the newest valid one; those found damaged are passed over with a
 *                      warning
 * @param options_json  how much of the checkpoint is taken over: NULL, or an object of
 *   "load_module_only": false; true takes weights alone: optimizer state, schedule, counters,
 * client state and run stay the engine's own, an open step is given up; "load_module_strict": true;
 * with false parameters that the checkpoint lacks stay as they are, those that the model lacks are
 * passed over, with a warning that names them; other shapes are an error; "load_optimizer_states":
 * true; with false moments, their count of steps and the loss scale stay as they are, those of a
 * new engine at their beginning; the gradients of an open step are given up;
 *   "load_lr_scheduler_states": true; with false the schedule and the rates stay where they are;
 *   "may_be_missing": false; with true and a NULL tag a folder that is not there or holds no
 *       checkpoint is no error and changes nothing: the engine begins at its own step;
 *   "strict": false; with true settings that differ from the saved run's are refused, and so is
 *       another data set, also by ds_engine_set_dataset later;
 *   "restore_on_failure": true; with false on every rank a load over training reads once and takes
 *       no memory for it: one that fails leaves the engine as one that has not trained (below).
 * The first four are arguments of DeepSpeed's load_checkpoint.
 * What fails or ends before tensors are read (no checkpoint, a damaged manifest) leaves the engine
 * as it was. So do damage and I/O errors that only show while they are read if it has
 * trained since it was made or last loaded: what it overwrites is kept in the memory of gradients
 * and half of the free memory at most. What has no room there, or is sooner read twice than memory
 * comes, and all where states lie in files, in 8 bits or on a GPU, is checked before it is read for
 * good, which takes twice as long. What fails or is ended after those checks, or in an engine that
 * has not trained, leaves it and its model incomplete: calls that use or save weights or optimizer
 * state fail with DS_ERR_STATE, which says why, until a load succeeds. Views of the model's memory
 * may show a mixture meanwhile; lent memory is written by success alone.
 * Errors: DS_ERR_IO, DS_ERR_NOT_FOUND, DS_ERR_CORRUPT (with file and place), DS_ERR_STATE,
 * DS_ERR_CONFIG (an unknown option; "strict"). Since: 0.5.
 */
DS_API ds_status ds_engine_load(ds_engine* engine, const char* folder, const char* DS_NULLABLE tag,
                                const char* DS_NULLABLE options_json);

/** Attaches a tokenizer, which checkpoints then carry; NULL takes it away. Since: 0.1. */
DS_API ds_status ds_engine_set_tokenizer(ds_engine* engine,
                                         const ds_tokenizer* DS_NULLABLE tokenizer);
/** Attaches a JSON document of the caller, which checkpoints then carry; NULL takes it away.
 * Since: 0.1. */
DS_API ds_status ds_engine_set_client_state(ds_engine* engine, const char* DS_NULLABLE json);
/** The caller's document, as set or loaded; "null" when there is none. Since: 0.1. */
DS_API ds_status ds_engine_client_state(ds_engine* engine, char** out_json);
/**
 * Attaches bytes of the caller under a name, which checkpoints then carry, such as the state of a
 * random generator or of a data loader; they come back with ds_engine_load.
 * @param name  UTF-8, 1 to 200 bytes
 * @param data  `size` bytes, which are copied; NULL with size 0 takes them away
 * @param size  all blobs of an engine together hold at most 64 MiB
 * Of several processes the blobs of rank 0 are saved, and every process gets them back.
 * Since: 0.5.
 */
DS_API ds_status ds_engine_set_blob(ds_engine* engine, const char* name,
                                    const void* DS_NULLABLE data, int64_t size);
/**
 * Bytes as set or loaded.
 * @param out_bytes  uint8 tensor [size], a copy
 * Errors: DS_ERR_NOT_FOUND. Since: 0.5.
 */
DS_API ds_status ds_engine_blob(ds_engine* engine, const char* name, ds_tensor** out_bytes);
/** Names of the attached blobs and their sizes, as a JSON object. Since: 0.5. */
DS_API ds_status ds_engine_blobs(ds_engine* engine, char** out_json);

/* ---- Questions ----------------------------------------------------------------------------- */

/** How far an engine is. Set struct_size before the call. Since: 0.5. */
typedef struct ds_engine_info {
  int64_t struct_size;        /**< sizeof(ds_engine_info) of the caller's header */
  int64_t step;               /**< optimizer steps so far, skipped ones included */
  int64_t micro_steps;        /**< micro batches so far */
  int64_t samples;            /**< samples consumed so far */
  int64_t micro_batch_size;   /**< train_micro_batch_size_per_gpu */
  int64_t accumulation_steps; /**< micro batches of the next step (rampup_batch_size varies them) */
  int64_t train_batch_size;   /**< samples of that step, of all processes */
  double loss_scale;          /**< what losses are multiplied by before their gradients are taken:
                                   1 unless fp16 trains. It may change with every step */
  int32_t zero_stage;         /**< 0 to 3 */
  ds_dtype compute_dtype;     /**< type that the configuration computes in; own parameters of
                                   float32 stay that */
} ds_engine_info;
/** A ds_engine_info to be filled. */
#define DS_ENGINE_INFO_INIT \
  { (int64_t)sizeof(ds_engine_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/** Counters, batch sizes and the loss scale. Since: 0.5. */
DS_API ds_status ds_engine_describe(const ds_engine* engine, ds_engine_info* out_info);
/**
 * The configuration as resolved: {"config": {...}, "given": {...}, "origins": {path: origin},
 * "warnings": [...]}. "given" holds what the caller asked for alone (since 0.5).
 * Since: 0.1.
 */
DS_API ds_status ds_engine_config(const ds_engine* engine, char** out_json);
/** Memory by tag, now and peak, in bytes, as JSON; of a GPU with "host", the host's memory beside
 * it, by tag too, where an offloaded optimizer rests. Threads: any. Since: 0.1. */
DS_API ds_status ds_engine_memory_report(const ds_engine* engine, char** out_json);
/**
 * The profile of the step that `flops_profiler` asked for, as JSON: per module parameters,
 * multiply-adds, FLOPs and seconds, forward and backward; "null" before that step
 * (docs/observability.md). Since: 0.2.
 */
DS_API ds_status ds_engine_profile(ds_engine* engine, char** out_json);
/**
 * How the last step used the experts of a mixture-of-experts model, counted over the micro batches
 * of all ranks, as JSON: {"step", "balance_loss", "z_loss" (as they are in the loss, mean over
 * the micro batches), "layers": [{"layer", "tokens", "chosen", "dropped"}]}, the last two by
 * expert: tokens that chose it, and of these those that it had no room for. "null" where the model
 * has no experts, and before the first step (docs/experts.md).
 * @param out_json  receives a string that the caller frees with ds_string_free
 * Since: 0.5.
 */
DS_API ds_status ds_engine_experts(const ds_engine* engine, char** out_json);
/** Ends an engine; its model can then be given to another. NULL is fine. Threads: any. Since: 0.1.
 */
DS_API void ds_engine_destroy(ds_engine* DS_NULLABLE engine);

#ifdef __cplusplus
}
#endif
#endif /* DS_ENGINE_H */
