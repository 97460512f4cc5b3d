/* The generated layer: the functions, constants and structs of include/ds.h as static methods of io.ds.Native and package-private
   classes. What is here says how each kind of parameter travels; the header alone says which functions there are. */
%module Native

%{
#include <ds.h>

#include "jni_support.h"
%}

%include <stdint.i>
%apply long long { int64_t };

/* ---- How the generated Java looks: everything is of the package alone ---------------------- */

%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%pragma(java) jniclasscode=%{
  static {
    NativeLoader.load();
  }
%}
%include "enumtypeunsafe.swg"
%javaconst(1);
%typemap(javaclassmodifiers) SWIGTYPE, enum SWIGTYPE "final class"
%typemap(javainterfaces) SWIGTYPE "AutoCloseable"
%typemap(javafinalize) SWIGTYPE "" /* they live for a statement of the classes above them */
%typemap(javabody) SWIGTYPE %{
  private long swigCPtr;
  private boolean swigCMemOwn;

  $javaclassname(long cPtr, boolean cMemoryOwn) {
    swigCMemOwn = cMemoryOwn;
    swigCPtr = cPtr;
  }

  static long getCPtr($javaclassname obj) {
    return obj == null ? 0 : obj.swigCPtr;
  }

  @Override
  public void close() {
    delete();
  }
%}

/* ---- Statuses: the message is fetched before the native call returns ------------------------ */

%typemap(jni) ds_status "void"
%typemap(jtype) ds_status "void"
%typemap(jstype) ds_status "void"
%typemap(javaout) ds_status "{ $jnicall; }"
%typemap(out) ds_status "ds_jni_finish(jenv, $1);"
/* a status that is asked about */
%typemap(jni) ds_status status "jint"
%typemap(jtype) ds_status status "int"
%typemap(jstype) ds_status status "int"
%typemap(in) ds_status status "$1 = (ds_status)$input;"
%typemap(javain) ds_status status "$javainput"

%typemap(jni) ds_bool "jboolean"
%typemap(jtype) ds_bool "boolean"
%typemap(jstype) ds_bool "boolean"
%typemap(javain) ds_bool "$javainput"
%typemap(javaout) ds_bool "{ return $jnicall; }"
%typemap(in) ds_bool "$1 = $input ? 1 : 0;"
%typemap(out) ds_bool "$result = $1 != 0;"

/* ---- Texts and bytes: UTF-8 both ways, which JNI's own text functions are not ---------------- */

%typemap(jni) const char* "jbyteArray"
%typemap(jtype) const char* "byte[]"
%typemap(jstype) const char* "String"
%typemap(javain) const char* "Marshal.utf8($javainput)"
%typemap(in) const char* {
  if (!ds_jni_text(jenv, $input, (const char**)&$1)) return $null;
}
%typemap(freearg) const char* "free((void*)$1);"
%typemap(out) const char* "$result = ds_jni_bytes(jenv, $1);"
%typemap(javaout) const char* "{ return Marshal.text($jnicall); }"

%typemap(jni) char** "jobjectArray"
%typemap(jtype) char** "byte[][]"
%typemap(jstype) char** "byte[][]"
%typemap(javain) char** "$javainput"
%typemap(in, numinputs=1) char** (char* text) "text = NULL; $1 = &text;"
%typemap(argout) char** "if (result == DS_OK) ds_jni_take_text(jenv, $input, text$argnum);"

/* bytes with their number */
%define BYTES(TYPE, NAME)
%typemap(jni) (TYPE NAME, int64_t size) "jbyteArray"
%typemap(jtype) (TYPE NAME, int64_t size) "byte[]"
%typemap(jstype) (TYPE NAME, int64_t size) "byte[]"
%typemap(javain) (TYPE NAME, int64_t size) "$javainput"
%typemap(in) (TYPE NAME, int64_t size) {
  void* copy = NULL;
  if (!ds_jni_copy_bytes(jenv, $input, &copy, &$2)) return $null;
  $1 = copy;
}
%typemap(freearg) (TYPE NAME, int64_t size) "free((void*)$1);"
%enddef
BYTES(const char*, text)
BYTES(const char*, json)
BYTES(const void*, data)

/* ---- Memory: direct buffers, which nobody moves and nothing copies --------------------------- */

