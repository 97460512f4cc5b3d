package io.ds;

/**
 * The parts of a mixture of experts around the experts, for programs that compute gradients
 * themselves: which experts a token chooses, its way to them, and the sum of what they give.
 *
 * <p>The gradient of {@link #dispatch} without weights is {@link #combine} without weights, of the
 * rows' gradient; that of {@link #combine} is {@link #dispatch} with its weights, of the output's
 * gradient, for the rows, and {@link #weightsBackward} for the weights.
 */
public final class Experts {
  private Experts() {}

  /**
   * What a gate says of every token.
   *
   * @param chosen int32 [tokens, top_k]: experts, best first; -1 where one had no room
   * @param weights float32 [tokens, top_k]
   * @param counts int64 [3, experts]: tokens that chose each expert, that it took, that the balancing
   *     loss counts
   * @param losses float32 [2]: the balancing loss, 1 where loads are equal, and the z-loss
   */
  public record Gate(Tensor chosen, Tensor weights, Tensor counts, Tensor losses)
      implements AutoCloseable {
    @Override
    public void close() {
      chosen.close();
      weights.close();
      counts.close();
      losses.close();
    }
  }

  /**
   * Routes sorted by expert; a route is number token * choices + choice.
   *
   * @param offsets int32 [experts + 1]: where each expert's rows begin
   * @param order int32 [rows]: the route of each row
   * @param places int32 [tokens, choices]: the row of each route, or -1
   */
  public record SortedRoutes(Tensor offsets, Tensor order, Tensor places) implements AutoCloseable {
    @Override
    public void close() {
      offsets.close();
      order.close();
      places.close();
    }
  }

  /**
   * Chooses the experts of each token by its logits.
   *
   * @param logits float32 [tokens, experts]
   * @param bias float32 [experts], added for choosing alone; null: none
   * @param options JSON, as ds_experts_gate has it; null: one expert per token
   * @return experts, weights, counts and losses
   */
  public static Gate gate(Tensor logits, Tensor bias, String options) {
    long[] chosen = new long[1];
    long[] weights = new long[1];
    long[] counts = new long[1];
    long[] losses = new long[1];
    Native.ds_experts_gate(
        logits, bias, options, chosen, weights, counts, losses);
    return new Gate(
        new Tensor(chosen[0]), new Tensor(weights[0]), new Tensor(counts[0]), new Tensor(losses[0]));
  }

  /**
   * The gradient of {@link #gate} with respect to its logits.
   *
   * @param logits as it was given them
   * @param gate what it gave
   * @param weightsGradient float32 [tokens, top_k]; null: 0
   * @param lossesGradient float32 [2]; null: 0
   * @param options as it was given them
   * @return float32 [tokens, experts]
   */
  public static Tensor gateBackward(
      Tensor logits, Gate gate, Tensor weightsGradient, Tensor lossesGradient, String options) {
    return Marshal.tensor(
        out ->
            Native.ds_experts_gate_backward(
                logits,
                gate.chosen(),
                gate.counts(),
                options,
                weightsGradient,
                lossesGradient,
                out));
  }

  /**
   * Sorts routes by expert, with the order of tokens kept.
   *
   * @param chosen int32 [tokens, choices]: an expert, or -1
   * @param experts how many there are
   * @return where rows begin, which routes they are, and the row of each route
   */
  public static SortedRoutes sort(Tensor chosen, long experts) {
    long[] offsets = new long[1];
    long[] order = new long[1];
    long[] places = new long[1];
    Native.ds_experts_sort(chosen, experts, offsets, order, places);
    return new SortedRoutes(new Tensor(offsets[0]), new Tensor(order[0]), new Tensor(places[0]));
  }

  /**
   * Rows of routes: row r is token order[r] / choices.
   *
   * @param tokens [tokens, width]: float32, bfloat16 or float16
   * @param order int32 [rows]
   * @param choices of a token
   * @param weights float32 [tokens, choices] that rows are multiplied by; null: 1
   * @return [rows, width]
   */
  public static Tensor dispatch(Tensor tokens, Tensor order, long choices, Tensor weights) {
    return Marshal.tensor(out -> Native.ds_experts_dispatch(tokens, order, choices, weights, out));
  }

  /**
   * The sum of the rows of each token's routes.
   *
   * @param rows [rows, width]: float32, bfloat16 or float16
   * @param places int32 [tokens, choices]: the row of each route, or -1
   * @param weights float32 [tokens, choices] that rows are multiplied by; null: 1
   * @return [tokens, width]
   */
  public static Tensor combine(Tensor rows, Tensor places, Tensor weights) {
    return Marshal.tensor(out -> Native.ds_experts_combine(rows, places, weights, out));
  }

  /**
   * The gradient of {@link #combine} with respect to its weights.
   *
   * @param rows as it was given them
   * @param places as it was given them
   * @param gradient [tokens, width], with respect to its result
   * @return float32 [tokens, choices]
   */
  public static Tensor weightsBackward(Tensor rows, Tensor places, Tensor gradient) {
    return Marshal.tensor(
        out -> Native.ds_experts_weights_backward(rows, places, gradient, out));
  }
}
