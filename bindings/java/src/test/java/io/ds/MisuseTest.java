package io.ds;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class MisuseTest {
  @Test
  void closedObjectsSaySo() {
    Tensor tensor = Tensor.zeros(DType.FLOAT32, 4);
    Model model = Fixtures.ownModel();
    Engine engine = Engine.create(Fixtures.CONFIG, model);
    Optimizer optimizer = engine.optimizer();
    tensor.close();
    tensor.close();
    assertTrue(tensor.isClosed());
    assertEquals("this Tensor is closed", assertThrows(IllegalStateException.class, tensor::info).getMessage());
    assertThrows(IllegalStateException.class, () -> engine.addGradients(new long[] {1}, tensor));
    assertThrows(IllegalStateException.class, () -> Tensor.flatten(tensor));
    assertEquals("Tensor[closed]", tensor.toString());
    engine.close();
    assertThrows(IllegalStateException.class, engine::step);
    assertThrows(IllegalStateException.class, engine::interrupt);
    assertThrows(DsException.State.class, optimizer::info, "an optimizer's engine has ended");
    optimizer.close();
    model.close();
    assertThrows(IllegalStateException.class, () -> Engine.create(Fixtures.CONFIG, model));
  }

  @Test
  void objectsMayBeClosedInAnyOrder() {
    Model model = Fixtures.model();
    Dataset data = Fixtures.dataset();
    Engine engine = Engine.create(Fixtures.CONFIG, model);
    engine.setDataset(data);
    data.close();
    model.close();
    assertTrue(engine.trainBatch().applied());
    engine.close();
  }

  @Test
  void nullIsAnErrorAndNoCrash() {
    assertInstanceOf(DsException.InvalidArgument.class, assertThrows(DsException.class, () -> Model.create(null, 1)));
    assertThrows(DsException.InvalidArgument.class, () -> Engine.create(Fixtures.CONFIG, (Model) null));
    assertThrows(NullPointerException.class, () -> Tensor.wrap(null, DType.FLOAT32, 1));
    assertThrows(NullPointerException.class, () -> Tensor.zeros(null, 1));
    assertThrows(DsException.InvalidArgument.class, () -> Model.ofParameters(List.of()));
    try (Model model = Fixtures.model(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      assertThrows(DsException.class, () -> engine.forward(new Batch(null)));
      assertThrows(DsException.class, () -> engine.addGradients((Tensor) null));
      assertThrows(DsException.InvalidArgument.class, () -> engine.backward(null));
      assertDoesNotThrow(() -> engine.setDataset(null));
    }
  }

  @Test
  void streamsAreOfGpus() {
    try (Model model = Fixtures.model()) {
      model.setStream(0); // none
      DsException.Unsupported refused = assertThrows(DsException.Unsupported.class, () -> model.setStream(1));
      assertTrue(refused.getMessage().contains("host memory, which has no streams"), refused.getMessage());
    }
  }

  @Test
  void errorsHaveTypesByStatusAndSayWhatToDo(@TempDir Path folder) throws Exception {
    DsException config = assertThrows(DsException.Config.class, () -> {
      try (Model model = Fixtures.model()) {
        Engine.create("{\"train_micro_batch_size_per_gpu\": 1, \"optimiser\": {}}", model).close();
      }
    });
    assertTrue(config.getMessage().contains("optimizer"), config.getMessage());
    assertEquals("DS_ERR_CONFIG", config.statusName());
    assertEquals(ds_status_code.DS_ERR_CONFIG, config.status());
    assertThrows(DsException.NotFound.class, () -> Model.open(folder.resolve("nowhere")));
    assertThrows(DsException.NotFound.class, () -> Dataset.ofText(folder.resolve("nowhere.txt"), 4, null));
    assertThrows(DsException.Unsupported.class, () -> Model.create("{\"model_type\": \"no-such-family\"}", 1));
    Path broken = Files.writeString(folder.resolve("tokenizer.json"), "{");
    assertThrows(DsException.Corrupt.class, () -> Tokenizer.open(broken));
    assertEquals(DsException.class, DsException.of(-99, "newer").getClass());
    assertEquals("DS_ERR_UNKNOWN", DsException.of(-99, "newer").statusName());
  }

  @Test
  void textsTravelWhole(@TempDir Path folder) throws Exception {
    String text = "z\u00e4 \u4e2d \uD83D\uDE00 \uD834\uDD1E"; // two, three and four bytes of UTF-8
    try (Tokenizer bytes = Tokenizer.ofBytes()) {
      assertEquals(2 + 2 + 1 + 3 + 1 + 4 + 1 + 4 - 1, bytes.encode(text).length);
      assertEquals(text, bytes.decode(bytes.encode(text)));
      assertEquals("a\uFFFDb", bytes.decode(bytes.encode("a\0b")), "as the header says of U+0000");
      assertEquals(256, bytes.info().vocabSize());
      DsException error = assertThrows(DsException.NotFound.class, () -> bytes.tokenToId("\uD83D\uDE00"));
      assertTrue(error.getMessage().contains("\uD83D\uDE00"), error.getMessage());
      IllegalArgumentException nul = assertThrows(IllegalArgumentException.class, () -> bytes.tokenToId("a\0b"));
      assertTrue(nul.getMessage().contains("U+0000"), nul.getMessage());
    }
    Path file = Files.writeString(folder.resolve("\uD83D\uDE00.txt"), "some text, long enough for samples of four tokens");
    try (Dataset data = Dataset.ofText(file, 4, null); Tensor sample = data.sample(0)) {
      assertEquals(5, sample.ints().length);
      assertEquals(4, data.info().sequenceLength());
    }
    try (Tokenizer learnt = Tokenizer.train(text.repeat(50), "{\"vocab_size\": 270}");
        Tokenizer again = Tokenizer.fromJson(learnt.toJson())) {
      assertEquals(text, again.decode(again.encode(text)));
      assertEquals(again.idToToken(5), learnt.idToToken(5));
      assertEquals(5, again.tokenToId(again.idToToken(5)));
      Dataset.build(file, again, false, folder.resolve("prefix"));
      assertTrue(Files.exists(folder.resolve("prefix.bin")));
      Dataset.merge(java.util.List.of(folder.resolve("prefix"), folder.resolve("prefix")), folder.resolve("twice"));
      assertEquals(2 * Files.size(folder.resolve("prefix.bin")), Files.size(folder.resolve("twice.bin")));
    }
  }

  @Test
  void questionsAboutConfigurationsAreAnswered() {
    assertEquals(true, Json.parseObject(Ds.checkConfig(Fixtures.CONFIG, null)).get("accepted"));
    assertEquals(false, Json.parseObject(Ds.checkConfig("{\"x\": 1}", null)).get("accepted"));
    assertTrue(Json.parseObject(Ds.configSchema()).containsKey("properties"));
    assertTrue(Json.parseObject(Ds.plan(Fixtures.MODEL, Fixtures.CONFIG, null)).containsKey("memory_per_rank"));
    assertTrue(Json.parseObject(Ds.report()).containsKey("version"));
    assertEquals(Ds.version(), Ds.abiVersion() / 1000000 + "." + Ds.abiVersion() / 1000 % 1000 + "." + Ds.abiVersion() % 1000);
  }
}
