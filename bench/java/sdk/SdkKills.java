import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The load of kill_sdk.py by Apache's client of version 5 for Java. It goes on until it is ended.
 *
 * <p>{@code send}: each thread sends numbered messages, each number once, and notes what was confirmed as
 * {@code sent NUMBER MILLIS}. {@code receive}: each thread notes {@code got NUMBER MILLIS}, acknowledges, and
 * notes {@code acked NUMBER MILLIS} when that was confirmed. A line is with the operating system before the
 * next step. Arguments: the verb, the endpoint, the topic, the group, the file, threads, pause in
 * milliseconds, and the thread's first number in steps of 10^9.
 */
public final class SdkKills {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration INVISIBLE = Duration.ofSeconds(10);
    private static final Duration WAIT = Duration.ofSeconds(5);
    private static final long STRIDE = 1_000_000_000L;
    private final FileWriter file;
    private final long pause;

    private SdkKills(String path, long pause) throws IOException {
        file = new FileWriter(path, StandardCharsets.US_ASCII, true);
        this.pause = pause;
    }

    public static void main(String[] words) throws Exception {
        SdkKills kills = new SdkKills(words[4], Long.parseLong(words[6]));
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(words[1]).setRequestTimeout(Duration.ofSeconds(5)).build();
        Runnable[] lanes = new Runnable[Integer.parseInt(words[5])];
        if (words[0].equals("send")) {
            Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(words[2]).setMaxAttempts(1).build();
            for (int at = 0; at < lanes.length; at++) {
                long first = at * STRIDE;
                lanes[at] = () -> kills.send(producer, words[2], first);
            }
        } else {
            SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration).setConsumerGroup(words[3])
                .setAwaitDuration(WAIT)
                .setSubscriptionExpressions(Map.of(words[2], FilterExpression.SUB_ALL)).build();
            Arrays.fill(lanes, (Runnable) () -> kills.receive(consumer));
        }
        List<Thread> threads = new ArrayList<>();
        for (Runnable lane : lanes) {
            Thread thread = new Thread(lane);
            thread.start();
            threads.add(thread);
        }
        System.out.println("ready");
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private synchronized void note(String what, long number) {
        try {
            file.write(what + " " + number + " " + System.currentTimeMillis() + "\n");
            file.flush();
        } catch (IOException full) {
            throw new UncheckedIOException(full);
        }
    }

    private static void rest(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    private void send(Producer producer, String topic, long first) {
        for (long number = first;; number++) {
            byte[] body = Long.toString(number).getBytes(StandardCharsets.US_ASCII);
            try {
                producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build());
                note("sent", number);
            } catch (Exception refused) { // of the broker, or of gRPC while the broker is dead
                rest(20);
            }
            rest(pause);
        }
    }

    private void receive(SimpleConsumer consumer) {
        while (true) {
            try {
                for (MessageView view : consumer.receive(16, INVISIBLE)) {
                    long number = Long.parseLong(StandardCharsets.US_ASCII.decode(view.getBody()).toString());
                    note("got", number);
                    acknowledge(consumer, view, number);
                }
            } catch (Exception refused) {
                rest(50);
            }
        }
    }

    private void acknowledge(SimpleConsumer consumer, MessageView view, long number) {
        try {
            consumer.ack(view);
            note("acked", number);
        } catch (Exception refused) { // the message comes back
            rest(5);
        }
    }
}
