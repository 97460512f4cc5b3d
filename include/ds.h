/**
 * @file
 * ds.h - the whole public interface of libds: train language models from any language.
 *
 * Rules that hold for every function, so that the comments need not repeat them:
 *
 * Ownership   A returned pointer is borrowed from its parent; what arrives through an `out_`
 *             parameter is owned by the caller and ended with the matching `_destroy` or
 *             ds_string_free. Inputs are borrowed for the call. Objects that must outlive a call
 *             are counted inside, so handles may be destroyed in any order.
 * Handles     A handle is a number of pointer type: never dereferenced, never reused. NULL,
 *             a handle of another kind or one already destroyed gives DS_ERR_INVALID_ARGUMENT.
 * NULL        A pointer must not be NULL unless it is marked DS_NULLABLE; the comment says what
 *             NULL means.
 * Structs     begin with struct_size, sizeof of the caller's header, which the DS_..._INIT macros
 *             set; they grow at the end only, and what an older caller does not have is 0, the
 *             default. Those that a call fills keep the caller's size.
 * Threads     Different handles: free. One handle: one thread at a time; a second thread that
 *             enters gets DS_ERR_STATE and nothing happens. Calls that only read a tensor through a
 *             const pointer may overlap. Functions marked `Threads: any` are
 *             safe on one handle from many threads at once.
 * Errors      Every function that returns ds_status may return DS_ERR_INVALID_ARGUMENT,
 *             DS_ERR_OUT_OF_MEMORY and DS_ERR_INTERNAL; `Errors` lists the others. On failure the
 *             out-parameters are untouched and ds_last_error_message() explains. No function ends
 *             the process, prints, installs a signal handler or changes the environment; the log
 *             goes to standard error from level warning on, unless ds_log_set or ds_log_set_level
 *             says otherwise.
 * Fork        A forked child has none of its parent's threads. It may destroy handles of the parent,
 *             which returns at once and leaves what they stand for to the parent (memory is not
 *             given back, `release` callbacks are not called), and it may make handles of its own.
 *             Data sets and tokenizers of the parent may be read. Models, engines and groups must
 *             not be used in it. Fork while no other thread is inside the library.
 * Blocks      Functions compute or read files before they return; none waits for other processes
 *             unless it says `Blocks`.
 * Text        UTF-8, ends with NUL. Sizes are bytes unless stated. Tensors are row-major.
 * Versions    Before 1.0 a minor version may change anything that is not marked otherwise; from 1.0
 *             on functions are only added, replaced ones marked DS_DEPRECATED before they go.
 *             DS_EXPERIMENTAL functions are promised nothing. docs/embedding.md has the table of
 *             memory and lifetimes, docs/api/ds_api.json all of this for generators of bindings.
 */
#ifndef DS_H
#define DS_H

#include "ds/base.h"
#include "ds/checkpoint.h"
#include "ds/comm.h"
#include "ds/config.h"
#include "ds/dataset.h"
#include "ds/engine.h"
#include "ds/experts.h"
#include "ds/generator.h"
#include "ds/io.h"
#include "ds/memory.h"
#include "ds/model.h"
#include "ds/optimizer.h"
#include "ds/tensor.h"
#include "ds/tokenizer.h"

#endif /* DS_H */
