package io.ds;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Nothing of ds.h is missing without a reason, and nothing here was forgotten when it grew. */
class HeaderTest {
  /** Functions that the public classes do not call, and why. */
  private static final Map<String, String> LEFT_OUT = Map.of(
      "ds_last_error_message", "the native layer puts it into every exception",
      "ds_handle_error_message", "an exception carries its message wherever it goes, so nobody needs to ask for it later",
      "ds_string_free", "the native layer frees what it has made Java strings of",
      "ds_allocator_set", "memory of the library cannot come from a Java heap, and its calls would come on threads in the middle"
          + " of a computation: a program with a pool of its own sets it from native code",
      "ds_pinned_allocate", "memory is that of tensors: Tensor.pinned",
      "ds_pinned_free", "the memory goes with its last tensor",
      "ds_pinned_contains", "Tensor.isPinned");

  private static Set<String> declared() throws IOException {
    Set<String> names = new TreeSet<>();
    try (Stream<Path> headers = Files.list(Fixtures.ROOT.resolve("include/ds"))) {
      for (Path header : headers.toList()) {
        String text = Files.readString(header).replaceAll("(?s)/\\*.*?\\*/", "");
        Matcher found = Pattern.compile("DS_API\\s[^;{]*?\\b(ds_\\w+)\\s*\\(").matcher(text);
        while (found.find()) {
          names.add(found.group(1));
        }
      }
    }
    assertTrue(names.size() > 140, names.size() + " functions");
    return names;
  }

  private static String sources() throws IOException {
    try (Stream<Path> files = Files.list(Fixtures.ROOT.resolve("bindings/java/src/main/java/io/ds"))) {
      return files.map(file -> {
        try {
          return Files.readString(file);
        } catch (IOException e) {
          throw new IllegalStateException(e);
        }
      }).collect(Collectors.joining());
    }
  }

  @Test
  void everyFunctionIsReachedOrLeftOutOnPurpose() throws IOException {
    // what the native layer's own helpers stand for
    String all = sources()
        .replaceAll("Native::?\\.?end_(ds_\\w+)", "Native.$1_destroy")
        .replace("Native.start_collective", "Native.ds_comm_start")
        .replace("Native.generate_batch", "Native.ds_generator_generate_batch")
        .replace("Native.run_transfer", "Native.ds_io_run")
        .replace("Native.start_transfer", "Native.ds_io_start")
        .replace("Native.parameter_list_model", "Native.ds_model_create_from_parameters");
    Set<String> reached = new TreeSet<>();
    Matcher used = Pattern.compile("Native(?:JNI)?(?:\\.|::)(ds_\\w+)").matcher(all);
    while (used.find()) {
      reached.add(used.group(1));
    }
    Set<String> declared = declared();
    Set<String> missing = new TreeSet<>(declared);
    missing.removeAll(reached);
    assertEquals(new TreeSet<>(LEFT_OUT.keySet()), missing);
    reached.removeAll(declared);
    assertEquals(Set.of(), reached, "used, but not declared");
  }

  /** Generated classes of constants and the enums that stand for them. */
  private static final Map<Class<?>, Class<?>> ENUMS = Map.ofEntries(
      Map.entry(ds_dtype_code.class, DType.class), Map.entry(ds_device_code.class, DeviceKind.class),
      Map.entry(ds_reduce_code.class, ReduceOp.class), Map.entry(ds_skip_code.class, SkipReason.class),
      Map.entry(ds_scope_mode_code.class, ScopeMode.class), Map.entry(ds_value_code.class, ValueKind.class),
      Map.entry(ds_extent_code.class, Extent.class), Map.entry(ds_weight_form_code.class, WeightForm.class),
      Map.entry(ds_collective_code.class, CollectiveKind.class), Map.entry(ds_log_level.class, LogLevel.class),
      Map.entry(ds_io_backend_code.class, IoBackend.class));

