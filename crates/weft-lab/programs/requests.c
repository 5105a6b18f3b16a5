/* Connections of a few requests each, one connection after the other.
 *
 *     requests serve PORT             answers requests, with epoll, until it is ended
 *     requests load PORT EACH MS      makes connections of EACH requests for MS milliseconds, and
 *                                     prints "per second RATE requests COUNT"
 */
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include "plain.h"

#define REQUEST_LEN 64

static struct sockaddr_in address_of(const char *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static void send_at_once(int fd)
{
	int one = 1;

	REQUIRE(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
}

static void watch(int epoll, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	REQUIRE(!epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

static void answer(int fd)
{
	char request[REQUEST_LEN];
	ssize_t len = recv(fd, request, sizeof request, 0);

	if (len > 0)
		REQUIRE(send(fd, request, len, MSG_NOSIGNAL) == len);
	else
		close(fd);
}

static void serve(struct sockaddr_in address)
{
	int listener, epoll, fd, count, one = 1;
	struct epoll_event events[64];

	REQUIRE((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	REQUIRE(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
	REQUIRE(!bind(listener, (struct sockaddr *)&address, sizeof address));
	REQUIRE(!listen(listener, 512));
	REQUIRE((epoll = epoll_create1(0)) >= 0);
	watch(epoll, listener);
	for (;;) {
		REQUIRE((count = epoll_wait(epoll, events, 64, -1)) >= 0);
		for (int i = 0; i < count; i++) {
			if (events[i].data.fd != listener) {
				answer(events[i].data.fd);
			} else if ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
				send_at_once(fd);
				watch(epoll, fd);
			}
		}
	}
}

static void ask(int fd)
{
	char request[REQUEST_LEN] = "request", reply[REQUEST_LEN];
	ssize_t done = 0, more;

	REQUIRE(send(fd, request, sizeof request, MSG_NOSIGNAL) == sizeof request);
	for (; done < REQUEST_LEN; done += more)
		REQUIRE((more = recv(fd, reply + done, REQUEST_LEN - done, 0)) > 0);
	REQUIRE(!memcmp(request, reply, REQUEST_LEN));
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void load(struct sockaddr_in address, int each, double time)
{
	double start = seconds(), taken;
	long requests = 0;
	int fd;

	do {
		REQUIRE((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
		REQUIRE(!connect(fd, (struct sockaddr *)&address, sizeof address));
		send_at_once(fd);
		for (int i = 0; i < each; i++, requests++)
			ask(fd);
		close(fd);
		taken = seconds() - start;
	} while (taken < time);
	printf("per second %.1f requests %ld\n", requests / taken, requests);
}

int main(int count, char **arguments)
{
	if (count == 3 && !strcmp(arguments[1], "serve"))
		serve(address_of(arguments[2]));
	REQUIRE(count == 5 && !strcmp(arguments[1], "load"));
	load(address_of(arguments[2]), atoi(arguments[3]), atof(arguments[4]) / 1e3);
	return 0;
}
