import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Does with Apache's client what an application does, as one user, and prints what comes of it.
 *
 * Arguments: NAMESRV USER SECRET TOPIC GROUP CONSUMES, the last one "true" to wait for a message.
 * Each line is the name of a step and its result: a status, or the code and the remark of a refusal.
 */
public class Access {
    private static final int TIMEOUT = 30_000;

    private interface Step {
        Object run() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        String nameServer = words[0];
        String topic = words[3];
        String group = words[4];
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(words[1], words[2]));
        TransactionMQProducer producer = new TransactionMQProducer("access_producer", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT);
        producer.setTransactionListener(new Committed());
        producer.start();
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer(group, hook);
        reader.setNamesrvAddr(nameServer);
        reader.setInstanceName("reader");
        reader.start();
        SendResult[] sent = new SendResult[1];
        show("send", () -> {
            sent[0] = producer.send(message(topic, "one"));
            return sent[0].getSendStatus();
        });
        show("send a batch",
            () -> producer.send(Arrays.asList(message(topic, "2"), message(topic, "3"))).getSendStatus());
        show("send a half message",
            () -> producer.sendMessageInTransaction(message(topic, "half"), null).getLocalTransactionState());
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        queues.sort(null);
        MessageQueue queue = queues.get(0);
        show("end of a queue", () -> reader.maxOffset(queue) >= 0);
        show("begin of a queue", () -> reader.minOffset(queue));
        show("pull", () -> reader.pull(queue, "*", 0, 1, TIMEOUT).getPullStatus());
        show("offset", () -> reader.fetchConsumeOffset(queue, true) >= -1);
        if (sent[0] != null) {
            show("see a message", () -> reader.viewMessage(topic, sent[0].getOffsetMsgId()).getTopic());
            show("find a message", () -> reader.queryMessage(topic, "key one", 1, 0, Long.MAX_VALUE)
                .getMessageList().get(0).getTopic());
        }
        if (Boolean.parseBoolean(words[5])) {
            show("consume", () -> consumed(nameServer, hook, topic, group));
        }
        reader.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", "key " + body, body.getBytes(StandardCharsets.UTF_8));
    }

    private static void show(String name, Step step) {
        String result;
        try {
            result = String.valueOf(step.run());
        } catch (MQBrokerException refused) {
            result = refused.getResponseCode() + " " + refused.getErrorMessage();
        } catch (MQClientException failed) {
            Throwable cause = failed.getCause();
            result = cause instanceof MQBrokerException
                ? ((MQBrokerException) cause).getResponseCode() + " " + ((MQBrokerException) cause).getErrorMessage()
                : failed.getResponseCode() + " " + failed.getErrorMessage();
        } catch (Exception failed) {
            result = failed.toString();
        }
        System.out.println(name + ": " + result.lines().findFirst().orElse(""));
    }

    private static boolean consumed(String nameServer, RPCHook hook, String topic, String group)
        throws Exception {
        CountDownLatch seen = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean isSeen = seen.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        return isSeen;
    }

    private static class Committed implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
