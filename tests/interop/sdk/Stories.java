import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The stories of stories.py, by Apache's client for Java: ENDPOINT STORY TOPIC GROUP. */
public final class Stories {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final long WAIT_MILLIS = 60_000;
    static String topic;
    static String group;
    static ClientConfiguration configuration;
    static final List<AutoCloseable> OPENED = new ArrayList<>();
    static final List<String> ASKED = Collections.synchronizedList(new ArrayList<>());

    public static void main(String[] words) throws Exception {
        ClientConfigurationBuilder builder =
            ClientConfiguration.newBuilder().setEndpoints(words[0]);
        if (words.length > 4) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(words[4], words[5]));
        }
        configuration = builder.build();
        topic = words[2];
        group = words[3];
        String result;
        try {
            result = switch (words[1]) {
                case "simple" -> simple();
                case "change" -> change();
                case "push" -> push();
                case "fifo" -> fifo();
                case "delay" -> delay();
                case "transaction" -> transaction();
                case "filters" -> filters();
                case "dead" -> dead();
                default -> throw new IllegalArgumentException(words[1]);
            };
        } finally {
            Collections.reverse(OPENED);
            for (AutoCloseable each : OPENED) {
                each.close();
            }
        }
        System.out.println("RESULT " + result);
        System.exit(0);
    }

    static Producer producer() throws Exception {
        Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic)
            .setTransactionChecker(view -> {
                ASKED.add(body(view));
                return TransactionResolution.COMMIT;
            })
            .build();
        OPENED.add(producer);
        return producer;
    }

    static SimpleConsumer consumer(String name, FilterExpression expression) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(name)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(topic, expression))
            .build();
        OPENED.add(consumer);
        return consumer;
    }

    static SimpleConsumer consumer() throws Exception {
        return consumer(group, FilterExpression.SUB_ALL);
    }

    static MessageBuilder message(int number) {
        return PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody(("body " + number).getBytes(StandardCharsets.UTF_8));
    }

    static String body(MessageView view) {
        ByteBuffer buffer = view.getBody();
        return StandardCharsets.UTF_8.decode(buffer).toString();
    }

    static List<MessageView> drain(SimpleConsumer consumer, int count, long millis)
        throws Exception {
        List<MessageView> found = new ArrayList<>();
        long end = System.currentTimeMillis() + millis;
        while (found.size() < count && System.currentTimeMillis() < end) {
            for (MessageView view : consumer.receive(32, Duration.ofSeconds(15))) {
                consumer.ack(view);
                found.add(view);
            }
        }
        return found;
    }

    static String quoted(String text) {
        return text == null ? "null" : "\"" + text + "\"";
    }

    static String listed(Iterable<String> texts) {
        List<String> quotedTexts = new ArrayList<>();
        texts.forEach(each -> quotedTexts.add(quoted(each)));
        return "[" + String.join(",", quotedTexts) + "]";
    }

    static String bodies(List<MessageView> views) {
        return listed(views.stream().map(Stories::body).sorted().collect(Collectors.toList()));
    }

    static String simple() throws Exception {
        SimpleConsumer consumer = consumer();
        Producer producer = producer();
        Map<String, Integer> sent = new HashMap<>();
        for (int number = 0; number < 10; number++) {
            SendReceipt receipt = producer.send(message(number).setTag("tag" + number % 2)
                .setKeys("key" + number, "all").addProperty("shop", "shop " + number).build());
            sent.put(receipt.getMessageId().toString(), number);
        }
        List<String> seen = new ArrayList<>();
        List<MessageView> found = drain(consumer, 10, WAIT_MILLIS);
        found.sort((left, right) -> body(left).compareTo(body(right)));
        for (MessageView view : found) {
            seen.add("{\"number\":" + sent.get(view.getMessageId().toString())
                + ",\"body\":" + quoted(body(view))
                + ",\"tag\":" + quoted(view.getTag().orElse(null))
                + ",\"keys\":" + listed(new TreeSet<>(view.getKeys()))
                + ",\"shop\":" + quoted(view.getProperties().get("shop"))
                + ",\"attempt\":" + view.getDeliveryAttempt() + ",\"corrupted\":false}");
        }
        int left = consumer.receive(1, Duration.ofSeconds(15)).size();
        return "{\"seen\":[" + String.join(",", seen) + "],\"left\":" + left + "}";
    }

    static String change() throws Exception {
        SimpleConsumer consumer = consumer();
        producer().send(message(1).build());
        List<MessageView> first = List.of();
        while (first.isEmpty()) {
            first = consumer.receive(1, Duration.ofSeconds(60));
        }
        long began = System.currentTimeMillis();
        consumer.changeInvisibleDuration(first.get(0), Duration.ofSeconds(2));
        List<MessageView> again = List.of();
        while (again.isEmpty() && System.currentTimeMillis() - began < WAIT_MILLIS) {
            again = consumer.receive(1, Duration.ofSeconds(15));
        }
        double seconds = (System.currentTimeMillis() - began) / 1000.0;
        consumer.ack(again.get(0));
        int left = consumer.receive(1, Duration.ofSeconds(15)).size();
        boolean same = again.get(0).getMessageId().equals(first.get(0).getMessageId());
        return "{\"same\":" + same + ",\"attempts\":[" + first.get(0).getDeliveryAttempt() + ","
            + again.get(0).getDeliveryAttempt() + "],\"seconds\":" + seconds + ",\"left\":" + left
            + "}";
    }

    static List<Object[]> listened(Map<String, Integer> fails, int count, Consumer<Producer> send)
        throws Exception {
        List<Object[]> seen = Collections.synchronizedList(new ArrayList<>());
        Map<String, Integer> left = new HashMap<>(fails);
        OPENED.add(PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
                synchronized (left) {
                    seen.add(new Object[] {body(view), view.getDeliveryAttempt()});
                    int more = left.getOrDefault(body(view), 0);
                    if (more > 0) {
                        left.put(body(view), more - 1);
                        return ConsumeResult.FAILURE;
                    }
                }
                return ConsumeResult.SUCCESS;
            })
            .build());
        send.accept(producer());
        long end = System.currentTimeMillis() + WAIT_MILLIS;
        while (seen.size() < count && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        return seen;
    }

    static void sendAll(Producer producer, int count, String messageGroup) {
        try {
            for (int number = 0; number < count; number++) {
                MessageBuilder built = message(number);
                producer.send((messageGroup == null ? built : built.setMessageGroup(messageGroup))
                    .build());
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static String push() throws Exception {
        List<Object[]> seen = listened(Map.of("body 3", 1), 11, to -> sendAll(to, 10, null));
        return "{\"seen\":[" + seen.stream()
            .map(each -> "[" + quoted((String) each[0]) + "," + each[1] + "]").sorted()
            .collect(Collectors.joining(",")) + "]}";
    }

    static String fifo() throws Exception {
        List<Object[]> seen = listened(Map.of("body 2", 1), 7, to -> sendAll(to, 6, "order-1"));
        return "{\"seen\":" + listed(seen.stream().map(each -> (String) each[0])
            .collect(Collectors.toList())) + "}";
    }

    static String dead() throws Exception {
        List<Object[]> seen = listened(Map.of("body 1", 100), 2, to -> {
            try {
                to.send(message(1).build());
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        System.in.readAllBytes(); // until the test has seen the dead letter
        return "{\"attempts\":[" + seen.stream().map(each -> each[1].toString())
            .collect(Collectors.joining(",")) + "]}";
    }

    static String delay() throws Exception {
        SimpleConsumer consumer = consumer();
        Producer producer = producer();
        long began = System.currentTimeMillis();
        producer.send(message(1).setDeliveryTimestamp(began + 4000).build());
        SendReceipt later = producer.send(message(2).setDeliveryTimestamp(began + 10_000).build());
        boolean recalled = producer.recallMessage(topic, later.getRecallHandle()) != null;
        List<MessageView> found = drain(consumer, 1, WAIT_MILLIS);
        double seconds = (System.currentTimeMillis() - began) / 1000.0;
        String left = bodies(drain(consumer, 1, 14_000));
        return "{\"bodies\":" + bodies(found) + ",\"seconds\":" + seconds + ",\"recalled\":"
            + recalled + ",\"left\":" + left + "}";
    }

    static String transaction() throws Exception {
        SimpleConsumer consumer = consumer();
        Producer producer = producer();
        String[] verbs = {"commit", "rollback", ""};
        for (int number = 1; number <= 3; number++) {
            Transaction begun = producer.beginTransaction();
            producer.send(message(number).build(), begun);
            if (verbs[number - 1].equals("commit")) {
                begun.commit();
            } else if (verbs[number - 1].equals("rollback")) {
                begun.rollback();
            }
        }
        String found = bodies(drain(consumer, 2, WAIT_MILLIS));
        int left = consumer.receive(1, Duration.ofSeconds(15)).size();
        return "{\"bodies\":" + found + ",\"asked\":" + listed(new TreeSet<>(ASKED))
            + ",\"left\":" + left + "}";
    }

    static String filters() throws Exception {
        SimpleConsumer byTag = consumer(group, new FilterExpression("red || blue"));
        Producer producer = producer();
        String[] tags = {"red", "green", "blue", "red"};
        for (int number = 0; number < 4; number++) {
            producer.send(message(number).setTag(tags[number]).build());
        }
        String tagged = bodies(drain(byTag, 3, WAIT_MILLIS));
        SimpleConsumer bySql = consumer(group + "-sql",
            new FilterExpression("size > 1", FilterExpressionType.SQL92));
        bySql.receive(1, Duration.ofSeconds(15));
        for (int number = 0; number < 4; number++) {
            producer.send(message(number + 10).addProperty("size", String.valueOf(number)).build());
        }
        String sized = bodies(drain(bySql, 2, WAIT_MILLIS));
        return "{\"tagged\":" + tagged + ",\"sized\":" + sized + "}";
    }
}
