import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;

/**
 * An echo server and its client by NIO: one thread and its selector.
 *
 * java Echo serve PORT CONNECTIONS
 * java Echo connect PORT BYTES
 * java Echo load PORT CONNECTIONS
 */
public final class Echo {
    /** Prime: no buffer's size is a multiple of it. */
    private static final int PERIOD = 65521;

    private static void serve(int port, int connections) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listening = ServerSocketChannel.open();
        listening.bind(new InetSocketAddress("127.0.0.1", port)).configureBlocking(false);
        listening.register(selector, SelectionKey.OP_ACCEPT);
        int awaited = connections;
        for (int open = 0; awaited > 0 || open > 0;) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel client = listening.accept();
                    client.configureBlocking(false);
                    ByteBuffer buffer = ByteBuffer.allocateDirect(50000).limit(0);
                    client.register(selector, SelectionKey.OP_READ, buffer);
                    open++;
                    if (--awaited == 0) {
                        listening.close();
                    }
                } else if (!echo(key)) {
                    key.channel().close();
                    open--;
                }
            }
            selector.selectedKeys().clear();
        }
    }

    /** Whether there may be more. */
    private static boolean echo(SelectionKey key) throws IOException {
        SocketChannel client = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (!buffer.hasRemaining()) {
            int count = client.read(buffer.clear());
            buffer.flip();
            if (count < 0) {
                return false;
            }
        }
        client.write(buffer);
        key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
        return true;
    }

    private static void connect(int port, int length) throws IOException {
        byte[] content = new byte[length];
        for (int i = 0; i < length; i++) {
            content[i] = (byte) (i % PERIOD ^ i % PERIOD >> 8);
        }
        Selector selector = Selector.open();
        SocketChannel server = SocketChannel.open(new InetSocketAddress("127.0.0.1", port));
        server.configureBlocking(false);
        server.write(ByteBuffer.wrap(content, 0, 1));
        // A byte there and back, after which both ends know what carries the rest.
        SelectionKey key = server.register(selector, SelectionKey.OP_READ);
        ByteArrayOutputStream echoed = new ByteArrayOutputStream();
        ByteBuffer received = ByteBuffer.allocate(1 << 16);
        ByteBuffer chunk = ByteBuffer.wrap(content, 1, 0);
        for (int end = 1, size = 1, count = 0; count >= 0;) {
            selector.select();
            selector.selectedKeys().clear();
            count = server.read(received.clear());
            if (count > 0) {
                echoed.write(received.array(), 0, count);
            }
            if (echoed.size() == 0 || end > length) {
                continue;
            }
            if (!chunk.hasRemaining() && end == length) {
                server.shutdownOutput();
                end++;
                key.interestOps(SelectionKey.OP_READ);
                continue;
            }
            if (!chunk.hasRemaining()) {
                int start = end;
                end = Math.min(length, end + size);
                chunk = ByteBuffer.wrap(content, start, end - start);
                size = size * 3 % 70001 + 1;
            }
            server.write(chunk);
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        }
        if (!Arrays.equals(echoed.toByteArray(), content)) {
            throw new IOException(echoed.size() + " bytes are not those that were sent");
        }
        System.out.println("echoed " + length);
    }

    /** How many messages go there and back in two seconds, over many connections. */
    private static void load(int port, int connections) throws IOException {
        Selector selector = Selector.open();
        ByteBuffer message = ByteBuffer.allocateDirect(64);
        for (int i = 0; i < connections; i++) {
            SocketChannel server = SocketChannel.open(new InetSocketAddress("127.0.0.1", port));
            server.configureBlocking(false);
            server.setOption(StandardSocketOptions.TCP_NODELAY, true);
            server.register(selector, SelectionKey.OP_READ);
            server.write(message.clear());
        }
        long start = System.nanoTime();
        long trips = 0;
        long taken = 0;
        for (int open = connections; open > 0;) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                SocketChannel server = (SocketChannel) key.channel();
                int count = server.read(message.clear());
                if (count != message.capacity()) {
                    throw new IOException(count + " bytes came back");
                }
                trips++;
                if (taken < 2_000_000_000L) {
                    server.write(message.flip());
                } else {
                    server.close();
                    open--;
                }
            }
            selector.selectedKeys().clear();
            taken = System.nanoTime() - start;
        }
        System.out.println("trips " + trips + " per second " + trips * 1e9 / taken);
    }

    public static void main(String[] words) throws IOException {
        int port = Integer.parseInt(words[1]);
        int number = Integer.parseInt(words[2]);
        if (words[0].equals("serve")) {
            serve(port, number);
        } else if (words[0].equals("load")) {
            load(port, number);
        } else {
            connect(port, number);
        }
    }
}
