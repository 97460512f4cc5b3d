package io.ds;

/** What a {@link Scope} is for. */
public enum ScopeMode {
  /** The caller computes with own parameters, each in its type; to be read only. */
  COMPUTE(ds_scope_mode_code.DS_SCOPE_COMPUTE),
  /** One process may change parameters of any model: float32 masters. */
  MODIFY(ds_scope_mode_code.DS_SCOPE_MODIFY),
  /** Gradients are not averaged over processes inside. */
  NO_SYNC(ds_scope_mode_code.DS_SCOPE_NO_SYNC);

  final int code;

  ScopeMode(int code) {
    this.code = code;
  }

  static ScopeMode of(int code) {
    for (ScopeMode one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a ScopeMode that this version does not know: " + code);
  }
}
