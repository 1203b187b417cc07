import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What consumers meet at a broker, step by step with Apache's client and tools: each step prints
 * "name: what was seen". Arguments: the name server's and the broker's address.
 */
public class Consumption {
    private static final long PATIENCE_MS = 120_000;
    private static String nameServer;
    private static String broker;
    private static DefaultMQAdminExt admin;
    private static DefaultMQProducer producer;

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
        filter();
        badFilter();
        retries();
        resets();
        toldReset();
        orderedTopic();
        System.exit(0);
    }

    private static void say(String name, Object seen) {
        System.out.println(name + ": " + seen);
    }

    private static void createTopic(String name, int queues) throws Exception {
        TopicConfig topic = new TopicConfig(name);
        topic.setReadQueueNums(queues);
        topic.setWriteQueueNums(queues);
        admin.createAndUpdateTopicConfig(broker, topic);
        await(() -> admin.examineTopicRouteInfo(name) != null);
    }

    private static void send(String topic, int number) throws Exception {
        Message message = new Message(topic, String.valueOf(number).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", String.valueOf(number));
        message.putUserProperty("color", number % 2 == 0 ? "red" : "blue");
        producer.send(message);
    }

    private static void await(Callable<Boolean> condition) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < end) {
            try {
                if (condition.call()) {
                    return;
                }
            } catch (MQClientException | MQBrokerException | NoSuchElementException notYet) {
                // asked again
            }
            Thread.sleep(20);
        }
    }

    private static DefaultMQPushConsumer consumer(String group, List<MessageExt> seen) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            seen.addAll(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static TreeSet<Integer> numbers(List<MessageExt> messages) {
        TreeSet<Integer> numbers = new TreeSet<>();
        synchronized (messages) {
            messages.forEach(message -> numbers.add(Integer.valueOf(new String(message.getBody()))));
        }
        return numbers;
    }

    private static List<MessageExt> list() {
        return Collections.synchronizedList(new ArrayList<>());
    }

    private static void filter() throws Exception {
        createTopic("filtered", 2);
        for (int number = 0; number < 40; number++) {
            send("filtered", number);
        }
        List<MessageExt> seen = list();
        DefaultMQPushConsumer consumer = consumer("choosers", seen);
        consumer.subscribe("filtered",
            MessageSelector.bySql("(number BETWEEN 10 AND 19 OR number >= 100) AND color = 'red'"));
        consumer.start();
        await(() -> seen.size() >= 5);
        for (int number = 98; number < 104; number++) {
            send("filtered", number);
        }
        await(() -> seen.size() >= 7);
        consumer.shutdown();
        say("filter", numbers(seen) + " of " + seen.size());
    }

    private static void badFilter() throws Exception {
        for (String text : List.of("number >", "number = NULL", "number = 1 AND 2", "color > 'red'")) {
            DefaultMQPushConsumer consumer = consumer("bad_choosers", list());
            consumer.subscribe("filtered", MessageSelector.bySql(text));
            try {
                consumer.start();
                say("bad filter " + text, "started");
            } catch (MQClientException refused) {
                String[] parts = String.valueOf(refused.getMessage()).split("DESC: ");
                say("bad filter " + text, parts[parts.length - 1].split("\n|BROKER")[0].strip());
            }
            consumer.shutdown();
        }
    }

    private static void retries() throws Exception {
        createTopic("failing", 1);
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("unlucky");
        group.setRetryQueueNums(2);
        admin.createAndUpdateSubscriptionGroupConfig(broker, group);
        DefaultMQPushConsumer first = consumer("unlucky", list());
        first.subscribe("failing", "*");
        first.start(); // a broker makes the group's retry topic when it hears of the group
        await(() -> admin.examineTopicRouteInfo("%RETRY%unlucky") != null);
        first.shutdown();
        send("failing", 1);
        List<MessageExt> seen = list();
        DefaultMQPushConsumer consumer = consumer("unlucky", seen);
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            seen.addAll(batch);
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.subscribe("failing", "*");
        consumer.start();
        List<MessageExt> dead = new ArrayList<>();
        await(() -> seen.size() >= 2);
        await(() -> admin.examineTopicRouteInfo("%DLQ%unlucky") != null);
        await(() -> dead.addAll(pulled("%DLQ%unlucky")) && !dead.isEmpty());
        consumer.shutdown();
        List<Integer> attempts = new ArrayList<>();
        TreeSet<String> ids = new TreeSet<>();
        TreeSet<String> topics = new TreeSet<>();
        for (MessageExt message : seen) {
            attempts.add(message.getReconsumeTimes());
            ids.add(message.getMsgId());
            topics.add(message.getTopic());
        }
        dead.forEach(message -> ids.add(message.getMsgId()));
        say("retries", attempts + " " + topics + ", dead " + dead.size() + ", ids " + ids.size()
            + ", retry queues " + admin.examineTopicRouteInfo("%RETRY%unlucky").getQueueDatas()
                .get(0).getReadQueueNums()
            + ", from " + dead.get(0).getProperty("RETRY_TOPIC"));
    }

    private static List<MessageExt> pulled(String topic) throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer("readers");
        reader.setNamesrvAddr(nameServer);
        reader.setInstanceName("reader" + System.nanoTime());
        reader.start();
        try {
            List<MessageExt> found = new ArrayList<>();
            for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
                PullResult result = reader.pull(queue, "*", 0, 32);
                if (result.getMsgFoundList() != null) {
                    found.addAll(result.getMsgFoundList());
                }
            }
            return found;
        } finally {
            reader.shutdown();
        }
    }

    private static void resets() throws Exception {
        createTopic("again", 1);
        for (int number = 0; number < 10; number++) {
            send("again", number);
        }
        Thread.sleep(50); // the store time of what follows is a later one
        long middle = System.currentTimeMillis();
        Thread.sleep(50);
        for (int number = 10; number < 20; number++) {
            send("again", number);
        }
        List<MessageExt> seen = list();
        DefaultMQPushConsumer consumer = consumer("repeaters", seen);
        consumer.subscribe("again", "*");
        consumer.start();
        await(() -> seen.size() >= 20);
        say("before the reset", numbers(seen));

        seen.clear();
        say("reset online", offsets(admin.resetOffsetByTimestamp("again", "repeaters", middle, true)));
        send("again", 20); // Apache tells a consumer when its pull is answered: this answers it
        await(() -> numbers(seen).size() >= 11);
        say("after the reset", numbers(seen));
        await(() -> offsets(status().values().iterator().next()).get(0) == 21);
        say("status", status().size() + " consumer, " + offsets(status().values().iterator().next()));
        consumer.shutdown();
        await(() -> committed("repeaters") == 21 && isAway("repeaters")); // no commit comes later

        admin.cloneGroupOffset("repeaters", "heirs", "again", true);
        say("cloned", committed("heirs"));

        seen.clear();
        say("reset offline", offsets(admin.resetOffsetByTimestamp("again", "repeaters", middle, true)));
        DefaultMQPushConsumer successor = consumer("repeaters", seen);
        successor.subscribe("again", "*");
        successor.start();
        await(() -> numbers(seen).size() >= 11);
        say("after the reset offline", numbers(seen));
        successor.shutdown();
        await(() -> isAway("repeaters"));

        admin.resetOffsetByQueueId(broker, "repeaters", "again", 0, 3);
        say("reset to an offset", committed("repeaters"));
        say("latest", offsets(admin.resetOffsetByTimestamp("again", "repeaters", -1, true)));
    }

    private static void toldReset() throws Exception {
        Properties settings = new Properties();
        settings.setProperty("useServerSideResetOffset", "false");
        admin.updateBrokerConfig(broker, settings);
        createTopic("told", 1);
        for (int number = 0; number < 10; number++) {
            send("told", number);
        }
        List<MessageExt> seen = list();
        DefaultMQPushConsumer consumer = consumer("listeners", seen);
        consumer.subscribe("told", "*");
        consumer.start();
        await(() -> seen.size() >= 10);
        consumer.shutdown(); // commits; a consumer's own first commit is 10 seconds after its start
        consumer = consumer("listeners", seen);
        consumer.subscribe("told", "*");
        consumer.start();
        await(() -> consumed("listeners", "told") == 10
            && offsets(status("told", "listeners").values().iterator().next()).containsKey(0));
        seen.clear();
        say("reset that consumers are told of", offsets(admin.resetOffsetByTimestamp("told", "listeners", 0, true)));
        await(() -> numbers(seen).size() >= 10);
        say("after they were told", numbers(seen));
        consumer.shutdown();
    }

    private static TreeMap<Integer, Long> offsets(Map<MessageQueue, Long> table) {
        TreeMap<Integer, Long> offsets = new TreeMap<>();
        table.forEach((queue, offset) -> offsets.put(queue.getQueueId(), offset));
        return offsets;
    }

    private static Map<String, Map<MessageQueue, Long>> status() throws Exception {
        return status("again", "repeaters");
    }

    private static Map<String, Map<MessageQueue, Long>> status(String topic, String group)
            throws Exception {
        return admin.getConsumeStatus(topic, group, "");
    }

    private static boolean isAway(String group) throws Exception {
        try {
            admin.examineConsumerConnectionInfo(group);
            return false;
        } catch (MQBrokerException away) {
            return away.getResponseCode() == ResponseCode.CONSUMER_NOT_ONLINE;
        }
    }

    private static long committed(String group) throws Exception {
        return consumed(group, "again");
    }

    private static long consumed(String group, String topic) throws Exception {
        long offset = 0;
        for (OffsetWrapper queue : admin.examineConsumeStats(broker, group, topic, 3000)
                .getOffsetTable().values()) {
            offset += queue.getConsumerOffset();
        }
        return offset;
    }

    private static void orderedTopic() throws Exception {
        createTopic("ordered", 4);
        String name = admin.examineTopicRouteInfo("ordered").getQueueDatas().get(0).getBrokerName();
        admin.createOrUpdateOrderConf("ordered", name + ":2", false);
        say("order without the switch", admin.examineTopicRouteInfo("ordered").getOrderTopicConf());
        Properties settings = new Properties();
        settings.setProperty("orderMessageEnable", "true");
        admin.updateNameServerConfig(settings, List.of(nameServer));
        String conf = admin.examineTopicRouteInfo("ordered").getOrderTopicConf();
        say("order", conf.replace(name, "NAME"));
        DefaultMQProducer fresh = new DefaultMQProducer("ordered_producers");
        fresh.setNamesrvAddr(nameServer);
        fresh.setInstanceName("fresh");
        fresh.start();
        say("queues to send to", fresh.fetchPublishMessageQueues("ordered").size());
        fresh.shutdown();
        admin.createOrUpdateOrderConf("ordered", name + ":3", true);
        say("order of a cluster", admin.examineTopicRouteInfo("ordered").getOrderTopicConf()
            .replace(name, "NAME"));
    }
}
