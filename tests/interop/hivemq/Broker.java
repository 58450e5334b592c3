// HiveMQ CE, embedded: with the configuration in the folder that is named, until its input ends.
import com.hivemq.embedded.EmbeddedHiveMQ;
import java.nio.file.Path;

public class Broker {
    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        EmbeddedHiveMQ.builder().withConfigurationFolder(folder).withDataFolder(folder)
                .withExtensionsFolder(folder).build().start().join();
        System.out.println("ready");
        System.in.read();
        Runtime.getRuntime().halt(0);
    }
}
