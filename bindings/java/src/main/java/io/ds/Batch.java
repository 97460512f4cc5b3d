package io.ds;

/**
 * Sequences that go through a model together; all tensors in host memory.
 *
 * @param ids token ids: int32 or int64 [batch, length]
 * @param labels what shall be predicted: int32 or int64 [batch, length], -100 = not counted; other shapes for models that
 *     classify (ds.h); null for none
 * @param attentionMask 0 = padding: uint8, bool, int32 or int64 [batch, length]; null for none
 * @param segments numbers of packed sequences: int32 or int64 [batch, length]; null for one
 * @param tokenTypes int32 or int64 [batch, length] for models that have them; null for 0
 */
public record Batch(Tensor ids, Tensor labels, Tensor attentionMask, Tensor segments, Tensor tokenTypes) {
  /**
   * A batch to learn from.
   *
   * @param ids token ids
   * @param labels what shall be predicted; null for none
   */
  public Batch(Tensor ids, Tensor labels) {
    this(ids, labels, null, null, null);
  }

  /**
   * A batch to run.
   *
   * @param ids token ids
   */
  public Batch(Tensor ids) {
    this(ids, null);
  }

  /** In the order of the struct ds_batch. */
  Tensor[] tensors() {
    return new Tensor[] {ids, labels, attentionMask, segments, tokenTypes};
  }
}
