package io.ds;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Locale;
import java.util.Properties;

/**
 * Loads libds and the native layer of this package.
 *
 * <p>Both come from the jar, through a private temporary folder that is gone again when they are loaded. The system property
 * {@code ds.library.path} names a folder with a libds of one's own instead (and, if it is there, a native layer). Each class
 * loader that loads this package gets a native layer of its own, because Java ties one to a class loader; they share one
 * libds, the first, and with it the log sink.
 */
final class NativeLoader {
  static final String PROPERTY = "ds.library.path";
  /** The name that the native layer asks for; the build writes it down. */
  private static final String LIBRARY = soname();
  private static final String LAYER = "libds_java.so";

  private static boolean loaded;

  private NativeLoader() {}

  static synchronized void load() {
    if (loaded) {
      return;
    }
    String given = System.getProperty(PROPERTY);
    try {
      Path folder = Files.createTempDirectory("ds-java",
          PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
      try {
        if (given == null) {
          copy(LIBRARY, folder);
          copy(LAYER, folder);
        } else {
          loadGiven(Path.of(given).toAbsolutePath());
          Path layer = Path.of(given, LAYER).toAbsolutePath();
          if (Files.exists(layer)) {
            Files.copy(layer, folder.resolve(LAYER));
          } else {
            copy(LAYER, folder);
          }
        }
        System.load(folder.resolve(LAYER).toString());
      } finally {
        Files.deleteIfExists(folder.resolve(LAYER));
        Files.deleteIfExists(folder.resolve(LIBRARY));
        Files.deleteIfExists(folder);
      }
    } catch (IOException | UnsatisfiedLinkError e) {
      UnsatisfiedLinkError error = new UnsatisfiedLinkError("cannot load libds "
          + (given == null ? "from the jar through " + System.getProperty("java.io.tmpdir") : "from " + PROPERTY + "=" + given)
          + ": " + e.getMessage());
      error.initCause(e);
      throw error;
    }
    checkVersion();
    loaded = true;
  }

  /** Into the process, where the native layer finds it by its name. */
  private static void loadGiven(Path folder) {
    Path library = folder.resolve(LIBRARY);
    if (!Files.exists(library)) {
      throw new UnsatisfiedLinkError("the folder has no " + LIBRARY);
    }
    try {
      System.load(library.toString());
    } catch (UnsatisfiedLinkError e) {
      // Java's way of saying that the library is in the process already, which is all that is needed.
      if (!String.valueOf(e.getMessage()).contains("already loaded in another classloader")) {
        throw e;
      }
    }
  }

  private static void copy(String name, Path folder) throws IOException {
    String platform = System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-" + System.getProperty("os.arch");
    String place = "/io/ds/native/" + platform + "/" + name;
    try (InputStream in = NativeLoader.class.getResourceAsStream(place)) {
      if (in == null) {
        throw new IOException("the jar has no " + place + ": it was built for another system; set the system property "
            + PROPERTY + " to a folder with " + LIBRARY + " and " + LAYER);
      }
      Files.copy(in, folder.resolve(name));
    }
  }

  private static String soname() {
    Properties build = new Properties();
    try (InputStream in = NativeLoader.class.getResourceAsStream("/io/ds/build.properties")) {
      build.load(in);
      return build.getProperty("soname");
    } catch (IOException | NullPointerException e) {
      throw new IllegalStateException("the resource /io/ds/build.properties, which the build makes, cannot be read", e);
    }
  }

  /** Before version 1.0 a minor version may change anything. */
  private static void checkVersion() {
    int header = NativeJNI.header_version();
    int library = NativeJNI.ds_abi_version();
    if (header / 1000 != library / 1000) {
      throw new UnsatisfiedLinkError("libds is version " + text(library) + ", but these classes were made for " + text(header));
    }
  }

  private static String text(int version) {
    return version / 1000000 + "." + version / 1000 % 1000 + "." + version % 1000;
  }
}
