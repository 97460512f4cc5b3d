package io.ds;

/**
 * How far an engine is.
 *
 * @param step optimizer steps so far, skipped ones included
 * @param microSteps micro batches so far
 * @param samples samples consumed so far
 * @param microBatchSize train_micro_batch_size_per_gpu
 * @param accumulationSteps gradient_accumulation_steps
 * @param trainBatchSize samples of a step, of all processes
 * @param lossScale what losses are multiplied by before their gradients are taken; it may change with every step
 * @param zeroStage 0 to 3
 * @param computeDtype type that the engine computes in
 */
public record EngineInfo(
    long step,
    long microSteps,
    long samples,
    long microBatchSize,
    long accumulationSteps,
    long trainBatchSize,
    double lossScale,
    int zeroStage,
    DType computeDtype) {
  static EngineInfo of(ds_engine_info from) {
    return new EngineInfo(
        from.getStep(),
        from.getMicro_steps(),
        from.getSamples(),
        from.getMicro_batch_size(),
        from.getAccumulation_steps(),
        from.getTrain_batch_size(),
        from.getLoss_scale(),
        from.getZero_stage(),
        DType.of(from.getCompute_dtype()));
  }
}
