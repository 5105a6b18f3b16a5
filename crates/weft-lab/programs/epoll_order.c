/*
 * epoll reports connections in the order in which bytes arrived for them.
 *
 *   epoll_order serve PORT
 *   epoll_order connect PORT
 *
 * In each round the client sends a byte on each connection in a random order, and then sends this
 * order over a further connection. Only then does the server call epoll_wait, and compares both
 * orders: the kernel reports connections in the order in which they became ready. In some rounds
 * the server asks for one event at a time, in some it waits edge-triggered. The client prints
 * "in order N".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 24, ROUNDS = 200 };

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (%s)\n", strerror(errno));
	exit(1);
}

static struct sockaddr_in address_of(const char *port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((uint16_t)atoi(port)),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void transmit(int fd, const void *bytes, size_t length)
{
	if (send(fd, bytes, length, MSG_NOSIGNAL) != (ssize_t)length)
		die("send");
}

static void receive(int fd, void *bytes, size_t length)
{
	if (recv(fd, bytes, length, MSG_WAITALL) != (ssize_t)length)
		die("recv");
}

static void watch(int epoll, int operation, int fd, int number, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u32 = (uint32_t)number };

	if (epoll_ctl(epoll, operation, fd, &event))
		die("epoll_ctl");
}

static void serve(const char *port)
{
	int fds[CONNECTIONS], epoll = epoll_create1(0), on = 1, control;
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = address_of(port);
	struct epoll_event events[CONNECTIONS];
	unsigned char order[CONNECTIONS], byte;

	setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listening, (void *)&address, sizeof address) || listen(listening, 64))
		die("listen");
	control = accept(listening, NULL, NULL);
	for (int i = 0; i < CONNECTIONS; i++) {
		fds[i] = accept(listening, NULL, NULL);
		if (fds[i] < 0)
			die("accept");
		watch(epoll, EPOLL_CTL_ADD, fds[i], i, EPOLLIN);
	}
	for (int round = 0; round < ROUNDS; round++) {
		int at_once = round & 1 ? 1 : CONNECTIONS, count;

		// This removes the connections of the previous round from the kernel's ready list.
		if (epoll_wait(epoll, events, CONNECTIONS, 0))
			die("ready without a byte");
		for (int i = 0; i < CONNECTIONS; i++)
			watch(epoll, EPOLL_CTL_MOD, fds[i], i, EPOLLIN | (round & 2 ? EPOLLET : 0));
		transmit(control, "?", 1);
		receive(control, order, sizeof order);
		for (int seen = 0; seen < CONNECTIONS; seen += count) {
			count = epoll_wait(epoll, events, at_once, -1);
			if (count < 1)
				die("epoll_wait");
			for (int i = 0; i < count; i++) {
				if (events[i].data.u32 != order[seen + i])
					die("round %d: %u. is %u, was sent as %u.", round, seen + i,
					    events[i].data.u32, order[seen + i]);
				receive(fds[events[i].data.u32], &byte, 1);
			}
		}
	}
	transmit(control, ".", 1);
}

static int connect_to(const char *port)
{
	struct sockaddr_in address = address_of(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (fd < 0 || connect(fd, (void *)&address, sizeof address))
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return fd;
}

static void converse(const char *port)
{
	int fds[CONNECTIONS], control = connect_to(port), rounds = 0;
	unsigned char order[CONNECTIONS];
	char request;

	for (int i = 0; i < CONNECTIONS; i++) {
		fds[i] = connect_to(port);
		order[i] = (unsigned char)i;
	}
	srand(7);
	for (;; rounds++) {
		receive(control, &request, 1);
		if (request == '.')
			break;
		for (int i = CONNECTIONS - 1; i > 0; i--) {
			int other = rand() % (i + 1);
			unsigned char here = order[i];

			order[i] = order[other];
			order[other] = here;
		}
		for (int i = 0; i < CONNECTIONS; i++)
			transmit(fds[order[i]], "x", 1);
		transmit(control, order, sizeof order);
	}
	printf("in order %d\n", rounds);
}

int main(int count, char **words)
{
	if (count != 3)
		die("usage: order serve|connect PORT");
	if (!strcmp(words[1], "serve"))
		serve(words[2]);
	else
		converse(words[2]);
	return 0;
}
