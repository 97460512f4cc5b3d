/* Structs that hold pointers, filled on the C side; the compiler holds them to the header. */

%typemap(jni) parameter_list* "jlong"
%typemap(jtype) parameter_list* "long"
%typemap(jstype) parameter_list* "long"
%typemap(javain) parameter_list* "$javainput"
%typemap(javaout) parameter_list* "{ return $jnicall; }"
%typemap(in) parameter_list* "$1 = (parameter_list*)(intptr_t)$input;"
%typemap(out) parameter_list* "$result = (jlong)(intptr_t)$1;"

%typemap(in, numinputs=0) JNIEnv* jenv "$1 = jenv;"

%{
typedef struct parameter_list {
  ds_parameter* items;
  int64_t count, capacity;
} parameter_list;
%}

%inline %{
/* The version of the header that this layer was generated from, as ds_abi_version() gives it. */
static int32_t header_version(void) {
  return DS_VERSION_MAJOR * 1000000 + DS_VERSION_MINOR * 1000 + DS_VERSION_PATCH;
}

/* Memory as a ByteBuffer; the caller keeps what it belongs to. */
static jobject buffer_at(JNIEnv* jenv, int64_t address, int64_t size) {
  return (*jenv)->NewDirectByteBuffer(jenv, (void*)(intptr_t)address, size);
}

/* Copies all elements of a tensor to or from a Java array of its type, of as many elements. */
static ds_status read_array(JNIEnv* jenv, const ds_tensor* tensor, jobject array, int32_t dtype) {
  return ds_jni_copy_elements(jenv, (ds_tensor*)tensor, array, dtype, 0);
}
static ds_status write_array(JNIEnv* jenv, ds_tensor* tensor, jobject array, int32_t dtype) {
  return ds_jni_copy_elements(jenv, tensor, array, dtype, 1);
}

static ds_status start_collective(ds_comm* comm, int32_t kind, int32_t op, ds_tensor* output,
                                  const ds_tensor* input, int32_t root, int32_t tag,
                                  const int64_t* output_counts, const int64_t* input_counts,
                                  const char* label, int64_t timeout_ms,
                                  ds_bool average_over_participants, ds_work** out_work) {
  ds_collective collective = DS_COLLECTIVE_INIT;
  collective.kind = kind;
  collective.op = op;
  collective.output = output;
  collective.input = input;
  collective.root = root;
  collective.tag = tag;
  collective.output_counts = output_counts;
  collective.input_counts = input_counts;
  collective.label = label;
  collective.timeout_ms = timeout_ms;
  collective.average_over_participants = average_over_participants;
  return ds_comm_start(comm, &collective, out_work);
}

static ds_status generate_batch(ds_generator* generator, const ds_tensor* ids,
                                const ds_tensor* counts, int64_t at_once,
                                const ds_generate_options* options, ds_text_token_fn on_token,
                                void* user_data, ds_tensor** out_ids, ds_tensor** out_counts) {
  ds_prompts prompts = DS_PROMPTS_INIT;
  prompts.ids = ids;
  prompts.counts = counts;
  prompts.at_once = at_once;
  return ds_generator_generate_batch(generator, &prompts, options, on_token, user_data, out_ids,
                                     out_counts);
}

static ds_status run_transfer(ds_io* io, const char* path, ds_tensor* tensor, int64_t offset,
                              ds_bool write, ds_bool whole_file) {
  ds_io_transfer transfer = DS_IO_TRANSFER_INIT;
  transfer.path = path;
  transfer.tensor = tensor;
  transfer.offset = offset;
  transfer.write = write;
  transfer.whole_file = whole_file;
  return ds_io_run(io, &transfer);
}
static ds_status start_transfer(ds_io* io, const char* path, ds_tensor* tensor, int64_t offset,
                                ds_bool write, int64_t* out_ticket) {
  ds_io_transfer transfer = DS_IO_TRANSFER_INIT;
  transfer.path = path;
  transfer.tensor = tensor;
  transfer.offset = offset;
  transfer.write = write;
  return ds_io_start(io, &transfer, out_ticket);
}

/* 0 when memory runs out. */
static parameter_list* parameter_list_create(int64_t capacity) {
  parameter_list* list = calloc(1, sizeof *list);
  if (list == NULL) return NULL;
  list->items = calloc((size_t)capacity + 1, sizeof *list->items);
  if (list->items == NULL) {
    free(list);
    return NULL;
  }
  list->capacity = capacity;
  return list;
}

/* Copies texts and shape; the value must live until the model is made. */
static int32_t parameter_list_add(parameter_list* list, const char* name, const int64_t* shape,
                                  int32_t ndim, const ds_tensor* value, const char* group,
                                  const char* alias, int32_t dtype) {
  if (list->count == list->capacity) return -1;
  ds_parameter one = DS_PARAMETER_INIT;
  one.name = strdup(name);
  one.group = group == NULL ? NULL : strdup(group);
  one.alias = alias == NULL ? NULL : strdup(alias);
  if (shape != NULL) {
    int64_t* sizes = malloc(sizeof(int64_t) * ((size_t)ndim + 1));
    if (sizes != NULL) memcpy(sizes, shape, sizeof(int64_t) * (size_t)ndim);
    one.shape = sizes;
  }
  one.ndim = ndim;
  one.value = value;
  one.dtype = dtype;
  list->items[list->count++] = one; /* also when a copy failed, so that the rest is freed */
  return one.name != NULL && (group == NULL || one.group != NULL) &&
                 (alias == NULL || one.alias != NULL) && (shape == NULL || one.shape != NULL)
             ? 0
             : -1;
}

/* Of the parameter added last. A negative expert: it belongs to none. */
static void parameter_list_mark(parameter_list* list, ds_bool lend, ds_bool frozen,
                                ds_bool no_decay, int64_t expert) {
  ds_parameter* last = &list->items[list->count - 1];
  last->lend = lend;
  last->frozen = frozen;
  last->no_decay = no_decay;
  last->has_expert = expert >= 0;
  last->expert = expert >= 0 ? expert : 0;
}

static ds_status parameter_list_model(parameter_list* list, ds_model** out_model) {
  return ds_model_create_from_parameters(list->items, list->count, out_model);
}

static void parameter_list_end(parameter_list* list) {
  for (int64_t i = 0; i < list->count; ++i) {
    free((void*)list->items[i].name);
    free((void*)list->items[i].group);
    free((void*)list->items[i].alias);
    free((void*)list->items[i].shape);
  }
  free(list->items);
  free(list);
}
%}
