package io.ds;

/**
 * One parameter of a program that computes its own gradients, for {@link Model#ofParameters}. The setters give the object back,
 * to be chained.
 */
public final class Parameter {
  final String name;
  long[] shape;
  Tensor value;
  String group;
  String alias;
  DType type;
  boolean lend;
  boolean frozen;
  boolean noDecay;
  long expert = -1;

  private Parameter(String name) {
    this.name = name;
  }

  /**
   * A parameter that begins with zeros in memory of the library.
   *
   * @param name unlike all others
   * @param shape the whole tensor's
   * @return a new description
   */
  public static Parameter zeros(String name, long... shape) {
    Parameter made = new Parameter(name);
    made.shape = shape;
    return made;
  }

  /**
   * A parameter that begins with a copy of a value.
   *
   * @param name unlike all others
   * @param value float32, bfloat16 or float16
   * @return a new description
   */
  public static Parameter of(String name, Tensor value) {
    Parameter made = new Parameter(name);
    made.value = value;
    return made;
  }

  /**
   * Has every new value written to the tensor's memory, in its own type.
   *
   * @return this
   */
  public Parameter lend() {
    if (value == null) {
      throw new IllegalStateException("parameter " + name + " has no value whose memory it could lend");
    }
    lend = true;
    return this;
  }

  /**
   * Keeps it from being updated; it takes no gradient.
   *
   * @return this
   */
  public Parameter frozen() {
    frozen = true;
    return this;
  }

  /**
   * Keeps weight decay from it.
   *
   * @return this
   */
  public Parameter noDecay() {
    noDecay = true;
    return this;
  }

  /**
   * Puts it into a group of the optimizer.
   *
   * @param name of the configuration's param_groups
   * @return this
   */
  public Parameter group(String name) {
    group = name;
    return this;
  }

  /**
   * Gives it a second name (tied weights).
   *
   * @param name of the same tensor
   * @return this
   */
  public Parameter alias(String name) {
    alias = name;
    return this;
  }

  /**
   * Sets the type in which the program holds it.
   *
   * @param type without this the value's, else float32
   * @return this
   */
  public Parameter type(DType type) {
    this.type = type;
    return this;
  }

  /**
   * Says which expert it belongs to.
   *
   * @param index 0 or more
   * @return this
   */
  public Parameter expert(long index) {
    expert = index;
    return this;
  }
}
