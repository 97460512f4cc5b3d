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
 * @param bytesRead of weights in a file: read since the generator was made, or asked for
 * @param expertUses of experts' matrices in a file: how often a pass used one
 * @param expertHits how often it found that in memory
 */
public record GeneratorInfo(
    long bytes,
    long bytesPerToken,
    long groupSize,
    WeightForm weights,
    int threads,
    boolean symmetric,
    long bytesSaved,
    long bytesRead,
    long expertUses,
    long expertHits) {
  static GeneratorInfo of(ds_generator_info from) {
    return new GeneratorInfo(
        from.getBytes(),
        from.getBytes_per_token(),
        from.getGroup_size(),
        WeightForm.of(from.getWeights()),
        from.getThreads(),
        from.getSymmetric(),
        from.getBytes_saved(),
        from.getBytes_read(),
        from.getExpert_uses(),
        from.getExpert_hits());
  }
}
