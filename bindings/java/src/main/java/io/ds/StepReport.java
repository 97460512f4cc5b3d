package io.ds;

/**
 * What a step did.
 *
 * @param step optimizer steps so far, skipped ones included
 * @param microSteps micro batches so far
 * @param samples samples so far
 * @param tokens labels of this step that count towards the loss, of all micro batches and processes
 * @param applied whether weights changed
 * @param skipReason why not
 * @param loss mean loss of the step's micro batches; NaN when gradients were the caller's and it gave none
 * @param gradNorm global norm before clipping; -1 when not finite
 * @param lr rate that this step used
 * @param lossScale scale that multiplied the loss
 * @param seconds wall time of this step
 * @param firstBadParameter index of the parameter with the first gradient that is not finite, else -1
 * @param firstBadElement its row-major index in that parameter, else -1
 * @param firstBadValue that gradient, else 0
 * @param forwardSeconds of {@code seconds}, with the configuration's wall_clock_breakdown: in forward passes; else 0
 * @param backwardSeconds in backward passes
 * @param updateSeconds in the optimizer's step
 * @param labelLoss with the configuration's distillation, mean loss with the labels; else NaN
 * @param teacherLoss kd_temp^2 x mean divergence from the teacher; else NaN
 */
public record StepReport(
    long step,
    long microSteps,
    long samples,
    long tokens,
    boolean applied,
    SkipReason skipReason,
    double loss,
    double gradNorm,
    double lr,
    double lossScale,
    double seconds,
    long firstBadParameter,
    long firstBadElement,
    double firstBadValue,
    double forwardSeconds,
    double backwardSeconds,
    double updateSeconds,
    double labelLoss,
    double teacherLoss) {
  static StepReport of(ds_step_report from) {
    return new StepReport(
        from.getStep(),
        from.getMicro_steps(),
        from.getSamples(),
        from.getTokens(),
        from.getApplied(),
        SkipReason.of(from.getSkip_reason()),
        from.getLoss(),
        from.getGrad_norm(),
        from.getLr(),
        from.getLoss_scale(),
        from.getSeconds(),
        from.getFirst_bad_parameter(),
        from.getFirst_bad_element(),
        from.getFirst_bad_value(),
        from.getForward_seconds(),
        from.getBackward_seconds(),
        from.getUpdate_seconds(),
        from.getLabel_loss(),
        from.getTeacher_loss());
  }
}
