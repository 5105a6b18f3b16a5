/*
 * The least that a hop between two processes costs: one writes to a TCP connection, the other one
 * waits for it (epoll) and reads it by one call. Prints the median delay in microseconds.
 *
 * stream_hop COUNT SIZE PAUSE_US
 */
#include "plain.h"
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static int compare(const void *one, const void *other)
{
	uint64_t first = *(const uint64_t *)one, second = *(const uint64_t *)other;

	return (first > second) - (first < second);
}

static void produce(struct sockaddr_in to, long count, size_t size, long pause)
{
	struct timespec time = { .tv_nsec = pause * 1000 };
	char *bytes = calloc(1, size);
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	REQUIRE(!connect(fd, (struct sockaddr *)&to, sizeof to));
	REQUIRE(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
	for (long i = 0; i < count; i++) {
		uint64_t stamp;

		nanosleep(&time, NULL);
		stamp = now();
		memcpy(bytes, &stamp, sizeof stamp);
		REQUIRE(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct epoll_event event = { .events = EPOLLIN };
	long count = argc > 3 ? atol(argv[1]) : 0, size = argc > 3 ? atol(argv[2]) : 0, taken = 0;
	int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0), fd;
	uint64_t *delays = calloc(count, sizeof *delays), stamp;
	char *bytes = calloc(1, size);

	REQUIRE(count > 0 && size >= (long)sizeof stamp);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	REQUIRE(!bind(listener, (struct sockaddr *)&address, sizeof address));
	REQUIRE(!listen(listener, 1));
	REQUIRE(!getsockname(listener, (struct sockaddr *)&address, &(socklen_t){ sizeof address }));
	if (!fork())
		produce(address, count, size, atol(argv[3]));
	REQUIRE((fd = accept(listener, NULL, NULL)) >= 0);
	REQUIRE(!epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	while (taken < count) {
		REQUIRE(epoll_wait(epoll, &event, 1, -1) == 1);
		REQUIRE(recv(fd, bytes, size, MSG_WAITALL) == size);
		memcpy(&stamp, bytes, sizeof stamp);
		delays[taken++] = now() - stamp;
	}
	qsort(delays, count, sizeof *delays, compare);
	printf("%.1f\n", delays[count / 2] / 1e3);
	wait(NULL);
	return 0;
}