%define DIRECT(TYPE, NAME, CHECK)
%typemap(jni) (TYPE NAME, int64_t size) "jobject"
%typemap(jtype) (TYPE NAME, int64_t size) "java.nio.ByteBuffer"
%typemap(jstype) (TYPE NAME, int64_t size) "java.nio.ByteBuffer"
%typemap(javain) (TYPE NAME, int64_t size) "CHECK($javainput)"
%typemap(in) (TYPE NAME, int64_t size) {
  $1 = (*jenv)->GetDirectBufferAddress(jenv, $input);
  $2 = (int64_t)(*jenv)->GetDirectBufferCapacity(jenv, $input);
}
%enddef
DIRECT(void*, buffer, Marshal.writable)
DIRECT(const void*, buffer, Marshal.direct)

%typemap(jni) void* data "jobject"
%typemap(jtype) void* data "java.nio.ByteBuffer"
%typemap(jstype) void* data "java.nio.ByteBuffer"
%typemap(javain) void* data "Marshal.writable($javainput)"
%typemap(in) void* data "$1 = (*jenv)->GetDirectBufferAddress(jenv, $input);"

/* addresses that Java only passes on */
%define ADDRESS(TYPE)
%typemap(jni) TYPE "jlong"
%typemap(jtype) TYPE "long"
%typemap(jstype) TYPE "long"
%typemap(javain) TYPE "$javainput"
%typemap(javaout) TYPE "{ return $jnicall; }"
%typemap(in) TYPE "$1 = ($1_ltype)(intptr_t)$input;"
%typemap(out) TYPE "$result = (jlong)(intptr_t)$1;"
%enddef
ADDRESS(void* stream)
ADDRESS(struct DLManagedTensor*)
ADDRESS(struct DLManagedTensorVersioned*)
/* the member ds_tensor_info.data */
%typemap(jni) void* ds_tensor_info::data "jlong"
%typemap(jtype) void* ds_tensor_info::data "long"
%typemap(jstype) void* ds_tensor_info::data "long"
%typemap(javaout) void* ds_tensor_info::data "{ return $jnicall; }"
%typemap(out) void* ds_tensor_info::data "$result = (jlong)(intptr_t)$1;"

/* ---- Numbers that come back: arrays of one element ------------------------------------------- */

%define OUT_NUMBER(CTYPE, JNI, JAVA, SETTER)
%typemap(jni) CTYPE* #JNI "Array"
%typemap(jtype) CTYPE* #JAVA "[]"
%typemap(jstype) CTYPE* #JAVA "[]"
%typemap(javain) CTYPE* "$javainput"
%typemap(in) CTYPE* (CTYPE value) "value = 0; $1 = $input == NULL ? NULL : &value;"
%typemap(argout) CTYPE* {
  if (result == DS_OK && $input != NULL) {
    const JNI element = (JNI)value$argnum;
    (*jenv)->SETTER(jenv, $input, 0, 1, &element);
  }
}
%enddef
OUT_NUMBER(int64_t, jlong, long, SetLongArrayRegion)
OUT_NUMBER(int32_t, jint, int, SetIntArrayRegion)
OUT_NUMBER(double, jdouble, double, SetDoubleArrayRegion)
OUT_NUMBER(ds_bool, jboolean, boolean, SetBooleanArrayRegion)

/* lists of numbers; null for NULL. Counts beside them are given by the classes above. */
%typemap(jni) const int64_t* "jlongArray"
%typemap(jtype) const int64_t* "long[]"
%typemap(jstype) const int64_t* "long[]"
%typemap(javain) const int64_t* "$javainput"
%typemap(in) const int64_t* {
  if (!ds_jni_longs(jenv, $input, (const int64_t**)&$1)) return $null;
}
%typemap(argout) const int64_t* ""
%typemap(freearg) const int64_t* "free((void*)$1);"

/* members such as shape[8] */
%typemap(jni) int64_t [ANY] "jlongArray"
%typemap(jtype) int64_t [ANY] "long[]"
%typemap(jstype) int64_t [ANY] "long[]"
%typemap(javaout) int64_t [ANY] "{ return $jnicall; }"
%typemap(out) int64_t [ANY] "$result = ds_jni_long_array(jenv, $1, $1_dim0);"

/* ---- Handles: the Java object goes in, so that it cannot be collected during the call -------- */

%define OUT_HANDLE(POINTER)
%typemap(jni) POINTER* "jlongArray"
%typemap(jtype) POINTER* "long[]"
%typemap(jstype) POINTER* "long[]"
%typemap(javain) POINTER* "$javainput"
%typemap(in) POINTER* (POINTER handle) "handle = NULL; $1 = &handle;"
%typemap(argout) POINTER* {
  if (result == DS_OK) {
    const jlong number = (jlong)(intptr_t)handle$argnum;
    (*jenv)->SetLongArrayRegion(jenv, $input, 0, 1, &number);
  }
}
%enddef

