package io.ds;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class JsonTest {
  @Test
  void whatIsWrittenIsRead() {
    Map<String, Object> document = Map.of("list", List.of(1L, 2.5, true, "a\"\\\n\u0001\uD83D\uDE00"), "empty", Map.of());
    assertEquals(document, Json.parse(Json.write(document)));
  }

  @Test
  void readsEveryKindOfValue() {
    assertEquals(Map.of("a", List.of(-0.5e3, 7L, false, List.of(), "\u00e9\uD83D\uDE00/")),
        Json.parse(" {\"a\" : [-0.5e3, 7, false, [ ], \"\\u00e9\\ud83d\\ude00\\/\"] } "));
    assertEquals(1e30, Json.parse("1000000000000000000000000000000"));
    assertEquals(null, Json.parse("null"));
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "{", "[1,]", "{\"a\" 1}", "01", "1 2", "\"\n\"", "\"\\x\"", "tru", "\"open", "{1: 2}", "\"\\u12g4\""})
  void damageIsAnErrorWithItsPlace(String text) {
    IllegalArgumentException error = assertThrows(IllegalArgumentException.class, () -> Json.parse(text));
    assertTrue(error.getMessage().startsWith("JSON, character "), error.getMessage());
  }

  @Test
  void depthIsLimited() {
    assertThrows(IllegalArgumentException.class, () -> Json.parse("[".repeat(100_000)));
  }

  @Test
  void numbersThatJsonLacksAreRefused() {
    assertThrows(IllegalArgumentException.class, () -> Json.write(Double.NaN));
    assertThrows(IllegalArgumentException.class, () -> Json.parseObject("[]"));
  }
}