  @Test
  void everyConstantHasItsEnum() throws Exception {
    for (Map.Entry<Class<?>, Class<?>> pair : ENUMS.entrySet()) {
      Set<Integer> expected = new TreeSet<>();
      for (Field constant : pair.getKey().getDeclaredFields()) {
        if (Modifier.isStatic(constant.getModifiers()) && !constant.getName().endsWith("_UNKNOWN")) {
          expected.add(constant.getInt(null));
        }
      }
      Set<Integer> given = new TreeSet<>();
      for (Object one : pair.getValue().getEnumConstants()) {
        Field code = pair.getValue().getDeclaredField("code");
        given.add(code.getInt(one));
      }
      assertEquals(expected, given, pair.getValue().getName());
    }
    assertEquals(ENUMS.size() + 1, generated("enum").size(), "an enum of ds.h is new: " + generated("enum"));
    for (Field status : ds_status_code.class.getDeclaredFields()) {
      int code = status.getInt(null);
      assertTrue(code >= 0 || DsException.of(code, "").getClass() != DsException.class, status.getName());
    }
  }

  private static final Map<Class<?>, Class<?>> RECORDS = Map.ofEntries(
      Map.entry(ds_step_report.class, StepReport.class), Map.entry(ds_tensor_info.class, TensorInfo.class),
      Map.entry(ds_comm_info.class, CommInfo.class), Map.entry(ds_dataset_info.class, DatasetInfo.class),
      Map.entry(ds_tokenizer_info.class, TokenizerInfo.class), Map.entry(ds_model_info.class, ModelInfo.class),
      Map.entry(ds_parameter_info.class, ParameterInfo.class), Map.entry(ds_generator_info.class, GeneratorInfo.class),
      Map.entry(ds_engine_info.class, EngineInfo.class), Map.entry(ds_optimizer_info.class, OptimizerInfo.class),
      Map.entry(ds_io_info.class, IoInfo.class));
  /** Struct members without a component: sizes and fillers; ndim is the length of the lists. */
  private static final Set<String> NO_COMPONENT = Set.of("structSize", "reserved", "ndim");

  private static String camel(String name) {
    Matcher underscore = Pattern.compile("_(.)").matcher(name);
    String made = underscore.replaceAll(found -> found.group(1).toUpperCase(java.util.Locale.ROOT));
    return made.substring(0, 1).toLowerCase(java.util.Locale.ROOT) + made.substring(1);
  }

  @Test
  void everyMemberOfAReportHasItsComponent() throws Exception {
    for (Map.Entry<Class<?>, Class<?>> pair : RECORDS.entrySet()) {
      Set<String> members = new TreeSet<>();
      for (Method method : pair.getKey().getDeclaredMethods()) {
        String member = method.getName().startsWith("get") ? camel(method.getName().substring(3)) : "";
        if (!member.isEmpty() && !member.equals("cPtr") && !NO_COMPONENT.contains(member)) {
          members.add(member);
        }
      }
      Set<String> components = Arrays.stream(pair.getValue().getRecordComponents()).map(RecordComponent::getName).collect(Collectors.toSet());
      assertEquals(members, new TreeSet<>(components), pair.getValue().getName());
    }
    assertEquals(RECORDS.size() + 1, generated("struct").size(), "a struct of ds.h is new: " + generated("struct"));
  }

  /** Names of the generated classes of one kind; ds_generate_options is the struct without a record. */
  private static List<String> generated(String kind) throws IOException {
    Map<String, List<String>> kinds = new HashMap<>();
    try (Stream<Path> files = Files.list(Path.of(System.getProperty("ds.test.generated")))) {
      for (Path file : files.toList()) {
        String name = file.getFileName().toString();
        if (name.startsWith("ds_")) {
          kinds.computeIfAbsent(Files.readString(file).contains("swigCPtr") ? "struct" : "enum", k -> new java.util.ArrayList<>()).add(name);
        }
      }
    }
    return kinds.get(kind);
  }

  @Test
  void onlyTheThinLayerIsPublic() {
    assertFalse(Modifier.isPublic(Native.class.getModifiers()));
    assertFalse(Modifier.isPublic(NativeJNI.class.getModifiers()));
    assertFalse(Modifier.isPublic(ds_step_report.class.getModifiers()));
    assertFalse(Modifier.isPublic(ds_dtype_code.class.getModifiers()));
  }

  @Test
  void theVersionIsTheHeaders() throws IOException {
    int header = Native.header_version();
    assertEquals(header / 1000, Ds.abiVersion() / 1000);
    String version = header / 1000000 + "." + header / 1000 % 1000 + "." + header % 1000;
    assertTrue(Files.readString(Fixtures.ROOT.resolve("bindings/java/pom.xml")).contains("<artifactId>ds</artifactId>\n  <version>" + version + "</version>"),
        "the version of pom.xml is not " + version);
  }
}
