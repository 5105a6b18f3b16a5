// tuple_handoff PORT ROUNDS: measures a server of the Redis protocol. Prints the median time of an LPUSH, and that of a
// round of four operations of two clients that wait for one another (LPUSH, BLPOP), in microseconds.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int port, rounds;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int dial(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
	check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "TCP_NODELAY");
	return fd;
}

// Sends a command, and receives the reply, which ends with `end`.
static void ask(int fd, const char *command, const char *end)
{
	char reply[256];
	size_t length = 0, ending = strlen(end);
	check(write(fd, command, strlen(command)) == (ssize_t)strlen(command), "write");
	while (length < ending || memcmp(reply + length - ending, end, ending) != 0) {
		ssize_t got = read(fd, reply + length, sizeof reply - length);
		check(got > 0, "read");
		length += got;
	}
}

static const char *push_ping = "*3\r\n$5\r\nLPUSH\r\n$4\r\nping\r\n$1\r\nx\r\n";
static const char *push_pong = "*3\r\n$5\r\nLPUSH\r\n$4\r\npong\r\n$1\r\nx\r\n";
static const char *pop_ping = "*3\r\n$5\r\nBLPOP\r\n$4\r\nping\r\n$1\r\n0\r\n";
static const char *pop_pong = "*3\r\n$5\r\nBLPOP\r\n$4\r\npong\r\n$1\r\n0\r\n";

static void *partner(void *unused)
{
	int fd = dial();
	for (int round = 0; round < rounds; round++) {
		ask(fd, pop_ping, "$1\r\nx\r\n");
		ask(fd, push_pong, "\r\n");
	}
	close(fd);
	return unused;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

static double median(double *times)
{
	qsort(times, rounds, sizeof *times, compare);
	return times[rounds / 2];
}

int main(int count, char **arguments)
{
	pthread_t thread;
	if (count != 3)
		return 2;
	port = atoi(arguments[1]);
	rounds = atoi(arguments[2]);
	double *times = calloc(rounds, sizeof *times);
	int fd = dial();
	for (int round = 0; round < rounds; round++) {
		double start = now();
		ask(fd, "*3\r\n$5\r\nLPUSH\r\n$4\r\nmove\r\n$1\r\nx\r\n", "\r\n");
		times[round] = now() - start;
	}
	printf("move %.2f\n", median(times));
	check(pthread_create(&thread, NULL, partner, NULL) == 0, "pthread_create");
	for (int round = 0; round < rounds; round++) {
		double start = now();
		ask(fd, push_ping, "\r\n");
		ask(fd, pop_pong, "$1\r\nx\r\n");
		times[round] = now() - start;
	}
	pthread_join(thread, NULL);
	printf("round %.2f\n", median(times));
	return 0;
}
