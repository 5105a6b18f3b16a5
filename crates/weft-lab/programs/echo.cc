// An echo server and its client on Boost.Asio: several threads run one io_context.
//
// echo serve PORT CONNECTIONS
// echo connect PORT BYTES
#include <algorithm>
#include <boost/asio.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int THREADS = 4;
// Prime: no buffer's size is a multiple of it.
constexpr std::size_t PERIOD = 65521;

static void expect(const error_code &error, const char *what) {
    if (error) {
        std::fprintf(stderr, "%s: %s\n", what, error.message().c_str());
        std::exit(1);
    }
}

static void run(asio::io_context &context) {
    std::vector<std::thread> threads;
    for (int i = 0; i < THREADS; i++)
        threads.emplace_back([&context] { context.run(); });
    for (auto &thread : threads)
        thread.join();
}

struct Echo : std::enable_shared_from_this<Echo> {
    tcp::socket client;
    std::vector<char> buffer = std::vector<char>(50000);

    explicit Echo(tcp::socket &&socket) : client(std::move(socket)) {}

    void read() {
        auto self = shared_from_this();
        client.async_read_some(asio::buffer(buffer), [this, self](error_code error, std::size_t n) {
            if (error == asio::error::eof)
                return;
            expect(error, "read");
            asio::async_write(client, asio::buffer(buffer, n),
                              [this, self](error_code failed, std::size_t) {
                                  expect(failed, "write");
                                  read();
                              });
        });
    }
};

static void accept(tcp::acceptor &acceptor, int connections) {
    acceptor.async_accept([&acceptor, connections](error_code error, tcp::socket client) {
        expect(error, "accept");
        std::make_shared<Echo>(std::move(client))->read();
        if (connections > 1)
            accept(acceptor, connections - 1);
        else
            acceptor.close();
    });
}

static void serve(unsigned short port, int connections) {
    asio::io_context context;
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), port});
    accept(acceptor, connections);
    run(context);
}

struct Client {
    asio::io_context context;
    tcp::socket server{context};
    std::string content, echoed;
    std::vector<char> buffer = std::vector<char>(1 << 16);
    std::size_t sent = 0, chunk = 1;

    void send() {
        if (sent == content.size())
            return server.shutdown(tcp::socket::shutdown_send);
        auto piece = asio::buffer(&content[sent], std::min(chunk, content.size() - sent));
        asio::async_write(server, piece, [this](error_code error, std::size_t n) {
            expect(error, "write");
            sent += n;
            chunk = chunk * 3 % 70001 + 1;
            send();
        });
    }

    void receive() {
        server.async_read_some(asio::buffer(buffer), [this](error_code error, std::size_t n) {
            if (error == asio::error::eof)
                return;
            expect(error, "read");
            // A byte there and back, after which both ends know what carries the rest.
            if (echoed.empty())
                send();
            echoed.append(buffer.data(), n);
            receive();
        });
    }

    void run_all(unsigned short port, std::size_t length) {
        for (std::size_t i = 0; i < length; i++)
            content.push_back(char(i % PERIOD ^ i % PERIOD >> 8));
        server.connect({asio::ip::address_v4::loopback(), port});
        asio::write(server, asio::buffer(&content[0], sent = 1));
        receive();
        run(context);
        if (echoed != content) {
            std::fprintf(stderr, "%zu bytes are not the %zu sent\n", echoed.size(), length);
            std::exit(1);
        }
        std::printf("echoed %zu\n", length);
    }
};

int main(int, char **words) {
    auto port = static_cast<unsigned short>(std::atoi(words[2]));
    if (words[1] == std::string("serve"))
        serve(port, std::atoi(words[3]));
    else
        Client().run_all(port, std::strtoul(words[3], nullptr, 10));
}