%define HANDLE(CTYPE, CLASS)
%typemap(jni) CTYPE*, const CTYPE* "jobject"
%typemap(jtype) CTYPE*, const CTYPE* #CLASS
%typemap(jstype) CTYPE*, const CTYPE* #CLASS
%typemap(javain) CTYPE*, const CTYPE* "NativeObject.live($javainput)"
%typemap(in) CTYPE*, const CTYPE* "$1 = ($1_ltype)ds_jni_handle(jenv, $input);"
OUT_HANDLE(CTYPE*)
%ignore CTYPE##_destroy;
%inline %{
/* From close() and the cleaner, when the Java object may be gone. */
static void end_##CTYPE(int64_t handle) { CTYPE##_destroy((CTYPE*)(intptr_t)handle); }
%}
%enddef
HANDLE(ds_tensor, Tensor)
HANDLE(ds_comm, Comm)
HANDLE(ds_work, Work)
HANDLE(ds_tokenizer, Tokenizer)
HANDLE(ds_dataset, Dataset)
HANDLE(ds_model, Model)
HANDLE(ds_generator, Generator)
HANDLE(ds_engine, Engine)
HANDLE(ds_scope, Scope)
HANDLE(ds_optimizer, Optimizer)
HANDLE(ds_io, FileIo)
OUT_HANDLE(struct DLManagedTensor*)
OUT_HANDLE(struct DLManagedTensorVersioned*)

%typemap(jni) ds_tensor* const* "jobjectArray"
%typemap(jtype) ds_tensor* const* "Tensor[]"
%typemap(jstype) ds_tensor* const* "Tensor[]"
%typemap(javain) ds_tensor* const* "NativeObject.live($javainput)"
%typemap(in) ds_tensor* const* {
  if (!ds_jni_handles(jenv, $input, (void***)&$1)) return $null;
}
%typemap(argout) ds_tensor* const* ""
%typemap(freearg) ds_tensor* const* "free((void*)$1);"

/* room for as many handles as the array has elements */
%typemap(in) ds_tensor** out_tensors {
  $1 = calloc((size_t)(*jenv)->GetArrayLength(jenv, $input) + 1, sizeof(ds_tensor*));
  if ($1 == NULL) {
    ds_jni_out_of_memory(jenv);
    return $null;
  }
}
%typemap(argout) ds_tensor** out_tensors "if (result == DS_OK) ds_jni_give_handles(jenv, $input, (void**)$1);"
%typemap(freearg) ds_tensor** out_tensors "free($1);"

/* ---- Structs --------------------------------------------------------------------------------- */

/* Those that a call fills or reads come with their size set. */
%define SIZED(NAME, INIT)
%extend NAME {
  NAME() {
    NAME* made = malloc(sizeof *made);
    if (made != NULL) *made = (NAME)INIT;
    return made;
  }
}
%enddef
SIZED(ds_step_report, DS_STEP_REPORT_INIT)
SIZED(ds_tensor_info, DS_TENSOR_INFO_INIT)
SIZED(ds_comm_info, DS_COMM_INFO_INIT)
SIZED(ds_dataset_info, DS_DATASET_INFO_INIT)
SIZED(ds_tokenizer_info, DS_TOKENIZER_INFO_INIT)
SIZED(ds_model_info, DS_MODEL_INFO_INIT)
SIZED(ds_parameter_info, DS_PARAMETER_INFO_INIT)
SIZED(ds_generator_info, DS_GENERATOR_INFO_INIT)
SIZED(ds_generate_options, DS_GENERATE_OPTIONS_INIT)
SIZED(ds_engine_info, DS_ENGINE_INFO_INIT)
SIZED(ds_optimizer_info, DS_OPTIMIZER_INFO_INIT)
SIZED(ds_io_info, DS_IO_INFO_INIT)

/* A batch travels as its tensors, in the order of the struct. */
%ignore ds_batch;
%typemap(jni) const ds_batch* "jobjectArray"
%typemap(jtype) const ds_batch* "Tensor[]"
%typemap(jstype) const ds_batch* "Tensor[]"
%typemap(javain) const ds_batch* "NativeObject.live($javainput)"
%typemap(in) const ds_batch* (ds_batch batch) {
  batch = (ds_batch)DS_BATCH_INIT;
  batch.ids = ds_jni_element(jenv, $input, 0);
  batch.labels = ds_jni_element(jenv, $input, 1);
  batch.attention_mask = ds_jni_element(jenv, $input, 2);
  batch.segments = ds_jni_element(jenv, $input, 3);
  batch.token_types = ds_jni_element(jenv, $input, 4);
  $1 = &batch;
}

/* The members of a collective travel as parameters. */
%ignore ds_collective;
%ignore ds_comm_start;

