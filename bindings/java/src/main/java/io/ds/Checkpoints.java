package io.ds;

import java.nio.file.Path;

/** Checkpoints on disk, without an engine. */
public final class Checkpoints {
  private Checkpoints() {}

  /**
   * Describes a folder of checkpoints and one of them.
   *
   * @param folder where an engine saved
   * @param tag the one to describe; null for the newest valid one
   * @return JSON with "tags", "runs", counters, tensors and the "config"
   * @throws DsException.NotFound when there is none
   * @throws DsException.Corrupt when it is damaged
   */
  public static String inspect(Path folder, String tag) {
    return Marshal.text(out -> Native.ds_checkpoint_inspect(Marshal.text(folder), tag, out));
  }

  /**
   * Reads every byte of a checkpoint and compares checksums.
   *
   * @param folder where an engine saved
   * @param tag null for the newest valid one
   * @throws DsException.Corrupt names file, tensor and bytes
   */
  public static void verify(Path folder, String tag) {
    Native.ds_checkpoint_verify(Marshal.text(folder), tag);
  }

  /**
   * Deletes one checkpoint, valid or not; nobody may be reading it.
   *
   * @param folder where an engine saved
   * @param tag its name
   * @throws DsException.NotFound when there is none of that name
   */
  public static void delete(Path folder, String tag) {
    Native.ds_checkpoint_delete(Marshal.text(folder), tag);
  }
}
