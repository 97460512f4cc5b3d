package io.ds;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The examples, run as their users run them. */
class ProgramsTest {
  private static final String PATH = System.getProperty("ds.test.jar") + ":" + System.getProperty("ds.test.programs");

  private static String run(String... command) throws Exception {
    return LoaderTest.run(List.of("-cp", PATH), command);
  }

  private static double last(String output, String pattern) {
    Matcher found = Pattern.compile(pattern).matcher(output);
    double value = Double.NaN;
    while (found.find()) {
      value = Double.parseDouble(found.group(1));
    }
    return value;
  }

  @Test
  void train(@TempDir Path folder) throws Exception {
    String output = run("Train", Fixtures.TEXT.toString(), "40", folder.toString());
    assertTrue(output.startsWith("0\n"), output);
    assertTrue(last(output, "loss ([0-9.]+)") < 3.5, output);
    Checkpoints.verify(folder, "global_step40");
  }

  @Test
  void ownGradients() throws Exception {
    String output = run("OwnGradients", "400");
    assertTrue(output.startsWith("0\n"), output);
    assertTrue(last(output, "loss ([0-9.]+)") < 0.01, output);
  }

  /** What the first of several processes prints, started as torchrun starts them. */
  private static String runRanks(int size, Path folder, String... command) throws Exception {
    int port;
    try (java.net.ServerSocket probe = new java.net.ServerSocket(0)) {
      port = probe.getLocalPort();
    }
    List<Process> ranks = new java.util.ArrayList<>();
    for (int rank = 0; rank < size; ++rank) {
      List<String> line = new java.util.ArrayList<>(
          List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-XX:TieredStopAtLevel=1", "-cp", PATH));
      line.addAll(List.of(command));
      ProcessBuilder process = new ProcessBuilder(line).redirectErrorStream(true);
      process.environment().putAll(Map.of("RANK", "" + rank, "LOCAL_RANK", "" + rank, "WORLD_SIZE", "" + size,
          "MASTER_ADDR", "127.0.0.1", "MASTER_PORT", "" + port));
      ranks.add(process.redirectOutput(folder.resolve("rank" + rank).toFile()).start());
    }
    for (int rank = 0; rank < size; ++rank) {
      boolean ended = ranks.get(rank).waitFor(60, TimeUnit.SECONDS);
      ranks.get(rank).destroyForcibly();
      assertTrue(ended && ranks.get(rank).exitValue() == 0, Files.readString(folder.resolve("rank" + rank)));
    }
    return Files.readString(folder.resolve("rank0"));
  }

  @Test
  void zero3GoesOnWithAnotherNumberOfProcesses(@TempDir Path folder) throws Exception {
    String text = Fixtures.TEXT.toString();
    String out = folder.resolve("out").toString();
    String first = runRanks(3, folder, "Zero3", text, "10", out);
    assertTrue(first.contains("after step 0: 3 processes, ZeRO stage 3"), first);
    String second = runRanks(2, folder, "Zero3", text, "20", out);
    assertTrue(second.contains("after step 10: 2 processes"), second);
    String last = run("Zero3", text, "30", out);
    assertTrue(last.contains("after step 20: 1 processes"), last);
    String alone = run("Zero3", text, "30", folder.resolve("alone").toString());
    // The same samples make the same steps; the sums of ranks are rounded in another order.
    assertEquals(last(alone, "loss ([0-9.]+)"), last(last, "loss ([0-9.]+)"), 2e-3);
  }

  /** The same bits as a run in this process; that other languages get them too is the test of tests/same_run. */
  @Test
  void sameRun(@TempDir Path folder) throws Exception {
    Path description = folder.resolve("run.json");
    Map<String, Object> shorter = Json.parseObject(Files.readString(Fixtures.ROOT.resolve("tests/same_run/run.json")));
    for (String part : List.of("built_in", "external")) {
      @SuppressWarnings("unchecked")
      Map<String, Object> members = (Map<String, Object>) shorter.get(part);
      members.put("steps", 5L);
    }
    Files.writeString(description, Json.write(shorter));
    for (String part : List.of("built_in", "external")) {
      Path once = folder.resolve(part + "1");
      Path twice = folder.resolve(part + "2");
      for (Path output : List.of(once, twice)) {
        assertEquals("0\n", run("SameRun", description.toString(), Fixtures.TEXT.toString(), part, output.toString()));
      }
      assertArrayEquals(Files.readAllBytes(once), Files.readAllBytes(twice));
      assertEquals(part.equals("external") ? 4 * (30 + 6 + 18) : 4 * parameters(shorter), Files.size(once));
    }
  }

  private static long parameters(Map<String, Object> run) {
    try (Model model = Model.create(Json.write(((Map<?, ?>) run.get("built_in")).get("model")), 1)) {
      return model.info().elements();
    }
  }

  private static final HttpClient CLIENT = HttpClient.newHttpClient();

  private static HttpResponse<String> ask(int port, String method, String path) throws IOException, InterruptedException {
    HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).method(method, HttpRequest.BodyPublishers.noBody()).build();
    return CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
  }

  @Test
  void serviceTrainsWhileItAnswersAndEndsCleanly(@TempDir Path folder) throws Exception {
    Process process = new ProcessBuilder(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", PATH, "Service",
        Fixtures.TEXT.toString(), folder.toString(), "0").redirectErrorStream(true).start();
    try (BufferedReader output = process.inputReader()) {
      String line = output.readLine();
      while (line != null && !line.startsWith("listening")) {
        line = output.readLine();
      }
      int port = (int) last(String.valueOf(line), "port ([0-9]+)");
      long step = 0;
      long copies = 0;
      int answers = 0;
      for (int i = 0; i < 2000 && (step < 60 || copies < 40 || answers < 5); ++i) {
        Map<String, Object> status = Json.parseObject(ask(port, "GET", "/status").body());
        assertEquals(null, status.get("failure"));
        step = (Long) status.get("step");
        copies = status.get("copy_of_step") == null ? 0 : (Long) status.get("copy_of_step");
        HttpResponse<String> text = ask(port, "GET", "/generate?prompt=The%20licen%C3%A7e");
        if (text.statusCode() == 200) {
          assertTrue(((String) Json.parseObject(text.body()).get("text")).length() > 0);
          ++answers;
        }
      }
      assertTrue(step >= 60 && copies >= 40 && answers >= 5, "step " + step + ", copy of " + copies + ", " + answers + " answers");
      assertEquals(400, ask(port, "GET", "/generate").statusCode());
      assertEquals(405, ask(port, "GET", "/stop").statusCode());
      assertEquals(200, ask(port, "POST", "/stop").statusCode());
      assertTrue(process.waitFor(30, TimeUnit.SECONDS));
      assertEquals(0, process.exitValue());
      Checkpoints.verify(folder, null);
    } finally {
      process.destroyForcibly();
    }
  }
}
