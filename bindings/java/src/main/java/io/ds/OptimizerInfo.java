package io.ds;

/**
 * What an optimizer has done and will do.
 *
 * @param steps updates applied so far (Adam's t)
 * @param rateCount learning rates: one per parameter group, two for Muon's
 * @param lr the first of them, for the next step
 */
public record OptimizerInfo(
    long steps,
    long rateCount,
    double lr) {
  static OptimizerInfo of(ds_optimizer_info from) {
    return new OptimizerInfo(
        from.getSteps(),
        from.getRate_count(),
        from.getLr());
  }
}
