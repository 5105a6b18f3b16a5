import java.io.FileInputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLEngineResult.Status;

/**
 * An echo server by TLS and NIO: one thread and its selector, and an engine for each connection.
 * The password of the key store is "password".
 *
 * java SecureEcho PORT CONNECTIONS KEYSTORE
 */
public final class SecureEcho {
    private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

    private final SSLEngine engine;
    private final SocketChannel client;
    private final SelectionKey key;
    /** Bytes from the client, bytes for it, and those that are to be echoed: each has what is left. */
    private final ByteBuffer in;
    private final ByteBuffer out;
    private final ByteBuffer plain;

    private SecureEcho(SSLContext context, SocketChannel client, Selector selector)
            throws IOException {
        engine = context.createSSLEngine();
        engine.setUseClientMode(false);
        this.client = client;
        client.configureBlocking(false);
        int size = engine.getSession().getPacketBufferSize();
        in = ByteBuffer.allocateDirect(size).limit(0);
        out = ByteBuffer.allocateDirect(size).limit(0);
        plain = ByteBuffer.allocate(engine.getSession().getApplicationBufferSize()).limit(0);
        key = client.register(selector, SelectionKey.OP_READ, this);
    }

    /** Goes on as far as possible without waiting. Returns whether there may be more. */
    private boolean advance() throws IOException {
        while (true) {
            client.write(out);
            if (out.hasRemaining()) {
                key.interestOps(SelectionKey.OP_WRITE);
                return true;
            }
            HandshakeStatus next = engine.getHandshakeStatus();
            if (next == HandshakeStatus.NEED_TASK) {
                engine.getDelegatedTask().run();
            } else if (next == HandshakeStatus.NEED_WRAP) {
                engine.wrap(NOTHING, out.clear());
                out.flip();
            } else if (engine.isOutboundDone()) {
                return false;
            } else if (plain.hasRemaining()) {
                engine.wrap(plain, out.clear());
                out.flip();
            } else {
                Status status = engine.unwrap(in, plain.clear()).getStatus();
                plain.flip();
                if (status == Status.CLOSED) {
                    engine.closeOutbound();
                } else if (status == Status.BUFFER_UNDERFLOW) {
                    int count = client.read(in.compact());
                    in.flip();
                    if (count <= 0) {
                        key.interestOps(SelectionKey.OP_READ);
                        return count == 0;
                    }
                }
            }
        }
    }

    private static SSLContext context(String path) throws GeneralSecurityException, IOException {
        char[] password = "password".toCharArray();
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (FileInputStream file = new FileInputStream(path)) {
            keys.load(file, password);
        }
        KeyManagerFactory managers = KeyManagerFactory.getInstance("SunX509");
        managers.init(keys, password);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(managers.getKeyManagers(), null, null);
        return context;
    }

    public static void main(String[] words) throws GeneralSecurityException, IOException {
        SSLContext context = context(words[2]);
        Selector selector = Selector.open();
        ServerSocketChannel listening = ServerSocketChannel.open();
        listening.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])));
        listening.configureBlocking(false);
        listening.register(selector, SelectionKey.OP_ACCEPT);
        int awaited = Integer.parseInt(words[1]);
        for (int open = 0; awaited > 0 || open > 0;) {
            selector.select();
            for (SelectionKey ready : selector.selectedKeys()) {
                if (ready.isAcceptable()) {
                    new SecureEcho(context, listening.accept(), selector);
                    open++;
                    if (--awaited == 0) {
                        listening.close();
                    }
                } else if (!((SecureEcho) ready.attachment()).advance()) {
                    ready.channel().close();
                    open--;
                }
            }
            selector.selectedKeys().clear();
        }
    }
}
