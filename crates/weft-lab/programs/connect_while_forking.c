/*
 * Connections that begin and end while the process starts children.
 *
 *   connect_while_forking WAY      fork-exit, posix_spawn, system or popen
 *
 * Three threads of one process connect to its own listener, which has a thread for each connection.
 * Two more threads start one child after the other; the children do not use the connections. Each
 * connection exchanges some messages. Then the client shuts down its side, and the server, which
 * has read everything, closes: the client must get an EOF and no reset. The program prints
 * "ended N".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPENERS = 3, PARENTS = 2, CONNECTIONS = 100, MESSAGES = 20, CHILDREN_AT_LEAST = 20 };

extern char **environ;
static const char *way;
static struct sockaddr_in address;
static int listener;
static atomic_int openers_at_work = OPENERS, ended;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "%s (%s)\n", what, strerror(errno));
	_exit(1);
}

static uint32_t answer_to(uint32_t message)
{
	return message ^ 0xabcd;
}

static void *serve(void *socket)
{
	int fd = (int)(intptr_t)socket;
	uint32_t message;

	while (recv(fd, &message, sizeof message, MSG_WAITALL) == sizeof message) {
		message = answer_to(message);
		if (write(fd, &message, sizeof message) != sizeof message)
			die("the server's write");
	}
	close(fd);
	return NULL;
}

static void start(pthread_t *thread, void *(*job)(void *), intptr_t argument)
{
	if (pthread_create(thread, NULL, job, (void *)argument))
		die("pthread_create");
}

static void *accept_all(void *none)
{
	pthread_t thread;
	int fd;

	(void)none;
	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		start(&thread, serve, fd);
		pthread_detach(thread);
	}
	die("accept");
}

static void connect_once(uint32_t first, int flags)
{
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
	uint32_t answer;

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
		die("connect");
	for (uint32_t message = first; message < first + MESSAGES; message++) {
		if (write(fd, &message, sizeof message) != sizeof message)
			die("write");
		if (recv(fd, &answer, sizeof answer, MSG_WAITALL) != sizeof answer)
			die("no answer");
		if (answer != answer_to(message))
			die("another's answer");
	}
	if (shutdown(fd, SHUT_WR))
		die("shutdown");
	if (read(fd, &answer, 1) != 0)
		die("the stream does not end");
	close(fd);
	ended++;
}

static void *open_some(void *number)
{
	uint32_t opener = (uint32_t)(intptr_t)number;

	for (uint32_t i = 0; i < CONNECTIONS; i++)
		connect_once((opener << 24) + i * MESSAGES, opener & 1 ? SOCK_CLOEXEC : 0);
	openers_at_work--;
	return NULL;
}

static void have_child(void)
{
	char *arguments[] = { "true", NULL };
	pid_t child = 0;
	int status = 0;
	FILE *output;

	if (!strcmp(way, "system")) {
		if (system("true"))
			die("system");
		return;
	}
	if (!strcmp(way, "popen")) {
		output = popen("true", "r");
		if (!output || pclose(output))
			die("popen");
		return;
	}
	if (!strcmp(way, "posix_spawn")) {
		if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ))
			die("posix_spawnp");
	} else {
		child = fork();
		if (!child)
			_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		die("a child");
}

static void *have_children(void *none)
{
	(void)none;
	for (int born = 0; openers_at_work > 0 || born < CHILDREN_AT_LEAST; born++)
		have_child();
	return NULL;
}

int main(int count, char **arguments)
{
	socklen_t len = sizeof address;
	pthread_t acceptor, threads[OPENERS + PARENTS];

	if (count != 2)
		return 2;
	way = arguments[1];
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, len) || listen(listener, 100)
	    || getsockname(listener, (struct sockaddr *)&address, &len))
		die("listen");
	start(&acceptor, accept_all, 0);
	for (int i = 0; i < OPENERS + PARENTS; i++)
		start(&threads[i], i < OPENERS ? open_some : have_children, i);
	for (int i = 0; i < OPENERS + PARENTS; i++)
		pthread_join(threads[i], NULL);
	printf("ended %d\n", ended);
	fflush(stdout);
	_exit(0);
}
