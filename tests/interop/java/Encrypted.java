import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends messages and consumes them with Apache's client, whose system properties say how it
 * encrypts. Prints "sent N" and "consumed N", or "failed: " and the error of a send. Arguments: the
 * name server's address, a topic, how many messages, and the bytes of each.
 */
public class Encrypted {
    public static void main(String[] words) throws Exception {
        String topic = words[1];
        int count = Integer.parseInt(words[2]);
        byte[] tail = new byte[Integer.parseInt(words[3])];
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(words[0]);
        producer.setSendMsgTimeout(30_000);
        producer.setMaxMessageSize(4 * 1024 * 1024);
        producer.start();
        try {
            for (int number = 0; number < count; number++) {
                byte[] body = (number + ";" + new String(tail)).getBytes(StandardCharsets.UTF_8);
                producer.send(new Message(topic, body));
            }
        } catch (Exception error) {
            System.out.println("failed: " + error.getClass().getSimpleName());
            System.exit(0);
        }
        System.out.println("sent " + count);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers");
        consumer.setNamesrvAddr(words[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> seen.add(new String(each.getBody()).split(";")[0]));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int wait = 0; wait < 1_200 && seen.size() < count; wait++) {
            Thread.sleep(100);
        }
        System.out.println("consumed " + seen.size());
        System.exit(0);
    }
}
