import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Consumption by the message with Apache's push consumer: `setClientRebalance(false)`, and a group
 * that pops. Each step prints "name: what was seen".
 * Arguments: the name server's and the broker's address.
 */
public class PopConsumption {
    private static final long PATIENCE_MS = 120_000;
    private static final String TOPIC = "popped";
    private static final int COUNT = 200;
    private static String nameServer;
    private static String broker;
    private static DefaultMQAdminExt admin;
    private static DefaultMQProducer producer;

    interface Seen {
        ConsumeConcurrentlyStatus see(MessageExt message) throws Exception;
    }

    public static void main(String[] words) throws Exception {
        nameServer = words[0];
        broker = words[1];
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin");
        admin.start();
        producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        createTopic(4);
        shares();
        retries();
        System.exit(0);
    }

    private static void say(String name, Object seen) {
        System.out.println(name + ": " + seen);
    }

    private static void createTopic(int queues) throws Exception {
        TopicConfig topic = new TopicConfig(TOPIC);
        topic.setReadQueueNums(queues);
        topic.setWriteQueueNums(queues);
        admin.createAndUpdateTopicConfig(broker, topic);
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < end) {
            try {
                admin.examineTopicRouteInfo(TOPIC);
                return;
            } catch (Exception missing) {
                Thread.sleep(100);
            }
        }
        throw new IllegalStateException("no route");
    }

    private static void popGroup(String group) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        admin.setMessageRequestMode(broker, TOPIC, group, MessageRequestMode.POP, 0, 3_000);
    }

    private static DefaultMQPushConsumer consumer(String group, String name, Seen seen)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setClientRebalance(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPopInvisibleTime(10_000);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            ConsumeConcurrentlyStatus status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            for (MessageExt message : messages) {
                try {
                    status = seen.see(message);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return status;
        });
        consumer.start();
        return consumer;
    }

    private static void send(String text) throws Exception {
        producer.send(new Message(TOPIC, text.getBytes(StandardCharsets.UTF_8)));
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void until(java.util.function.BooleanSupplier condition) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > end) {
                return;
            }
            Thread.sleep(50);
        }
    }

    /** Two members of a group share the messages of all queues; each comes once. */
    private static void shares() throws Exception {
        popGroup("sharing");
        Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();
        Map<String, AtomicInteger> byMember = new ConcurrentHashMap<>();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (String name : List.of("one", "two")) {
            byMember.put(name, new AtomicInteger());
            members.add(consumer("sharing", name, message -> {
                Thread.sleep(20);
                seen.computeIfAbsent(text(message), key -> new AtomicInteger()).incrementAndGet();
                byMember.get(name).incrementAndGet();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }));
        }
        Thread.sleep(3_000);
        for (int number = 0; number < COUNT; number++) {
            send("share-" + number);
        }
        until(() -> seen.size() == COUNT);
        Thread.sleep(15_000);
        say("shared", seen.size());
        int most = seen.values().stream().mapToInt(AtomicInteger::get).max().orElse(0);
        say("most often", most);
        say("both work", byMember.values().stream().allMatch(count -> count.get() > 0));
        ConsumeStats stats = admin.examineConsumeStats("sharing", TOPIC);
        say("not handed out", stats.computeTotalDiff());
        for (DefaultMQPushConsumer member : members) {
            member.shutdown();
        }
    }

    /** A message whose listener fails comes back, and says how often. */
    private static void retries() throws Exception {
        popGroup("retrying");
        List<Integer> times = Collections.synchronizedList(new ArrayList<>());
        List<String> topics = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer member = consumer("retrying", "three", message -> {
            if (!text(message).equals("again")) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            times.add(message.getReconsumeTimes());
            topics.add(message.getTopic());
            return times.size() < 3
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Thread.sleep(3_000);
        send("again");
        until(() -> times.size() == 3);
        Thread.sleep(5_000);
        say("attempts", times);
        say("topics", new TreeSet<>(topics));
        member.shutdown();
    }
}
