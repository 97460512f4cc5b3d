package io.ds;

/** How tokens are chosen. The setters give the object back, to be chained; without any the likeliest token is taken. */
public final class GenerateOptions {
  private long maxTokens;
  private double temperature;
  private long topK;
  private double topP;
  private long seed;
  private Integer stopToken;
  private boolean noGraphs;

  /** The defaults: at most 64 tokens, always the likeliest. */
  public GenerateOptions() {}

  /**
   * Limits the text.
   *
   * @param count new tokens at most; 0 means 64
   * @return this
   */
  public GenerateOptions maxTokens(long count) {
    maxTokens = count;
    return this;
  }

  /**
   * Draws tokens at random.
   *
   * @param value divides the logits; 0 takes always the likeliest token
   * @return this
   */
  public GenerateOptions temperature(double value) {
    temperature = value;
    return this;
  }

  /**
   * Keeps the likeliest tokens.
   *
   * @param count how many; 0 means all
   * @return this
   */
  public GenerateOptions topK(long count) {
    topK = count;
    return this;
  }

  /**
   * Keeps the likeliest tokens whose sum reaches a probability.
   *
   * @param probability 0 means all
   * @return this
   */
  public GenerateOptions topP(double probability) {
    topP = probability;
    return this;
  }

  /**
   * Begins the random numbers.
   *
   * @param value same seed, same text
   * @return this
   */
  public GenerateOptions seed(long value) {
    seed = value;
    return this;
  }

  /**
   * Ends the text at a token.
   *
   * @param token its id
   * @return this
   */
  public GenerateOptions stopToken(int token) {
    stopToken = token;
    return this;
  }

  /**
   * On a GPU, launches kernels one by one instead of as a CUDA graph; the text is the same.
   *
   * @return this
   */
  public GenerateOptions noGraphs() {
    noGraphs = true;
    return this;
  }

  /** To be closed. */
  ds_generate_options make() {
    ds_generate_options made = new ds_generate_options();
    made.setMax_tokens(maxTokens);
    made.setTemperature(temperature);
    made.setTop_k(topK);
    made.setTop_p(topP);
    made.setSeed(seed);
    made.setHas_stop_token(stopToken != null);
    made.setStop_token(stopToken == null ? 0 : stopToken);
    made.setNo_graphs(noGraphs);
    return made;
  }
}
