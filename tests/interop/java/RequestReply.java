import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * One client asks, another one answers. Arguments: NAMESRV TOPIC CLUSTER [asks|answers].
 *
 * Prints the answers to three requests, of which the last body is long enough to be compressed, and
 * what becomes of a request that nobody answers. As one that only asks or only answers it leaves the
 * other part to somebody else; the one that answers prints "ready" and does so until it is killed.
 */
public class RequestReply {
    public static void main(String[] words) throws Exception {
        String role = words.length > 3 ? words[3] : "both";
        if (role.equals("asks")) {
            ask(producer("askers", words[0]), words[1]);
            System.exit(0);
        }
        DefaultMQProducer answers = producer("answers", words[0]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("responders");
        consumer.setNamesrvAddr(words[0]);
        consumer.setInstanceName("responder");
        consumer.subscribe(words[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                answer(answers, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        if (role.equals("answers")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.start();
            System.out.println("ready");
            Thread.currentThread().join();
        }
        DefaultMQProducer asker = producer("askers", words[0]);
        // The topic must be there before the consumer begins at its end.
        asker.send(new Message(words[1], "silent".getBytes(StandardCharsets.UTF_8)));
        consumer.start();
        ask(asker, words[1]);
        consumer.shutdown();
        answers.shutdown();
        asker.shutdown();
        System.exit(0);
    }

    private static void ask(DefaultMQProducer asker, String topic) throws Exception {
        for (String body : new String[] {"one", "two", "x".repeat(8192)}) {
            Message reply = asker.request(
                new Message(topic, body.getBytes(StandardCharsets.UTF_8)), 60_000);
            String text = new String(reply.getBody(), StandardCharsets.UTF_8);
            System.out.printf("answer %s %d bytes topic=%s%n",
                text.substring(0, Math.min(text.length(), 12)), text.length(), reply.getTopic());
        }
        try {
            asker.request(new Message(topic, "silent".getBytes(StandardCharsets.UTF_8)), 1_000);
        } catch (RequestTimeoutException late) {
            System.out.printf("no answer, code %d%n", late.getResponseCode());
        }
    }

    private static DefaultMQProducer producer(String group, String namesrv) throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group);
        producer.start();
        return producer;
    }

    private static void answer(DefaultMQProducer producer, MessageExt asked) {
        String body = new String(asked.getBody(), StandardCharsets.UTF_8);
        if (body.equals("silent")) {
            return;
        }
        try {
            Message reply = MessageUtil.createReplyMessage(
                asked, ("re: " + body).getBytes(StandardCharsets.UTF_8));
            System.out.printf("sent answer %s%n", producer.send(reply, 5_000).getSendStatus());
        } catch (Exception failure) {
            System.out.printf("answer failed: %s%n", failure);
        }
    }
}
