import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.ds.Dataset;
import io.ds.DsException;
import io.ds.Engine;
import io.ds.GenerateOptions;
import io.ds.Generator;
import io.ds.Json;
import io.ds.Model;
import io.ds.StepReport;
import io.ds.Tokenizer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * A service that trains in the background while it answers: Service FILE FOLDER PORT
 *
 * <pre>
 * GET  /status                  how far training is, as JSON
 * GET  /generate?prompt=TEXT    text from the newest copy of the model
 * POST /stop                    a clean end: training stops, a checkpoint is saved, requests under way are answered
 * </pre>
 *
 * <p>One thread owns the engine. It gives the others copies of the model, because an engine and its model serve one thread at a
 * time; a copy shares nothing, and each has a lock of its own.
 */
public final class Service {
  private static final int STEPS_PER_COPY = 20;
  private static final String SHAPE = """
      {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}""";
  private static final String CONFIG = """
      {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}""";

  /** A copy of the model that answers requests, one at a time, until the last of them is answered. */
  private static final class Snapshot {
    final long step;
    private final Generator generator;

    Snapshot(Model model, long step) {
      this.step = step;
      try (Model copy = model.copy()) {
        generator = Generator.of(copy); // keeps the copy
      }
    }

    synchronized String answer(Tokenizer tokenizer, String prompt) {
      return generator.generate(tokenizer, prompt, new GenerateOptions().maxTokens(40).temperature(0.8).topK(40).seed(step));
    }

    /** After the answer that is being written. */
    synchronized void close() {
      generator.close();
    }
  }

  private final CountDownLatch stop = new CountDownLatch(1);
  private final CountDownLatch ended = new CountDownLatch(1);
  private final Tokenizer tokenizer = Tokenizer.ofBytes();
  private final Object lock = new Object(); // guards the next three
  private Snapshot snapshot;
  private StepReport report;
  private String failure;

  /** The thread that owns the engine. */
  private void train(Path text, Path folder) {
    try (Dataset data = Dataset.ofText(text, 64, null); Model model = Model.create(SHAPE, 1); Engine engine = Engine.create(CONFIG, model)) {
      try {
        engine.load(folder);
      } catch (DsException.NotFound e) {
        System.out.println("nothing saved in " + folder + " yet: a new run");
      }
      engine.setDataset(data);
      replace(new Snapshot(model, engine.info().step()));
      while (stop.getCount() > 0) {
        StepReport now = engine.trainBatch();
        synchronized (lock) {
          report = now;
        }
        if (now.step() % STEPS_PER_COPY == 0) {
          replace(new Snapshot(model, now.step()));
        }
      }
      engine.save(folder);
    } catch (RuntimeException e) {
      synchronized (lock) {
        failure = e.toString();
      }
      stop.countDown();
    }
  }

  private void replace(Snapshot next) {
    Snapshot old;
    synchronized (lock) {
      old = snapshot;
      snapshot = next;
    }
    if (old != null) {
      old.close();
    }
  }

  private String status() {
    Map<String, Object> status = new LinkedHashMap<>();
    synchronized (lock) {
      status.put("training", stop.getCount() > 0);
      status.put("step", report == null ? 0 : report.step());
      status.put("loss", report == null ? null : report.loss());
      status.put("copy_of_step", snapshot == null ? null : snapshot.step);
      status.put("failure", failure);
    }
    return Json.write(status);
  }

  private String generate(String query) {
    String prompt = "";
    for (String part : query == null ? new String[0] : query.split("&")) {
      if (part.startsWith("prompt=")) {
        prompt = URLDecoder.decode(part.substring(7), StandardCharsets.UTF_8);
      }
    }
    if (prompt.isEmpty()) {
      throw new IllegalArgumentException("a prompt is needed: /generate?prompt=TEXT");
    }
    while (true) {
      Snapshot present;
      synchronized (lock) {
        present = snapshot;
      }
      if (present == null) {
        throw new IllegalStateException("the model is not there yet");
      }
      try {
        return Json.write(Map.of("text", present.answer(tokenizer, prompt)));
      } catch (IllegalStateException e) {
        synchronized (lock) {
          if (present == snapshot) {
            throw e;
          }
        } // it was replaced and closed in between: the next one answers
      }
    }
  }

  private interface Answer {
    String get(HttpExchange request);
  }

  private static void handle(HttpServer server, String path, String method, Answer answer) {
    server.createContext(path, request -> {
      try (request) {
        int code = 200;
        String text;
        if (!request.getRequestMethod().equals(method)) {
          code = 405;
          text = Json.write(Map.of("error", "use " + method));
        } else {
          try {
            text = answer.get(request);
          } catch (IllegalArgumentException e) {
            code = 400;
            text = Json.write(Map.of("error", e.getMessage()));
          } catch (RuntimeException e) {
            code = 503;
            text = Json.write(Map.of("error", e.toString()));
          }
        }
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        request.getResponseHeaders().set("Content-Type", "application/json");
        request.sendResponseHeaders(code, body.length);
        request.getResponseBody().write(body);
      }
    });
  }

  private void run(Path text, Path folder, int port) throws IOException, InterruptedException {
    Thread trainer = new Thread(() -> train(text, folder), "trainer");
    trainer.start();
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
    ExecutorService workers = Executors.newFixedThreadPool(4);
    server.setExecutor(workers);
    handle(server, "/status", "GET", request -> status());
    handle(server, "/generate", "GET", request -> generate(request.getRequestURI().getRawQuery()));
    handle(server, "/stop", "POST", request -> {
      stop.countDown();
      return Json.write(Map.of("stopping", true));
    });
    server.start();
    System.out.println("listening on port " + server.getAddress().getPort());
    stop.await();
    server.stop(5); // after the answers under way
    workers.shutdown();
    trainer.join();
    replace(null);
    tokenizer.close();
    System.out.println("ended: " + status());
  }

  private void stopAndWait() {
    stop.countDown();
    try {
      ended.await();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  public static void main(String[] arguments) throws IOException, InterruptedException {
    if (arguments.length != 3) {
      System.err.println("usage: Service FILE FOLDER PORT (0: any free one)");
      System.exit(2);
    }
    Service service = new Service();
    Runtime.getRuntime().addShutdownHook(new Thread(service::stopAndWait)); // a signal ends it as /stop does
    try {
      service.run(Path.of(arguments[0]), Path.of(arguments[1]), Integer.parseInt(arguments[2]));
    } finally {
      service.ended.countDown();
    }
    System.exit(service.failure == null ? 0 : 1);
  }
}
