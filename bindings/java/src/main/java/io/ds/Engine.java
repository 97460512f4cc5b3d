package io.ds;

import java.nio.file.Path;

/**
 * Trains one model. One thread at a time uses an engine; a second one that enters gets {@link DsException.State}, except for
 * {@link #interrupt}. Different engines are independent.
 */
public final class Engine extends NativeObject {
  private final long parameterCount;

  private Engine(long handle, Model model) {
    super(handle, Native::end_ds_engine);
    this.parameterCount = model.info().parameters();
  }

  /**
   * Makes an engine for this process alone.
   *
   * @param configJson a DeepSpeed configuration; unknown keys are errors
   * @param model what to train, in place; it serves one engine at a time
   * @return a new engine
   * @throws DsException.Config when the document is wrong
   */
  public static Engine create(String configJson, Model model) {
    return create(configJson, null, model, null);
  }

  /**
   * Makes an engine.
   *
   * @param configJson a DeepSpeed configuration; unknown keys are errors
   * @param optionsJson how it is read ("resolve_auto", "lenient", "set", "require_optimizer"); null for the defaults
   * @param model what to train, in place; it serves one engine at a time
   * @param comm the group to train with; null for this process alone
   * @return a new engine
   * @throws DsException.Config when a document is wrong
   */
  public static Engine create(String configJson, String optionsJson, Model model, Comm comm) {
    return new Engine(Marshal.handle(out -> Native.ds_engine_create(configJson, optionsJson, model, comm, out)), model);
  }

  /**
   * Makes an engine with the configuration of a file; errors name it.
   *
   * @param config the file with the configuration
   * @param optionsJson as in {@link #create(String, String, Model, Comm)}
   * @param model as there
   * @param comm as there
   * @return a new engine
   */
  public static Engine createFromFile(Path config, String optionsJson, Model model, Comm comm) {
    return new Engine(
        Marshal.handle(out -> Native.ds_engine_create_from_file(Marshal.text(config), optionsJson, model, comm, out)), model);
  }

  // ---- Steps

  /**
   * Computes the loss of one micro batch and remembers what {@link #backward} needs.
   *
   * @param batch ids and labels are needed
   * @return float32 tensor of one number, the mean over the counted labels
   */
  public Tensor forward(Batch batch) {
    return Marshal.tensor(out -> Native.ds_engine_forward(this, batch.tensors(), out));
  }

  /**
   * Adds the gradient of the last forward's loss.
   *
   * @param loss what {@link #forward} gave
   */
  public void backward(Tensor loss) {
    Native.ds_engine_backward(this, loss);
  }

  /**
   * Ends a micro batch; at an accumulation boundary clips, updates and clears the gradients.
   *
   * @return what it did
   */
  public StepReport step() {
    try (ds_step_report report = new ds_step_report()) {
      Native.ds_engine_step(this, report);
      return StepReport.of(report);
    }
  }

  /**
   * Sets the data that {@link #trainBatch} reads; sampling begins at the engine's sample counter.
   *
   * @param dataset null takes the data away
   */
  public void setDataset(Dataset dataset) {
    Native.ds_engine_set_dataset(this, dataset);
  }

  /**
   * One optimizer step over the data set: the micro batches of gradient_accumulation_steps, then the update.
   *
   * @return what it did
   */
  public StepReport trainBatch() {
    try (ds_step_report report = new ds_step_report()) {
      Native.ds_engine_train_batch(this, report);
      return StepReport.of(report);
    }
  }

  /**
   * Mean loss over a data set, without training and without dropout.
   *
   * @param dataset what to evaluate on
   * @param maxBatches micro batches at most; 0 = all
   * @return the loss
   */
  public double evaluate(Dataset dataset, long maxBatches) {
    double[] out = new double[1];
    Native.ds_engine_evaluate(this, dataset, maxBatches, out);
    return out[0];
  }

  /**
   * Says whether the next calls of {@link #step} update, until {@link #setBoundary} or {@link #automaticBoundary} is called
   * again.
   *
   * @param update true: they update; false: they only end a micro batch
   */
  public void setBoundary(boolean update) {
    Native.ds_engine_set_boundary(this, update ? 1 : 0);
  }

  /** Lets gradient_accumulation_steps decide which steps update, as at first. */
  public void automaticBoundary() {
    Native.ds_engine_set_boundary(this, -1);
  }

  /** For a process without further batches: takes part in the others' steps until every process has called it. */
  public void join() {
    Native.ds_engine_join(this);
  }

