package io.ds;

/**
 * Where the processes of a group find each other, see {@link Comm#create}: a key-value store that all of them reach. It is used
 * by the thread that makes the group, while it does. An exception ends that call and comes out of it.
 */
public interface KeyValueStore {
  /**
   * Stores a value.
   *
   * @param key short and printable; each is stored once
   * @param value at most a mebibyte
   */
  void put(String key, byte[] value);

  /**
   * Waits for a value.
   *
   * @param key what another process stores
   * @return the value, or null when the store's own deadline has passed
   */
  byte[] get(String key);
}
