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
 * @param bytesSaved of those that the parameters take in float32; 0 for the model's own
 */
public record GeneratorInfo(
    long bytes,
    long bytesPerToken,
    long groupSize,
    WeightForm weights,
    int threads,
    boolean symmetric,
    long bytesSaved) {
  static GeneratorInfo of(ds_generator_info from) {
    return new GeneratorInfo(
        from.getBytes(),
        from.getBytes_per_token(),
        from.getGroup_size(),
        WeightForm.of(from.getWeights()),
        from.getThreads(),
        from.getSymmetric(),
        from.getBytes_saved());
  }
}
