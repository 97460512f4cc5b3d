package io.ds;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LoaderTest {
  private static final Path JAR = Path.of(System.getProperty("ds.test.jar"));

  @Test
  void everyClassLoaderCanLoadItsOwn() throws Exception {
    Object here = Ds.version();
    for (int i = 0; i < 3; ++i) {
      try (URLClassLoader other = new URLClassLoader(new URL[] {JAR.toUri().toURL()}, ClassLoader.getPlatformClassLoader())) {
        Class<?> ds = other.loadClass("io.ds.Ds");
        assertNotSame(Ds.class, ds);
        assertEquals(here, ds.getMethod("version").invoke(null));
        Class<?> tensor = other.loadClass("io.ds.Tensor");
        try (AutoCloseable made = (AutoCloseable) tensor.getMethod("of", float[].class, long[].class).invoke(null, new float[] {1}, new long[0])) {
          assertEquals(1.0, tensor.getMethod("item").invoke(made));
        }
      }
    }
  }

  /** A program of its own, in a Java of its own. */
  static String run(List<String> options, String... command) throws IOException, InterruptedException {
    return run(Path.of("."), options, command);
  }

  /** The same in a folder; its exit status on the first line, then what it printed. */
  static String run(Path folder, List<String> options, String... command) throws IOException, InterruptedException {
    List<String> line = new java.util.ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-XX:TieredStopAtLevel=1"));
    if (Runtime.version().feature() >= 24) {
      line.add("--enable-native-access=ALL-UNNAMED"); // or it warns
    }
    line.addAll(options);
    line.addAll(List.of(command));
    Path output = Files.createTempFile("ds-test", ".log");
    Process process = new ProcessBuilder(line).directory(folder.toFile()).redirectErrorStream(true).redirectOutput(output.toFile()).start();
    boolean ended = process.waitFor(60, TimeUnit.SECONDS);
    process.destroyForcibly();
    String text = Files.readString(output);
    Files.delete(output);
    assertTrue(ended, "it did not end: " + text);
    return process.exitValue() + "\n" + text;
  }

  /** Prints the version; a class of the tests with a main method. */
  public static final class Version {
    private Version() {}

    public static void main(String[] arguments) {
      System.out.println("version " + Ds.version());
    }
  }

  private static String version(String... options) throws Exception {
    return run(List.of(options), "-cp", JAR + ":" + System.getProperty("ds.test.classes"), Version.class.getName());
  }

  @Test
  void nothingIsLeftInTheTemporaryFolder(@TempDir Path folder) throws Exception {
    assertEquals("0\nversion " + Ds.version() + "\n", version("-Djava.io.tmpdir=" + folder, "-XX:-UsePerfData"));
    try (Stream<Path> left = Files.list(folder)) {
      assertEquals(List.of(), left.toList());
    }
  }

  @Test
  void aFolderOfOnesOwnComesFirst(@TempDir Path folder) throws Exception {
    String missing = version("-Dds.library.path=" + folder);
    assertTrue(missing.contains("UnsatisfiedLinkError") && missing.contains("ds.library.path=" + folder), missing);
    Path library = Path.of(System.getProperty("ds.test.library"));
    assertEquals("0\nversion " + Ds.version() + "\n", version("-Dds.library.path=" + library.getParent()));
    try (Stream<Path> left = Files.list(folder)) {
      assertEquals(List.of(), left.toList());
    }
  }
}
