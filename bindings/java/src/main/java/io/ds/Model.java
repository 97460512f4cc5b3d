package io.ds;

import java.nio.file.Path;
import java.util.List;

/**
 * Architecture and weights. Parameters are numbered from 0 in the model's order, tied ones once; numbers stay until adapters are
 * added or removed.
 */
public final class Model extends NativeObject {
  private Model(long handle) {
    super(handle, Native::end_ds_model);
  }

  /**
   * Makes a model with fresh weights.
   *
   * @param configJson a Hugging Face config.json
   * @param seed same seed, same weights
   * @return a new model
   * @throws DsException.Config when the document is wrong
   * @throws DsException.Unsupported for an architecture that this version does not know
   */
  public static Model create(String configJson, long seed) {
    return new Model(Marshal.handle(out -> Native.ds_model_create(configJson, seed, out)));
  }

  /**
   * Opens weights from a folder: Hugging Face (config.json and safetensors), or a checkpoint.
   *
   * @param folder where they are
   * @return a new model
   */
  public static Model open(Path folder) {
    return open(folder, null);
  }

  /**
   * Opens weights from a folder with another head or changed options.
   *
   * @param folder where they are
   * @param optionsJson {"config": {...}, "head_seed": N}, each optional; null for none
   * @return a new model
   */
  public static Model open(Path folder, String optionsJson) {
    return new Model(Marshal.handle(out -> Native.ds_model_open(Marshal.text(folder), optionsJson, out)));
  }

  /**
   * Makes a model of the caller's own parameters, without a forward pass: the caller computes gradients and gives them to an
   * engine ({@link Engine#addGradients}).
   *
   * @param parameters one or more
   * @return a new model
   */
  public static Model ofParameters(List<Parameter> parameters) {
    long list = Native.parameter_list_create(parameters.size());
    if (list == 0) {
      throw new OutOfMemoryError("no memory for a list of " + parameters.size() + " parameters");
    }
    try {
      for (Parameter one : parameters) {
        int ndim = one.shape == null ? 0 : one.shape.length;
        int type = one.type == null ? 0 : one.type.code;
        if (Native.parameter_list_add(list, one.name, one.shape, ndim, one.value, one.group, one.alias, type) != 0) {
          throw new OutOfMemoryError("no memory for the description of parameter " + one.name);
        }
        Native.parameter_list_mark(list, one.lend, one.frozen, one.noDecay, one.expert);
      }
      return new Model(Marshal.handle(out -> Native.parameter_list_model(list, out)));
    } finally {
      Native.parameter_list_end(list);
      java.lang.ref.Reference.reachabilityFence(parameters); // whose values the list refers to
    }
  }

  /**
   * Makes a second model of the same weights, which shares nothing with this one: it can generate while an engine trains this
   * one on. To be called between two calls of that engine.
   *
   * @return a new model that no engine trains
   */
  public Model copy() {
    return new Model(Marshal.handle(out -> Native.ds_model_copy(this, out)));
  }

  /**
   * Sizes and place.
   *
   * @return what the model is now
   */
  public ModelInfo info() {
    try (ds_model_info info = new ds_model_info()) {
      Native.ds_model_describe(this, info);
      return ModelInfo.of(info);
    }
  }

  /**
   * The architecture.
   *
   * @return a config.json; "null" for own parameters
   */
  public String config() {
    return Marshal.text(out -> Native.ds_model_config(this, out));
  }

  /**
   * Moves the weights to a device.
   *
   * @param device "cpu" or a GPU such as "cuda:0"
   * @throws DsException.Unsupported when there is no CUDA
   */
  public void setDevice(String device) {
    Native.ds_model_set_device(this, device);
  }

  /**
   * Orders the work on the model's GPU with a CUDA stream of the program, both ways, so that the host waits for the
   * numbers alone that calls return.
   *
   * @param stream a {@code cudaStream_t} that outlives the model and its engine; 0 ends it
   * @throws DsException.Unsupported when the model is in host memory
   */
  public void setStream(long stream) {
    Native.ds_model_set_stream(this, stream);
  }

