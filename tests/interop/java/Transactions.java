import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of transactional messages, and a consumer that prints what it gets.
 *
 * Arguments: NAMESRV TOPIC GROUP DELIVERIES SECONDS [BODY ...]. GROUP is the consumer's. The words of
 * a body, parted by "-", are what the producer says: at the end of its local transaction, then at
 * each check-back; the last one is repeated. Words: commit, rollback, unknown. The program ends when
 * DELIVERIES messages came and SECONDS more have passed, so that a message that comes twice is seen;
 * or after 60 seconds.
 * Without bodies there is only the producer's listener: it answers what earlier runs left.
 */
public class Transactions {
    private static final Map<String, AtomicInteger> CHECKS = new ConcurrentSkipListMap<>();
    private static final Map<String, AtomicInteger> RECEIVED = new ConcurrentSkipListMap<>();

    public static void main(String[] words) throws Exception {
        String topic = words[1];
        int deliveries = Integer.parseInt(words[3]);
        TransactionMQProducer producer = new TransactionMQProducer("transaction_producers");
        producer.setNamesrvAddr(words[0]);
        producer.setTransactionListener(new Speaker());
        producer.start();
        introduce(producer, topic);
        DefaultMQPushConsumer consumer = consumer(words[0], topic, words[2]);
        for (int at = 5; at < words.length; at++) {
            Message message = new Message(topic, "paid", words[at].getBytes(StandardCharsets.UTF_8));
            message.setKeys(words[at]);
            TransactionSendResult sent = producer.sendMessageInTransaction(message, null);
            print("sent %s %s", words[at], sent.getSendStatus());
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (total() < deliveries && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        Thread.sleep(Long.parseLong(words[4]) * 1000);
        RECEIVED.forEach((what, count) -> print("received %s times=%d", what, count.get()));
        CHECKS.forEach((what, count) -> print("checked %s times=%d", what, count.get()));
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    /** A producer of no message knows no broker, so that no broker would know it either. */
    private static void introduce(TransactionMQProducer producer, String topic) throws Exception {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        while (!client.updateTopicRouteInfoFromNameServer(topic)) {
            Thread.sleep(100);
        }
        client.sendHeartbeatToAllBrokerWithLock();
    }

    private static DefaultMQPushConsumer consumer(
            String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "paid");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                count(RECEIVED, String.format(
                    "%s commit=%b half=%b id=%b tagged=%s",
                    new String(message.getBody(), StandardCharsets.UTF_8),
                    (message.getSysFlag() & 0xC) == 0x8,
                    message.getPreparedTransactionOffset() >= 0,
                    message.getMsgId().equals(message.getProperty("__transactionId__")),
                    message.getTags()));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static int total() {
        return RECEIVED.values().stream().mapToInt(AtomicInteger::get).sum();
    }

    private static int count(Map<String, AtomicInteger> counts, String what) {
        return counts.computeIfAbsent(what, key -> new AtomicInteger()).incrementAndGet();
    }

    private static void print(String form, Object... values) {
        System.out.printf(form + "%n", values);
    }

    private static class Speaker implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object nothing) {
            return said(message.getKeys(), 0);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            int times = count(CHECKS, body + " topic=" + message.getTopic());
            return said(message.getKeys(), times);
        }

        private LocalTransactionState said(String body, int turn) {
            List<String> words = List.of(body.split("-"));
            return switch (words.get(Math.min(turn, words.size() - 1))) {
                case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }
    }
}
