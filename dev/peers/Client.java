import com.amazonaws.services.dynamodbv2.AcquireLockOptions;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClient;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClientOptions;
import com.amazonaws.services.dynamodbv2.LockItem;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;

/**
 * The lock client of awslabs, controlled through standard input and output: the other side of java.py.
 *
 * Each line of input is a call, "NUMBER CALL ARGUMENTS", and each line of output an answer, "NUMBER ok", "NUMBER no" or
 * "NUMBER error CLASS: MESSAGE". Calls are made one after another, but "held" is answered at once, also during another
 * call: it is asked all the time. Ends at the end of input.
 */
public class Client {
    private static final PrintStream OUT = System.out;
    private static volatile LockItem lock;

    public static void main(String[] arguments) throws Exception {
        String table = arguments[0], owner = arguments[2];
        long lease = Long.parseLong(arguments[1]);
        DynamoDbClient store = DynamoDbClient.builder()
            .endpointOverride(URI.create(System.getenv("AWS_ENDPOINT_URL"))).build();
        AmazonDynamoDBLockClient client = new AmazonDynamoDBLockClient(
            AmazonDynamoDBLockClientOptions.builder(store, table)
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withLeaseDuration(lease)
                .withHeartbeatPeriod(lease / 4)
                .withOwnerName(owner)
                .withCreateHeartbeatBackgroundThread(true)
                .build());
        ExecutorService calls = Executors.newSingleThreadExecutor();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            if (words[1].equals("held")) {
                LockItem asked = lock;
                answer(words[0], () -> asked != null && !asked.isExpired());
            } else {
                calls.submit(() -> answer(words[0], () -> call(client, words)));
            }
        }
        System.exit(0);
    }

    private static boolean call(AmazonDynamoDBLockClient client, String[] words) throws Exception {
        if (words[1].equals("close")) {
            client.close();
            return true;
        }
        if (words[1].equals("release")) {
            return client.releaseLock(lock);
        }
        lock = null;
        Optional<LockItem> got = client.tryAcquireLock(
            AcquireLockOptions.builder(words[2])
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withAdditionalTimeToWaitForLock(Long.parseLong(words[3]))
                .build());
        lock = got.orElse(null);
        return got.isPresent();
    }

    private static void answer(String number, Callable<Boolean> call) {
        String answer;
        try {
            answer = call.call() ? "ok" : "no";
        } catch (Throwable error) {
            String text = String.valueOf(error.getMessage()).replaceAll("\\s+", " ");
            answer = "error " + error.getClass().getSimpleName() + ": " + text;
        }
        synchronized (OUT) {
            OUT.println(number + " " + answer);
            OUT.flush();
        }
    }
}
