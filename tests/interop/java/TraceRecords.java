import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;

/**
 * Reads the body of a trace message by Apache's decoder and prints what Apache's encoder makes of
 * that: a line for each record, the fields with "|" between.
 */
public class TraceRecords {
    public static void main(String[] words) throws Exception {
        String body = Files.readString(Path.of(words[0]));
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(body)) {
            context.setAccessChannel(AccessChannel.LOCAL);
            String text = TraceDataEncoder.encoderFromContextBean(context).getTransData();
            System.out.println(text.replace((char) 1, '|').replace("\u0002", ""));
        }
    }
}
