package io.ds;

/**
 * Sizes and place of a model.
 *
 * @param parameters parameters (tensors), tied ones once
 * @param elements numbers in all of them
 * @param trainableElements numbers in those that are not frozen
 * @param vocabSize token ids are in [0, vocabSize); 0 for own parameters
 * @param maxPositions longest sequence; 0 where nothing limits it
 * @param deviceKind where the weights are
 * @param deviceIndex which device of that kind
 */
public record ModelInfo(
    long parameters,
    long elements,
    long trainableElements,
    long vocabSize,
    long maxPositions,
    DeviceKind deviceKind,
    int deviceIndex) {
  static ModelInfo of(ds_model_info from) {
    return new ModelInfo(
        from.getParameters(),
        from.getElements(),
        from.getTrainable_elements(),
        from.getVocab_size(),
        from.getMax_positions(),
        DeviceKind.of(from.getDevice_kind()),
        from.getDevice_index());
  }
}