/* So do those of a transfer. */
%ignore ds_io_transfer;
%ignore ds_io_run;
%ignore ds_io_start;

/* And those of prompts. */
%ignore ds_prompts;
%ignore ds_generator_generate_batch;

/* Parameters are gathered in a list of the C side, one call for each. */
%ignore ds_parameter;
%ignore ds_model_create_from_parameters;

/* ---- Callbacks (jni_support.c) --------------------------------------------------------------- */

/* A Java object that hears calls, kept until the library lets go of it. */
%define LISTENER(FN, NAME, CLASS, TRAMPOLINE)
%typemap(jni) (FN NAME, void* user_data, ds_release_fn release) "jobject"
%typemap(jtype) (FN NAME, void* user_data, ds_release_fn release) #CLASS
%typemap(jstype) (FN NAME, void* user_data, ds_release_fn release) #CLASS
%typemap(javain) (FN NAME, void* user_data, ds_release_fn release) "$javainput"
%typemap(in) (FN NAME, void* user_data, ds_release_fn release) {
  if (!ds_jni_keep(jenv, $input, &$2)) return $null;
  $1 = $input == NULL ? NULL : TRAMPOLINE;
  $3 = $input == NULL ? NULL : ds_jni_release;
}
/* what fails leaves the object with the caller */
%typemap(freearg) (FN NAME, void* user_data, ds_release_fn release)
  "if (result != DS_OK && $2 != NULL) ds_jni_release($2);"
%enddef
LISTENER(ds_log_fn, fn, LogSink, ds_jni_log)
LISTENER(ds_progress_fn, fn, ProgressListener, ds_jni_progress)

/* One that is called on this thread alone, while the call runs and the reference holds. */
%define LISTENER_OF_CALL(FN, CLASS, TRAMPOLINE)
%typemap(jni) (FN on_token, void* user_data) "jobject"
%typemap(jtype) (FN on_token, void* user_data) #CLASS
%typemap(jstype) (FN on_token, void* user_data) #CLASS
%typemap(javain) (FN on_token, void* user_data) "$javainput"
%typemap(in) (FN on_token, void* user_data) {
  $1 = $input == NULL ? NULL : TRAMPOLINE;
  $2 = $input;
}
%enddef
LISTENER_OF_CALL(ds_token_fn, TokenListener, ds_jni_token)
LISTENER_OF_CALL(ds_text_token_fn, TextTokenListener, ds_jni_text_token)
/* a listener says true or false, or throws */
%ignore ds_text_reply_code;

%typemap(jni) (ds_release_fn release, void* user_data) "jobject"
%typemap(jtype) (ds_release_fn release, void* user_data) "Marshal.Kept"
%typemap(jstype) (ds_release_fn release, void* user_data) "Marshal.Kept"
%typemap(javain) (ds_release_fn release, void* user_data) "$javainput"
%typemap(in) (ds_release_fn release, void* user_data) {
  if (!ds_jni_keep(jenv, $input, &$2)) return $null;
  $1 = ds_jni_release;
}
%typemap(freearg) (ds_release_fn release, void* user_data)
  "if (result != DS_OK && $2 != NULL) ds_jni_release($2);"

%ignore ds_store;
%typemap(jni) const ds_store* "jobject"
%typemap(jtype) const ds_store* "KeyValueStore"
%typemap(jstype) const ds_store* "KeyValueStore"
%typemap(javain) const ds_store* "$javainput"
%typemap(in) const ds_store* (ds_store store) {
  store = (ds_store)DS_STORE_INIT;
  store.user_data = $input;
  store.put = ds_jni_store_put;
  store.get = ds_jni_store_get;
  $1 = $input == NULL ? NULL : &store;
}

/* ---- Left to this layer, or left out (HeaderTest says why) ---------------------------- */

%ignore ds_last_error_message;
%ignore ds_handle_error_message;
%ignore ds_string_free;
%ignore ds_allocator;
%ignore ds_allocator_set;
%ignore ds_pinned_allocate;
%ignore ds_pinned_free;
%ignore ds_pinned_contains;

/* constants as functions (helpers.i): SWIG would put them into a public interface */
%ignore DS_VERSION_MAJOR;
%ignore DS_VERSION_MINOR;
%ignore DS_VERSION_PATCH;
%ignore DS_MAX_DIMS;

/* arrays and addresses are only read */
%immutable ds_tensor_info::data;
%immutable ds_tensor_info::shape;
%immutable ds_tensor_info::strides;
%immutable ds_parameter_info::shape;

%include "ds.h" /* and what it includes: swig -includeall */

%include "helpers.i"
