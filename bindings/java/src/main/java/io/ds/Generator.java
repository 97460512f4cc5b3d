package io.ds;

import java.util.Arrays;

/** Runs a model without training it: text, logits, hidden states. */
public final class Generator extends NativeObject {
  private Generator(long handle) {
    super(handle, Native::end_ds_generator);
  }

  /**
   * Runs the model's own weights, as they are at each call: also those that an engine trains, between two calls of it.
   *
   * @param model kept alive
   * @return a new generator
   */
  public static Generator of(Model model) {
    return of(model, null);
  }

  /**
   * Runs a model, possibly with a copy of its weights prepared for running alone.
   *
   * @param model what to run; a prepared copy needs it no longer
   * @param optionsJson such as {"weights": "int8"}; null for the model's own weights
   * @return a new generator
   */
  public static Generator of(Model model, String optionsJson) {
    return new Generator(Marshal.handle(out -> Native.ds_generator_create(model, optionsJson, out)));
  }

  /**
   * Runs a model by ranks that share its experts: each holds a copy of its part. Every rank of the group makes this call
   * and then each of the generator's calls, with texts of its own or {@link #takePart}.
   *
   * @param model what to run; needed no longer afterwards
   * @param optionsJson such as {"weights": "int8"}; null for float32 and experts that all ranks share
   * @param comm the group, which ends after the generator
   * @return a new generator
   */
  public static Generator shared(Model model, String optionsJson, Comm comm) {
    return new Generator(Marshal.handle(out -> Native.ds_generator_create_shared(model, optionsJson, comm, out)));
  }

  /**
   * Of a rank without a text, among ranks that share experts: computes what the others' texts need of its experts, until
   * every rank's {@link #generate} and {@link #generateBatch} is done. Without other ranks it returns at once.
   */
  public void takePart() {
    Native.ds_generator_take_part(this);
  }

  /**
   * Form and size of the weights.
   *
   * @return what the generator holds
   */
  public GeneratorInfo info() {
    try (ds_generator_info info = new ds_generator_info()) {
      Native.ds_generator_describe(this, info);
      return GeneratorInfo.of(info);
    }
  }

  /**
   * A copy of a parameter as the generator's products see it.
   *
   * @param parameter its number in the model
   * @return float32, full shape
   */
  public Tensor getParameter(long parameter) {
    return Marshal.tensor(out -> Native.ds_generator_get_parameter(this, parameter, out));
  }

  /**
   * Continues a prompt.
   *
   * @param prompt token ids, one or more
   * @param options null for the defaults
   * @return the new tokens, without the prompt and the stop token
   */
  public int[] generate(int[] prompt, GenerateOptions options) {
    return generate(prompt, options, null);
  }

  /**
   * Continues a prompt and tells each token when it is there.
   *
   * @param prompt token ids, one or more
   * @param options null for the defaults
   * @param listener hears each new token and may end the text; null for none
   * @return the new tokens; when the listener ended the text, those that it heard
   * @throws DsException.Aborted after {@link #interrupt}
   * @throws DsException.State when an engine trains the model at this moment
   */
  public int[] generate(int[] prompt, GenerateOptions options, TokenListener listener) {
    Heard heard = listener == null ? null : new Heard(listener);
    try (Tensor ids = Tensor.of(prompt); ds_generate_options chosen = options == null ? null : options.make();
        Tensor made = Marshal.tensor(out -> Native.ds_generator_generate(this, ids, chosen, heard, out))) {
      return made.ints();
    } catch (DsException.Stopped e) {
      if (heard == null || !heard.ended) {
        throw e;
      }
      return Arrays.copyOf(heard.tokens, heard.count);
    }
  }

  /** A listener, and what it has heard. */
  private static final class Heard implements TokenListener {
    private final TokenListener listener;
    private int[] tokens = new int[64];
    private int count;
    private boolean ended;

    Heard(TokenListener listener) {
      this.listener = listener;
    }

    @Override
    public boolean token(int token) {
      if (count == tokens.length) {
        tokens = Arrays.copyOf(tokens, 2 * count);
      }
      tokens[count++] = token;
      ended = !listener.token(token);
      return !ended;
    }
  }

  /**
   * Continues several prompts together, at most 16 at a time.
   *
   * @param prompts token ids of each, one or more
   * @param options for each text, null for the defaults; text i has the seed of the options + i
   * @return the new tokens of each, as {@link #generate(int[], GenerateOptions)} gives them
   */
  public int[][] generateBatch(int[][] prompts, GenerateOptions options) {
    return generateBatch(prompts, options, 0, null);
  }

  /**
   * Continues several prompts together and tells each token when it is there. Where one text ends the next prompt takes its
   * place.
   *
   * <p>On a CPU with atOnce up to 16 each text is that of {@link #generate(int[], GenerateOptions)} with its prompt and seed,
   * bit for bit.
   *
   * @param prompts token ids of each, one or more
   * @param options for each text, null for the defaults; text i has the seed of the options + i
   * @param atOnce how many go through the model together at most; 0 means 16
   * @param listener hears each new token and may end its text; null for none
   * @return the new tokens of each
   * @throws DsException.InvalidArgument says which prompt is meant
   * @throws DsException.Aborted after {@link #interrupt}
   * @throws DsException.State when an engine trains the model at this moment
   */
  public int[][] generateBatch(int[][] prompts, GenerateOptions options, long atOnce, TextTokenListener listener) {
    long[] counts = Arrays.stream(prompts).mapToLong(prompt -> prompt.length).toArray();
    long[] newIds = new long[1];
    long[] newCounts = new long[1];
    try (Tensor ids = Tensor.of(Arrays.stream(prompts).flatMapToInt(Arrays::stream).toArray()); Tensor each = Tensor.of(counts);
        ds_generate_options chosen = options == null ? null : options.make()) {
      Native.generate_batch(this, ids, each, atOnce, chosen, listener, newIds, newCounts);
    }
    try (Tensor ids = new Tensor(newIds[0]); Tensor each = new Tensor(newCounts[0])) {
      return split(ids.ints(), each.longs());
    }
  }

  private static int[][] split(int[] ids, long[] counts) {
    int[][] texts = new int[counts.length][];
    int from = 0;
    for (int i = 0; i < counts.length; ++i) {
      int to = from + (int) counts[i];
      texts[i] = Arrays.copyOfRange(ids, from, to);
      from = to;
    }
    return texts;
  }

  /**
   * Continues a text.
   *
   * @param tokenizer of the model
   * @param prompt not empty
   * @param options null for the defaults
   * @return the new text
   */
  public String generate(Tokenizer tokenizer, String prompt, GenerateOptions options) {
    return tokenizer.decode(generate(tokenizer.encode(prompt), options));
  }

  /**
   * Ends the {@link #generate} or {@link #generateBatch} that runs now, on another thread, before its next token; it throws
   * {@link DsException.Aborted}.
   */
  public void interrupt() {
    Native.ds_generator_interrupt(this);
  }

  /**
   * Logits of a batch, without dropout.
   *
   * @param batch without labels
   * @return float32 [batch, length, vocabulary], or [batch, classes] of a model that classifies
   */
  public Tensor logits(Batch batch) {
    return Marshal.tensor(out -> Native.ds_generator_logits(this, batch.tensors(), out));
  }

  /**
   * Hidden states after the last norm, before the head.
   *
   * @param batch without labels
   * @return float32 [batch, length, width]
   */
  public Tensor hiddenStates(Batch batch) {
    return Marshal.tensor(out -> Native.ds_generator_hidden_states(this, batch.tensors(), out));
  }
}
