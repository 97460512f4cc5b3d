#include "jni_support.h"

#include <pthread.h>

static struct {
  JavaVM* vm;
  jclass byte_array;   /* byte[] */
  jclass callbacks;    /* io.ds.Callbacks */
  jfieldID handle;     /* NativeObject.handle */
  jmethodID exception; /* Callbacks: (status, message) -> exception */
  jmethodID log;       /* ... and what hears each callback */
  jmethodID progress;
  jmethodID token;
  jmethodID text_token;
  jmethodID put;
  jmethodID get;
  pthread_key_t attached; /* threads of the library that are Java's for their callbacks */
} java;

/* What a callback threw on this thread, until the call that it came from ends. A local reference:
   callback and call share the native frame. */
static __thread jthrowable thrown;

static void detach(void* vm) { (*(JavaVM*)vm)->DetachCurrentThread(vm); }

static jclass global_class(JNIEnv* env, const char* name) {
  jclass local = (*env)->FindClass(env, name);
  return local == NULL ? NULL : (*env)->NewGlobalRef(env, local);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void* reserved) {
  JNIEnv* env = NULL;
  (void)reserved;
  java.vm = vm;
  if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_1_8) != JNI_OK) return JNI_ERR;
  jclass object = (*env)->FindClass(env, "io/ds/NativeObject");
  java.byte_array = global_class(env, "[B");
  java.callbacks = global_class(env, "io/ds/Callbacks");
  if (object == NULL || java.byte_array == NULL || java.callbacks == NULL) return JNI_ERR;
  const struct {
    jmethodID* id;
    const char *name, *signature;
  } methods[] = {
      {&java.exception, "exception", "(I[B)Ljava/lang/Throwable;"},
      {&java.log, "log", "(Lio/ds/LogSink;I[B[B)V"},
      {&java.progress, "progress", "(Lio/ds/ProgressListener;[BJJ)Z"},
      {&java.token, "token", "(Lio/ds/TokenListener;I)Z"},
      {&java.text_token, "textToken", "(Lio/ds/TextTokenListener;II)Z"},
      {&java.put, "put", "(Lio/ds/KeyValueStore;[B[B)V"},
      {&java.get, "get", "(Lio/ds/KeyValueStore;[B)[B"},
  };
  for (size_t i = 0; i < sizeof methods / sizeof methods[0]; ++i) {
    *methods[i].id =
        (*env)->GetStaticMethodID(env, java.callbacks, methods[i].name, methods[i].signature);
    if (*methods[i].id == NULL) return JNI_ERR;
  }
  java.handle = (*env)->GetFieldID(env, object, "handle", "J");
  if (java.handle == NULL || pthread_key_create(&java.attached, detach) != 0) return JNI_ERR;
  return JNI_VERSION_1_8;
}

/* When the class loader goes. Objects that the library keeps hold it, so no callback is left by
 * then. */
JNIEXPORT void JNICALL JNI_OnUnload(JavaVM* vm, void* reserved) {
  JNIEnv* env = NULL;
  (void)reserved;
  pthread_key_delete(java.attached);
  if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION_1_8) != JNI_OK) return;
  (*env)->DeleteGlobalRef(env, java.byte_array);
  (*env)->DeleteGlobalRef(env, java.callbacks);
}

/* This thread's environment; a thread that Java does not know becomes a daemon until it ends. NULL
 * when Java has ended. */
static JNIEnv* environment(void) {
  JNIEnv* env = NULL;
  if ((*java.vm)->GetEnv(java.vm, (void**)&env, JNI_VERSION_1_8) == JNI_OK) return env;
  JavaVMAttachArgs name = {JNI_VERSION_1_8, "ds", NULL};
  if ((*java.vm)->AttachCurrentThreadAsDaemon(java.vm, (void**)&env, &name) != JNI_OK) return NULL;
  pthread_setspecific(java.attached, java.vm);
  return env;
}

/* ---- Errors ---------------------------------------------------------------------------------- */

void ds_jni_out_of_memory(JNIEnv* env) {
  jclass error = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
  if (error != NULL) (*env)->ThrowNew(env, error, "no memory for the arguments of a native call");
}

void ds_jni_finish(JNIEnv* env, ds_status status) {
  jthrowable left = thrown;
  if (left == NULL && status >= 0) return;
  thrown = NULL;
  if (status >= 0) return; /* the library went on: what it made must reach the caller */
  if (left == NULL) {
    jbyteArray message = ds_jni_bytes(env, ds_last_error_message());
    if (message == NULL) return; /* OutOfMemoryError is on its way */
    left =
        (*env)->CallStaticObjectMethod(env, java.callbacks, java.exception, (jint)status, message);
    if ((*env)->ExceptionCheck(env)) return;
  }
  (*env)->Throw(env, left);
}

/* After a call to Java: 1 when it threw, which the end of the native call throws on. */
static int caught(JNIEnv* env) {
  jthrowable now = (*env)->ExceptionOccurred(env);
  if (now == NULL) return 0;
  (*env)->ExceptionClear(env);
  thrown = now;
  return 1;
}

