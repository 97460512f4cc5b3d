package io.ds;

/** The optimizer of an engine; calls on either exclude calls on the other. */
public final class Optimizer extends NativeObject {
  Optimizer(long handle) {
    super(handle, Native::end_ds_optimizer);
  }

  /**
   * Steps and rates.
   *
   * @return what it has done and will do
   */
  public OptimizerInfo info() {
    try (ds_optimizer_info info = new ds_optimizer_info()) {
      Native.ds_optimizer_describe(this, info);
      return OptimizerInfo.of(info);
    }
  }

  /**
   * A learning rate of the next step.
   *
   * @param index in [0, info().rateCount())
   * @return the rate
   */
  public double rate(long index) {
    double[] out = new double[1];
    Native.ds_optimizer_rate(this, index, out);
    return out[0];
  }

  /**
   * Sets every group's rate of the next step; a configured scheduler overrides it again after that step.
   *
   * @param rate the learning rate
   */
  public void setRate(double rate) {
    Native.ds_optimizer_set_lr(this, rate);
  }

  /**
   * Names of the state tensors that the optimizer keeps for a parameter.
   *
   * @param parameter its number in the model
   * @return a JSON list such as ["exp_avg", "exp_avg_sq"]
   */
  public String stateNames(long parameter) {
    return Marshal.text(out -> Native.ds_optimizer_state_names(this, parameter, out));
  }
}
