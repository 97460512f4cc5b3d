/* What the wrappers that SWIG makes call: errors, callbacks, buffers, DLPack. Included by ds.i.
 *
 * The GIL is released around calls of the library. Code that the library calls back takes it, keeps
 * an exception in `stash` and ends the call; ds_py_fail then raises it again. References that the
 * library gives up on its own threads are kept in a list and dropped by the interpreter later,
 * because dropping one can run any Python code, and the library must not be called there. */
#include <pthread.h>
#include <stdlib.h>

/* ---- Errors -------------------------------------------------------------------------------- */

static PyObject* ds_py_errors; /* {status: class}, set by the Python layer */

typedef struct ds_py_exception {
  PyObject *type, *value, *traceback;
} ds_py_exception;
static _Thread_local ds_py_exception stash;

/* Keeps the exception that is set, for the call that this thread is inside of. */
static void ds_py_keep_exception(void) {
  if (stash.type) {
    PyErr_Clear(); /* the first one is the cause */
  } else {
    PyErr_Fetch(&stash.type, &stash.value, &stash.traceback);
  }
}

static void ds_py_raise(ds_status status, const char* text) {
  PyObject *code = PyLong_FromLong(status), *type = NULL, *message = NULL;
  if (code && ds_py_errors) type = PyDict_GetItemWithError(ds_py_errors, code);
  if (!type && !PyErr_Occurred()) type = PyExc_RuntimeError;
  message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  if (type && message) PyErr_SetObject(type, message);
  Py_XDECREF(message);
  Py_XDECREF(code);
}

/* After a failed call, on its thread, with the GIL: what a callback raised, else Ctrl-C, else the
 * exception of the status with the text of this thread's last error. */
static void ds_py_fail(ds_status status) {
  if (stash.type) {
    PyErr_Restore(stash.type, stash.value, stash.traceback);
    stash.type = stash.value = stash.traceback = NULL;
    return;
  }
  if (status == DS_ERR_ABORTED && PyErr_CheckSignals() != 0) return;
  ds_py_raise(status, ds_last_error_message());
}

/* ---- References that the library gives up ---------------------------------------------------- */

typedef struct ds_py_dropped {
  struct ds_py_dropped* next;
  PyObject* object;  /* or NULL */
  Py_buffer* buffer; /* or NULL */
  void* handle;      /* or NULL, with */
  void (*destroy)(void* handle);
} ds_py_dropped;
static ds_py_dropped* dropped;            /* atomic */
static _Thread_local int in_log_callback; /* the library must not be called */

/* Drops what has been given up; with the GIL. */
static int ds_py_drop_all(void* unused) {
  ds_py_dropped* entry = __atomic_exchange_n(&dropped, NULL, __ATOMIC_ACQ_REL);
  (void)unused;
  while (entry) {
    ds_py_dropped* next = entry->next;
    if (entry->handle) {
      Py_BEGIN_ALLOW_THREADS;
      entry->destroy(entry->handle);
      Py_END_ALLOW_THREADS;
    }
    if (entry->buffer) {
      PyBuffer_Release(entry->buffer);
      free(entry->buffer);
    }
    Py_XDECREF(entry->object);
    free(entry);
    entry = next;
  }
  return 0;
}

/* Without the GIL, on any thread. */
static void ds_py_drop_later(ds_py_dropped* entry) {
  entry->next = __atomic_load_n(&dropped, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&dropped, &entry->next, entry, 1, __ATOMIC_RELEASE,
                                      __ATOMIC_RELAXED)) {
  }
  if (!entry->next) Py_AddPendingCall(ds_py_drop_all, NULL);
}

/* A ds_release_fn; `user_data` is a ds_py_dropped. */
static void ds_py_release(void* user_data) {
  if (user_data) ds_py_drop_later((ds_py_dropped*)user_data);
}

/* Ends a handle; what a log callback's garbage ends waits until the callback is over. */
static void ds_py_destroy(void* handle, void (*destroy)(void* handle)) {
  ds_py_dropped* entry = in_log_callback ? calloc(1, sizeof *entry) : NULL;
  if (!entry) {
    Py_BEGIN_ALLOW_THREADS;
    destroy(handle);
    Py_END_ALLOW_THREADS;
    return;
  }
  entry->handle = handle;
  entry->destroy = destroy;
  ds_py_drop_later(entry);
}

/* ---- Results --------------------------------------------------------------------------------- */

