import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * A member of a consumer group that joins and leaves as it is told, and tells what it gets.
 *
 * Arguments: name servers, group, topic, "ordered", "concurrent" or "broadcast", and perhaps the
 * host that the client says it is on. Each line of the input is answered by one line:
 *   join     "joined"
 *   leave    "left", when nothing runs any more and its offsets are committed
 *   queues   "queues BROKER:ID ...", the queues that are its own now
 * Between them stands a line for each message: "got BROKER:ID OFFSET BODY BEGUN ENDED", in
 * milliseconds since the epoch.
 */
public class Member {
    private static final String INSTANCE = "member";
    private static final long HANDLING_MS = 2;
    private static final long LEAVING_MS_MAX = 10_000;
    private static final PrintStream OUT =
        new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static String[] words;
    private static DefaultMQPushConsumer consumer;

    public static void main(String[] arguments) throws Exception {
        words = arguments;
        // With it the connections stay when the consumer leaves, which else takes seconds.
        DefaultMQProducer anchor = new DefaultMQProducer("anchor");
        anchor.setNamesrvAddr(words[0]);
        anchor.setInstanceName(INSTANCE);
        if (words.length > 4) {
            anchor.setClientIP(words[4]);
        }
        anchor.start();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            switch (line) {
                case "join":
                    join();
                    OUT.println("joined");
                    break;
                case "leave":
                    consumer.shutdown();
                    consumer = null;
                    OUT.println("left");
                    break;
                default:
                    OUT.println("queues" + queues());
            }
        }
        System.exit(0);
    }

    private static void join() throws Exception {
        consumer = new DefaultMQPushConsumer(words[1]);
        consumer.setNamesrvAddr(words[0]);
        consumer.setInstanceName(INSTANCE);
        if (words.length > 4) {
            consumer.setClientIP(words[4]);
        }
        if (words[3].equals("broadcast")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(LEAVING_MS_MAX);
        consumer.subscribe(words[2], "*");
        if (words[3].equals("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                handle(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                handle(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
    }

    private static void handle(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            long begun = System.currentTimeMillis();
            try {
                Thread.sleep(HANDLING_MS);
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
            OUT.println(String.join(" ", "got",
                message.getBrokerName() + ":" + message.getQueueId(),
                String.valueOf(message.getQueueOffset()),
                new String(message.getBody(), StandardCharsets.UTF_8),
                String.valueOf(begun), String.valueOf(System.currentTimeMillis())));
        }
    }

    private static String queues() {
        if (consumer == null) {
            return "";
        }
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .entrySet().stream()
            .filter(entry -> entry.getKey().getTopic().equals(words[2]))
            .filter(entry -> !entry.getValue().isDropped())
            .map(entry -> " " + entry.getKey().getBrokerName() + ":" + entry.getKey().getQueueId())
            .collect(Collectors.joining());
    }
}