  /**
   * Index of a parameter by its name, by that of a tied tensor, or by the one in Hugging Face files.
   *
   * @param name its name
   * @return its number
   * @throws DsException.NotFound with the nearest name
   */
  public long parameterIndex(String name) {
    return Marshal.handle(out -> Native.ds_model_parameter_index(this, name, out));
  }

  /**
   * Name of a parameter.
   *
   * @param parameter its number
   * @return its name
   */
  public String parameterName(long parameter) {
    return Marshal.text(out -> Native.ds_model_parameter_name(this, parameter, out));
  }

  /**
   * Shape and properties of a parameter.
   *
   * @param parameter its number
   * @return what it is
   */
  public ParameterInfo parameterInfo(long parameter) {
    try (ds_parameter_info info = new ds_parameter_info()) {
      Native.ds_model_parameter_describe(this, parameter, info);
      return ParameterInfo.of(info);
    }
  }

  /**
   * All parameters in their order.
   *
   * @return a JSON list of {"name", "shape", "dtype", "trainable", "decays", "group", "aliases"}
   */
  public String parameters() {
    return Marshal.text(out -> Native.ds_model_parameters(this, out));
  }

  /**
   * A copy of a parameter: the master copy where an engine keeps one.
   *
   * @param parameter its number
   * @return float32, full shape
   */
  public Tensor getParameter(long parameter) {
    return Marshal.tensor(out -> Native.ds_model_get_parameter(this, parameter, out));
  }

  /**
   * Sets a parameter and its master copy.
   *
   * @param parameter its number
   * @param value float32 of the same shape
   */
  public void setParameter(long parameter, Tensor value) {
    Native.ds_model_set_parameter(this, parameter, value);
  }

  /**
   * A parameter's memory as the model computes with it, without a copy; to be used between steps. A view of float32 masters is
   * writable and what is written counts; one of a lower precision is read-only.
   *
   * @param parameter its number
   * @return float32, or the type of the engine's precision
   * @throws DsException.Unsupported for weights on a GPU or spread over processes
   */
  public Tensor viewParameter(long parameter) {
    return Marshal.tensor(out -> Native.ds_model_view_parameter(this, parameter, out));
  }

  /**
   * Freezes parameters, or lets them train again.
   *
   * @param pattern of names: {@code *} is any text, {@code ?} one character
   * @param trainable false freezes
   * @throws DsException.NotFound when no name matches
   */
  public void setTrainable(String pattern, boolean trainable) {
    Native.ds_model_set_trainable(this, pattern, trainable);
  }

  /**
   * Adds low-rank adapters (LoRA) and freezes everything else.
   *
   * @param optionsJson such as {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
   */
  public void addLora(String optionsJson) {
    Native.ds_model_add_lora(this, optionsJson);
  }

  /** Adds the adapters' products to the weights and removes the adapters; all parameters train again. */
  public void mergeLora() {
    Native.ds_model_merge_lora(this);
  }

  /**
   * Writes the adapters alone in PEFT's layout.
   *
   * @param folder where to
   * @param type FLOAT32, BFLOAT16 or FLOAT16
   */
  public void saveAdapter(Path folder, DType type) {
    Native.ds_model_save_adapter(this, Marshal.text(folder), type.code);
  }

  /**
   * Reads adapters in PEFT's layout onto the model they were made for, and freezes everything else.
   *
   * @param folder where they are
   */
  public void loadAdapter(Path folder) {
    Native.ds_model_load_adapter(this, Marshal.text(folder));
  }

  /**
   * Writes a checkpoint of the weights alone, which {@link #open} reads.
   *
   * @param folder made when missing
   * @param tag null for "weights"
   */
  public void save(Path folder, String tag) {
    Native.ds_model_save(this, Marshal.text(folder), tag);
  }

  /**
   * Writes config.json and safetensors so that Transformers loads them.
   *
   * @param folder where to
   * @param type FLOAT32, BFLOAT16 or FLOAT16
   * @param maxShardBytes of tensor data per file; 0 for one file
   */
  public void export(Path folder, DType type, long maxShardBytes) {
    Native.ds_model_export(this, Marshal.text(folder), type.code, maxShardBytes);
  }

  @Override
  public String toString() {
    if (isClosed()) {
      return "Model[closed]";
    }
    ModelInfo info = info();
    return "Model[" + info.parameters() + " parameters, " + info.elements() + " elements]";
  }
}