/* A tuple that takes the references of `items` over; NULL if one of them is NULL. */
static PyObject* ds_py_tuple(PyObject** items, int count) {
  PyObject* tuple = PyTuple_New(count);
  int complete = tuple != NULL;
  for (int i = 0; i < count; ++i) complete = complete && items[i] != NULL;
  for (int i = 0; i < count; ++i) {
    if (complete) {
      PyTuple_SET_ITEM(tuple, i, items[i]);
    } else {
      Py_XDECREF(items[i]);
    }
  }
  if (!complete) Py_CLEAR(tuple);
  return tuple;
}

static PyObject* ds_py_sizes(const int64_t* sizes, int32_t count) {
  PyObject* items[8];
  if (count < 0 || count > 8) count = 0;
  for (int32_t i = 0; i < count; ++i) items[i] = PyLong_FromLongLong(sizes[i]);
  return ds_py_tuple(items, count);
}

static PyObject* ds_py_take_text(char* text) {
  PyObject* result = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  ds_string_free(text);
  return result;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* Text as the library takes it; the string object keeps it. 0 for None. -1 with an exception. */
static int ds_py_text(PyObject* object, const char** out_text) {
  Py_ssize_t size;
  if (object == Py_None) {
    *out_text = NULL;
    return 0;
  }
  *out_text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!*out_text) return -1;
  if ((Py_ssize_t)strlen(*out_text) == size) return 0;
  PyErr_SetString(PyExc_ValueError, "embedded null character");
  return -1;
}

/* int64_t values of a sequence in new memory (`*out_owned`), or those of a buffer where they lie.
 */
static int ds_py_integers(PyObject* object, int64_t** out_values, int64_t** out_owned) {
  *out_values = *out_owned = NULL;
  if (object == Py_None) return 0;
  if (PyObject_CheckBuffer(object)) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_CONTIG_RO) != 0) return -1;
    *out_values = (int64_t*)view.buf;
    PyBuffer_Release(&view);
    if (view.itemsize == (Py_ssize_t)sizeof(int64_t)) return 0;
    PyErr_SetString(PyExc_TypeError, "a buffer of 64-bit integers is needed");
    return -1;
  }
  PyObject* items = PySequence_Fast(object, "a sequence of integers is needed");
  if (!items) return -1;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  int64_t* values = malloc((count ? (size_t)count : 1) * sizeof *values);
  if (!values) PyErr_NoMemory();
  for (Py_ssize_t i = 0; values && i < count; ++i) {
    PyObject* number = PyNumber_Index(PySequence_Fast_GET_ITEM(items, i));
    values[i] = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
      free(values);
      values = NULL;
    }
  }
  Py_DECREF(items);
  *out_values = *out_owned = values;
  return values ? 0 : -1;
}

/* ---- Callbacks ------------------------------------------------------------------------------- */

static unsigned long main_thread; /* the one that Python handles signals on */

/* Calls a Python function from inside a library call. Gives what `reply_of` makes of its result, 0
 * where that is NULL, or -1 to end the call: for an exception and Ctrl-C. */
