package io.ds;

/**
 * What a tokenizer has.
 *
 * @param vocabSize number of token ids: ids are in [0, vocabSize)
 * @param endOfText id of the end-of-text token, -1 when there is none
 */
public record TokenizerInfo(
    long vocabSize,
    int endOfText) {
  static TokenizerInfo of(ds_tokenizer_info from) {
    return new TokenizerInfo(
        from.getVocab_size(),
        from.getEnd_of_text());
  }
}
