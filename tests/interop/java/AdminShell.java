import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many mqadmin commands in one JVM, beside clients that stay connected while the commands run.
 *
 * A line of the input is one command, its words separated by tabs. What it prints is followed by a
 * line with the single character U+0001. A first word that begins with @ is a command of this shell:
 *   @produce NAMESRV GROUP TOPIC QUEUES COUNT   send COUNT messages round robin; stays connected
 *   @send NAMESRV GROUP TOPIC COUNT             send to any queue; prints how many went to each broker
 *   @consume NAMESRV GROUP TOPIC COUNT          start a push consumer; returns when it has COUNT
 *   @filter NAMESRV GROUP TOPIC SQL COUNT       the same by an SQL92 expression; prints the bodies
 *   @more NAMESRV GROUP COUNT                   wait until it has COUNT; prints the bodies
 *   @who NAMESRV GROUP                          print the client id of that consumer
 *   @until TEXT WORD...                         run a command of mqadmin until it has printed TEXT
 *   @close                                      end all clients
 */
public class AdminShell {
    private static final PrintStream OUT = System.out;
    private static final long SECONDS_MAX = 100;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new HashMap<>();
    private static final Map<String, List<MessageExt>> GOT = new HashMap<>();

    public static void main(String[] args) throws Exception {
        hurryNetty();
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            try {
                run(line.split("\t", -1), printed);
            } catch (Throwable failure) {
                failure.printStackTrace();
            }
            capture.flush();
            OUT.write(printed.toByteArray());
            OUT.print("\n\u0001\n");
            OUT.flush();
        }
        close();
        System.exit(0);
    }

    private static void run(String[] words, ByteArrayOutputStream printed) throws Exception {
        switch (words[0]) {
            case "@produce":
                produce(words[1], words[2], words[3], Integer.parseInt(words[4]),
                    Integer.parseInt(words[5]));
                break;
            case "@send":
                send(words[1], words[2], words[3], Integer.parseInt(words[4]));
                break;
            case "@consume":
                consume(words[1], words[2], words[3], Integer.parseInt(words[4]));
                break;
            case "@filter":
                subscribe(words[1], words[2], words[3], MessageSelector.bySql(words[4]));
                bodies(words[1] + words[2], Integer.parseInt(words[5]));
                break;
            case "@more":
                bodies(words[1] + words[2], Integer.parseInt(words[3]));
                break;
            case "@who":
                System.out.println("#" + CONSUMERS.get(words[1] + words[2])
                    .getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
                break;
            case "@until":
                until(words[1], Arrays.copyOfRange(words, 2, words.length), printed);
                break;
            case "@close":
                close();
                break;
            default:
                Startup.again(words);
        }
    }

    /** Runs a command that never ends by itself, and interrupts it when it has said what is awaited. */
    private static void until(String text, String[] words, ByteArrayOutputStream printed)
        throws Exception {
        Thread command = new Thread(() -> Startup.again(words));
        command.start();
        long deadline = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
        while (command.isAlive() && System.nanoTime() < deadline
            && !printed.toString(StandardCharsets.UTF_8).contains(text)) {
            Thread.sleep(20);
        }
        String said = printed.toString(StandardCharsets.UTF_8);
        command.interrupt();
        command.join();
        printed.reset(); // how an interrupted command ends is of no interest
        printed.writeBytes(said.getBytes(StandardCharsets.UTF_8));
    }

    /** Wakes the client's event threads, which else hold up every shutdown for three seconds. */
    private static void hurryNetty() {
        Thread main = Thread.currentThread();
        Thread waker = new Thread(() -> {
            while (true) {
                boolean isShuttingDown = Arrays.stream(main.getStackTrace()).anyMatch(
                    call -> call.getClassName().endsWith(".ServiceThread"));
                for (Thread thread : Thread.getAllStackTraces().keySet()) {
                    if (isShuttingDown && thread.getName().startsWith("NettyEventExecutor")) {
                        thread.interrupt();
                    }
                }
                try {
                    Thread.sleep(20);
                } catch (InterruptedException end) {
                    return;
                }
            }
        });
        waker.setDaemon(true);
        waker.start();
    }

    private static DefaultMQProducer producer(String servers, String group) throws Exception {
        String key = servers + group;
        DefaultMQProducer known = PRODUCERS.get(key);
        if (known != null) {
            return known;
        }
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(servers);
        producer.setInstanceName(key.replaceAll("\\W", ""));
        producer.setPollNameServerInterval(500);
        producer.setHeartbeatBrokerInterval(500);
        producer.start();
        PRODUCERS.put(key, producer);
        return producer;
    }

    private static void produce(String servers, String group, String topic, int queues, int count)
        throws Exception {
        DefaultMQProducer producer = producer(servers, group);
        String broker = producer.fetchPublishMessageQueues(topic).get(0).getBrokerName();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, i % 2 == 0 ? "even" : "odd", "key-" + i,
                ("body " + i).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", Integer.toString(i));
            SendResult result = producer.send(message, new MessageQueue(topic, broker, i % queues));
            System.out.println(result.getSendStatus() + " " + result.getMessageQueue().getQueueId()
                + " " + result.getQueueOffset() + " #" + result.getMsgId()
                + " #" + result.getOffsetMsgId());
        }
    }

    private static void send(String servers, String group, String topic, int count)
        throws Exception {
        DefaultMQProducer producer = producer(servers, group);
        Map<String, Integer> brokers = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "even",
                ("body " + i).getBytes(StandardCharsets.UTF_8));
            String broker = producer.send(message).getMessageQueue().getBrokerName();
            brokers.merge(broker, 1, Integer::sum);
        }
        System.out.println(brokers);
    }

    private static void consume(String servers, String group, String topic, int count)
        throws Exception {
        subscribe(servers, group, topic, MessageSelector.byTag("even || odd"));
        List<MessageExt> got = await(servers + group, count);
        Map<String, Integer> brokers = new TreeMap<>();
        got.forEach(message -> brokers.merge(message.getBrokerName(), 1, Integer::sum));
        System.out.println(got.size() + " " + brokers);
    }

    private static void subscribe(String servers, String group, String topic, MessageSelector wanted)
        throws Exception {
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName((servers + group).replaceAll("\\W", ""));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.subscribe(topic, wanted);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        CONSUMERS.put(servers + group, consumer);
        GOT.put(servers + group, got);
    }

    private static List<MessageExt> await(String consumer, int count) throws Exception {
        List<MessageExt> got = GOT.get(consumer);
        long deadline = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
        while (got.size() < count && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        return List.copyOf(got);
    }

    private static void bodies(String consumer, int count) throws Exception {
        for (MessageExt message : await(consumer, count)) {
            System.out.println(new String(message.getBody(), StandardCharsets.UTF_8));
        }
    }

    private static void close() {
        CONSUMERS.values().forEach(DefaultMQPushConsumer::shutdown);
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        CONSUMERS.clear();
        PRODUCERS.clear();
    }

    private static class Startup extends MQAdminStartup {
        /** Some commands keep a client that their first run has shut down: so all are made anew. */
        static void again(String[] words) {
            SUB_COMMANDS.clear();
            main0(words, null);
        }
    }
}
