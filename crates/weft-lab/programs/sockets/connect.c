/* connect, accept and the errors between them. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include "calls.h"

static struct sockaddr_in listen_on_loopback(int *listener, int backlog)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;

	*listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(bind(*listener, (struct sockaddr *)&address, sizeof address), "bind");
	check(listen(*listener, backlog), "listen");
	check(getsockname(*listener, (struct sockaddr *)&address, &length), "getsockname");
	return address;
}

static void say_result(const char *what, long result)
{
	int error = errno;

	say("%s = %ld%s%s", what, result, result < 0 ? " " : "",
	    result < 0 ? strerrorname_np(error) : "");
}

static int new_socket(int flags)
{
	return check(socket(AF_INET, SOCK_STREAM | flags, 0), "socket");
}

static int connect_to(int socket, const struct sockaddr_in *address)
{
	return connect(socket, (const struct sockaddr *)address, sizeof *address);
}

static int connected_to(const struct sockaddr_in *address)
{
	int made = new_socket(0);

	check(connect_to(made, address), "connect");
	return made;
}

static void say_poll(const char *what, int fd, short events, int timeout)
{
	struct pollfd polled = { .fd = fd, .events = events };
	int result = poll(&polled, 1, timeout);

	say("%s: poll = %d%s%s%s%s%s", what, result, polled.revents & POLLIN ? " IN" : "",
	    polled.revents & POLLOUT ? " OUT" : "", polled.revents & POLLERR ? " ERR" : "",
	    polled.revents & POLLHUP ? " HUP" : "", polled.revents & POLLRDHUP ? " RDHUP" : "");
}

static void say_error(const char *what, int fd)
{
	int error = -1;
	socklen_t length = sizeof error;

	check(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), "SO_ERROR");
	say("%s: SO_ERROR %s", what, error ? strerrorname_np(error) : "none");
}

/* Uses both directions several times, so that the connection moves, and then ends both. */
static void converse(const char *what, int client, int server)
{
	char got[8] = "";
	int good = 0;

	for (int i = 0; i < 5; i++) {
		check(send(client, "ask", 3, 0), "send");
		good += recv(server, got, sizeof got, 0) == 3 && !memcmp(got, "ask", 3);
		check(send(server, "answer", 6, 0), "send");
		good += recv(client, got, sizeof got, 0) == 6 && !memcmp(got, "answer", 6);
	}
	say("%s: %d of 10 arrived", what, good);
	check(shutdown(client, SHUT_WR), "shutdown");
	say_result("server reads", recv(server, got, sizeof got, 0));
	check(close(server), "close");
	say_result("client reads", recv(client, got, sizeof got, 0));
	check(close(client), "close");
}

LONE_CASE(connect_blocking)
{
	int listener;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	int client = new_socket(0);

	say_result("connect", connect_to(client, &address));
	say_result("connect again", connect_to(client, &address));
	converse("blocking", client, check(accept(listener, NULL, NULL), "accept"));
	say_result("connect from a listener", connect_to(listener, &address));
}

LONE_CASE(connect_nonblocking)
{
	int listener;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	int client = new_socket(SOCK_NONBLOCK);
	char byte;

	say_result("connect", connect_to(client, &address));
	say_poll("client", client, POLLOUT | POLLIN, 1000);
	say_error("client", client);
	say_result("connect again", connect_to(client, &address));
	say_result("connect once more", connect_to(client, &address));
	say_result("recv", recv(client, &byte, 1, 0));
	fcntl(client, F_SETFL, 0);
	converse("nonblocking", client, check(accept(listener, NULL, NULL), "accept"));
}

/* A client with a blocking socket sends before the server has accepted. */
LONE_CASE(connect_then_send_at_once)
{
	int listener;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	int client = connected_to(&address), server;
	char got[16];

	say_result("send", send(client, "first", 5, 0));
	server = check(accept(listener, NULL, NULL), "accept");
	say_result("send", send(client, "second", 6, 0));
	say_result("recv", recv(server, got, 11, MSG_WAITALL));
	say("%.11s", got);
	converse("afterwards", client, server);
}