  // ---- The caller's gradients

  /**
   * Adds gradients that the caller computed to those of the open step, for parameters 0, 1, ...; nothing is added when one is
   * wrong.
   *
   * @param gradients float32, bfloat16 or float16 of the parameters' shapes; read before the call returns
   */
  public void addGradients(Tensor... gradients) {
    Native.ds_engine_add_gradients(this, null, gradients, gradients.length);
  }

  /**
   * Adds gradients of chosen parameters.
   *
   * @param parameters numbers in the model
   * @param gradients as many tensors
   */
  public void addGradients(long[] parameters, Tensor... gradients) {
    if (parameters.length != gradients.length) {
      throw new IllegalArgumentException(parameters.length + " parameters, but " + gradients.length + " gradients");
    }
    Native.ds_engine_add_gradients(this, parameters, gradients, gradients.length);
  }

  /**
   * The memory that a parameter's gradient gathers in, without a copy: a program adds to it in place, between steps; every step
   * clears it.
   *
   * @param parameter its number in the model
   * @return in the type of grad_accum_dtype
   */
  public Tensor viewGradient(long parameter) {
    return Marshal.tensor(out -> Native.ds_engine_view_gradient(this, parameter, out));
  }

  /**
   * Says what the loss of the open micro batch was, where gradients are the caller's.
   *
   * @param loss for reports and monitors
   */
  public void setLoss(double loss) {
    Native.ds_engine_set_loss(this, loss);
  }

  /** Gives up the open step: its gradients are cleared, weights and progress are as before it. */
  public void discardGradients() {
    Native.ds_engine_discard_gradients(this);
  }

  // ---- Scopes and values

  /**
   * Makes parameters whole in this process until the scope is closed, at every ZeRO stage; in mode {@link ScopeMode#NO_SYNC} it
   * leaves the gradients of passes in this process, and the first step after the scope averages them.
   *
   * @param mode what for
   * @param parameters numbers in the model; none means all, and in mode {@link ScopeMode#NO_SYNC} there are none
   * @return a new scope; to be closed
   */
  public Scope openScope(ScopeMode mode, long... parameters) {
    long[] chosen = parameters.length == 0 ? null : parameters;
    long all = mode == ScopeMode.NO_SYNC ? 0 : parameterCount;
    long count = chosen == null ? all : chosen.length;
    return new Scope(Marshal.handle(out -> Native.ds_engine_open_scope(this, chosen, count, mode.code, out)), (int) count);
  }

  /**
   * A float32 copy of values of a parameter.
   *
   * @param parameter its number in the model
   * @param kind which values
   * @param state for {@link ValueKind#STATE} one of {@link Optimizer#stateNames}; else null
   * @param extent all of them, or this process's part
   * @return a new tensor
   * @throws DsException.NotFound when there is no such state
   */
  public Tensor getValues(long parameter, ValueKind kind, String state, Extent extent) {
    return Marshal.tensor(out -> Native.ds_engine_get_values(this, parameter, kind.code, state, extent.code, out));
  }

  /**
   * Sets values of a parameter. Every process makes the call.
   *
   * @param parameter its number in the model
   * @param kind which values
   * @param state as in {@link #getValues}
   * @param extent all of them, or this process's part
   * @param value of the shape that {@link #getValues} gives
   */
  public void setValues(long parameter, ValueKind kind, String state, Extent extent, Tensor value) {
    Native.ds_engine_set_values(this, parameter, kind.code, state, extent.code, value);
  }

  /**
   * Elements of a parameter's packed values.
   *
   * @param first the first of them
   * @param count how many; perhaps none
   */
  public record Range(long first, long count) {}

  /**
   * The part of a parameter whose master and optimizer state this process holds.
   *
   * @param parameter its number in the model
   * @return everything at ZeRO stage 0
   */
  public Range localRange(long parameter) {
    long[] first = new long[1];
    long[] count = new long[1];
    Native.ds_engine_local_range(this, parameter, first, count);
    return new Range(first[0], count[0]);
  }

  /**
   * The optimizer inside the engine.
   *
   * @return to be closed, which leaves the engine as it is
   */
  public Optimizer optimizer() {
    return new Optimizer(Marshal.handle(out -> Native.ds_engine_optimizer(this, out)));
  }

  // ---- Progress and interruption

  /**
   * Sets what hears the progress of training, evaluating, saving and loading, and may end them.
   *
   * @param listener null for none
   */
  public void setProgress(ProgressListener listener) {
    Native.ds_engine_set_progress(this, listener);
  }

