package io.ds;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Just enough JSON (RFC 8259) to write configurations and read reports without another library. Objects are {@code Map<String,
 * Object>} in their order, lists {@code List<Object>}, whole numbers {@code Long}, others {@code Double}, null is null.
 */
public final class Json {
  private static final int DEEPEST = 200;

  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  /**
   * Reads a document.
   *
   * @param text JSON
   * @return a Map, List, String, Long, Double, Boolean or null
   * @throws IllegalArgumentException says what is wrong and at which character
   */
  public static Object parse(String text) {
    Json reader = new Json(text);
    Object value = reader.value(0);
    reader.space();
    if (reader.at < text.length()) {
      throw reader.wrong("nothing more");
    }
    return value;
  }

  /**
   * Reads a document that is an object.
   *
   * @param text JSON
   * @return its members
   * @throws IllegalArgumentException when it is something else
   */
  @SuppressWarnings("unchecked")
  public static Map<String, Object> parseObject(String text) {
    if (parse(text) instanceof Map<?, ?> object) {
      return (Map<String, Object>) object;
    }
    throw new IllegalArgumentException("the JSON document is not an object");
  }

  /**
   * Writes a value.
   *
   * @param value a Map, Iterable, CharSequence, Boolean, finite number or null
   * @return JSON on one line
   */
  public static String write(Object value) {
    StringBuilder out = new StringBuilder();
    write(value, out);
    return out.toString();
  }

  private static void write(Object value, StringBuilder out) {
    if (value instanceof Map<?, ?> object) {
      String before = "{";
      for (Map.Entry<?, ?> member : object.entrySet()) {
        out.append(before);
        string(String.valueOf(member.getKey()), out);
        out.append(": ");
        write(member.getValue(), out);
        before = ", ";
      }
      out.append(object.isEmpty() ? "{}" : "}");
    } else if (value instanceof Iterable<?> list) {
      String before = "";
      out.append('[');
      for (Object one : list) {
        out.append(before);
        write(one, out);
        before = ", ";
      }
      out.append(']');
    } else if (value instanceof CharSequence) {
      string(value.toString(), out);
    } else if (value == null || value instanceof Boolean || value instanceof Number number && Double.isFinite(number.doubleValue())) {
      out.append(value);
    } else {
      throw new IllegalArgumentException("JSON has no " + (value instanceof Number ? value : value.getClass().getName()));
    }
  }

  private static void string(String text, StringBuilder out) {
    out.append('"');
    for (int i = 0; i < text.length(); ++i) {
      char c = text.charAt(i);
      switch (c) {
        case '"', '\\' -> out.append('\\').append(c);
        case '\n' -> out.append("\\n");
        case '\r' -> out.append("\\r");
        case '\t' -> out.append("\\t");
        default -> {
          if (c < ' ') {
            out.append(String.format("\\u%04x", (int) c));
          } else {
            out.append(c);
          }
        }
      }
    }
    out.append('"');
  }

  private IllegalArgumentException wrong(String expected) {
    String found = at < text.length() ? "'" + text.charAt(at) + "'" : "the end";
    return new IllegalArgumentException("JSON, character " + at + ": " + expected + " expected, found " + found);
  }

  private void space() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      ++at;
    }
  }

  private boolean take(char c) {
    space();
    if (at < text.length() && text.charAt(at) == c) {
      ++at;
      return true;
    }
    return false;
  }

  private void need(char c) {
    if (!take(c)) {
      throw wrong("'" + c + "'");
    }
  }

  private Object value(int depth) {
    if (depth > DEEPEST) {
      throw wrong("less than " + DEEPEST + " levels");
    }
    space();
    if (take('{')) {
      return object(depth);
    }
    if (take('[')) {
      return list(depth);
    }
    if (at < text.length() && text.charAt(at) == '"') {
      return string();
    }
    for (String word : List.of("true", "false", "null")) {
      if (text.startsWith(word, at)) {
        at += word.length();
        return word.equals("null") ? null : Boolean.valueOf(word);
      }
    }
    return number();
  }

  private Map<String, Object> object(int depth) {
    Map<String, Object> members = new LinkedHashMap<>();
    if (take('}')) {
      return members;
    }
    do {
      space();
      String key = string();
      need(':');
      members.put(key, value(depth + 1));
    } while (take(','));
    need('}');
    return members;
  }

  private List<Object> list(int depth) {
    List<Object> values = new ArrayList<>();
    if (take(']')) {
      return values;
    }
    do {
      values.add(value(depth + 1));
    } while (take(','));
    need(']');
    return values;
  }

  private String string() {
    need('"');
    StringBuilder out = new StringBuilder();
    while (at < text.length()) {
      char c = text.charAt(at);
      if (c < ' ') {
        throw wrong("an escape for a control character");
      }
      ++at;
      if (c == '"') {
        return out.toString();
      }
      out.append(c == '\\' ? escaped() : c);
    }
    throw wrong("'\"'");
  }

  private char escaped() {
    char c = at < text.length() ? text.charAt(at++) : ' ';
    switch (c) {
      case '"', '\\', '/':
        return c;
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        if (at + 4 <= text.length() && text.substring(at, at + 4).matches("[0-9a-fA-F]{4}")) {
          at += 4;
          return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        }
        throw wrong("four hexadecimal digits");
      default:
        --at;
        throw wrong("an escape");
    }
  }

  private static final java.util.regex.Pattern NUMBER =
      java.util.regex.Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");

  private Object number() {
    var matcher = NUMBER.matcher(text).region(at, text.length());
    if (!matcher.lookingAt()) {
      throw wrong("a value");
    }
    at = matcher.end();
    if (matcher.group(2) == null && matcher.group(3) == null) {
      try {
        return Long.valueOf(matcher.group());
      } catch (NumberFormatException e) {
        // beyond 64 bits: the nearest double
      }
    }
    return Double.valueOf(matcher.group());
  }
}