LONE_CASE(connect_closed_before_accept)
{
	int listener;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	int client = connected_to(&address), server;
	char got[16];

	check(send(client, "gone", 4, 0), "send");
	close(client);
	server = check(accept(listener, NULL, NULL), "accept");
	say_poll("server", server, POLLIN | POLLOUT | POLLRDHUP, 1000);
	say_result("recv", recv(server, got, sizeof got, 0));
	say_result("recv", recv(server, got, sizeof got, 0));
	say_result("send", send(server, "x", 1, MSG_NOSIGNAL));
	sleep_ms(settle_ms);
	say_result("send", send(server, "x", 1, MSG_NOSIGNAL));
	say_error("server", server);
}

LONE_CASE(connect_refused)
{
	int listener, client, nonblocking;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	char byte;

	close(listener);
	client = new_socket(0);
	say_result("connect", connect_to(client, &address));
	say_error("client", client);
	say_result("send", send(client, "x", 1, MSG_NOSIGNAL));
	say_result("recv", recv(client, &byte, 1, 0));
	say_poll("client", client, POLLOUT | POLLIN, 0);

	nonblocking = new_socket(SOCK_NONBLOCK);
	say_result("nonblocking connect", connect_to(nonblocking, &address));
	say_poll("nonblocking", nonblocking, POLLOUT | POLLIN, 1000);
	say_error("nonblocking", nonblocking);
	say_error("nonblocking", nonblocking);

	address = listen_on_loopback(&listener, 8);
	say_result("connect after all", connect_to(client, &address));
	converse("after all", client, check(accept(listener, NULL, NULL), "accept"));
}

LONE_CASE(connect_full_backlog)
{
	int listener, clients[2];
	struct sockaddr_in address = listen_on_loopback(&listener, 0);

	for (int i = 0; i < 2; i++) {
		clients[i] = new_socket(SOCK_NONBLOCK);
		say_result("connect", connect_to(clients[i], &address));
		say_poll("client", clients[i], POLLOUT, 20);
	}
	fcntl(clients[0], F_SETFL, 0);
	converse("first", clients[0], check(accept(listener, NULL, NULL), "accept"));
	/* The kernel sends the SYN again after a second. */
	say_poll("second", clients[1], POLLOUT, 3000);
	fcntl(clients[1], F_SETFL, 0);
	converse("second", clients[1], check(accept(listener, NULL, NULL), "accept"));
}

LONE_CASE(connect_unspec)
{
	int listener;
	struct sockaddr_in address = listen_on_loopback(&listener, 8), other;
	struct sockaddr_in nowhere = { .sin_family = AF_UNSPEC };
	socklen_t length = sizeof other;
	int client = connected_to(&address), server;
	char byte;

	server = check(accept(listener, NULL, NULL), "accept");
	for (int i = 0; i < 4; i++) {
		check(send(client, "x", 1, 0), "send");
		check(recv(server, &byte, 1, 0), "recv");
		check(send(server, "x", 1, 0), "send");
		check(recv(client, &byte, 1, 0), "recv");
	}
	say_result("connect to nowhere", connect_to(client, &nowhere));
	say_result("server reads", recv(server, &byte, 1, 0));
	say_result("client sends", send(client, "x", 1, MSG_NOSIGNAL));
	say_result("client reads", recv(client, &byte, 1, 0));
	say_result("peer", getpeername(client, (struct sockaddr *)&other, &length));
	close(server);
	say_result("connect", connect_to(client, &address));
	converse("again", client, check(accept(listener, NULL, NULL), "accept"));
}

LONE_CASE(connect_from_a_bound_port)
{
	int listener, one = 1;
	struct sockaddr_in address = listen_on_loopback(&listener, 8), own, seen;
	socklen_t length = sizeof own;

	for (int i = 0; i < 3; i++) {
		int client = new_socket(0), server;

		check(setsockopt(client, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), "REUSEADDR");
		own = (struct sockaddr_in){ .sin_family = AF_INET,
					    .sin_addr.s_addr = inet_addr("127.0.0.3") };
		check(bind(client, (struct sockaddr *)&own, sizeof own), "bind");
		say_result("connect", connect_to(client, &address));
		getsockname(client, (struct sockaddr *)&own, &length);
		server = check(accept(listener, (struct sockaddr *)&seen, &length), "accept");
		say("seen as %s, same port %d", inet_ntoa(seen.sin_addr),
		    seen.sin_port == own.sin_port);
		converse("bound", client, server);
	}
}