/* ---- Values ---------------------------------------------------------------------------------- */

int ds_jni_copy_bytes(JNIEnv* env, jbyteArray bytes, void** out_copy, int64_t* out_size) {
  *out_copy = NULL;
  *out_size = 0;
  if (bytes == NULL) return 1;
  const jsize size = (*env)->GetArrayLength(env, bytes);
  void* copy = malloc((size_t)size + 1); /* never NULL for no bytes */
  if (copy == NULL) {
    ds_jni_out_of_memory(env);
    return 0;
  }
  (*env)->GetByteArrayRegion(env, bytes, 0, size, copy);
  *out_copy = copy;
  *out_size = size;
  return 1;
}

int ds_jni_text(JNIEnv* env, jbyteArray bytes, const char** out_text) {
  void* copy;
  int64_t size;
  if (!ds_jni_copy_bytes(env, bytes, &copy, &size)) return 0;
  *out_text = copy; /* Marshal.utf8 has put the NUL */
  return 1;
}

static jbyteArray byte_array(JNIEnv* env, const void* data, int64_t size) {
  if (size > INT32_MAX) {
    ds_jni_out_of_memory(env); /* as Java says for an array that is too large */
    return NULL;
  }
  jbyteArray made = (*env)->NewByteArray(env, (jsize)size);
  if (made != NULL) (*env)->SetByteArrayRegion(env, made, 0, (jsize)size, data);
  return made;
}

jbyteArray ds_jni_bytes(JNIEnv* env, const char* text) {
  return text == NULL ? NULL : byte_array(env, text, (int64_t)strlen(text));
}

void ds_jni_take_text(JNIEnv* env, jobjectArray out, char* text) {
  jbyteArray bytes = ds_jni_bytes(env, text);
  ds_string_free(text);
  if (bytes != NULL) (*env)->SetObjectArrayElement(env, out, 0, bytes);
}

int ds_jni_longs(JNIEnv* env, jlongArray numbers, const int64_t** out_numbers) {
  *out_numbers = NULL;
  if (numbers == NULL) return 1;
  const jsize count = (*env)->GetArrayLength(env, numbers);
  int64_t* copy = malloc(sizeof(int64_t) * ((size_t)count + 1));
  if (copy == NULL) {
    ds_jni_out_of_memory(env);
    return 0;
  }
  (*env)->GetLongArrayRegion(env, numbers, 0, count, (jlong*)copy);
  *out_numbers = copy;
  return 1;
}

jlongArray ds_jni_long_array(JNIEnv* env, const int64_t* numbers, int32_t count) {
  jlongArray made = (*env)->NewLongArray(env, count);
  if (made != NULL) (*env)->SetLongArrayRegion(env, made, 0, count, (const jlong*)numbers);
  return made;
}

void* ds_jni_handle(JNIEnv* env, jobject object) {
  return object == NULL ? NULL : (void*)(intptr_t)(*env)->GetLongField(env, object, java.handle);
}

void* ds_jni_element(JNIEnv* env, jobjectArray objects, jsize index) {
  jobject object = (*env)->GetObjectArrayElement(env, objects, index);
  void* handle = ds_jni_handle(env, object);
  if (object != NULL) (*env)->DeleteLocalRef(env, object);
  return handle;
}

int ds_jni_handles(JNIEnv* env, jobjectArray objects, void*** out_handles) {
  *out_handles = NULL;
  if (objects == NULL) return 1;
  const jsize count = (*env)->GetArrayLength(env, objects);
  void** handles = malloc(sizeof(void*) * ((size_t)count + 1));
  if (handles == NULL) {
    ds_jni_out_of_memory(env);
    return 0;
  }
  for (jsize i = 0; i < count; ++i) handles[i] = ds_jni_element(env, objects, i);
  *out_handles = handles;
  return 1;
}

void ds_jni_give_handles(JNIEnv* env, jlongArray out, void** handles) {
  const jsize count = (*env)->GetArrayLength(env, out);
  for (jsize i = 0; i < count; ++i) {
    const jlong number = (jlong)(intptr_t)handles[i];
    (*env)->SetLongArrayRegion(env, out, i, 1, &number);
  }
}

static void copy_region(JNIEnv* env, jarray array, jsize count, ds_dtype dtype, void* memory,
                        int from_array) {
  switch (dtype) {
#define REGION(CODE, TYPE)                                          \
  case CODE:                                                        \
    if (from_array) {                                               \
      (*env)->Get##TYPE##ArrayRegion(env, array, 0, count, memory); \
    } else {                                                        \
      (*env)->Set##TYPE##ArrayRegion(env, array, 0, count, memory); \
    }                                                               \
    break
    REGION(DS_FLOAT32, Float);
    REGION(DS_FLOAT64, Double);
    REGION(DS_INT32, Int);
    REGION(DS_INT64, Long);
    REGION(DS_UINT8, Byte);
#undef REGION
  }
}

