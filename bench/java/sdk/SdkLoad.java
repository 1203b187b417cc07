import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The rounds of bench/rival_rounds.py by Apache's client of version 5 for Java: orders come as lines of
 * JSON on standard input, figures go back. The JVM stays warm between them.
 * Arguments: the endpoint and the topic.
 */
public final class SdkLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration INVISIBLE = Duration.ofSeconds(60);
    private static final Duration WAIT = Duration.ofSeconds(3);
    private static final long START_MILLIS_MAX = 60_000;
    private static final int RECEIVE = 32;
    private final byte[] body = new byte[1024];
    private final String topic;
    private final Producer producer;
    private final SimpleConsumer consumer;

    private interface Work {
        void run() throws Exception;
    }

    private SdkLoad(String endpoint, String topic) throws ClientException {
        this.topic = topic;
        Arrays.fill(body, (byte) 'x');
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoint).setRequestTimeout(Duration.ofSeconds(10)).build();
        producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic).build();
        consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup("sdk-readers")
            .setAwaitDuration(WAIT)
            .setSubscriptionExpressions(Map.of(topic + "-backlog", FilterExpression.SUB_ALL))
            .build();
    }

    public static void main(String[] words) throws Exception {
        SdkLoad load = new SdkLoad(words[0], words[1]);
        System.out.println("{}");
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String verb = found(line, "\"do\": \"(\\w+)\"", "");
            int lanes = Integer.parseInt(found(line, "\"lanes\": (\\d+)", "1"));
            System.out.println(switch (verb) {
                case "prepare" -> load.prepare();
                case "threads" ->
                    load.threads(lanes, Double.parseDouble(found(line, "\"seconds\": ([\\d.]+)", "")));
                case "receive" ->
                    load.receive(lanes, Integer.parseInt(found(line, "\"backlog\": (\\d+)", "")));
                default -> throw new IllegalArgumentException(line);
            });
        }
        System.exit(0); // the client leaves threads behind that are no daemons
    }

    private static String found(String line, String pattern, String otherwise) {
        Matcher matcher = Pattern.compile(pattern).matcher(line);
        return matcher.find() ? matcher.group(1) : otherwise;
    }

    /** Let the consumer's group begin where its topic ends now. */
    private String prepare() throws Exception {
        long deadline = System.currentTimeMillis() + START_MILLIS_MAX;
        while (true) {
            try {
                if (receiveSome() == 0) {
                    return "{}";
                }
            } catch (ClientException early) { // the endpoint has not yet taken in what it was told
                if (System.currentTimeMillis() > deadline) {
                    throw early;
                }
                Thread.sleep(100);
            }
        }
    }

    private int receiveSome() throws ClientException {
        List<MessageView> views = consumer.receive(RECEIVE, INVISIBLE);
        for (MessageView view : views) {
            consumer.ack(view);
        }
        return views.size();
    }

    /** Send one message after the other from each of so many threads. */
    private String threads(int lanes, double seconds) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicInteger errors = new AtomicInteger();
        long begun = System.nanoTime();
        long end = begun + (long) (seconds * 1e9);
        inLanes(lanes, () -> {
            while (System.nanoTime() < end) {
                try {
                    producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build());
                    count.incrementAndGet();
                } catch (ClientException refused) {
                    errors.incrementAndGet();
                }
            }
        });
        return figures(count.get(), System.nanoTime() - begun, errors.get());
    }

    /** Receive what was sent before, and acknowledge each message, in so many threads. */
    private String receive(int lanes, int backlog) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicInteger errors = new AtomicInteger();
        AtomicLong last = new AtomicLong();
        long begun = System.nanoTime();
        inLanes(lanes, () -> {
            while (count.get() < backlog) {
                try {
                    for (MessageView view : consumer.receive(RECEIVE, INVISIBLE)) {
                        consumer.ack(view);
                        count.incrementAndGet();
                        last.accumulateAndGet(System.nanoTime(), Math::max);
                    }
                } catch (ClientException refused) {
                    errors.incrementAndGet();
                }
            }
        });
        return figures(count.get(), last.get() - begun, errors.get());
    }

    private static void inLanes(int lanes, Work work) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < lanes; number++) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static String figures(long count, long nanoseconds, int errors) {
        return String.format(Locale.ROOT, "{\"count\": %d, \"per_second\": %.1f, \"errors\": %d}",
            count, count / (nanoseconds / 1e9), errors);
    }
}
