/* Functions that programs without RDMA share: a check, a call by hand, a connection. */
#ifndef PLAIN_H
#define PLAIN_H

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition,                 \
				strerror(errno));                                                  \
			_exit(2);                                                                  \
		}                                                                                  \
	} while (0)

/* A system call without arguments by an instruction of the program's own. */
static inline long by_hand(long number)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number) : "rcx", "r11", "memory");
	return result;
}

/* Makes a connection with itself, and sends a byte each way ten times, so that it moves to memory
 * if it can. A thread's function, too. */
static inline void *use_a_connection(void *argument)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t len = sizeof address;
	int listener, near, remote;
	char byte = 'w';

	REQUIRE((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	REQUIRE(!bind(listener, (struct sockaddr *)&address, sizeof address));
	REQUIRE(!listen(listener, 1));
	REQUIRE(!getsockname(listener, (struct sockaddr *)&address, &len));
	REQUIRE((near = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	REQUIRE(!connect(near, (struct sockaddr *)&address, sizeof address));
	REQUIRE((remote = accept(listener, NULL, NULL)) >= 0);
	for (int i = 0; i < 10; i++) {
		REQUIRE(send(near, &byte, 1, 0) == 1 && recv(remote, &byte, 1, 0) == 1);
		REQUIRE(send(remote, &byte, 1, 0) == 1 && recv(near, &byte, 1, 0) == 1);
	}
	close(near);
	close(remote);
	close(listener);
	return argument;
}

#endif
