package io.github.reliablemq.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Sends numbered messages from many threads over one producer, and prints one JSON line per round.
 *
 * <p>Without {@code --rounds stdin} there is one round. With it, every line of standard input holds the
 * options of a further round, and the program ends at end of input: the JVM stays warm between rounds.
 */
public final class Sender {
    private static final Map<String, String> DEFAULTS = new LinkedHashMap<>();

    static {
        DEFAULTS.put("namesrv", "");
        DEFAULTS.put("topic", "bench");
        DEFAULTS.put("group", "bench_sender");
        DEFAULTS.put("threads", "16");
        DEFAULTS.put("body", "1024");
        DEFAULTS.put("batch", "1");
        DEFAULTS.put("count", "0"); // messages of a round; 0: as many as --seconds allows
        DEFAULTS.put("warmup", "0"); // seconds before the measured part
        DEFAULTS.put("seconds", "10");
        DEFAULTS.put("retries", "2");
        DEFAULTS.put("send_timeout", "3000"); // milliseconds, of a send with all its tries
        DEFAULTS.put("acknowledged", ""); // file of the acknowledged messages
        DEFAULTS.put("access_key", ""); // a user of a broker with access control
        DEFAULTS.put("secret_key", "");
        DEFAULTS.put("rounds", "one"); // one | stdin
    }

    private final DefaultMQProducer producer;
    private final PositionFile acknowledged;
    private final Map<Integer, Long> nextNumbers = new LinkedHashMap<>();

    private Sender(DefaultMQProducer producer, PositionFile acknowledged) {
        this.producer = producer;
        this.acknowledged = acknowledged;
    }

    public static void main(String[] words) throws Exception {
        Arguments options = Arguments.parse(DEFAULTS, words);
        RPCHook signs = options.has("access_key") ? new AclClientRPCHook(
            new SessionCredentials(options.text("access_key"), options.text("secret_key"))) : null;
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group"), signs);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(options.number("send_timeout"));
        producer.setRetryTimesWhenSendFailed(options.number("retries"));
        producer.start();
        try (PositionFile file = options.has("acknowledged")
                ? new PositionFile(Path.of(options.text("acknowledged"))) : null) {
            Sender sender = new Sender(producer, file);
            if (options.text("rounds").equals("stdin")) {
                sender.roundsFromInput(options);
            } else {
                System.out.println(sender.round(options));
            }
        } finally {
            producer.shutdown();
        }
        System.exit(0); // the client leaves threads behind that are no daemons
    }

    private void roundsFromInput(Arguments options) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String words = line.strip();
            System.out.println(round(words.isEmpty() ? options : options.with(words.split("\\s+"))));
        }
    }

    private String round(Arguments options) throws InterruptedException {
        Round round = new Round(options);
        List<Lane> lanes = new ArrayList<>();
        for (int thread = 0; thread < options.number("threads"); thread++) {
            Lane lane = new Lane(round, nextNumbers.getOrDefault(thread, thread * NumberedBody.THREAD_STRIDE));
            lane.setName("sender-" + thread);
            lanes.add(lane);
        }
        lanes.forEach(Thread::start);
        for (int thread = 0; thread < lanes.size(); thread++) {
            lanes.get(thread).join();
            nextNumbers.put(thread, lanes.get(thread).number);
        }
        return round.summary(lanes);
    }

    /** What all threads of one round share. */
    private static final class Round {
        final String topic;
        final int bodySize;
        final int batch;
        final long from;
        final long until;
        final AtomicLong left;
        final AtomicReference<String> firstError = new AtomicReference<>("");

        Round(Arguments options) {
            topic = options.text("topic");
            bodySize = options.number("body");
            batch = options.number("batch");
            long count = options.number("count");
            left = new AtomicLong(count > 0 ? count : Long.MAX_VALUE);
            from = System.nanoTime() + options.nanoseconds("warmup");
            until = count > 0 ? Long.MAX_VALUE : from + options.nanoseconds("seconds");
        }

        /** How many messages the next send may carry; 0 when the round is over. */
        int take() {
            if (System.nanoTime() >= until) {
                return 0;
            }
            long before = left.getAndAdd(-batch);
            return (int) Math.max(0, Math.min(batch, before));
        }

        String summary(List<Lane> lanes) {
            long messages = lanes.stream().mapToLong(lane -> lane.messages).sum();
            long end = Math.min(until, lanes.stream().mapToLong(lane -> lane.lastReply).max().orElse(from));
            double seconds = Math.max(1, end - from) / 1e9;
            long[] sorted = Latencies.sorted(lanes.stream().map(lane -> lane.latencies).toList());
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("threads", lanes.size());
            result.put("batch", batch);
            result.put("body", bodySize);
            result.put("messages", messages);
            result.put("seconds", seconds);
            result.put("per_second", messages / seconds);
            result.put("p50_ms", Latencies.quantile(sorted, 0.5));
            result.put("p99_ms", Latencies.quantile(sorted, 0.99));
            result.put("p999_ms", Latencies.quantile(sorted, 0.999));
            result.put("errors", lanes.stream().mapToLong(lane -> lane.errors).sum());
            result.put("first_error", firstError.get());
            return Json.line(result);
        }
    }

    /** One sending thread. Fields are read after it has ended. */
    private final class Lane extends Thread {
        private final Round round;
        private final Latencies latencies = new Latencies();
        private long number;
        private long messages;
        private long errors;
        private long lastReply;

        Lane(Round round, long firstNumber) {
            this.round = round;
            this.number = firstNumber;
        }

        @Override
        public void run() {
            for (int size = round.take(); size > 0; size = round.take()) {
                long first = number;
                number += size;
                long start = System.nanoTime();
                try {
                    SendResult result = send(first, size);
                    long end = System.nanoTime();
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        throw new IllegalStateException("status " + result.getSendStatus());
                    }
                    note(result, first, size);
                    if (end >= round.from && end <= round.until) {
                        messages += size;
                        latencies.add(end - start);
                        lastReply = end;
                    }
                } catch (Exception refused) {
                    errors++;
                    round.firstError.compareAndSet("", refused.toString());
                    pauseAfterError();
                }
            }
        }

        private SendResult send(long first, int size) throws Exception {
            if (round.batch == 1) {
                return producer.send(new Message(round.topic, NumberedBody.of(first, round.bodySize)));
            }
            List<Message> batch = new ArrayList<>(size);
            for (int at = 0; at < size; at++) {
                batch.add(new Message(round.topic, NumberedBody.of(first + at, round.bodySize)));
            }
            return producer.send(batch);
        }

        private void note(SendResult result, long first, int size) throws IOException {
            if (acknowledged == null) {
                return;
            }
            String[] messageIds = result.getMsgId().split(",");
            int queueId = result.getMessageQueue().getQueueId();
            for (int at = 0; at < size; at++) {
                acknowledged.write(queueId, result.getQueueOffset() + at, messageIds[at], first + at);
            }
        }

        /** A dead broker refuses at once: without a pause the thread would only spin. */
        private void pauseAfterError() {
            try {
                Thread.sleep(20);
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
