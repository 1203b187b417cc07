import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.common.action.Action;
import org.apache.rocketmq.common.action.RocketMQAction;
import org.apache.rocketmq.common.resource.RocketMQResource;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.RequestHeaderRegistry;

/**
 * Prints what Apache's access control reads from the headers of requests, one code per line:
 *   CODE NAME RESOURCE ACTION,ACTION [KIND:FIELD:SEPARATOR:required|optional]...
 * A code without a header that says so is printed as CODE NAME -.
 */
public class AccessRules {
    public static void main(String[] args) throws Exception {
        RequestHeaderRegistry registry = RequestHeaderRegistry.getInstance();
        registry.initialize();
        TreeSet<String> names = new TreeSet<>();
        for (Field field : RequestCode.class.getFields()) {
            names.add(field.getName());
        }
        for (String name : names) {
            int code = RequestCode.class.getField(name).getInt(null);
            Class<? extends CommandCustomHeader> header = registry.getRequestHeader(code);
            if (header == null) {
                System.out.println(code + " " + name + " -");
                continue;
            }
            RocketMQAction said = header.getAnnotation(RocketMQAction.class);
            List<String> words = new ArrayList<>();
            words.add(code + " " + name + " " + said.resource().getName());
            List<String> actions = new ArrayList<>();
            for (Action action : said.action()) {
                actions.add(action.getName());
            }
            words.add(String.join(",", actions));
            for (Field field : header.getDeclaredFields()) {
                RocketMQResource resource = field.getAnnotation(RocketMQResource.class);
                if (resource != null) {
                    boolean required = field.isAnnotationPresent(CFNotNull.class);
                    words.add(String.join(":", Arrays.asList(resource.value().getName(),
                        field.getName(), resource.splitter(), required ? "required" : "optional")));
                }
            }
            System.out.println(String.join(" ", words));
        }
    }
}
