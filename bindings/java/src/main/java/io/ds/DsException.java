package io.ds;

import java.io.Serial;

/**
 * A call of the library that failed: what, where, and what to do about it. The subclasses tell apart what a program can
 * react to differently; a status that this version does not know is a plain {@code DsException}.
 *
 * <p>Two failures have Java's own exceptions: a method of a closed object throws {@link IllegalStateException}, and what a
 * callback of the program throws comes out of the call that it interrupted as it is.
 */
public class DsException extends RuntimeException {
  @Serial private static final long serialVersionUID = 1;

  /** The status as the library gave it. */
  private final int status;

  DsException(int status, String message) {
    super(message);
    this.status = status;
  }

  static DsException of(int status, String message) {
    return switch (status) {
      case ds_status_code.DS_ERR_INVALID_ARGUMENT -> new InvalidArgument(status, message);
      case ds_status_code.DS_ERR_CONFIG -> new Config(status, message);
      case ds_status_code.DS_ERR_OUT_OF_MEMORY -> new OutOfMemory(status, message);
      case ds_status_code.DS_ERR_DEVICE -> new Device(status, message);
      case ds_status_code.DS_ERR_COMM -> new Comm(status, message);
      case ds_status_code.DS_ERR_IO -> new Io(status, message);
      case ds_status_code.DS_ERR_UNSUPPORTED -> new Unsupported(status, message);
      case ds_status_code.DS_ERR_ABORTED -> new Aborted(status, message);
      case ds_status_code.DS_ERR_CALLBACK -> new Stopped(status, message);
      case ds_status_code.DS_ERR_INTERNAL -> new Internal(status, message);
      case ds_status_code.DS_ERR_STATE -> new State(status, message);
      case ds_status_code.DS_ERR_CORRUPT -> new Corrupt(status, message);
      case ds_status_code.DS_ERR_NOT_FOUND -> new NotFound(status, message);
      default -> new DsException(status, message);
    };
  }

  /**
   * The number of the failure, a {@code ds_status_code} of {@code ds.h}.
   *
   * @return a negative number
   */
  public final int status() {
    return status;
  }

  /**
   * The name of the status.
   *
   * @return such as "DS_ERR_IO"
   */
  public final String statusName() {
    return Native.ds_status_name(status);
  }

  /** The call is wrong: fix the program. */
  public static final class InvalidArgument extends DsException {
    @Serial private static final long serialVersionUID = 1;

    InvalidArgument(int status, String message) {
      super(status, message);
    }
  }

  /** The configuration document is wrong: fix the document. */
  public static final class Config extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Config(int status, String message) {
      super(status, message);
    }
  }

  /** Memory ran out; the message holds the memory report. */
  public static final class OutOfMemory extends DsException {
    @Serial private static final long serialVersionUID = 1;

    OutOfMemory(int status, String message) {
      super(status, message);
    }
  }

  /** A device failed. */
  public static final class Device extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Device(int status, String message) {
      super(status, message);
    }
  }

  /** Another process failed or disagreed; the message names it. */
  public static final class Comm extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Comm(int status, String message) {
      super(status, message);
    }
  }

  /** A file could not be read or written. */
  public static final class Io extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Io(int status, String message) {
      super(status, message);
    }
  }

  /** This build or version does not do that. */
  public static final class Unsupported extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Unsupported(int status, String message) {
      super(status, message);
    }
  }

  /** The operation was interrupted or aborted from elsewhere. */
  public static final class Aborted extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Aborted(int status, String message) {
      super(status, message);
    }
  }

  /** A callback of the program asked to stop, without throwing. */
  public static final class Stopped extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Stopped(int status, String message) {
      super(status, message);
    }
  }

  /** A defect of the library: please report the message. */
  public static final class Internal extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Internal(int status, String message) {
      super(status, message);
    }
  }

  /** The right call at the wrong moment: the order of calls, or another thread is using the object. */
  public static final class State extends DsException {
    @Serial private static final long serialVersionUID = 1;

    State(int status, String message) {
      super(status, message);
    }
  }

  /** A file's content is damaged or hostile. */
  public static final class Corrupt extends DsException {
    @Serial private static final long serialVersionUID = 1;

    Corrupt(int status, String message) {
      super(status, message);
    }
  }

  /** A file, tag, tensor or token does not exist. */
  public static final class NotFound extends DsException {
    @Serial private static final long serialVersionUID = 1;

    NotFound(int status, String message) {
      super(status, message);
    }
  }
}
