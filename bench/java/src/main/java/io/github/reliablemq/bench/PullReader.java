package io.github.reliablemq.bench;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads every queue of a topic from its lowest offset to its highest by explicit pulls, writes each
 * message in the order of its queue, and prints one JSON line. No group offset, lock or rebalance takes
 * part: what it prints is what the broker holds.
 */
@SuppressWarnings("deprecation") // the one client of Apache's that reads a queue by offset and nothing else
public final class PullReader {
    private static final Map<String, String> DEFAULTS = new LinkedHashMap<>();

    static {
        DEFAULTS.put("namesrv", "");
        DEFAULTS.put("topic", "bench");
        DEFAULTS.put("group", "bench_reader");
        DEFAULTS.put("found", ""); // file of what was read
    }

    private PullReader() {
    }

    public static void main(String[] words) throws Exception {
        Arguments options = Arguments.parse(DEFAULTS, words);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        long messages = 0;
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(options.text("topic")));
        queues.sort(Comparator.comparingInt(MessageQueue::getQueueId));
        try (PositionFile found = new PositionFile(Path.of(options.text("found")))) {
            for (MessageQueue queue : queues) {
                messages += read(consumer, queue, found);
            }
        } finally {
            consumer.shutdown();
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("queues", queues.size());
        result.put("messages", messages);
        System.out.println(Json.line(result));
        System.exit(0); // the client leaves threads behind that are no daemons
    }

    private static long read(DefaultMQPullConsumer consumer, MessageQueue queue, PositionFile found)
            throws Exception {
        long messages = 0;
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        while (offset < end) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + offset + " of " + end + ": " + result);
            }
            for (MessageExt message : result.getMsgFoundList()) {
                found.write(queue.getQueueId(), message.getQueueOffset(), message.getMsgId(),
                        NumberedBody.numberOf(message.getBody()));
                messages++;
            }
            offset = result.getNextBeginOffset();
        }
        return messages;
    }
}
