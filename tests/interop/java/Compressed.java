import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Reads what others compressed, and sends the same by every compression of Apache's client.
 * Arguments: NAMESRV READ WRITE COUNT. Reads COUNT messages of the topic READ and prints of each its
 * tag, the compression in its flags, and length and CRC of its body; sends to the topic WRITE.
 */
public final class Compressed {
    public static void main(String[] words) throws Exception {
        CountDownLatch left = new CountDownLatch(Integer.parseInt(words[3]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java_unpackers");
        consumer.setNamesrvAddr(words[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(words[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                CRC32 crc = new CRC32();
                crc.update(message.getBody());
                System.out.printf("%s %x %d %d%n", message.getTags(), message.getSysFlag() & 0x700,
                    message.getBody().length, crc.getValue());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer producer = new DefaultMQProducer("java_packers_" + type);
            producer.setNamesrvAddr(words[0]);
            producer.setInstanceName(type.name());
            producer.setCompressType(type);
            producer.start();
            byte[] body = (type + " a long body ".repeat(1000)).getBytes(StandardCharsets.UTF_8);
            producer.send(new Message(words[2], type.name(), body));
            producer.shutdown();
        }
        boolean isComplete = left.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        System.out.flush();
        System.exit(isComplete ? 0 : 1);
    }
}