ds_status ds_jni_copy_elements(JNIEnv* env, ds_tensor* tensor, jarray array, ds_dtype dtype,
                               int to_tensor) {
  const jsize count = (*env)->GetArrayLength(env, array);
  const int64_t element = dtype == DS_UINT8 ? 1 : dtype == DS_FLOAT64 || dtype == DS_INT64 ? 8 : 4;
  void* memory = malloc((size_t)(count * element) + 1);
  ds_status status = DS_OK;
  if (memory == NULL) {
    ds_jni_out_of_memory(env);
    return DS_OK;
  }
  if (to_tensor) {
    copy_region(env, array, count, dtype, memory, 1);
    status = ds_tensor_write(tensor, memory, count * element);
  } else {
    status = ds_tensor_read(tensor, memory, count * element);
    if (status == DS_OK) copy_region(env, array, count, dtype, memory, 0);
  }
  free(memory);
  return status;
}

/* ---- Callbacks ------------------------------------------------------------------------------- */

int ds_jni_keep(JNIEnv* env, jobject object, void** out_kept) {
  *out_kept = NULL;
  if (object == NULL) return 1;
  *out_kept = (*env)->NewGlobalRef(env, object);
  if (*out_kept == NULL) ds_jni_out_of_memory(env);
  return *out_kept != NULL;
}

void ds_jni_release(void* kept) {
  JNIEnv* env = environment();
  if (env != NULL) (*env)->DeleteGlobalRef(env, kept);
}

void ds_jni_log(void* sink, int32_t level, const char* component, const char* text) {
  JNIEnv* env = environment();
  if (env == NULL || (*env)->PushLocalFrame(env, 4) != 0) return;
  jbyteArray where = ds_jni_bytes(env, component);
  jbyteArray what = where == NULL ? NULL : ds_jni_bytes(env, text);
  if (what != NULL) {
    (*env)->CallStaticVoidMethod(env, java.callbacks, java.log, (jobject)sink, (jint)level, where,
                                 what);
  }
  if ((*env)->ExceptionCheck(env))
    (*env)->ExceptionClear(env); /* no memory for the texts: the message is lost */
  (*env)->PopLocalFrame(env, NULL);
}

int32_t ds_jni_progress(void* listener, const char* call, int64_t done, int64_t total) {
  JNIEnv* env = environment();
  if (env == NULL) return 1;
  jbyteArray name = ds_jni_bytes(env, call);
  if (caught(env)) return 1;
  const jboolean on = (*env)->CallStaticBooleanMethod(
      env, java.callbacks, java.progress, (jobject)listener, name, (jlong)done, (jlong)total);
  (*env)->DeleteLocalRef(env, name);
  return caught(env) || !on;
}

int32_t ds_jni_token(void* listener, int32_t token) {
  JNIEnv* env = environment();
  if (env == NULL) return 1;
  const jboolean on = (*env)->CallStaticBooleanMethod(env, java.callbacks, java.token,
                                                      (jobject)listener, (jint)token);
  return caught(env) || !on;
}

/* Prompts are elements of a Java array, so that an int has room for the index. */
ds_text_reply ds_jni_text_token(void* listener, int64_t text, int32_t token) {
  JNIEnv* env = environment();
  if (env == NULL) return DS_TEXTS_END;
  const jboolean on = (*env)->CallStaticBooleanMethod(env, java.callbacks, java.text_token,
                                                      (jobject)listener, (jint)text, (jint)token);
  if (caught(env)) return DS_TEXTS_END;
  return on ? DS_TEXT_GOES_ON : DS_TEXT_ENDS;
}

ds_status ds_jni_store_put(void* store, const char* key, const void* value, int64_t size) {
  JNIEnv* env = environment();
  if (env == NULL) return DS_ERR_CALLBACK;
  jbyteArray name = ds_jni_bytes(env, key);
  jbyteArray bytes = name == NULL ? NULL : byte_array(env, value, size);
  if (bytes != NULL) {
    (*env)->CallStaticVoidMethod(env, java.callbacks, java.put, (jobject)store, name, bytes);
  }
  const int failed = caught(env);
  if (bytes != NULL) (*env)->DeleteLocalRef(env, bytes);
  if (name != NULL) (*env)->DeleteLocalRef(env, name);
  return failed ? DS_ERR_CALLBACK : DS_OK;
}

ds_status ds_jni_store_get(void* store, const char* key, void* value, int64_t capacity,
                           int64_t* out_size) {
  JNIEnv* env = environment();
  if (env == NULL) return DS_ERR_CALLBACK;
  jbyteArray name = ds_jni_bytes(env, key);
  jbyteArray bytes = NULL;
  if (name != NULL) {
    bytes = (*env)->CallStaticObjectMethod(env, java.callbacks, java.get, (jobject)store, name);
  }
  const int failed = caught(env);
  if (name != NULL) (*env)->DeleteLocalRef(env, name);
  if (failed) return DS_ERR_CALLBACK;
  if (bytes == NULL) return DS_ERR_NOT_FOUND;
  const jsize size = (*env)->GetArrayLength(env, bytes);
  *out_size = size; /* the library refuses a value that is larger than its room */
  if (size <= capacity) (*env)->GetByteArrayRegion(env, bytes, 0, size, value);
  (*env)->DeleteLocalRef(env, bytes);
  return DS_OK;
}
