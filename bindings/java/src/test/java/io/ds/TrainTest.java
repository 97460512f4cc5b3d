package io.ds;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TrainTest {
  private static float[] weights(Model model) {
    float[] all = new float[Math.toIntExact(model.info().elements())];
    int at = 0;
    for (long i = 0; i < model.info().parameters(); ++i) {
      try (Tensor one = model.getParameter(i)) {
        float[] values = one.floats();
        System.arraycopy(values, 0, all, at, values.length);
        at += values.length;
      }
    }
    assertEquals(all.length, at);
    return all;
  }

  @Test
  void trainingLowersTheLoss() {
    try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      engine.setDataset(data);
      double before = engine.evaluate(data, 8);
      StepReport report = null;
      for (int i = 0; i < 60; ++i) {
        report = engine.trainBatch();
      }
      assertEquals(60, report.step());
      assertEquals(120, report.microSteps());
      assertEquals(480, report.samples());
      assertTrue(report.applied());
      assertEquals(SkipReason.NONE, report.skipReason());
      assertEquals(8 * 16, report.tokens());
      assertEquals(-1, report.firstBadParameter());
      double after = engine.evaluate(data, 8);
      assertTrue(after < before - 1, before + " -> " + after);
      EngineInfo info = engine.info();
      assertEquals(60, info.step());
      assertEquals(4, info.microBatchSize());
      assertEquals(2, info.accumulationSteps());
      assertEquals(DType.FLOAT32, info.computeDtype());
    }
  }

  @Test
  void theTimeOfAStepIsBrokenDownOnRequest() {
    try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset()) {
      try (Engine engine = Engine.create(Fixtures.CONFIG, model)) {
        engine.setDataset(data);
        StepReport report = engine.trainBatch();
        assertTrue(report.seconds() > 0);
        assertEquals(0, report.forwardSeconds() + report.backwardSeconds() + report.updateSeconds());
      }
      String config = Fixtures.CONFIG.strip().replaceFirst("^\\{", "{\"wall_clock_breakdown\": true, ");
      try (Engine engine = Engine.create(config, model)) {
        engine.setDataset(data);
        StepReport report = engine.trainBatch();
        assertTrue(report.forwardSeconds() > 0);
        assertTrue(report.backwardSeconds() > 0);
        assertTrue(report.updateSeconds() > 0);
        double parts = report.forwardSeconds() + report.backwardSeconds() + report.updateSeconds();
        assertTrue(parts <= report.seconds() * 1.001, parts + " of " + report.seconds());
      }
    }
  }

  @Test
  void aResumedRunEndsWithTheSameBits(@TempDir Path folder) {
    float[] whole;
    try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      engine.setDataset(data);
      for (int i = 0; i < 10; ++i) {
        engine.trainBatch();
        if (i == 4) {
          engine.setClientState("{\"half\": true}");
          engine.setBlob("random \uD83D\uDE00", new byte[] {0, 1, -1});
          engine.save(folder, "half");
        }
      }
      whole = weights(model);
    }
    try (Model model = Model.create(Fixtures.MODEL, 99); Dataset data = Fixtures.dataset();
        Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      engine.load(folder, "half", null);
      engine.setDataset(data);
      assertEquals(5, engine.info().step());
      assertEquals(Map.of("half", true), Json.parse(engine.clientState()));
      assertArrayEquals(new byte[] {0, 1, -1}, engine.blob("random \uD83D\uDE00"));
      assertEquals(Map.of("random \uD83D\uDE00", 3L), Json.parse(engine.blobs()));
      for (int i = 0; i < 5; ++i) {
        engine.trainBatch();
      }
      assertArrayEquals(whole, weights(model));
    }
    Checkpoints.verify(folder, "half");
    assertTrue(Checkpoints.inspect(folder, null).contains("half"));
    try (Model opened = Model.open(folder)) {
      assertEquals(257, opened.info().vocabSize());
    }
    Checkpoints.delete(folder, "half");
    assertThrows(DsException.NotFound.class, () -> Checkpoints.verify(folder, "half"));
  }

  @Test
  void forwardBackwardStepAreTrainBatchByHand() {
    try (Model model = Fixtures.model(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      int[] ids = new int[4 * 16];
      for (int i = 0; i < ids.length; ++i) {
        ids[i] = i % 7;
      }
      double first = 0;
      double last = 0;
      for (int step = 0; step < 20; ++step) {
        for (int micro = 0; micro < 2; ++micro) {
          try (Tensor tokens = Tensor.of(ids, 4, 16); Tensor loss = engine.forward(new Batch(tokens, tokens))) {
            engine.backward(loss);
            last = loss.item();
            first = step == 0 ? last : first;
          }
          StepReport report = engine.step();
          assertEquals(micro == 1, report.applied());
          assertEquals(micro == 1 ? SkipReason.NONE : SkipReason.ACCUMULATING, report.skipReason());
        }
      }
      assertTrue(last < first, first + " -> " + last);
    }
  }

  /** One step of Adam with bias correction from zero moments moves every weight by lr * g / (|g| + eps'). */
  @Test
  void ownGradientsMoveWeightsAsAdamSays() {
    String config = """
        {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params":
         {"lr": 0.125, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}}, "gradient_clipping": 0}""";
    float[] first = {1, -2, 3, -4, 5, -6};
    float[] second = {0.5f, 0, -0.25f, 8};
    try (Model model = Fixtures.ownModel(); Engine engine = Engine.create(config, model)) {
      double[] moment = new double[10];
      double[] square = new double[10];
      double[] expected = new double[10];
      for (int step = 1; step <= 3; ++step) {
        try (Tensor a = Tensor.of(first, 2, 3); Tensor b = Tensor.of(second)) {
          engine.addGradients(a);
          engine.addGradients(new long[] {1}, b);
        }
        engine.setLoss(step);
        StepReport report = engine.step();
        assertEquals(step, report.loss());
        for (int i = 0; i < 10; ++i) {
          double g = i < 6 ? first[i] : second[i - 6];
          moment[i] = 0.9 * moment[i] + 0.1 * g;
          square[i] = 0.999 * square[i] + 0.001 * g * g;
          double m = moment[i] / (1 - Math.pow(0.9, step));
          double v = square[i] / (1 - Math.pow(0.999, step));
          expected[i] -= 0.125 * m / (Math.sqrt(v) + 1e-8);
        }
      }
      float[] weights = weights(model);
      for (int i = 0; i < 10; ++i) {
        assertEquals(expected[i], weights[i], 2e-6, "weight " + i);
      }
      try (Optimizer optimizer = engine.optimizer();
          Tensor state = engine.getValues(0, ValueKind.STATE, "exp_avg", Extent.WHOLE)) {
        assertEquals(3, optimizer.info().steps());
        assertEquals(0.125, optimizer.rate(0));
        assertEquals(List.of("exp_avg", "exp_avg_sq"), Json.parse(optimizer.stateNames(0)));
        assertEquals(moment[0], state.floats()[0], 1e-6);
        optimizer.setRate(0.5);
        assertEquals(0.5, optimizer.info().lr());
      }
      assertEquals(new Engine.Range(0, 6), engine.localRange(0));
      assertThrows(DsException.NotFound.class, () -> engine.getValues(0, ValueKind.STATE, "no", Extent.WHOLE));
      assertThrows(IllegalArgumentException.class, () -> engine.addGradients(new long[] {0}));
    }
  }

  @Test
  void gradientsThatAreNotFiniteAreSkippedAndFound() {
    try (Model model = Fixtures.ownModel();
        Engine engine = Engine.create("""
            {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true, "initial_scale_power": 4},
             "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}""", model);
        Tensor bad = Tensor.of(new float[] {0, Float.POSITIVE_INFINITY, 0, 0}); Tensor good = Tensor.zeros(DType.FLOAT32, 2, 3)) {
      engine.addGradients(good, bad);
      StepReport report = engine.step();
      assertFalse(report.applied());
      assertEquals(SkipReason.NON_FINITE, report.skipReason());
      assertEquals(1, report.firstBadParameter());
      assertEquals(1, report.firstBadElement());
      assertEquals(Double.POSITIVE_INFINITY, report.firstBadValue());
    }
  }

  @Test
  void lentMemoryReceivesNewWeights() {
    var memory = Marshal.allocate(4 * 4);
    try (Tensor value = Tensor.wrap(memory, DType.FLOAT32, 4);
        Model model = Model.ofParameters(List.of(Parameter.of("lent", value).lend().noDecay(), Parameter.zeros("still", 2).frozen()));
        Engine engine = Engine.create("""
            {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1}}}""", model);
        Tensor gradient = Tensor.of(new float[] {1, 2, 3, 4})) {
      engine.addGradients(new long[] {0}, gradient);
      assertTrue(engine.step().applied());
      float norm = (float) Math.sqrt(30);
      for (int i = 0; i < 4; ++i) {
        assertEquals(-(i + 1) / norm, memory.getFloat(4 * i), 1e-5); // gradients are clipped to norm 1 by default
      }
      ParameterInfo still = model.parameterInfo(model.parameterIndex("still"));
      assertEquals(new ParameterInfo(2, List.of(2L), DType.FLOAT32, false, still.decays()), still);
      assertFalse(model.parameterInfo(0).decays());
      assertEquals("lent", model.parameterName(0));
      assertEquals(2, ((List<?>) Json.parse(model.parameters())).size());
    }
  }

  @Test
  void scopesShowAndChangeParameters() {
    try (Model model = Fixtures.ownModel(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      try (Scope scope = engine.openScope(ScopeMode.MODIFY, 1); Tensor vector = scope.tensor(0)) {
        vector.buffer().asFloatBuffer().put(new float[] {1, 2, 3, 4});
        scope.commit(0);
      }
      try (Scope scope = engine.openScope(ScopeMode.COMPUTE); Tensor vector = scope.tensor(1)) {
        assertEquals(2, scope.size());
        assertArrayEquals(new float[] {1, 2, 3, 4}, vector.floats());
        assertThrows(DsException.State.class, () -> engine.openScope(ScopeMode.MODIFY, 0));
      }
      try (Scope scope = engine.openScope(ScopeMode.MODIFY, 1); Tensor vector = scope.tensor(0)) {
        vector.buffer().asFloatBuffer().put(0, 9);
      }
      try (Tensor vector = engine.getValues(1, ValueKind.PARAMETER, null, Extent.WHOLE);
          Tensor other = Tensor.of(new float[] {5, 6, 7, 8})) {
        assertArrayEquals(new float[] {1, 2, 3, 4}, vector.floats(), "changes that were not committed are dropped");
        engine.setValues(1, ValueKind.PARAMETER, null, Extent.WHOLE, other);
        try (Tensor now = model.getParameter(1)) {
          assertArrayEquals(new float[] {5, 6, 7, 8}, now.floats());
        }
      }
    }
  }

  @Test
  void adaptersTrainAndTravel(@TempDir Path folder) {
    try (Model model = Fixtures.model(); Model again = Fixtures.model(); Dataset data = Fixtures.dataset()) {
      model.addLora("{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"c_attn\"]}");
      ModelInfo info = model.info();
      assertTrue(info.trainableElements() < info.elements() / 4, info.toString());
      try (Engine engine = Engine.create(Fixtures.CONFIG, model)) {
        engine.setDataset(data);
        engine.trainBatch();
      }
      model.saveAdapter(folder, DType.FLOAT32);
      assertTrue(Files.exists(folder.resolve("adapter_model.safetensors")));
      again.loadAdapter(folder);
      model.mergeLora();
      again.mergeLora();
      assertArrayEquals(weights(model), weights(again));
      again.setTrainable("*.bias", false);
      assertThrows(DsException.NotFound.class, () -> again.setTrainable("no*such", false));
      again.export(folder.resolve("export"), DType.FLOAT32, 0);
      try (Model exported = Model.open(folder.resolve("export"))) {
        assertArrayEquals(weights(model), weights(exported));
      }
    }
  }

  @Test
  void aGeneratorWritesTheSameTextForTheSameSeed() {
    try (Model model = Fixtures.model(); Tokenizer bytes = Tokenizer.ofBytes(); Generator own = Generator.of(model);
        Generator prepared = Generator.of(model, "{\"weights\": \"int8\", \"threads\": 1}")) {
      GenerateOptions options = new GenerateOptions().maxTokens(12).temperature(1).topK(50).topP(0.9).seed(3);
      String text = own.generate(bytes, "The ", options);
      assertEquals(text, own.generate(bytes, "The ", options));
      assertEquals(12, prepared.generate(bytes.encode("The "), options).length);
      assertEquals(WeightForm.INT8, prepared.info().weights());
      assertEquals(WeightForm.MODEL, own.info().weights());
      try (Tensor ids = Tensor.of(new int[] {1, 2, 3}, 1, 3); Tensor logits = own.logits(new Batch(ids));
          Tensor states = own.hiddenStates(new Batch(ids)); Tensor seen = prepared.getParameter(0)) {
        assertEquals(List.of(1L, 3L, 257L), logits.shape());
        assertEquals(List.of(1L, 3L, 16L), states.shape());
        assertEquals(List.of(257L, 16L), seen.shape());
      }
      int[] all = own.generate(bytes.encode("The "), new GenerateOptions().maxTokens(8));
      int[] stopped = own.generate(bytes.encode("The "), new GenerateOptions().maxTokens(8).stopToken(all[3]));
      assertTrue(stopped.length <= 3, stopped.length + " tokens");
    }
  }

  @Test
  void textsTogetherAreThoseOfOneAfterTheOther() {
    int[][] prompts = {{72, 105}, {1}, java.util.stream.IntStream.range(0, 20).toArray(), {5, 6, 7}, {200, 200, 200, 200}};
    try (Model model = Fixtures.model(); Generator generator = Generator.of(model)) {
      int[][] expected = new int[prompts.length][];
      for (int i = 0; i < prompts.length; ++i) {
        expected[i] = generator.generate(prompts[i], new GenerateOptions().maxTokens(12).temperature(1).topK(50).seed(11 + i));
      }
      GenerateOptions options = new GenerateOptions().maxTokens(12).temperature(1).topK(50).seed(11);
      assertArrayEquals(expected, generator.generateBatch(prompts, options));
      for (int atOnce = 1; atOnce < 4; ++atOnce) {
        assertArrayEquals(expected, generator.generateBatch(prompts, options, atOnce, null));
      }
      assertEquals(64, generator.generateBatch(prompts, null)[1].length);
      options.stopToken(expected[1][0]);
      int[][] stopped = generator.generateBatch(prompts, options, 2, null);
      assertEquals(0, stopped[1].length);
      assertArrayEquals(generator.generate(prompts[0], options), stopped[0]);

      assertArrayEquals(new int[0][], generator.generateBatch(new int[0][], options));
      DsException.InvalidArgument empty =
          assertThrows(DsException.InvalidArgument.class, () -> generator.generateBatch(new int[][] {{1, 2}, {}, {3}}, null));
      assertTrue(empty.getMessage().matches(".*(counts\\[1\\]|prompt 1).*"), empty.getMessage());
      DsException.InvalidArgument wrong =
          assertThrows(DsException.InvalidArgument.class, () -> generator.generateBatch(new int[][] {{1, 2}, {3}, {1000}}, null));
      assertTrue(wrong.getMessage().contains("prompt 2: "), wrong.getMessage());
      assertThrows(DsException.InvalidArgument.class, () -> generator.generateBatch(prompts, null, -1, null));
      assertThrows(NullPointerException.class, () -> generator.generateBatch(new int[][] {{1}, null}, null));
    }
  }
}
