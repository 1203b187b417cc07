import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Prints what Apache's strategies give a member, a line for each line of a file of cases:
 * STRATEGY, the member, the queues as BROKER:ID, the members; separated by tabs, lists by commas.
 * A machine room is what stands before the "@" of a broker's name, or the last letter of a member's.
 */
public class Allocation {
    public static void main(String[] words) throws Exception {
        for (String line : Files.readAllLines(Path.of(words[0]))) {
            String[] fields = line.split("\t", -1);
            List<MessageQueue> queues = new ArrayList<>();
            for (String text : fields[2].split(",")) {
                int colon = text.lastIndexOf(':');
                queues.add(new MessageQueue("t", text.substring(0, colon),
                    Integer.parseInt(text.substring(colon + 1))));
            }
            List<String> members = Arrays.asList(fields[3].split(","));
            List<String> share = new ArrayList<>();
            for (MessageQueue queue : strategy(fields[0]).allocate("g", fields[1], queues, members)) {
                share.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
            System.out.println(String.join(",", share));
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "room": {
                AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
                strategy.setConsumeridcs(new HashSet<>(Arrays.asList("r1", "r2")));
                return strategy;
            }
            case "nearby":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(),
                    new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return queue.getBrokerName().substring(0, 2);
                        }

                        @Override
                        public String consumerDeployIn(String clientId) {
                            return "r" + clientId.charAt(clientId.length() - 1);
                        }
                    });
            case "hash":
                return new AllocateMessageQueueConsistentHash();
            default:
                throw new IllegalArgumentException(name);
        }
    }
}
