package io.github.reliablemq.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes a topic from its beginning until {@code --count} messages have come, or none came for
 * {@code --idle} seconds; then prints one JSON line. The time runs from the first message to the last.
 *
 * <p>With {@code --rounds stdin} every line of standard input holds the options of a round, each with a
 * consumer of its own, and the program ends at end of input: the JVM stays warm between rounds.
 *
 * <p>The client's first rebalance, a second after its start, gives its subscription a new version and
 * says so in a heartbeat, which is left out while the periodic one, a second after the start as well,
 * is under way. Then every broker refuses its pulls until the next heartbeat, 30 seconds later.
 */
public final class PushConsumer {
    private static final Map<String, String> DEFAULTS = new LinkedHashMap<>();

    static {
        DEFAULTS.put("namesrv", "");
        DEFAULTS.put("topic", "bench");
        DEFAULTS.put("group", "bench_consumer");
        DEFAULTS.put("tag", "*");
        DEFAULTS.put("listener", "concurrent"); // concurrent | ordered
        DEFAULTS.put("count", "0"); // messages to wait for; 0: until idle
        DEFAULTS.put("idle", "60"); // seconds: twice its heartbeats' interval, see above
        DEFAULTS.put("linger", "0"); // seconds to go on after --count, to see a message that comes twice
        DEFAULTS.put("received", ""); // file of what came
        DEFAULTS.put("mode", "pull"); // pull | pop: the broker shares messages, its group needs the mode POP
        DEFAULTS.put("invisible", "60"); // seconds for which a popped message is handed out
        DEFAULTS.put("rounds", "one"); // one | stdin
    }

    private final AtomicLong messages = new AtomicLong();
    private final AtomicLong bytes = new AtomicLong();
    private final AtomicLong firstAt = new AtomicLong();
    private final AtomicLong lastAt = new AtomicLong();
    private final PositionFile received;

    private PushConsumer(PositionFile received) {
        this.received = received;
    }

    public static void main(String[] words) throws Exception {
        Arguments options = Arguments.parse(DEFAULTS, words);
        try (PositionFile file = options.has("received")
                ? new PositionFile(Path.of(options.text("received"))) : null) {
            if (options.text("rounds").equals("stdin")) {
                roundsFromInput(options, file);
            } else {
                new PushConsumer(file).run(options);
            }
        }
        System.exit(0); // the client leaves threads behind that are no daemons
    }

    private static void roundsFromInput(Arguments options, PositionFile file) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            new PushConsumer(file).run(options.with(line.strip().split("\\s+")));
        }
    }

    private void run(Arguments options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.setClientRebalance(!options.text("mode").equals("pop"));
        consumer.setPopInvisibleTime(options.nanoseconds("invisible") / 1_000_000);
        consumer.subscribe(options.text("topic"), options.text("tag"));
        switch (options.text("listener")) {
            case "concurrent" -> consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                note(batch);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            case "ordered" -> consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                note(batch);
                return ConsumeOrderlyStatus.SUCCESS;
            });
            default -> throw new IllegalArgumentException("--listener is concurrent or ordered");
        }
        lastAt.set(System.nanoTime());
        consumer.start();
        waitForTheEnd(options);
        String summary = summary();
        consumer.shutdown();
        System.out.println(summary);
    }

    private void note(List<MessageExt> batch) {
        firstAt.compareAndSet(0, System.nanoTime());
        try {
            for (MessageExt message : batch) {
                bytes.addAndGet(message.getBody().length);
                if (received != null) {
                    received.write(message.getQueueId(), message.getQueueOffset(), message.getMsgId(),
                            NumberedBody.numberOf(message.getBody()));
                }
            }
        } catch (IOException full) {
            throw new UncheckedIOException(full);
        }
        lastAt.set(System.nanoTime());
        messages.addAndGet(batch.size());
    }

    private void waitForTheEnd(Arguments options) throws InterruptedException {
        long count = options.number("count");
        long idle = options.nanoseconds("idle");
        while (System.nanoTime() - lastAt.get() < idle && (count == 0 || messages.get() < count)) {
            Thread.sleep(5);
        }
        Thread.sleep(options.nanoseconds("linger") / 1_000_000);
    }

    private String summary() {
        double seconds = Math.max(1, lastAt.get() - firstAt.get()) / 1e9;
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("messages", messages.get());
        result.put("bytes", bytes.get());
        result.put("seconds", seconds);
        result.put("per_second", messages.get() / seconds);
        return Json.line(result);
    }
}
