/* What the generated layer and the callbacks need from JNI. Functions that return int give 0 after
 * they have thrown. */
#ifndef DS_JAVA_JNI_SUPPORT_H
#define DS_JAVA_JNI_SUPPORT_H

#include <ds.h>
#include <jni.h>
#include <stdlib.h>
#include <string.h>

/* Ends a call: throws the exception that a callback left, or the one of a negative status, with its
 * message. */
void ds_jni_finish(JNIEnv* env, ds_status status);
void ds_jni_out_of_memory(JNIEnv* env);

/* Texts: bytes that end with NUL, from Java's side; NULL for null. The caller frees. */
int ds_jni_text(JNIEnv* env, jbyteArray bytes, const char** out_text);
int ds_jni_copy_bytes(JNIEnv* env, jbyteArray bytes, void** out_copy, int64_t* out_size);
jbyteArray ds_jni_bytes(JNIEnv* env, const char* text);
/* Stores a text of the library in element 0 and frees it. */
void ds_jni_take_text(JNIEnv* env, jobjectArray out, char* text);

int ds_jni_longs(JNIEnv* env, jlongArray numbers, const int64_t** out_numbers);
jlongArray ds_jni_long_array(JNIEnv* env, const int64_t* numbers, int32_t count);

/* The handle of an io.ds.NativeObject; NULL for null. */
void* ds_jni_handle(JNIEnv* env, jobject object);
void* ds_jni_element(JNIEnv* env, jobjectArray objects, jsize index);
int ds_jni_handles(JNIEnv* env, jobjectArray objects, void*** out_handles);
void ds_jni_give_handles(JNIEnv* env, jlongArray out, void** handles);

/* Copies between a tensor and a Java array of its type. Regions are copied, not pinned: the garbage
 * collector goes on. */
ds_status ds_jni_copy_elements(JNIEnv* env, ds_tensor* tensor, jarray array, ds_dtype dtype,
                               int to_tensor);

/* Keeps a Java object for the library until ds_jni_release; NULL for null. */
int ds_jni_keep(JNIEnv* env, jobject object, void** out_kept);
void ds_jni_release(void* kept);

/* Callbacks of ds.h. All but the log are called on the thread inside the call. */
void ds_jni_log(void* sink, int32_t level, const char* component, const char* text);
int32_t ds_jni_progress(void* listener, const char* call, int64_t done, int64_t total);
int32_t ds_jni_token(void* listener, int32_t token);
ds_text_reply ds_jni_text_token(void* listener, int64_t text, int32_t token);
ds_status ds_jni_store_put(void* store, const char* key, const void* value, int64_t size);
ds_status ds_jni_store_get(void* store, const char* key, void* value, int64_t capacity,
                           int64_t* out_size);

#endif