static int32_t ds_py_call_back(PyObject* function, int32_t (*reply_of)(PyObject* result),
                               const char* format, ...) {
  PyGILState_STATE gil = PyGILState_Ensure();
  int32_t reply = 0;
  if (PyErr_CheckSignals() != 0) {
    reply = -1;
  } else if (function) {
    va_list values;
    va_start(values, format);
    PyObject* arguments = Py_VaBuildValue(format, values);
    va_end(values);
    PyObject* result = arguments ? PyObject_CallObject(function, arguments) : NULL;
    if (!result) {
      reply = -1;
    } else if (reply_of) {
      reply = reply_of(result);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(result);
  }
  if (reply < 0) ds_py_keep_exception();
  PyGILState_Release(gil);
  return reply;
}

static int ds_py_may_handle_signals(void) { return PyThread_get_thread_ident() == main_thread; }

/* A ds_token_fn; `user_data` is the function or NULL. */
static int32_t ds_py_on_token(void* user_data, int32_t token) {
  if (!user_data && !ds_py_may_handle_signals()) return 0;
  return ds_py_call_back((PyObject*)user_data, NULL, "(i)", (int)token);
}

/* Others than None and bools are refused: what file.write() returns is no wish to end a text. */
static int32_t ds_py_text_reply(PyObject* result) {
  if (result == Py_None || result == Py_True) return DS_TEXT_GOES_ON;
  if (result == Py_False) return DS_TEXT_ENDS;
  PyErr_Format(PyExc_TypeError,
               "on_token returned %R; None or True lets the text go on, False ends it", result);
  return -1;
}

/* A ds_text_token_fn; `user_data` is the function or NULL. */
static ds_text_reply ds_py_on_text_token(void* user_data, int64_t text, int32_t token) {
  if (!user_data && !ds_py_may_handle_signals()) return DS_TEXT_GOES_ON;
  const int32_t reply =
      ds_py_call_back((PyObject*)user_data, ds_py_text_reply, "(Li)", (long long)text, (int)token);
  return reply < 0 ? DS_TEXTS_END : reply;
}

/* A ds_progress_fn; `user_data` is a ds_py_dropped with the function or NULL. */
static int32_t ds_py_on_progress(void* user_data, const char* call, int64_t done, int64_t total) {
  PyObject* function = ((ds_py_dropped*)user_data)->object;
  if (!function && !ds_py_may_handle_signals()) return 0;
  return ds_py_call_back(function, NULL, "(sLL)", call, (long long)done, (long long)total);
}

/* A ds_log_fn; `user_data` is a ds_py_dropped. */
static void ds_py_on_log(void* user_data, int32_t level, const char* component, const char* text) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *function = ((ds_py_dropped*)user_data)->object, *result;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  ++in_log_callback;
  result = PyObject_CallFunction(function, "iss", (int)level, component, text);
  if (!result) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  --in_log_callback;
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(gil);
}

/* What the library holds of a callback: ended by ds_py_release. */
static ds_py_dropped* ds_py_hold(PyObject* object) {
  ds_py_dropped* held = calloc(1, sizeof *held);
  if (!held) {
    PyErr_NoMemory();
  } else if (object != Py_None) {
    Py_INCREF(object);
    held->object = object;
  }
  return held;
}

static void ds_py_give_up(ds_py_dropped* held) {
  if (!held) return;
  Py_XDECREF(held->object);
  free(held);
}

/* The members of a ds_store; `user_data` is a tuple (put, get). */
static ds_status ds_py_store_put(void* user_data, const char* key, const void* value,
                                 int64_t size) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* put = PyTuple_GET_ITEM((PyObject*)user_data, 0);
  PyObject* result = PyObject_CallFunction(put, "sy#", key, (const char*)value, (Py_ssize_t)size);
  if (!result) ds_py_keep_exception();
  Py_XDECREF(result);
  PyGILState_Release(gil);
  return result ? DS_OK : DS_ERR_CALLBACK;
}

static ds_status ds_py_store_get(void* user_data, const char* key, void* value, int64_t capacity,
                                 int64_t* out_size) {
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* get = PyTuple_GET_ITEM((PyObject*)user_data, 1);
  PyObject* result = PyObject_CallFunction(get, "s", key);
  ds_status status = DS_ERR_CALLBACK;
  char* bytes;
  Py_ssize_t size;
  if (!result && PyErr_ExceptionMatches(PyExc_KeyError)) {
    PyErr_Clear();
    status = DS_ERR_NOT_FOUND;
  } else if (!result || PyBytes_AsStringAndSize(result, &bytes, &size) != 0) {
    ds_py_keep_exception();
  } else {
    memcpy(value, bytes, (size_t)(size < capacity ? size : capacity));
    *out_size = size;
    status = DS_OK;
  }
  Py_XDECREF(result);
  PyGILState_Release(gil);
  return status;
}

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* As far as this file looks into DLPack's structs (dmlc/dlpack 1.1; the older one is frozen). */
typedef struct ds_py_dl_tensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} ds_py_dl_tensor;
struct DLManagedTensor {
  ds_py_dl_tensor tensor;
  void* manager;
  void (*deleter)(struct DLManagedTensor* self);
};
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  ds_py_dl_tensor tensor;
};

/* Capsules that nobody took; one that was taken has another name. */
static void ds_py_end_versioned(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return;
  struct DLManagedTensorVersioned* managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
  if (managed && managed->deleter) managed->deleter(managed);
}

static void ds_py_end_legacy(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  struct DLManagedTensor* managed = PyCapsule_GetPointer(capsule, "dltensor");
  if (managed && managed->deleter) managed->deleter(managed);
}
