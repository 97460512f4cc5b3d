package io.ds;

/** Receives the tokens of a text while it is generated, see {@link Generator#generate}. */
@FunctionalInterface
public interface TokenListener {
  /**
   * Each new token, on the thread that makes the call. It must not use the generator or its model. An exception ends the call
   * and comes out of it.
   *
   * @param token its id
   * @return true to go on; false ends the text after this token
   */
  boolean token(int token);
}
