package io.ds;

import java.time.Duration;

/**
 * One collective for {@link Comm#start}. The setters give the object back, to be chained; what a kind does not use stays unset.
 * The memory of its tensors must not be touched until the work is done.
 */
public final class Collective {
  final CollectiveKind kind;
  Tensor output;
  Tensor input;
  ReduceOp op = ReduceOp.SUM;
  int root;
  int tag;
  long[] outputCounts;
  long[] inputCounts;
  String label;
  long timeoutMs;
  boolean averageOverParticipants;

  /**
   * A collective with nothing set.
   *
   * @param kind what it does
   */
  public Collective(CollectiveKind kind) {
    this.kind = kind;
  }

  /**
   * Sets what is written, or changed in place.
   *
   * @param tensor the output
   * @return this
   */
  public Collective output(Tensor tensor) {
    output = tensor;
    return this;
  }

  /**
   * Sets what is only read.
   *
   * @param tensor the input
   * @return this
   */
  public Collective input(Tensor tensor) {
    input = tensor;
    return this;
  }

  /**
   * Sets how numbers become one.
   *
   * @param reduce {@link ReduceOp#SUM} at first
   * @return this
   */
  public Collective op(ReduceOp reduce) {
    op = reduce;
    return this;
  }

  /**
   * Sets the root, or the other process of send and recv.
   *
   * @param rank 0 at first
   * @return this
   */
  public Collective root(int rank) {
    root = rank;
    return this;
  }

  /**
   * Sets the tag of a message; messages of one tag arrive in the order of sending.
   *
   * @param number 0 at first
   * @return this
   */
  public Collective tag(int number) {
    tag = number;
    return this;
  }

  /**
   * Sets the elements that come from each process.
   *
   * @param counts as many as processes
   * @return this
   */
  public Collective outputCounts(long... counts) {
    outputCounts = counts;
    return this;
  }

  /**
   * Sets the elements that go to each process.
   *
   * @param counts as many as processes
   * @return this
   */
  public Collective inputCounts(long... counts) {
    inputCounts = counts;
    return this;
  }

  /**
   * Names the operation in errors.
   *
   * @param name such as a tensor's
   * @return this
   */
  public Collective label(String name) {
    label = name;
    return this;
  }

  /**
   * Sets a deadline instead of the group's.
   *
   * @param limit at least a millisecond
   * @return this
   */
  public Collective timeout(Duration limit) {
    timeoutMs = Math.max(1, limit.toMillis());
    return this;
  }

  /**
   * Divides averages by the processes that have not joined, not by all.
   *
   * @return this
   */
  public Collective averageOverParticipants() {
    averageOverParticipants = true;
    return this;
  }
}