static void over(const char *what, const char *bound, const char *dialled)
{
	int listener = check(socket(AF_INET6, SOCK_STREAM, 0), "socket"), client, server, zero = 0;
	struct sockaddr_in6 address = { .sin6_family = AF_INET6 }, seen;
	socklen_t length = sizeof address;
	char text[INET6_ADDRSTRLEN];

	setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
	inet_pton(AF_INET6, bound, &address.sin6_addr);
	if (bind(listener, (struct sockaddr *)&address, sizeof address)) {
		say_result(what, -1);
		return;
	}
	check(listen(listener, 8), "listen");
	getsockname(listener, (struct sockaddr *)&address, &length);
	if (strchr(dialled, ':')) {
		inet_pton(AF_INET6, dialled, &address.sin6_addr);
		client = check(socket(AF_INET6, SOCK_STREAM, 0), "socket");
		say_result(what, connect(client, (struct sockaddr *)&address, sizeof address));
	} else {
		struct sockaddr_in four = { .sin_family = AF_INET,
					    .sin_port = address.sin6_port,
					    .sin_addr.s_addr = inet_addr(dialled) };

		client = new_socket(0);
		say_result(what, connect_to(client, &four));
	}
	server = check(accept(listener, (struct sockaddr *)&seen, &length), "accept");
	inet_ntop(AF_INET6, &seen.sin6_addr, text, sizeof text);
	say("seen as %s, length %u", text, length);
	converse(what, client, server);
	close(listener);
}

LONE_CASE(connect_ipv6)
{
	over("::1", "::1", "::1");
	over("any, ::1", "::", "::1");
	over("any, mapped", "::", "::ffff:127.0.0.1");
	over("any, IPv4", "::", "127.0.0.1");
}

LONE_CASE(connect_many_through_one_listener)
{
	int listener, clients[20], servers[20];
	struct sockaddr_in address = listen_on_loopback(&listener, 20);
	char byte;

	for (int i = 0; i < 20; i++) {
		clients[i] = connected_to(&address);
		servers[i] = check(accept(listener, NULL, NULL), "accept");
	}
	/* Each connection has another port, and bytes of the sockets must not be mixed up. */
	for (int round = 0; round < 5; round++)
		for (int i = 0; i < 20; i++) {
			char sent = i * 5 + round;

			check(send(clients[i], &sent, 1, 0), "send");
			check(recv(servers[i], &byte, 1, 0), "recv");
			check(send(servers[i], &byte, 1, 0), "send");
			if (recv(clients[i], &byte, 1, 0) != 1 || byte != sent)
				die("connection %d, round %d: %d", i, round, byte);
		}
	for (int i = 0; i < 20; i++) {
		close(clients[i]);
		say_result("server reads", recv(servers[i], &byte, 1, 0));
	}
}

LONE_CASE(connect_fast_open)
{
	int listener, client, server, queue = 5, one = 1;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	char got[16];

	setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue);
	client = new_socket(0);
	say_result("sendto", sendto(client, "first", 5, MSG_FASTOPEN, (struct sockaddr *)&address,
				    sizeof address));
	server = check(accept(listener, NULL, NULL), "accept");
	say_result("recv", recv(server, got, sizeof got, 0));
	converse("sendto", client, server);

	client = new_socket(0);
	say_result("option", setsockopt(client, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof one));
	say_result("connect", connect_to(client, &address));
	say_result("send", send(client, "second", 6, 0));
	server = check(accept(listener, NULL, NULL), "accept");
	say_result("recv", recv(server, got, sizeof got, 0));
	converse("option", client, server);
}

