package io.ds;

/**
 * How much a data set holds.
 *
 * @param samples number of samples
 * @param sequenceLength tokens per sample less one
 */
public record DatasetInfo(
    long samples,
    long sequenceLength) {
  static DatasetInfo of(ds_dataset_info from) {
    return new DatasetInfo(
        from.getSamples(),
        from.getSequence_length());
  }
}