  /**
   * Ends the call that runs in this engine, on another thread, before its next part; it throws {@link DsException.Aborted}.
   * Without such a call nothing happens.
   */
  public void interrupt() {
    Native.ds_engine_interrupt(this);
  }

  // ---- Saving and loading

  /**
   * Saves everything a bitwise resume needs, as "global_step" and the number of steps.
   *
   * @param folder made when missing
   */
  public void save(Path folder) {
    save(folder, null);
  }

  /**
   * Saves everything a bitwise resume needs. A crash at any moment leaves the older checkpoint.
   *
   * @param folder made when missing
   * @param tag name of the checkpoint; null for "global_step" and the number of steps
   */
  public void save(Path folder, String tag) {
    Native.ds_engine_save(this, Marshal.text(folder), tag);
  }

  /** Waits for a save that goes on beside the training (checkpoint.writer.decoupled). */
  public void saveWait() {
    Native.ds_engine_save_wait(this);
  }

  /**
   * Loads the newest valid checkpoint of a folder.
   *
   * @param folder where an engine saved
   */
  public void load(Path folder) {
    load(folder, null, null);
  }

  /**
   * Loads a checkpoint into an engine made with the same model and a compatible configuration.
   *
   * @param folder where an engine saved
   * @param tag null for the newest valid one
   * @param optionsJson how much is taken over, such as {"load_module_only": true}; null for all
   * @throws DsException.NotFound when there is none
   * @throws DsException.Corrupt when it is damaged
   */
  public void load(Path folder, String tag, String optionsJson) {
    Native.ds_engine_load(this, Marshal.text(folder), tag, optionsJson);
  }

  /**
   * Attaches a tokenizer, which checkpoints then carry.
   *
   * @param tokenizer null takes it away
   */
  public void setTokenizer(Tokenizer tokenizer) {
    Native.ds_engine_set_tokenizer(this, tokenizer);
  }

  /**
   * Attaches a JSON document of the caller, which checkpoints then carry.
   *
   * @param json null takes it away
   */
  public void setClientState(String json) {
    Native.ds_engine_set_client_state(this, json);
  }

  /**
   * The caller's document, as set or loaded.
   *
   * @return JSON; "null" when there is none
   */
  public String clientState() {
    return Marshal.text(out -> Native.ds_engine_client_state(this, out));
  }

  /**
   * Attaches bytes under a name, which checkpoints then carry.
   *
   * @param name 1 to 200 bytes of UTF-8
   * @param data copied; null takes them away
   */
  public void setBlob(String name, byte[] data) {
    Native.ds_engine_set_blob(this, name, data);
  }

  /**
   * Bytes as set or loaded.
   *
   * @param name as given
   * @return a copy
   * @throws DsException.NotFound when there are none of that name
   */
  public byte[] blob(String name) {
    try (Tensor bytes = Marshal.tensor(out -> Native.ds_engine_blob(this, name, out))) {
      return bytes.bytes();
    }
  }

  /**
   * Names of the attached blobs and their sizes.
   *
   * @return a JSON object
   */
  public String blobs() {
    return Marshal.text(out -> Native.ds_engine_blobs(this, out));
  }

  // ---- Questions

  /**
   * Counters, batch sizes and the loss scale.
   *
   * @return how far the engine is
   */
  public EngineInfo info() {
    try (ds_engine_info info = new ds_engine_info()) {
      Native.ds_engine_describe(this, info);
      return EngineInfo.of(info);
    }
  }

  /**
   * The configuration as resolved.
   *
   * @return JSON with "config", "given", "origins", "warnings"
   */
  public String config() {
    return Marshal.text(out -> Native.ds_engine_config(this, out));
  }

  /**
   * Memory by tag, now and peak, in bytes.
   *
   * @return JSON
   */
  public String memoryReport() {
    return Marshal.text(out -> Native.ds_engine_memory_report(this, out));
  }

  /**
   * The profile of the step that flops_profiler asked for.
   *
   * @return JSON; "null" before that step
   */
  public String profile() {
    return Marshal.text(out -> Native.ds_engine_profile(this, out));
  }

  /**
   * How the last step used the experts of a mixture-of-experts model: its losses, and by layer how
   * many tokens chose each expert and were dropped.
   *
   * @return JSON; "null" where the model has none
   */
  public String experts() {
    return Marshal.text(out -> Native.ds_engine_experts(this, out));
  }
}