LONE_CASE(accept_variants)
{
	int listener, server;
	struct sockaddr_in address = listen_on_loopback(&listener, 8), seen;
	struct sockaddr_in6 large;
	socklen_t length = sizeof seen;
	int plain = new_socket(0);

	fcntl(listener, F_SETFL, O_NONBLOCK);
	say_result("accept from nobody", accept(listener, NULL, NULL));
	say_poll("listener", listener, POLLIN | POLLOUT, 0);
	int first = connected_to(&address);
	say_poll("listener", listener, POLLIN | POLLOUT, 1000);
	server = check(accept(listener, (struct sockaddr *)&seen, &length), "accept");
	say("address of %u, flags %#x, descriptor flags %#x", length, fcntl(server, F_GETFL),
	    fcntl(server, F_GETFD));
	converse("accept", first, server);

	int second = connected_to(&address);
	length = 4;
	server = check(accept4(listener, (struct sockaddr *)&seen, &length,
			       SOCK_NONBLOCK | SOCK_CLOEXEC), "accept4");
	say("address of %u, flags %#x, descriptor flags %#x", length, fcntl(server, F_GETFL),
	    fcntl(server, F_GETFD));
	say_result("recv", recv(server, &large, 1, 0));
	fcntl(server, F_SETFL, 0);
	converse("accept4", second, server);

	int third = connected_to(&address);
	say_result("wrong flags", accept4(listener, NULL, NULL, 1));
	length = sizeof large;
	server = check(accept4(listener, (struct sockaddr *)&large, &length, 0), "accept4");
	say("address of %u", length);
	converse("third", third, server);
	say_result("accept from no listener", accept(plain, NULL, NULL));
	say_result("accept from a closed one", accept(999, NULL, NULL));
	say_result("accept from a pipe", accept(memfd_create("file", 0), NULL, NULL));
	say_result("listen on a connected one", listen(connected_to(&address), 1));
}

LONE_CASE(accept_deferred)
{
	int listener, client, server, one = 1;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	char got[16];

	check(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &one, sizeof one), "DEFER");
	client = connected_to(&address);
	say_poll("without data", listener, POLLIN, 20);
	check(send(client, "here", 4, 0), "send");
	say_poll("with data", listener, POLLIN, 1000);
	server = check(accept(listener, NULL, NULL), "accept");
	say_result("recv", recv(server, got, sizeof got, 0));
	converse("deferred", client, server);
}

/* A server that closes its listener as soon as it has its client. */
LONE_CASE(accept_once)
{
	int listener;
	struct sockaddr_in address = listen_on_loopback(&listener, 8);
	int client = connected_to(&address), waiting = connected_to(&address), server;
	char byte;

	server = check(accept(listener, NULL, NULL), "accept");
	close(listener);
	say_poll("waiting", waiting, POLLIN | POLLOUT | POLLRDHUP, 1000);
	say_result("waiting one reads", recv(waiting, &byte, 1, 0));
	say_result("new one", connect_to(new_socket(0), &address));
	converse("once", client, server);
}

/* An accepted socket inherits options from its listener. */
LONE_CASE(accept_inherits_options)
{
	static const int OPTIONS[][2] = {
		{ SO_RCVLOWAT, 5 },
		{ SO_OOBINLINE, 1 },
		{ SO_SNDBUF, 4096 },
		{ SO_RCVBUF, 4096 },
	};
	static char block[1 << 16];

	for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++) {
		int listener, client, server, value = OPTIONS[i][1];
		struct sockaddr_in address = listen_on_loopback(&listener, 8);
		long sent, total = 0;
		char got[8];

		check(setsockopt(listener, SOL_SOCKET, OPTIONS[i][0], &value, sizeof value),
		      "setsockopt");
		client = connected_to(&address);
		server = check(accept(listener, NULL, NULL), "accept");
		for (int j = 0; j < 5; j++) {
			check(send(client, "asked", 5, 0), "send");
			check(recv(server, got, sizeof got, 0), "recv");
			check(send(server, "reply", 5, 0), "send");
			check(recv(client, got, sizeof got, 0), "recv");
		}
		check(send(client, "few", 3, 0), "send");
		say_poll("few", server, POLLIN, 20);
		check(send(client, "!", 1, MSG_OOB), "send");
		check(send(client, "rest", 4, 0), "send");
		sleep_ms(settle_ms);
		say_poll("more", server, POLLIN, 1000);
		say_result("recv", recv(server, block, sizeof block, MSG_DONTWAIT));
		while ((sent = send(server, block, sizeof block, MSG_DONTWAIT)) > 0)
			total += sent;
		say("%s", total < 100000 ? "bounded" : "unbounded");
		say_result("value at no address", setsockopt(client, SOL_SOCKET, OPTIONS[i][0],
							     (void *)8, sizeof value));
		say_result("value at no address", setsockopt(server, IPPROTO_TCP, TCP_NODELAY,
							     (void *)8, sizeof value));
		close(listener);
		close(client);
		close(server);
	}
}
