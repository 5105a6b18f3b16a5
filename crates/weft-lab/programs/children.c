/*
 * Two programs with many connections between them. Both start children, which inherit these.
 *
 *   children serve PORT WAY
 *   children connect PORT WAY
 *
 * Each message has the numbers of its connection and of its round, so that the client detects an
 * answer of another connection. In each round the client starts a child, closes one connection and
 * opens a new one. The server's threads also start children. The children do not use the
 * connections. At the end the client prints "answered N" and makes the server end.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 16, ROUNDS = 24, MESSAGE_WORDS = 32, CHILD_EVERY = 24 };

struct message {
	uint64_t words[MESSAGE_WORDS];
};

extern char **environ;
static const char *way;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (%s)\n", strerror(errno));
	_exit(1);
}

static void reap(pid_t child)
{
	int status;

	if (child < 0)
		die("no child");
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid");
	if (status)
		die("the child ended with %d", status);
}

/* Starts a child in the given way, and waits for its end. */
static void start_child(void)
{
	char *words[] = { "true", NULL }, line[8];
	pid_t child;

	if (!strcmp(way, "system")) {
		if (system("true"))
			die("system");
	} else if (!strcmp(way, "is-there-a-shell")) {
		if (!system(NULL))
			die("system");
	} else if (!strcmp(way, "popen")) {
		FILE *child_output = popen("echo here", "r");

		if (!child_output || !fgets(line, sizeof line, child_output))
			die("popen");
		if (strcmp(line, "here\n") || pclose(child_output))
			die("pclose");
	} else if (!strcmp(way, "posix_spawn")) {
		if (posix_spawnp(&child, "true", NULL, NULL, words, environ))
			die("posix_spawn");
		reap(child);
	} else if (!strcmp(way, "vfork")) {
		child = vfork();
		if (!child) {
			execvp("true", words);
			_exit(1);
		}
		reap(child);
	} else if (!strcmp(way, "fork")) {
		child = fork();
		if (!child) {
			execvp("true", words);
			_exit(1);
		}
		reap(child);
	} else if (!strcmp(way, "fork-exit")) {
		child = fork();
		if (!child)
			_exit(0);
		reap(child);
	} else {
		die("no such way: %s", way);
	}
}

/* Receives a whole message and returns true, or returns false at EOF. */
static int receive(int fd, struct message *message)
{
	ssize_t got = recv(fd, message, sizeof *message, MSG_WAITALL);

	if (got && got != sizeof *message)
		die("%zd bytes", got);
	return got != 0;
}

static void transmit(int fd, const struct message *message)
{
	if (send(fd, message, sizeof *message, MSG_NOSIGNAL) != sizeof *message)
		die("send");
}

static void *echo(void *argument)
{
	int fd = (int)(intptr_t)argument;
	struct message message;
	int count = 0;

	while (receive(fd, &message)) {
		if (++count % CHILD_EVERY == 0)
			start_child();
		transmit(fd, &message);
	}
	close(fd);
	return NULL;
}

static struct sockaddr_in address_of(const char *port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((uint16_t)atoi(port)),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void serve(const char *port)
{
	pthread_t threads[CONNECTIONS + ROUNDS];
	struct sockaddr_in address = address_of(port);
	int listening = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listening, (void *)&address, sizeof address) || listen(listening, 64))
		die("listen");
	for (int i = 0; i < CONNECTIONS + ROUNDS; i++) {
		int fd = accept(listening, NULL, NULL);

		if (fd < 0)
			die("accept");
		pthread_create(&threads[i], NULL, echo, (void *)(intptr_t)fd);
	}
	for (int i = 0; i < CONNECTIONS + ROUNDS; i++)
		pthread_join(threads[i], NULL);
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

static void ask(int fd, int connection, int round)
{
	struct message sent, answer;

	for (int i = 0; i < MESSAGE_WORDS; i++)
		sent.words[i] = (uint64_t)connection << 40 | (uint64_t)round << 16 | i;
	transmit(fd, &sent);
	if (!receive(fd, &answer))
		die("connection %d ended in round %d", connection, round);
	if (memcmp(&sent, &answer, sizeof sent))
		die("connection %d, round %d: the answer is connection %d's, round %d",
		    connection, round, (int)(answer.words[0] >> 40),
		    (int)(answer.words[0] >> 16 & 0xffffff));
}

static void converse(const char *port)
{
	int fds[CONNECTIONS], answered = 0;

	for (int i = 0; i < CONNECTIONS; i++)
		fds[i] = connect_to(port);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < CONNECTIONS; i++, answered += 2) {
			ask(fds[i], i, 2 * round);
			if (i == round % CONNECTIONS)
				start_child();
			ask(fds[i], i, 2 * round + 1);
		}
		close(fds[round % CONNECTIONS]);
		fds[round % CONNECTIONS] = connect_to(port);
	}
	for (int i = 0; i < CONNECTIONS; i++)
		close(fds[i]);
	printf("answered %d\n", answered);
}

int main(int count, char **words)
{
	if (count != 4)
		die("usage: children serve|connect PORT WAY");
	way = words[3];
	if (!strcmp(words[1], "serve"))
		serve(words[2]);
	else
		converse(words[2]);
	return 0;
}
