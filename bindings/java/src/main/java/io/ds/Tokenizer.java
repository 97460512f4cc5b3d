package io.ds;

import java.nio.file.Path;

/** Text to token ids and back. Immutable: many threads may use one at once. */
public final class Tokenizer extends NativeObject {
  private Tokenizer(long handle) {
    super(handle, Native::end_ds_tokenizer);
  }

  /**
   * The tokenizer whose tokens are the 256 byte values.
   *
   * @return a new tokenizer
   */
  public static Tokenizer ofBytes() {
    return new Tokenizer(Marshal.handle(Native::ds_tokenizer_create_bytes));
  }

  /**
   * Reads a tokenizer.
   *
   * @param path a tokenizer.json, a folder that holds one (or vocab.json and merges.txt), or a checkpoint
   * @return a new tokenizer
   * @throws DsException.NotFound when there is none
   * @throws DsException.Unsupported names a component that this version does not know
   */
  public static Tokenizer open(Path path) {
    return new Tokenizer(Marshal.handle(out -> Native.ds_tokenizer_open(Marshal.text(path), out)));
  }

  /**
   * Reads a tokenizer from the text of a tokenizer.json.
   *
   * @param json the text
   * @return a new tokenizer
   */
  public static Tokenizer fromJson(String json) {
    return new Tokenizer(Marshal.handle(out -> Native.ds_tokenizer_from_json(Marshal.bytes(json), out)));
  }

  /**
   * Learns a byte-level byte-pair encoding.
   *
   * @param text the training text
   * @param optionsJson {"vocab_size": 32000, "min_frequency": 2, "special_tokens": [...]}; null for the defaults
   * @return a new tokenizer
   */
  public static Tokenizer train(String text, String optionsJson) {
    return new Tokenizer(Marshal.handle(out -> Native.ds_tokenizer_train(Marshal.bytes(text), optionsJson, out)));
  }

  /**
   * Encodes text, without the tokens that the tokenizer's template puts around it.
   *
   * @param text any text
   * @return its token ids
   */
  public int[] encode(String text) {
    return encode(text, false);
  }

  /**
   * Encodes text.
   *
   * @param text any text
   * @param addSpecial whether to add the tokens that the tokenizer's template puts around a text
   * @return its token ids
   */
  public int[] encode(String text, boolean addSpecial) {
    try (Tensor ids = encode(Marshal.bytes(text), addSpecial)) {
      return ids.ints();
    }
  }

  /**
   * Encodes bytes, which need not be UTF-8.
   *
   * @param text any bytes
   * @param addSpecial whether to add the tokens that the tokenizer's template puts around a text
   * @return int32 tensor [count]
   */
  public Tensor encode(byte[] text, boolean addSpecial) {
    return Marshal.tensor(out -> Native.ds_tokenizer_encode(this, text, addSpecial, out));
  }

  /**
   * Decodes token ids; special tokens are left out.
   *
   * @param ids token ids
   * @return their text
   */
  public String decode(int... ids) {
    try (Tensor tensor = Tensor.of(ids)) {
      return decode(tensor, true);
    }
  }

  /**
   * Decodes token ids; bytes that are not UTF-8 become U+FFFD.
   *
   * @param ids int32 or int64 tensor [count]
   * @param skipSpecial whether to leave special tokens out
   * @return their text
   */
  public String decode(Tensor ids, boolean skipSpecial) {
    return Marshal.text(out -> Native.ds_tokenizer_decode(this, ids, skipSpecial, out));
  }

  /**
   * Size of the vocabulary and the end-of-text token.
   *
   * @return what the tokenizer has
   */
  public TokenizerInfo info() {
    try (ds_tokenizer_info info = new ds_tokenizer_info()) {
      Native.ds_tokenizer_describe(this, info);
      return TokenizerInfo.of(info);
    }
  }

  /**
   * Id of a token.
   *
   * @param token as the file spells it
   * @return its id
   * @throws DsException.NotFound when there is none
   */
  public int tokenToId(String token) {
    int[] out = new int[1];
    Native.ds_tokenizer_token_to_id(this, token, out);
    return out[0];
  }

  /**
   * Spelling of a token.
   *
   * @param id its id
   * @return as the file spells it
   * @throws DsException.NotFound when there is none
   */
  public String idToToken(int id) {
    return Marshal.text(out -> Native.ds_tokenizer_id_to_token(this, id, out));
  }

  /**
   * The tokenizer as the text of a tokenizer.json.
   *
   * @return JSON
   */
  public String toJson() {
    return Marshal.text(out -> Native.ds_tokenizer_to_json(this, out));
  }
}
