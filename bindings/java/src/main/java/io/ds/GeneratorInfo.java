package io.ds;

/**
 * What a generator holds.
 *
 * @param bytes of all weights; 0 for the model's own
 * @param bytesPerToken of those that each new token reads whole; 0 for the model's own
 * @param groupSize elements that share a scale; 0 = a row, or no such form
 * @param weights the form
 * @param threads threads that it works with; 0 for the model's own weights
 * @param symmetric groups have no minimum
 */
public record GeneratorInfo(
    long bytes,
    long bytesPerToken,
    long groupSize,
    WeightForm weights,
    int threads,
    boolean symmetric) {
  static GeneratorInfo of(ds_generator_info from) {
    return new GeneratorInfo(
        from.getBytes(),
        from.getBytes_per_token(),
        from.getGroup_size(),
        WeightForm.of(from.getWeights()),
        from.getThreads(),
        from.getSymmetric());
  }
}
