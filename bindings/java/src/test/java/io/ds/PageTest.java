package io.ds;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The programs of docs/java.md, run one after the other as the page says. */
class PageTest {
  private static void makeInputs(Path folder) throws Exception {
    Files.copy(Fixtures.TEXT, folder.resolve("book.txt"));
    Files.writeString(folder.resolve("chats.jsonl"), "{\"prompt\": \"2 + 2 = \", \"completion\": \"4\"}\n".repeat(20));
    try (Model model = Model.create("""
        {"model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}""", 1);
        Tokenizer tokenizer = Tokenizer.train(Files.readString(Fixtures.TEXT), "{\"vocab_size\": 300}")) {
      model.export(folder.resolve("llama"), DType.FLOAT32, 0);
      Files.writeString(folder.resolve("llama/tokenizer.json"), tokenizer.toJson());
    }
  }

  @Test
  void theFiveTasksRun(@TempDir Path folder) throws Exception {
    assumeTrue(ModuleLayer.boot().findModule("jdk.compiler").isPresent(), "this Java has no compiler");
    makeInputs(folder);
    Matcher block = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(Fixtures.ROOT.resolve("docs/java.md")));
    StringBuilder methods = new StringBuilder();
    StringBuilder calls = new StringBuilder();
    int tasks = 0;
    while (block.find()) {
      ++tasks;
      methods.append("  static void task").append(tasks).append("() throws Exception {\n").append(block.group(1)).append("  }\n");
      calls.append("    task").append(tasks).append("();\n");
    }
    assertEquals(5, tasks);
    Path program = folder.resolve("Page.java");
    Files.writeString(program, "import io.ds.*;\nimport java.nio.FloatBuffer;\nimport java.nio.file.Path;\nimport java.util.List;\n\npublic class Page {\n"
        + methods + "  public static void main(String[] arguments) throws Exception {\n" + calls + "  }\n}\n");
    String output = LoaderTest.run(folder, List.of("-cp", System.getProperty("ds.test.jar")), program.toString());
    assertTrue(output.startsWith("0\n"), output);
    assertTrue(output.contains("goes on at step 20"), output);
    Matcher line = Pattern.compile("learnt as ([-0-9.E]+) x \\+ ([-0-9.E]+)").matcher(output);
    assertTrue(line.find(), output);
    assertEquals(3, Double.parseDouble(line.group(1)), 0.1);
    assertEquals(-1, Double.parseDouble(line.group(2)), 0.1);
    assertTrue(Files.exists(folder.resolve("adapter/adapter_model.safetensors")));
    Checkpoints.verify(folder.resolve("run"), "global_step21");
  }
}
