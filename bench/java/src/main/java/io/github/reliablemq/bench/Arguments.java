package io.github.reliablemq.bench;

import java.util.LinkedHashMap;
import java.util.Map;

/** Command line of the form {@code --name value --name value}; an unknown name is an error. */
final class Arguments {
    private final Map<String, String> values;

    private Arguments(Map<String, String> values) {
        this.values = values;
    }

    /** The defaults, overridden by what {@code words} names. */
    static Arguments parse(Map<String, String> defaults, String[] words) {
        return new Arguments(defaults).with(words);
    }

    /** A copy of these values, overridden by what {@code words} names. */
    Arguments with(String[] words) {
        if (words.length % 2 != 0) {
            throw new IllegalArgumentException("options come in pairs: --name value");
        }
        Map<String, String> merged = new LinkedHashMap<>(values);
        for (int at = 0; at < words.length; at += 2) {
            String name = words[at].replaceFirst("^--", "");
            if (!merged.containsKey(name)) {
                throw new IllegalArgumentException("no option --" + name + "; there are " + merged.keySet());
            }
            merged.put(name, words[at + 1]);
        }
        return new Arguments(merged);
    }

    String text(String name) {
        String value = values.get(name);
        if (value.isEmpty()) {
            throw new IllegalArgumentException("--" + name + " is required");
        }
        return value;
    }

    boolean has(String name) {
        return !values.get(name).isEmpty();
    }

    int number(String name) {
        return Integer.parseInt(text(name));
    }

    long nanoseconds(String name) {
        return (long) (Double.parseDouble(text(name)) * 1e9);
    }
}
