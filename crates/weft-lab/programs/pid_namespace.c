/*
 * Children in another PID namespace that write to their parent's connection at the same time.
 *
 *   pid_namespace
 *
 * Thread IDs of the children mean other threads in the parent's namespace. Weft must not take a
 * live holder of a lock for dead, or messages would mix. Bytes that were unread before the children
 * started must still be received first. The program prints "received N and N", or exits with 77 if
 * it may not create namespaces.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 2, MESSAGES = 20000, LENGTH = 20, WARM = 50, SKIPPED = 77 };

static const char UNREAD[] = "unread";

static void connect_both(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (void *)&address, &length) ||
	    connect(ends[0], (void *)&address, length))
		err(1, "connect");
	ends[1] = accept(listener, NULL, NULL);
	close(listener);
}

static void receive(int fd, char *bytes, size_t length)
{
	if (recv(fd, bytes, length, MSG_WAITALL) != (ssize_t)length)
		err(1, "recv");
}

/* Exchanges messages, so that both directions move to memory. */
static void exchange(const int ends[2])
{
	char bytes[LENGTH] = "";

	for (int round = 0; round < WARM; round++)
		for (int from = 0; from < 2; from++) {
			if (write(ends[from], bytes, LENGTH) != LENGTH)
				err(1, "write");
			receive(ends[1 - from], bytes, LENGTH);
		}
}

static void write_messages(int fd, char letter)
{
	char bytes[LENGTH];

	memset(bytes, letter, LENGTH);
	for (int at = 0; at < MESSAGES; at++)
		if (write(fd, bytes, LENGTH) != LENGTH)
			_exit(1);
}

int main(void)
{
	int ends[2], counts[CHILDREN] = { 0 };
	pid_t children[CHILDREN];
	char bytes[LENGTH];

	connect_both(ends);
	exchange(ends);
	if (write(ends[0], UNREAD, sizeof UNREAD) != sizeof UNREAD)
		err(1, "write");
	if (unshare(CLONE_NEWPID))
		return errno == EPERM ? SKIPPED : 1;
	for (int which = 0; which < CHILDREN; which++) {
		children[which] = fork();
		if (children[which] < 0)
			err(1, "fork");
		if (!children[which]) {
			write_messages(ends[0], (char)('A' + which));
			/* The end of the first child would end the whole namespace. */
			pause();
			_exit(0);
		}
	}
	receive(ends[1], bytes, sizeof UNREAD);
	if (memcmp(bytes, UNREAD, sizeof UNREAD))
		errx(1, "what was sent before the children is not first");
	for (int at = 0; at < CHILDREN * MESSAGES; at++) {
		receive(ends[1], bytes, LENGTH);
		for (int place = 1; place < LENGTH; place++)
			if (bytes[place] != bytes[0])
				errx(1, "messages are mixed");
		counts[bytes[0] - 'A']++;
	}
	for (int which = 0; which < CHILDREN; which++)
		kill(children[which], SIGKILL);
	printf("received %d and %d\n", counts[0], counts[1]);
	return 0;
}
