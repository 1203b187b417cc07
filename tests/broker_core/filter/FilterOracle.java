import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Apache's own filter classes, asked over standard input: a line has an expression and a message's
 * properties, both in base64, the properties as name 0x01 value 0x02. The answer to each line is
 * TRUE, FALSE, UNKNOWN, FAILED, or REFUSED and the first line of the reason in base64.
 */
public class FilterOracle {
    public static void main(String[] words) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", 2);
            answers.append(answer(text(parts[0]), properties(text(parts[1])))).append('\n');
        }
        System.out.print(answers);
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    private static Map<String, String> properties(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text.split("\u0002")) {
            int at = pair.indexOf('\u0001');
            if (at > 0) {
                found.put(pair.substring(0, at), pair.substring(at + 1));
            }
        }
        return found;
    }

    private static String answer(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = new SqlFilter().compile(text);
        } catch (Exception refused) {
            String reason = refused.getMessage().split("\n")[0];
            return "REFUSED " + Base64.getEncoder()
                .encodeToString(reason.getBytes(StandardCharsets.UTF_8));
        }
        try {
            Object value = expression.evaluate(new Properties(properties));
            return value == null ? "UNKNOWN" : value.equals(true) ? "TRUE" : "FALSE";
        } catch (Exception failed) {
            return "FAILED";
        }
    }

    private static class Properties implements EvaluationContext {
        private final Map<String, String> properties;

        Properties(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(properties);
        }
    }
}
