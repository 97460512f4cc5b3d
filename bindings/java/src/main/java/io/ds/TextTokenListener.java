package io.ds;

/** Receives the tokens of several texts while they are generated, see {@link Generator#generateBatch}. */
@FunctionalInterface
public interface TextTokenListener {
  /**
   * Each new token, on the thread that makes the call. It must not use the generator or its model. An exception ends the call
   * and comes out of it.
   *
   * @param text the index of the text's prompt
   * @param token its id
   * @return true to go on; false ends this text after this token, and the others go on
   */
  boolean token(int text, int token);
}
