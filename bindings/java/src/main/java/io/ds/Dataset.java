package io.ds;

import java.nio.file.Path;

/** Samples of token ids. Immutable: many threads may use one at once. */
public final class Dataset extends NativeObject {
  private Dataset(long handle) {
    super(handle, Native::end_ds_dataset);
  }

  /**
   * Opens training samples.
   *
   * @param specJson such as {"path": "book.txt", "sequence_length": 128}; docs/data.md has the kinds and their keys
   * @param tokenizer encodes text; null reads bytes
   * @return a new data set
   * @throws DsException.Config when the document is wrong
   * @throws DsException.NotFound when a file does not exist
   */
  public static Dataset open(String specJson, Tokenizer tokenizer) {
    return new Dataset(Marshal.handle(out -> Native.ds_dataset_open(specJson, tokenizer, out)));
  }

  /**
   * Opens running tokens of a text file.
   *
   * @param text the file, or a .jsonl file whose lines have "text"
   * @param sequenceLength tokens per sample less one
   * @param tokenizer encodes text; null reads bytes
   * @return a new data set
   */
  public static Dataset ofText(Path text, long sequenceLength, Tokenizer tokenizer) {
    return open("{\"path\": " + Json.write(text.toString()) + ", \"sequence_length\": " + sequenceLength + "}", tokenizer);
  }

  /**
   * Tokenises a text or .jsonl file into PREFIX.bin and PREFIX.idx (Megatron's format).
   *
   * @param input the file
   * @param tokenizer encodes it
   * @param appendEnd whether an end-of-text token follows each document
   * @param outputPrefix the two files without their endings
   */
  public static void build(Path input, Tokenizer tokenizer, boolean appendEnd, Path outputPrefix) {
    Native.ds_dataset_build(Marshal.text(input), tokenizer, appendEnd, Marshal.text(outputPrefix));
  }

  /**
   * Writes the documents of several data sets of tokens one after another into PREFIX.bin and PREFIX.idx.
   *
   * @param prefixes the data sets, without the endings of their files
   * @param outputPrefix the two files without their endings
   */
  public static void merge(java.util.List<Path> prefixes, Path outputPrefix) {
    var names = prefixes.stream().map(Path::toString).toList();
    Native.ds_dataset_merge(Json.write(names), Marshal.text(outputPrefix));
  }

  /**
   * Number and length of the samples.
   *
   * @return how much the data set holds
   */
  public DatasetInfo info() {
    try (ds_dataset_info info = new ds_dataset_info()) {
      Native.ds_dataset_describe(this, info);
      return DatasetInfo.of(info);
    }
  }

  /**
   * One sample of running tokens.
   *
   * @param index in [0, samples)
   * @return int32 tensor [sequence length + 1]
   * @throws DsException.Unsupported for another kind of data set: use {@link #field}
   */
  public Tensor sample(long index) {
    return Marshal.tensor(out -> Native.ds_dataset_sample(this, index, out));
  }

  /**
   * One field of a sample.
   *
   * @param index in [0, samples)
   * @param field "ids", "labels", "segments", "token_types" (int32) or "mask" (uint8)
   * @return tensor [sequence length]
   * @throws DsException.NotFound when the data set has no such field
   */
  public Tensor field(long index, String field) {
    return Marshal.tensor(out -> Native.ds_dataset_field(this, index, field, out));
  }
}
