/**
 * @file
 * ds/base.h - statuses, messages, version, log: what every other part of ds.h uses.
 */
#ifndef DS_BASE_H
#define DS_BASE_H

#include <stdint.h>

#if defined(SWIG)
#define DS_API /* SWIG does not parse attributes */
#elif !defined(DS_API)
#define DS_API __attribute__((visibility("default")))
#endif

/**
 * Marks a function that will go in the next minor version; the text says what replaces it. Define
 * DS_NO_DEPRECATION_WARNINGS to use it without a warning.
 */
#if defined(SWIG) || defined(DS_NO_DEPRECATION_WARNINGS)
#define DS_DEPRECATED(text)
#else
#define DS_DEPRECATED(text) __attribute__((deprecated(text)))
#endif

/** Marks a function that may change or go in any version; everything else follows the version. */
#define DS_EXPERIMENTAL

/** Marks a pointer that may be NULL; the comment of the function says what that means. */
#define DS_NULLABLE

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this header; the loaded library answers ds_abi_version(). */
#define DS_VERSION_MAJOR 0
#define DS_VERSION_MINOR 5 /**< Grows with every addition; before 1.0 with every change. */
#define DS_VERSION_PATCH 0 /**< Grows with corrections. */

/* ---- Plain types --------------------------------------------------------------------------- */

/** A ds_status_code, or a newer code that this header does not know: negative means failure. */
typedef int32_t ds_status;
/** 0 is false, everything else true; functions give 0 or 1. Since: 0.5. */
typedef int32_t ds_bool;
/** Called once with the caller's `user_data` when the library no longer uses what it came with, on
 * any thread. It must not call the library. Since: 0.5. */
typedef void (*ds_release_fn)(void* user_data);

/** What a caller can do about a failure; numbers are never reused. */
enum ds_status_code {
  DS_OK = 0,                    /**< Done. */
  DS_ERR_INVALID_ARGUMENT = -1, /**< The call is wrong: fix the caller. */
  DS_ERR_CONFIG = -2,           /**< The configuration document is wrong: fix the document. */
  DS_ERR_OUT_OF_MEMORY = -3,    /**< Memory ran out; the text holds the memory report. */
  DS_ERR_DEVICE = -4,           /**< A device failed. */
  DS_ERR_COMM = -5,             /**< Another process failed or disagreed. */
  DS_ERR_IO = -6,               /**< A file could not be read or written. */
  DS_ERR_UNSUPPORTED = -7,      /**< This build or version does not do that. */
  DS_ERR_ABORTED = -8,          /**< The operation was aborted from elsewhere. */
  DS_ERR_CALLBACK = -9,         /**< A callback of the caller asked to stop. */
  DS_ERR_INTERNAL = -10,        /**< A defect of the library: please report the text. */
  DS_ERR_STATE = -11,           /**< Right call, wrong moment (order of calls, handle busy). */
  DS_ERR_CORRUPT = -12,         /**< A file's content is damaged or hostile. */
  DS_ERR_NOT_FOUND = -13        /**< A file, tag, tensor or token does not exist. */
};

/* ---- Handles ------------------------------------------------------------------------------- */

typedef struct ds_tensor ds_tensor;       /**< Numbers with shape and type. */
typedef struct ds_comm ds_comm;           /**< A group of processes. */
typedef struct ds_work ds_work;           /**< A collective under way. */
typedef struct ds_tokenizer ds_tokenizer; /**< Text to token ids and back; immutable. */
typedef struct ds_dataset ds_dataset;     /**< Samples of token ids; immutable. */
typedef struct ds_model ds_model;         /**< Architecture and weights. */
typedef struct ds_generator ds_generator; /**< Runs a model: text, logits, hidden states. */
typedef struct ds_engine ds_engine;       /**< Trains one model. */
typedef struct ds_scope ds_scope;         /**< Parameters of an engine made whole for a while. */
typedef struct ds_optimizer ds_optimizer; /**< The optimizer inside an engine. */
typedef struct ds_io ds_io;               /**< Reads and writes files beside the program. */

/* ---- Version and messages ------------------------------------------------------------------ */

/**
 * Version of the loaded library as major * 1000000 + minor * 1000 + patch.
 * Threads: any. Since: 0.1.
 */
DS_API int32_t ds_abi_version(void);

/**
 * Version of the loaded library as text, such as "0.1.0".
 * Ownership: static. Threads: any. Since: 0.1.
 */
DS_API const char* ds_version(void);

/**
 * Name of a status, such as "DS_ERR_IO"; "DS_ERR_UNKNOWN" for a code this library does not know.
 * Ownership: static. Threads: any. Since: 0.1.
 */
DS_API const char* ds_status_name(ds_status status);

/**
 * Text of this thread's last failing call; "" before the first. Only a failing call changes it.
 * Programs whose code may move to another thread between two calls (virtual threads, goroutines)
 * ask for it within the same native call, as the bindings do, or use ds_handle_error_message.
 * Ownership: borrowed until the thread's next failing call. Threads: any. Since: 0.1.
 */
DS_API const char* ds_last_error_message(void);

/**
 * Text of the last call that failed on a handle, whatever thread made it; "" when none has.
 * @param handle       any live handle: the first one that the failed call was given
 * @param out_message  ended with ds_string_free
 * A call that found the handle in use by another call leaves its text only to that thread.
 * Threads: any. Since: 0.5.
 */
DS_API ds_status ds_handle_error_message(const void* handle, char** out_message);

/**
 * Frees text received through an `out_` parameter; NULL is fine.
 * Threads: any. Since: 0.1.
 */
DS_API void ds_string_free(char* DS_NULLABLE text);

/* ---- Log ----------------------------------------------------------------------------------- */

/** Levels of log messages. */
enum ds_log_level {
  DS_LOG_UNKNOWN = -1,
  DS_LOG_DEBUG = 0,
  DS_LOG_INFO = 1,
  DS_LOG_WARNING = 2,
  DS_LOG_ERROR = 3,
  DS_LOG_OFF = 4
};

/**
 * Receives log messages, on whatever thread logs, possibly several at once; texts live for the
 * call. It must not call the library.
 */
typedef void (*ds_log_fn)(void* user_data, int32_t level, const char* component, const char* text);

/**
 * Sets the process-wide log sink; NULL restores the default (standard error).
 * @param fn         the sink
 * @param user_data  passed to `fn`
 * @param release    called once with `user_data` when the sink is no longer used; may be NULL
 * Threads: any. Since: 0.1.
 */
DS_API ds_status ds_log_set(ds_log_fn DS_NULLABLE fn, void* DS_NULLABLE user_data,
                            ds_release_fn DS_NULLABLE release);

/**
 * Sets the lowest level that is logged, process-wide; the default is DS_LOG_WARNING.
 * Threads: any. Since: 0.1.
 */
DS_API ds_status ds_log_set_level(int32_t level);

/* ---- Report ----------------------------------------------------------------------------- */

/**
 * Describes the build and the machine as a JSON document: version, compiler, options, libraries
 * with versions, CPU features and the kernels chosen, devices, and what is not usable and why.
 * Threads: any. Since: 0.1.
 */
DS_API ds_status ds_report(char** out_json);

#ifdef __cplusplus
}
#endif
#endif /* DS_BASE_H */
