import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends timed messages with Apache's client, takes some back, and prints one line for each: its
 * name, and how many milliseconds after its time it was stored, "never", or the broker's refusal.
 * The line "at" is the time of the last one. Arguments: name server, topic. What is named "later" is
 * left to wait.
 */
public final class Timers {
    private static final Map<String, Long> DUE = new LinkedHashMap<>();
    private static final Map<String, Long> LATE = new ConcurrentHashMap<>();

    public static void main(String[] words) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("timer_readers");
        consumer.setNamesrvAddr(words[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(words[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                LATE.merge(new String(message.getBody()), message.getStoreTimestamp(),
                    (one, two) -> Long.MAX_VALUE); // twice
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer("timer_senders");
        producer.setNamesrvAddr(words[0]);
        producer.start();
        consumer.start();
        run(producer, words[1]);
        long end = System.currentTimeMillis() + 60_000;
        while (!LATE.containsKey("last") && System.currentTimeMillis() < end) {
            TimeUnit.MILLISECONDS.sleep(20);
        }
        for (Map.Entry<String, Long> due : DUE.entrySet()) {
            Long stored = LATE.get(due.getKey());
            System.out.println(due.getKey() + "=" + (stored == null ? "never" : stored - due.getValue()));
        }
        System.out.println("at=" + DUE.get("last"));
        System.out.flush();
        System.exit(0); // the client leaves threads behind that are no daemons
    }

    private static void run(DefaultMQProducer producer, String topic) throws Exception {
        for (int number = 0; number < 5; number++) {
            timed(producer, topic, "milliseconds " + number, 1_111 + 150 * number);
        }
        Message message = new Message(topic, "seconds".getBytes());
        message.setDelayTimeSec(3);
        DUE.put("seconds", System.currentTimeMillis() + 3_000);
        producer.send(message);
        message = new Message(topic, "instant".getBytes());
        long instant = System.currentTimeMillis() + 2_345;
        message.setDeliverTimeMs(instant);
        DUE.put("instant", instant);
        producer.send(message);
        message = new Message(topic, "passed".getBytes());
        message.setDeliverTimeMs(System.currentTimeMillis() - 5_000);
        DUE.put("passed", System.currentTimeMillis());
        print("handle of a passed one", String.valueOf(producer.send(message).getRecallHandle()));
        recall(producer, topic, "taken back", timed(producer, topic, "gone", 4_400));
        timed(producer, topic, "last", 5_500);
        refused(producer, topic, "too far", 3 * 86_400_000L + 60_000);
        recall(producer, topic, "no handle", "x");
        recall(producer, "nowhere", "elsewhere", timed(producer, topic, "later stays", 9_345));
        timed(producer, topic, "later comes", 11_000);
        recall(producer, topic, "later taken back", timed(producer, topic, "later gone", 12_789));
        timed(producer, topic, "later last", 18_000);
    }

    private static String timed(DefaultMQProducer producer, String topic, String name, long delay)
        throws Exception {
        Message message = new Message(topic, name.getBytes());
        message.setDelayTimeMs(delay);
        if (!name.startsWith("later")) {
            DUE.put(name, System.currentTimeMillis() + delay);
        }
        SendResult result = producer.send(message);
        return result.getRecallHandle();
    }

    private static void refused(DefaultMQProducer producer, String topic, String name, long delay)
        throws Exception {
        try {
            timed(producer, topic, name, delay);
            print(name, "taken");
        } catch (MQBrokerException refusal) {
            print(name, refusal.getResponseCode() + " " + refusal.getErrorMessage());
        }
        DUE.remove(name);
    }

    private static void recall(DefaultMQProducer producer, String topic, String name, String handle) {
        try {
            print(name, "yes " + producer.recallMessage(topic, handle).length());
        } catch (MQBrokerException refusal) {
            print(name, refusal.getResponseCode() + " " + refusal.getErrorMessage());
        } catch (Exception refusal) {
            print(name, refusal.getClass().getSimpleName());
        }
    }

    private static void print(String name, String value) {
        System.out.println(name + "=" + value);
    }
}
