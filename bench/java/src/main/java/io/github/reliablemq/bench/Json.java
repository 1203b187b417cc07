package io.github.reliablemq.bench;

import java.util.Locale;
import java.util.Map;
import java.util.StringJoiner;

/** One JSON object on one line: numbers and texts, as many as a result has. */
final class Json {
    private Json() {
    }

    static String line(Map<String, ?> members) {
        StringJoiner text = new StringJoiner(", ", "{", "}");
        members.forEach((name, value) -> text.add(quoted(name) + ": " + valueOf(value)));
        return text.toString();
    }

    private static String valueOf(Object value) {
        if (value instanceof Double number) {
            return String.format(Locale.ROOT, "%.3f", number);
        }
        return value instanceof Number ? value.toString() : quoted(String.valueOf(value));
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                out.append('\\').append(letter);
            } else if (letter < ' ' || letter > '~') {
                out.append(String.format("\\u%04x", (int) letter));
            } else {
                out.append(letter);
            }
        }
        return out.append('"').toString();
    }
}
